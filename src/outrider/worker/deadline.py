"""The timeout of a handler or a job.

One timer for a whole batch cancels the task when the current handler has run too long: a timer per event would cost more
than a small handler. A job gets its timer when it first waits. What blocks the event loop cannot be cancelled; it fails when
it returns.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any, Self

CANCEL_AGAIN = 1.0
"""Seconds between two cancellations: a handler may swallow the first."""
inherited: ContextVar[str] = ContextVar("outrider_at_work", default="")
"""The name of the handler or job. The tasks that it starts inherit it."""
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
        self.expired = False
        """The timer has cancelled the task."""
        self.watched = False
        """The job has waited."""
        self._cancelled = 0
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.began = monotonic()
        _at_work[self.task] = self
        inherited.set(self.name)
        self._set_timer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _at_work.pop(self.task, None)
        inherited.set("")
        if self._timer is not None:
            self._timer.cancel()

    def restart(self, name: str, seconds: float | None) -> None:
        """The next job of the same task begins."""
        self.name, self.seconds, self.began = name, float("inf") if seconds is None else seconds, monotonic()

    def watch(self) -> None:
        """The job waits: cancel it when its time is up."""
        self.watched = True
        self._set_timer()

    def _set_timer(self) -> None:
        if self.seconds < float("inf"):
            self._timer = self._loop.call_later(self.began + self.seconds - monotonic(), self._look)

    @property
    def late(self) -> bool:
        """The time is up. Also true if the event loop was blocked, so that the timer could not run."""
        return self.expired or monotonic() > self.began + self.seconds

    def _look(self) -> None:
        left = self.began + self.seconds - monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self.expired = True
            self._cancelled += 1
            self._timer = self._loop.call_later(CANCEL_AGAIN, self._look)
            self.task.cancel()

    def error(self, what: str) -> TimeoutError:
        """The failure of a handler or job that has returned too late, or was cancelled."""
        if self.expired:
            return TimeoutError(f"the {what} did not return within {self.seconds:g} s")
        return TimeoutError(
            f"the {what} returned after {monotonic() - self.began:.3g} s, not within {self.seconds:g} s: it could not be "
            "cancelled, because the event loop was blocked"
        )

    def absorb(self) -> bool:
        """Take the timer's cancellations back. Returns whether there were any."""
        while self._cancelled:
            self._cancelled -= 1
            self.task.uncancel()
        return self.expired
