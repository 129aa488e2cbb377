"""Reports what blocks the event loop, and for how long. It runs in a thread, because a blocked loop runs nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from outrider.signals import LoopHeld, Signals
from outrider.worker.deadline import at_work

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
        while not self._ended.wait(HELD / 2):
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            self._wait(answered)

    def _wait(self, answered: threading.Event) -> None:
        asked, patience = monotonic(), HELD
        while not answered.wait(patience) and not self._ended.is_set():
            held = monotonic() - asked
            if held > 4 * patience:  # this thread did not run either: the whole process was stopped
                asked, patience = monotonic(), HELD
                continue
            patience = held
            task = asyncio.current_task(self._loop)
            report = LoopHeld(None if task is None else at_work(task) or task.get_name(), held, self._where())
            if not answered.is_set():
                self._signals.emit(report)

    def _where(self) -> str:
        """The line of the function that asyncio, or Outrider, has called."""
        frame = found = sys._current_frames().get(self._thread)
        while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] not in FRAMEWORK:
            found, frame = frame, frame.f_back
        return "" if found is None else f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"
