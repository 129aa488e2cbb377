"""The last hour in numbers: the samples that workers have kept, one per minute, then one every 10 s in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.postgres.admin.activity import Sample

EVERY = timedelta(seconds=10)
HOUR = timedelta(hours=1)
STEPS = 60
"""Points of a chart."""


@dataclass(frozen=True, slots=True)
class Point:
    at: datetime
    """The end of its interval."""
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
        last: Sample | None = None
        points = []
        for end, found in self._steps():
            newest, rate = (found[-1] if found else None), None
            if newest is not None and last is not None and newest.at > last.at:
                rate = max(0, newest.seq - last.seq) / (newest.at - last.at).total_seconds()
            last = newest or last
            points.append(Point(end, rate))
        return points

    def highest(self, value: Callable[[Sample], float]) -> list[Point]:
        """The highest value in each interval."""
        return [Point(end, max(map(value, found), default=None)) for end, found in self._steps()]

    def _steps(self) -> list[tuple[datetime, Sequence[Sample]]]:
        if not self._samples:
            return []
        now, step = self._samples[-1].at, HOUR / STEPS
        steps: list[tuple[datetime, list[Sample]]] = [(now - step * (STEPS - 1 - n), []) for n in range(STEPS)]
        for each in self._samples:
            place = STEPS - 1 - int((now - each.at) / step)
            if place >= 0:
                steps[place][1].append(each)
        return list(steps)
