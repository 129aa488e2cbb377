"""The last hour in numbers: one sample every 10 s, in memory. What was published before the first one comes from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.postgres.admin.status import Status

EVERY = timedelta(seconds=10)
HOUR = timedelta(hours=1)
STEPS = 60
"""Points of a chart."""


@dataclass(frozen=True, slots=True)
class Sample:
    at: datetime
    seq: int
    """The newest log position."""
    waiting: float | None = None
    """Seconds that the oldest event or job has waited that a worker could take. None: not known."""
    owed: int | None = None
    """Events that wait for a retry, and jobs that are pending or running."""
    dead: int | None = None

    @classmethod
    def of(cls, status: Status) -> Sample:
        since = min((each.waiting_since for each in status.subscriptions if each.waiting_since), default=None)
        return cls(
            status.read_at,
            status.seq,
            max(0.0, (status.read_at - since).total_seconds()) if since else 0.0,
            sum(each.waiting for each in status.subscriptions),
            sum(each.dead for each in status.subscriptions),
        )


@dataclass(frozen=True, slots=True)
class Point:
    at: datetime
    """The end of its interval."""
    value: float | None
    """None: not known."""


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def begin(self, published: Sequence[tuple[datetime, int]]) -> None:
        """Log positions at times of the last hour, the oldest first."""
        self._samples.extend(Sample(at, seq) for at, seq in published)

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

    def highest(self, value: Callable[[Sample], float | None]) -> list[Point]:
        """The highest value in each interval."""
        return [
            Point(end, max((known for each in found if (known := value(each)) is not None), default=None))
            for end, found in self._steps()
        ]

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
