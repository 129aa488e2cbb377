"""Reports what blocks the event loop, and for how long. It runs in a thread, because a blocked loop runs nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from time import monotonic, process_time
from typing import Any

from outrider.signals import LoopHeld, Signals
from outrider.worker.deadline import at_work, inherited

HELD = 1.0
"""Seconds that the loop may take to answer before the first report. The next ones follow after 2, 4, 8 times as many."""
FRAMEWORK = {"asyncio", "outrider", "uvloop"}


@contextmanager
def watching(signals: Signals) -> Iterator[None]:
    """Watch the running event loop until the block ends."""
    ended = threading.Event()
    watch = _Watch(asyncio.get_running_loop(), threading.get_ident(), signals, ended)
    threading.Thread(target=watch.run, name="outrider-watchdog", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int, signals: Signals, ended: threading.Event) -> None:
        self._loop = loop
        self._thread = thread
        self._signals = signals
        self._ended = ended

    def run(self) -> None:
        due = monotonic() + HELD / 2
        while (stopped := self._wait(self._ended, HELD / 2)) is not None:
            asked, patience = due + stopped, HELD
            # This thread could not run either. To ask the loop would let it go on, so the report comes first.
            if (held := monotonic() - asked) >= HELD:
                self._signals.emit(self._report(held))
                patience = 2 * held
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            self._await(answered, asked, patience)
            due = monotonic() + HELD / 2

    def _await(self, answered: threading.Event, asked: float, patience: float) -> None:
        while not self._ended.is_set():
            held = monotonic() - asked
            if held >= patience:
                patience = 2 * held
                report = self._report(held)
                if not answered.is_set():
                    self._signals.emit(report)
            elif (stopped := self._wait(answered, patience - held)) is None:
                return
            elif stopped:
                asked, patience = asked + stopped, HELD

    def _wait(self, event: threading.Event, seconds: float) -> float | None:
        """None if the event was set. Otherwise, for how many seconds the process was stopped.

        The wait ends late also if a call that keeps the interpreter lock blocks the loop. But a stopped process uses no CPU.
        """
        due, used = monotonic() + seconds, process_time()
        if event.wait(seconds):
            return None
        late = monotonic() - due
        return late if late > 3 * HELD and process_time() - used < late / 10 else 0.0

    def _report(self, held: float) -> LoopHeld:
        task = asyncio.current_task(self._loop)
        return LoopHeld(None if task is None else _name(task), held, self._where())

    def _where(self) -> str:
        """The line of the function that asyncio, or Outrider, has called."""
        frame = found = sys._current_frames().get(self._thread)
        while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] not in FRAMEWORK:
            found, frame = frame, frame.f_back
        return "" if found is None else f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"


def _name(task: asyncio.Task[Any]) -> str:
    """The handler or job that runs in this task, or that has started it; or the loop, which has the name of its handler."""
    return at_work(task) or context_of(task).get(inherited) or task.get_name().removeprefix("outrider ")


def context_of(task: asyncio.Task[Any]) -> Context:
    if sys.version_info >= (3, 12):
        return task.get_context()
    # The first one: a task that is awaited also refers to the context of whoever awaits it.
    return next(each for each in gc.get_referents(task) if isinstance(each, Context))
