"""The metrics: every name, what it counts and by which labels. Prometheus and OpenTelemetry get the same.

Labels are bounded: event types, names that an app declares, codes of errors. No id and no tenant is one. What comes from the
log is of anybody who may publish: of such labels the first KEPT values are told apart, the others are OTHER.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
KEPT, OTHER = 200, "other"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    foreign: frozenset[str] = frozenset()
    """Labels whose values come from the log."""

    @property
    def exposed(self) -> str:
        """As Prometheus writes it; a histogram has its own endings."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


# What this process does
published = Metric(
    "outrider_published",
    "counter",
    ("type",),
    "Events appended here; their transactions may roll back.",
    frozenset({"type"}),
)
settled = Metric(
    "outrider_settled_seconds",
    "histogram",
    ("type", "subscription"),
    "From publishing an event to the commit of its handler.",
    frozenset({"type"}),
)
handling = Metric("outrider_handling_seconds", "histogram", ("type",), "How long a handler or a job ran, by its name.")
claimed = Metric("outrider_claimed", "counter", ("type", "worker"), "Jobs that a worker has taken for its own.")
completed = Metric(
    "outrider_completed",
    "counter",
    ("type", "status"),
    "Attempts by a handler or a job, by its name: success, failed, dead.",
)
troubled = Metric(
    "outrider_troubled", "counter", ("type",), "Batches that were rolled back, and come again, by no fault of theirs."
)
enqueued = Metric("outrider_enqueued", "counter", ("type",), "Jobs enqueued here; their transactions may roll back.")
renewals = Metric("outrider_lease_renewals", "counter", ("result",), "Leases of jobs: renewed, lost.")
notifications = Metric(
    "outrider_notifications", "counter", ("channel",), "Notifications received.", frozenset({"channel"})
)
polls = Metric("outrider_polls", "counter", (), "Looks at the log because time was up.")
listener_up = Metric("outrider_listener_up", "gauge", (), "1 while notifications arrive, 0 while polling covers.")
relayed = Metric(
    "outrider_relayed",
    "counter",
    ("topic",),
    "Events that were sent to a stream, and committed.",
    frozenset({"topic"}),
)
publish_failures = Metric(
    "outrider_publish_failures",
    "counter",
    ("topic", "reason"),
    "Rejections of an event by the broker or the codec. Severity: page. What is behind it waits, or it is dead.",
    frozenset({"topic", "reason"}),
)
hwm = Metric(
    "outrider_relay_hwm",
    "gauge",
    ("stream",),
    "Up to where a stream is written: the milliseconds of a Redis id, the sequence of JetStream.",
    frozenset({"stream"}),
)
ingested = Metric("outrider_ingested", "counter", ("inbox",), "Events that came in and were new.")
ingest_refused = Metric(
    "outrider_ingest_refused",
    "counter",
    ("inbox",),
    "Entries that an inbox could not make events of. Severity: page. They are kept.",
)
broker_up = Metric(
    "outrider_broker_up",
    "gauge",
    ("subscription",),
    "1 when the broker of a relay or inbox answered last, 0 when it did not.",
)
rolled_up = Metric(
    "outrider_rolled_up", "counter", ("rollup", "kind"), "Events that a rollup emitted here: rollup, single."
)
rollup_errors = Metric(
    "outrider_rollup_errors", "counter", ("rollup",), "Ticks that failed or set rows aside. Severity: page."
)
upkept = Metric(
    "outrider_upkept",
    "counter",
    ("action",),
    "What upkeep did here: made, cut, detached, dropped, expired, reaped, ticked; or could not: kept, busy.",
)
# What the database says, looked at every few seconds
database_up = Metric(
    "outrider_database_up", "gauge", (), "1 when the database answered this process last, 0 when it did not."
)
depth = Metric(
    "outrider_depth",
    "gauge",
    ("type",),
    "Numbers of the log that a subscription has not passed; jobs that wait or run, up to 10,000.",
)
parked = Metric(
    "outrider_parked", "gauge", ("type",), "Events that wait for their retry or behind one that does, up to 10,000."
)
lag = Metric(
    "outrider_lag_seconds",
    "gauge",
    ("type",),
    "How old the oldest event is that a subscription owes, or its oldest due job.",
)
overdue = Metric(
    "outrider_overdue_seconds",
    "gauge",
    ("type",),
    "How long the oldest has waited that could be handled now; 0 of a reader, and while it is paused. Severity: page.",
)
paused = Metric("outrider_paused", "gauge", ("type",), "1 while a subscription is paused, alone or with all, else 0.")
dead_letters = Metric("outrider_dead_letters", "gauge", ("type",), "Dead letters, up to 10,000.")
oldest_owed = Metric("outrider_oldest_owed_seconds", "gauge", (), "The greatest of all lags.")
workers = Metric("outrider_workers", "gauge", (), "Workers that were seen within the last 30 s.")
notify_queue = Metric(
    "outrider_notify_queue_usage",
    "gauge",
    (),
    "How full the queue of notifications is: from 0.9 on Outrider sends none, and workers poll.",
)
dead_tuples = Metric("outrider_dead_tuples", "gauge", ("table",), "Dead rows that vacuum has not removed.")
rollup_pending = Metric("outrider_rollup_pending", "gauge", ("rollup",), "Staged rows that wait, up to 10,000.")
rollup_overdue = Metric(
    "outrider_rollup_overdue_seconds",
    "gauge",
    ("rollup",),
    "How much longer than its max_wait the oldest staged row has waited, or 0.",
)
rollup_failed = Metric(
    "outrider_rollup_failed",
    "gauge",
    ("rollup",),
    "1 when the last tick that had something to do failed, whoever ticked, else 0. Severity: page.",
)
rollup_set_aside = Metric(
    "outrider_rollup_set_aside", "gauge", ("rollup",), "Staged rows that no event could be made of. Severity: page."
)

STATE = (
    database_up,
    depth,
    parked,
    lag,
    overdue,
    paused,
    dead_letters,
    oldest_owed,
    workers,
    notify_queue,
    dead_tuples,
    rollup_pending,
    rollup_overdue,
    rollup_failed,
    rollup_set_aside,
)
METRICS = tuple(each for each in globals().copy().values() if isinstance(each, Metric))
