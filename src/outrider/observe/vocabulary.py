"""The metrics: every name, what it counts and by which labels. Prometheus and OpenTelemetry get the same.

Labels are bounded: event types, declared names, error codes. No id and no tenant is a label. Labels from the log are
bounded too, because any publisher chooses them: after KEPT different values the next ones become OTHER.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the buckets of histograms, in seconds."""
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
handling = Metric("outrider_handling_seconds", "histogram", ("type",), "How long a handler or a job ran, by name.")
claimed = Metric("outrider_claimed", "counter", ("type", "worker"), "Jobs that a worker has claimed.")
completed = Metric(
    "outrider_completed",
    "counter",
    ("type", "status"),
    "Attempts of a handler or a job, by name: success, failed, dead.",
)
troubled = Metric(
    "outrider_troubled",
    "counter",
    ("type",),
    "Infrastructure failures of a loop, such as lost connections. The loop tries again.",
)
enqueued = Metric("outrider_enqueued", "counter", ("type",), "Jobs enqueued here; their transactions may roll back.")
renewals = Metric("outrider_lease_renewals", "counter", ("result",), "Leases of jobs: renewed, lost.")
notifications = Metric(
    "outrider_notifications", "counter", ("channel",), "Notifications received.", frozenset({"channel"})
)
polls = Metric("outrider_polls", "counter", (), "Polls: looks at the log without a notification.")
listener_up = Metric(
    "outrider_listener_up", "gauge", (), "1 while notifications arrive, 0 while the worker polls instead."
)
relayed = Metric(
    "outrider_relayed",
    "counter",
    ("relay", "topic"),
    "Events that a relay has sent to a stream and committed, by event type.",
    frozenset({"topic"}),
)
publish_failures = Metric(
    "outrider_publish_failures",
    "counter",
    ("relay", "topic", "reason"),
    "Rejections of an event by the broker or the codec. Severity: page. It is a dead letter, or those behind it wait.",
    frozenset({"topic", "reason"}),
)
publish_retries = Metric(
    "outrider_publish_retries",
    "counter",
    ("relay", "topic"),
    "Rejections after which the relay tries again. The others made dead letters.",
    frozenset({"topic"}),
)
hwm = Metric(
    "outrider_relay_hwm",
    "gauge",
    ("stream",),
    "The position up to which a stream is written: the milliseconds of a Redis id, the sequence of JetStream.",
    frozenset({"stream"}),
)
hwm_number = Metric(
    "outrider_relay_hwm_number",
    "gauge",
    ("stream",),
    "The number after the milliseconds in the Redis id of that position; 0 for JetStream.",
    frozenset({"stream"}),
)
relay_leases = Metric(
    "outrider_relay_lease", "counter", ("relay", "result"), "The lease of a relay: acquired, renewed, lost."
)
ingested = Metric("outrider_ingested", "counter", ("inbox",), "New events that an inbox has received.")
ingest_refused = Metric(
    "outrider_ingest_refused",
    "counter",
    ("inbox",),
    "Entries that an inbox could not read as events. Severity: page. They are kept.",
)
broker_up = Metric(
    "outrider_broker_up",
    "gauge",
    ("subscription",),
    "1 if the broker of a relay or inbox answered its last request, 0 if not.",
)
rolled_up = Metric(
    "outrider_rolled_up", "counter", ("rollup", "kind"), "Events that a rollup has emitted here: rollup, single."
)
rollup_errors = Metric(
    "outrider_rollup_errors", "counter", ("rollup",), "Ticks of a rollup that failed or set rows aside. Severity: page."
)
upkept = Metric(
    "outrider_upkept",
    "counter",
    ("action",),
    "Actions of upkeep here: made, cut, detached, dropped, expired, reaped, ticked; or not done: kept, busy.",
)
# What the database says, looked at every few seconds
database_up = Metric(
    "outrider_database_up", "gauge", (), "1 if the database answered the last query of this process, 0 if not."
)
depth = Metric(
    "outrider_depth",
    "gauge",
    ("type",),
    "Log positions that a subscription has not read yet; for a job type, jobs that wait or run, up to 10,000.",
)
waiting = Metric(
    "outrider_waiting_for_retry",
    "gauge",
    ("type",),
    "Events that wait for a retry, or behind one that does, up to 10,000.",
)
lag = Metric(
    "outrider_lag_seconds",
    "gauge",
    ("type",),
    "Age of the oldest event that a subscription has not handled, or of its oldest due job.",
)
overdue = Metric(
    "outrider_overdue_seconds",
    "gauge",
    ("type",),
    "How long the oldest event or job that could be handled now has waited; 0 for readers and while paused. Severity: page.",
)
paused = Metric(
    "outrider_paused", "gauge", ("type",), "1 while a subscription is paused, alone or with all others, 0 otherwise."
)
dead_letters = Metric("outrider_dead_letters", "gauge", ("type",), "Dead letters, up to 10,000.")
relay_depth = Metric(
    "outrider_relay_depth",
    "gauge",
    ("relay", "topic"),
    "Events that a relay has yet to send, by event type. A relay that is far behind: among its next 10,000 log positions.",
)
relay_lag = Metric(
    "outrider_relay_lag_seconds",
    "gauge",
    ("relay", "topic"),
    "Age of the oldest event that a relay has yet to send, by type.",
)
oldest_owed = Metric("outrider_oldest_owed_seconds", "gauge", (), "The greatest value of outrider_lag_seconds.")
workers = Metric("outrider_workers", "gauge", (), "Workers with a heartbeat within the last 30 s.")
notify_queue = Metric(
    "outrider_notify_queue_usage",
    "gauge",
    (),
    "How full the notification queue of the server is, from 0 to 1. From 0.9 on Outrider sends none, and workers poll.",
)
dead_tuples = Metric("outrider_dead_tuples", "gauge", ("table",), "Dead rows that vacuum has not removed.")
rollup_pending = Metric("outrider_rollup_pending", "gauge", ("rollup",), "Staged rows that wait, up to 10,000.")
rollup_overdue = Metric(
    "outrider_rollup_overdue_seconds",
    "gauge",
    ("rollup",),
    "How much longer than max_wait the oldest staged row has waited, or 0.",
)
rollup_failed = Metric(
    "outrider_rollup_failed",
    "gauge",
    ("rollup",),
    "1 if the last tick that had something to do failed, 0 otherwise. Severity: page.",
)
rollup_set_aside = Metric(
    "outrider_rollup_set_aside",
    "gauge",
    ("rollup",),
    "Staged rows that could not be turned into events. Severity: page.",
)

STATE = (
    database_up,
    depth,
    waiting,
    lag,
    overdue,
    paused,
    dead_letters,
    relay_depth,
    relay_lag,
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
