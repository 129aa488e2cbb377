"""The last hour in numbers: the samples that workers have kept, one per minute, then one every 10 s in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from outrider.postgres.admin.activity import Sample

EVERY = timedelta(seconds=10)
HOUR = timedelta(hours=1)
STEPS = 60
"""Points of a chart of an hour."""
SHORT = timedelta(minutes=10)
"""Of a history that is no longer, each sample is a point."""
REPORTS = timedelta(seconds=35)
"""Workers report every 10 s what they have handled: a rate is that of three reports."""
GAP = timedelta(minutes=2)
"""A sample says nothing about what was longer before it."""


@dataclass(frozen=True, slots=True)
class Point:
    since: datetime
    at: datetime
    """The interval."""
    value: float | None
    """None: not known."""


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def begin(self, samples: Sequence[Sample]) -> None:
        """With those of the last hour, the oldest first."""
        self._samples.extend(samples)

    def add(self, sample: Sample) -> None:
        if self._samples and sample.at - self._samples[-1].at < EVERY:
            return
        self._samples.append(sample)
        while self._samples[0].at < sample.at - HOUR - EVERY:
            self._samples.popleft()

    def published(self) -> list[Point]:
        """Log positions used per second."""
        return self._rates(lambda each: each.seq)

    def handled(self) -> list[Point]:
        """Events and jobs per second."""
        return self._rates(lambda each: each.handled, REPORTS)

    def failed(self) -> list[Point]:
        """Attempts per second."""
        return self._rates(lambda each: each.failed, REPORTS)

    def highest(self, value: Callable[[Sample], float]) -> list[Point]:
        """The highest value in each interval."""
        return [Point(since, at, max(map(value, found), default=None)) for since, at, found in self._steps()]

    def _rates(self, value: Callable[[Sample], int], over: timedelta = timedelta(0)) -> list[Point]:
        """How fast a number grows, compared with what it was `over` ago, or one point before. Not known when it shrinks:
        a worker has signed off with its counts."""
        before: deque[Sample] = deque()
        points = []
        for since, at, found in self._steps():
            newest, rate = (found[-1] if found else None), None
            while newest is not None and len(before) > 1 and newest.at - before[0].at > over:
                before.popleft()
            if newest is not None and before and newest.at > before[0].at:
                grown = value(newest) - value(before[0])
                rate = None if grown < 0 else grown / (newest.at - before[0].at).total_seconds()
            if newest is not None:
                before.append(newest)
            points.append(Point(since, at, rate))
        return points

    def _steps(self) -> list[tuple[datetime, datetime, Sequence[Sample]]]:
        if not self._samples:
            return []
        first, now = self._samples[0].at, self._samples[-1].at
        if now - first <= SHORT:
            after = [(max(one.at, two.at - GAP), two.at, (two,)) for one, two in pairwise(self._samples)]
            return [(first - EVERY, first, (self._samples[0],)), *after]
        step = HOUR / STEPS
        many = min(STEPS, int((now - first) / step) + 1)
        steps: list[list[Sample]] = [[] for _ in range(many)]
        for each in self._samples:
            place = many - 1 - int((now - each.at) / step)
            if place >= 0:
                steps[place].append(each)
        begin = now - step * many
        return [(begin + step * n, begin + step * (n + 1), found) for n, found in enumerate(steps)]
