"""How a process that works until it is told to stop hears SIGTERM and SIGINT, and that it ends whatever holds it up."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)
HURRY = signal.SIGUSR2
"""From a parent to its processes: it was told a second time. They ignore a second SIGTERM, which systemd sends to each."""
PR_SET_PDEATHSIG = 1
LOOK = 1.0


@contextmanager
def obeying(
    first: Callable[[], None], again: Callable[[int], None], at_once: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The first signal calls `at_once` in place, then `first` on the event loop; the others call `again` in place. What is
    called in place is called also when the loop is stuck."""
    loop = asyncio.get_running_loop()
    told = False

    def hear(number: int) -> None:
        nonlocal told
        if told:
            again(number)
        else:
            told = True
            at_once()
            loop.call_soon_threadsafe(first)

    with hearing(ENDING, hear):
        yield


@contextmanager
def hearing(numbers: Sequence[signal.Signals], hear: Callable[[int], None]) -> Iterator[None]:
    before = {each: signal.signal(each, lambda number, _: hear(number)) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def leave(number: int) -> None:
    """At once: Postgres rolls back what was begun."""
    os._exit(128 + number)


def leave_after(seconds: float, code: int = 1) -> None:
    """For a handler that blocks the event loop, or one that does not let itself be cancelled."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def end_with(parent: int) -> None:
    """Linux sends this process a SIGTERM when its parent dies; it may have died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        raise SystemExit(1)


async def until_alone(parent: int) -> None:
    """Until the parent has died, on any system."""
    while os.getppid() == parent:  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(LOOK)
