"""One timer for a whole batch: cancels the task when the current handler has run too long.

A timer per event would cost more than a small handler.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Self

AGAIN = 1.0


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = 0.0
        """When the current handler began, by time.monotonic."""
        self.expired = False
        self._cancelled = 0
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.began = monotonic()
        self._timer = self._loop.call_later(self.seconds, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left = self.began + self.seconds - monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self.expired = True
            self._cancelled += 1
            self._timer = self._loop.call_later(AGAIN, self._look)  # it may swallow the first
            self._task.cancel()

    def absorb(self) -> bool:
        """Whether time was up; then our cancellations are taken back."""
        while self._cancelled and self._task is not None:
            self._cancelled -= 1
            self._task.uncancel()
        return self.expired
