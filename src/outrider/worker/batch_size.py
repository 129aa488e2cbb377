"""How many events to take at once: as many as can be handled within the budget, and no more than the limit."""

from __future__ import annotations

FIRST = 16
"""Events of the first batch."""
BUDGET = 0.25
"""Seconds that handling one batch should take. The batch grows and shrinks towards it."""


class Size:
    def __init__(self, limit: int, budget: float = BUDGET) -> None:
        self._limit = limit
        self._budget = budget
        self.now = min(FIRST, limit)

    def learn(self, events: int, seconds: float) -> None:
        """A batch of so many events took so long to handle."""
        if seconds > self._budget:
            self.now = max(1, min(self.now, int(events * self._budget / seconds)))
        elif events >= self.now and seconds * 2 <= self._budget:
            self.now = min(self._limit, self.now * 2)

    def shrink(self) -> None:
        """A batch failed: the next one should risk less work."""
        self.now = max(min(FIRST, self.now), self.now // 2)
