"""How a long-running process reacts to SIGTERM and SIGINT, and how it ends even if something blocks it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.worker.worker import Worker

ENDING = (signal.SIGTERM, signal.SIGINT)
HURRY = signal.SIGUSR2
"""A parent sends this to its processes after a second signal. They ignore a second SIGTERM: systemd sends it to each."""
PR_SET_PDEATHSIG = 1
LOOK = 1.0
"""Seconds between two checks whether the parent is alive."""
MARGIN = 10.0
"""Seconds after the grace time until the process exits, even if something blocks it."""
HURRIED = 3.0
"""Seconds after the second signal until the process exits, even if something blocks it."""


class StopSignals:
    """Reacts to SIGTERM and Ctrl-C: the first stops the worker, the second ends its grace time, the third the process."""

    def __init__(self, grace: float) -> None:
        self.worker: Worker | None = None
        self.stop = asyncio.Event()
        self.hurried: int | None = None
        """The number of the second signal, once it has come."""
        self._loop = asyncio.get_running_loop()
        self._grace = grace

    def listen(self, *, child: bool) -> ExitStack:
        stack = ExitStack()
        if child:
            # systemd signals every process of a service, beside the parent. So a child takes a second SIGTERM for the same.
            stack.enter_context(obeying(self.stop.set, lambda _: None, self.at_once))
            stack.enter_context(hearing([HURRY], self._hurry_at_once))
        else:
            stack.enter_context(obeying(self.stop.set, self._again, self.at_once))
        return stack

    def at_once(self) -> None:
        """Runs in the signal handler: the event loop may be blocked."""
        leave_after(self._grace + MARGIN)
        if self.worker is not None:
            self.worker.ignore_crashes()
            threading.Thread(target=_announce, args=[self.worker], daemon=True).start()

    def orphaned(self) -> None:
        self.at_once()
        self.stop.set()

    def _again(self, number: int) -> None:
        if self.hurried is not None or self.worker is None:
            leave(number)
        self.hurried = number
        leave_after(HURRIED, 128 + number)
        self._loop.call_soon_threadsafe(self._hurry)

    def _hurry_at_once(self, number: int) -> None:
        self.at_once()
        self._again(number)

    def _hurry(self) -> None:
        self.stop.set()
        if self.worker is not None:
            self.worker.hurry()


def _announce(worker: Worker) -> None:
    worker.announce()
    worker.excuse_handlers()


@contextmanager
def obeying(
    first: Callable[[], None], again: Callable[[int], None], at_once: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The first signal calls `at_once` in the signal handler, then `first` on the event loop. Later signals call `again` in
    the signal handler, which runs even when the event loop is blocked."""
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
    """Ends the process at once; Postgres rolls back open transactions."""
    os._exit(128 + number)


def leave_after(seconds: float, code: int = 1) -> None:
    """For handlers that block the event loop or ignore their cancellation."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def end_with(parent: int) -> None:
    """On Linux this process gets a SIGTERM when its parent dies. The parent may have died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        raise SystemExit(1)


async def until_alone(parent: int) -> None:
    """Returns when the parent has died, on any system."""
    while os.getppid() == parent:  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(LOOK)
