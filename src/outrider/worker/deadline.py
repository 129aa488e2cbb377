"""The timeout of a handler or a job.

One timer for a whole batch cancels the task when the current handler has run too long: a timer per event would cost more
than a small handler. A handler that blocks the event loop cannot be cancelled; it fails when it returns.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Any, Self

CANCEL_AGAIN = 1.0
"""Seconds between two cancellations: a handler may swallow the first."""
_at_work: dict[asyncio.Task[Any], Deadline] = {}


def at_work(task: asyncio.Task[Any]) -> str | None:
    """The handler or job that this task runs."""
    deadline = _at_work.get(task)
    return None if deadline is None else deadline.name


def longest() -> tuple[str, float] | None:
    """The handler, job or loop that has run longest in this process, and for how many seconds."""
    first = min(list(_at_work.values()), key=lambda each: each.began, default=None)
    return None if first is None else (first.name, monotonic() - first.began)


class Deadline:
    """`seconds` = None: no timeout."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self.name = name
        self.seconds = float("inf") if seconds is None else seconds
        self.began = 0.0
        """When the current handler began, by time.monotonic."""
        self._expired = False
        self._cancelled = 0
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.began = monotonic()
        if self._task is not None:
            _at_work[self._task] = self
        if self.seconds < float("inf"):
            self._timer = self._loop.call_later(self.seconds, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            _at_work.pop(self._task, None)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def late(self) -> bool:
        """The time is up. Also true if the event loop was blocked, so that the timer could not run."""
        return self._expired or monotonic() > self.began + self.seconds

    def _look(self) -> None:
        left = self.began + self.seconds - monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self._expired = True
            self._cancelled += 1
            self._timer = self._loop.call_later(CANCEL_AGAIN, self._look)
            self._task.cancel()

    def absorb(self) -> bool:
        """Take the timer's cancellations back. Returns whether there were any."""
        while self._cancelled and self._task is not None:
            self._cancelled -= 1
            self._task.uncancel()
        return self._expired
