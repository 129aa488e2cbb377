"""The listener that writes the log: a line per signal, and summaries of what succeeds.

At debug there is one line per signal, and one per event and job. At info those that succeed are only counted: each handler,
job, type and stream has a summary, at once for the first one and then at most one a minute.

The application decides where lines go and at which level: nothing is printed unless it has configured logging.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from outrider.observe.log_lines import FREQUENT, write_line, write_summary
from outrider.signals import (
    Choosy,
    Ingested,
    JobEnqueued,
    JobsCompleted,
    Published,
    Relayed,
    Settled,
    Signal,
    WorkerDown,
)

SUMMARY_SECONDS = 60.0
"""Seconds between two summaries of the same subject."""

_logger = logging.getLogger("outrider")

Subject = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Tally:
    """The counts of one subject since its last summary."""

    written_at: float
    since: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    latest: dict[str, Any] = field(default_factory=dict)
    slowest_ms: float | None = None


class LogListener(Choosy):
    """It has no timer: the first signal after a minute writes the summary. In a worker there is one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._tallies: dict[Subject, _Tally] = {}
        self._due = 0.0

    def wants(self, kind: type[Signal]) -> bool:
        return kind not in FREQUENT or _logger.isEnabledFor(logging.INFO)

    def __call__(self, signal: Signal) -> None:
        if _logger.isEnabledFor(logging.INFO):
            now = self._clock()
            for subject, counts, latest, slowest_ms in _counts_of(signal):
                self._count(subject, counts, latest, slowest_ms, now)
            if now >= self._due or isinstance(signal, WorkerDown):
                self._summarise(now, everything=isinstance(signal, WorkerDown))
        write_line(signal)

    def close(self) -> None:
        """Write all summaries that are not written yet."""
        self._summarise(self._clock(), everything=True)

    def _count(
        self, subject: Subject, counts: dict[str, int], latest: dict[str, Any], slowest_ms: float | None, now: float
    ) -> None:
        with self._lock:
            tally = self._tallies.setdefault(subject, _Tally(written_at=now - SUMMARY_SECONDS))
            if not tally.counts:
                tally.since = now
                self._due = min(self._due, tally.written_at + SUMMARY_SECONDS)
            for name, number in counts.items():
                tally.counts[name] = tally.counts.get(name, 0) + number
            tally.latest = latest
            if slowest_ms is not None:
                tally.slowest_ms = max(slowest_ms, tally.slowest_ms or 0.0)

    def _summarise(self, now: float, *, everything: bool) -> None:
        with self._lock:
            waiting = {subject: tally for subject, tally in self._tallies.items() if tally.counts}
            due = [
                subject for subject, tally in waiting.items() if everything or now >= tally.written_at + SUMMARY_SECONDS
            ]
            for subject in due:
                self._tallies[subject] = _Tally(written_at=now)
            later = (tally.written_at + SUMMARY_SECONDS for subject, tally in waiting.items() if subject not in due)
            self._due = min(later, default=float("inf"))
        for subject in due:
            tally = waiting[subject]
            slowest = {} if tally.slowest_ms is None else {"slowest_ms": round(tally.slowest_ms, 3)}
            write_summary(
                **dict(subject),
                **tally.counts,
                **slowest,
                **tally.latest,
                over_s=round(now - tally.since, 1),
            )


def _counts_of(signal: Signal) -> Iterator[tuple[Subject, dict[str, int], dict[str, Any], float | None]]:
    """What a signal adds to a summary: the subject, the counts, fields of which the latest is shown, and milliseconds."""
    match signal:
        case Published(envelope):
            yield (("event_type", envelope.event_type),), {"published": 1}, {}, None
        case Settled(subscription, _, events, duplicates, duration_ms, _):
            if events or duplicates:
                counts = {"handled": events, "batches": 1} | ({"duplicates": duplicates} if duplicates else {})
                yield (("handler_name", subscription),), counts, {}, duration_ms
        case JobEnqueued(job_type, _, _, _):
            yield (("job_type", job_type),), {"enqueued": 1}, {}, None
        case JobsCompleted(_, details):
            for run, duration_ms in details():
                yield (("handler_name", run.subscription),), {"completed": 1}, {}, duration_ms
        case Relayed(relay, stream, events, position, _):
            yield (("subscription", relay), ("stream", stream)), {"relayed": events}, {"position": position}, None
        case Ingested(inbox, stream, events, known, refused, position):
            counts = {"ingested": events, "known": known, "refused": refused}
            yield (("subscription", inbox), ("stream", stream)), counts, {"position": position}, None
        case _:
            pass
