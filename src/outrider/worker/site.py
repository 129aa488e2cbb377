"""What all parts of a worker share: its database, settings, signals and times."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.config import Settings
from outrider.postgres.pool import Pool
from outrider.signals import Signals

GRACE = 30.0
"""Seconds for running handlers and jobs to finish after a stop."""
SLOTS = 10
"""Jobs that a worker runs at the same time, unless told otherwise."""
HEARTBEAT = 10.0
"""Seconds between two heartbeats."""
FOLD_AFTER = 60.0
"""Seconds without a worker after which a generation is folded. A worker that restarts takes less time."""


@dataclass(frozen=True, slots=True)
class Site:
    dsn: str
    pool: Pool
    settings: Settings
    signals: Signals


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """In seconds."""

    grace: float = GRACE
    heartbeat: float = HEARTBEAT
    fold_after: float = FOLD_AFTER
