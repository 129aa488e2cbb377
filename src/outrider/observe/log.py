"""Structured lines, through structlog into the standard logger "outrider".

At debug there is one line per signal, and one per event and job. At info those that succeed are only counted: each handler,
job, type and stream has a summary, at once for what comes first and then at most one a minute.

The message reads as logfmt on any handler; the same fields ride on the record as `extra`, for JSON formatters.
The application decides where lines go and at which level: nothing is printed unless it configured logging.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, assert_never

import structlog

from outrider.envelope import Envelope
from outrider.error_text import describe
from outrider.errors import TerminalError, Undecodable
from outrider.outcome import Dead, Retry, Snooze
from outrider.redaction import mask, sanitise
from outrider.signals import (
    BrokerDown,
    BrokerUp,
    Buried,
    EntryRefused,
    Failed,
    Fired,
    Ingested,
    Intruded,
    JobEnqueued,
    JobFailed,
    JobReleased,
    JobRun,
    JobsClaimed,
    JobsCompleted,
    LeaseLost,
    LeasesRenewed,
    ListenerDown,
    ListenerUp,
    LoopHeld,
    Notified,
    Parked,
    Published,
    Recovered,
    Rejection,
    Relayed,
    Rewound,
    RolledUp,
    Routed,
    Settled,
    Signal,
    Skipped,
    Taken,
    Trimmed,
    Troubled,
    Upkept,
    Woken,
    WorkerDown,
    WorkerStopping,
    WorkerUp,
)
from outrider.trace import trace_id

_render = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)
_logger = logging.getLogger("outrider")


SAID_ON_PURPOSE = (Retry, Snooze, TerminalError, Undecodable)
"""A traceback would say no more."""
FIELD_BYTES = 300
SUMMARY_SECONDS = 60.0
_SENTENCES = {"error", "reason", "hint", "handlers"}
"""Of more words; where somebody else's are among them, they may hold a password."""


def _as_record(logger: Any, method: str, fields: Any) -> tuple[tuple[str], dict[str, Any]]:
    """A traceback is shown below the line; on the record it is a field like the others."""
    told = {name: _told(name, value) if isinstance(value, str) else value for name, value in fields.items()}
    shown = {name: value for name, value in told.items() if value is not None}
    below = shown.pop("traceback", "")
    return (f"{_render(logger, method, shown)}\n{below}".rstrip(),), {"extra": told}


def _told(name: str, value: str) -> str:
    """Keys, tenants, sources and notifications are what others wrote: they cannot forge a line, nor fill the log."""
    if name == "traceback":
        return value
    if name in _SENTENCES:
        return sanitise(mask(value))
    if 4 * len(value) <= FIELD_BYTES and value.isprintable():
        return value
    return sanitise(value[: FIELD_BYTES + 1].replace("\n", "\\n").replace("\t", "\\t"), FIELD_BYTES)


_lines = structlog.wrap_logger(_logger, processors=[structlog.stdlib.filter_by_level, _as_record])


Subject = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Tally:
    """What happened to one subject since its last line."""

    said_at: float
    since: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    latest: dict[str, Any] = field(default_factory=dict)
    slowest_ms: float | None = None


class Lines:
    """The listener that writes the log. It has no timer: the next signal after a minute writes the summary, and in a worker
    there is one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._tallies: dict[Subject, _Tally] = {}
        self._due = 0.0

    def __call__(self, signal: Signal) -> None:
        if _logger.isEnabledFor(logging.INFO):
            now = self._clock()
            for subject, counts, latest, slowest_ms in _counted(signal):
                self._count(subject, counts, latest, slowest_ms, now)
            if now >= self._due or isinstance(signal, WorkerDown):
                self._summarise(now, all_of_them=isinstance(signal, WorkerDown))
        write_line(signal)

    def close(self) -> None:
        """Write what is not summarised yet."""
        self._summarise(self._clock(), all_of_them=True)

    def _count(
        self, subject: Subject, counts: dict[str, int], latest: dict[str, Any], slowest_ms: float | None, now: float
    ) -> None:
        with self._lock:
            tally = self._tallies.setdefault(subject, _Tally(said_at=now - SUMMARY_SECONDS))
            if not tally.counts:
                tally.since = now
                self._due = min(self._due, tally.said_at + SUMMARY_SECONDS)
            for name, number in counts.items():
                tally.counts[name] = tally.counts.get(name, 0) + number
            tally.latest = latest
            if slowest_ms is not None:
                tally.slowest_ms = max(slowest_ms, tally.slowest_ms or 0.0)

    def _summarise(self, now: float, *, all_of_them: bool) -> None:
        with self._lock:
            waiting = {subject: tally for subject, tally in self._tallies.items() if tally.counts}
            due = [
                subject for subject, tally in waiting.items() if all_of_them or now >= tally.said_at + SUMMARY_SECONDS
            ]
            for subject in due:
                self._tallies[subject] = _Tally(said_at=now)
            later = (tally.said_at + SUMMARY_SECONDS for subject, tally in waiting.items() if subject not in due)
            self._due = min(later, default=float("inf"))
        for subject in due:
            tally = waiting[subject]
            slowest = {} if tally.slowest_ms is None else {"slowest_ms": round(tally.slowest_ms, 3)}
            _lines.info(
                "summary",
                **dict(subject),
                **tally.counts,
                **slowest,
                **tally.latest,
                over_s=round(now - tally.since, 1),
            )


def _counted(signal: Signal) -> Iterator[tuple[Subject, dict[str, int], dict[str, Any], float | None]]:
    """Whose summary a signal belongs to, what it adds to it, what is told of the last one only, and how long it took."""
    match signal:
        case Published(envelope):
            yield (("event_type", envelope.event_type),), {"published": 1}, {}, None
        case Settled(subscription, _, events, conceded, duration_ms, _):
            if events or conceded:
                counts = {"handled": events, "batches": 1} | ({"conceded": conceded} if conceded else {})
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


def write_line(signal: Signal) -> None:
    match signal:
        case Published(envelope):
            if _logger.isEnabledFor(logging.DEBUG):
                _lines.debug(
                    "published",
                    event_id=str(envelope.id),
                    event_type=envelope.event_type,
                    source=envelope.source,
                    target=envelope.target,
                    workspace_id=envelope.workspace_id,
                    trace_id=trace_id(envelope.trace_context),
                )
        case Settled(subscription, _, _, _, _, details):
            if _logger.isEnabledFor(logging.DEBUG):
                for one in details():
                    _lines.debug(
                        "handled",
                        **_event(subscription, one.envelope),
                        attempts=one.attempt,
                        duration_ms=round(one.duration_ms, 3),
                        status_result="success",
                    )
        case Failed(subscription, envelope, attempt, duration_ms, verdict, raised):
            _lines.warning(
                "failed",
                traceback=None if isinstance(raised, SAID_ON_PURPOSE) else _traceback(raised),
                **_event(subscription, envelope),
                attempts=attempt,
                duration_ms=round(duration_ms, 3),
                status_result="dead" if isinstance(verdict, Dead) else "failed",
                error_code=verdict.code,
                error=verdict.message,
            )
        case Parked(subscription, envelope, attempt, code, delay):
            _lines.info(
                "parked",
                **_event(subscription, envelope),
                attempts=attempt,
                status_result="failed",
                error_code=code,
                retry_in_s=delay.total_seconds(),
            )
        case Buried(subscription, envelope, attempt, code, message):
            _lines.error(
                "buried",
                **_event(subscription, envelope),
                attempts=attempt,
                status_result="dead",
                error_code=code,
                error=message,
            )
        case Troubled(subscription, code, message, in_a_row, _):
            if in_a_row & (in_a_row - 1) == 0:  # the first, and then ever less often
                _lines.warning("troubled", handler_name=subscription, error_code=code, error=message, in_a_row=in_a_row)
        case Recovered(subscription, in_a_row, _):
            _lines.info("recovered", handler_name=subscription, in_a_row=in_a_row)
        case Skipped(subscription, reason):
            hint = {
                "paused": f"to go on: outrider subscription resume {subscription}",
                "not installed": f"it does nothing until then: outrider rollup install {subscription}",
                "changed": f"it is declared otherwise than it is installed: outrider rollup install {subscription}",
                "unknown": "it wants event types that this code does not know: outrider migrate --app names them",
            }
            _lines.warning("skipped", handler_name=subscription, reason=reason, hint=hint.get(reason))
        case LoopHeld(subscription, seconds, where):
            _lines.warning(
                "loop_held",
                handler_name=subscription,
                held_s=round(seconds, 1),
                where=where,
                hint="everything else in this worker waits: declare what blocks with def, then it runs in a thread",
            )
        case JobEnqueued() | JobsClaimed() | JobsCompleted() | JobFailed() | JobReleased() | LeaseLost():
            _write_job(signal)
        case Routed(subscription, jobs):
            _lines.debug("routed", subscription=subscription, jobs=jobs)
        case Fired(schedule, jobs):
            _lines.info("fired", schedule=schedule, jobs=jobs)
        case Relayed() | Rejection() | Rewound() | Trimmed() | Intruded() | BrokerDown() | BrokerUp():
            _write_stream(signal)
        case Ingested() | EntryRefused():
            _write_stream(signal)
        case RolledUp(rollup, groups, pieces, conflicts, set_aside, pending, failed, message):
            say = _lines.error if failed or set_aside else _lines.warning if message else _lines.info
            say(
                "rolled_up",
                rollup=rollup,
                groups=groups,
                pieces=pieces,
                conflicts=conflicts or None,
                set_aside=set_aside or None,
                pending=pending,
                status_result="failed" if failed else "success",
                error=message,
                severity="page" if failed or set_aside else None,
            )
        case Upkept(action, subject, number, detail):
            say = _lines.warning if action == "kept" else _lines.debug if action == "busy" else _lines.info
            say("upkept", action=action, subject=subject, number=number, detail=detail)
        case ListenerUp():
            _lines.info("listener_up")
        case ListenerDown(reason):
            _lines.warning("listener_down", reason=reason)
        case WorkerUp(worker, subscriptions):
            _lines.info("worker_up", worker=str(worker), handlers=",".join(subscriptions))
        case WorkerStopping(worker, handlers, jobs, grace):
            running = ",".join(sorted({*handlers, *jobs}))
            _lines.info(
                "worker_stopping",
                worker=str(worker),
                handlers_running=len(handlers),
                jobs_running=len(jobs),
                running=running or None,
                grace_s=grace,
                hint="it waits until they have ended, or the grace time is over; a second Ctrl-C or SIGTERM cancels them "
                "at once, and they run again later"
                if running
                else None,
            )
        case WorkerDown(worker, clean):
            _lines.info("worker_down", worker=str(worker), clean=clean)
        case Notified(channel, kind):
            _lines.debug("notified", channel=channel, kind=kind)
        case LeasesRenewed(leases):
            _lines.debug("leases_renewed", leases=leases)
        case Woken(subscription, reason):
            _lines.debug("woken", subscription=subscription, reason=reason)
        case Taken(subscription, partition, events, outcome):
            if _logger.isEnabledFor(logging.DEBUG):
                _lines.debug("taken", subscription=subscription, partition=partition, events=events, outcome=outcome)
        case _:
            assert_never(signal)


def _write_stream(
    signal: Relayed | Rejection | Rewound | Trimmed | Intruded | BrokerDown | BrokerUp | Ingested | EntryRefused,
) -> None:
    """What needs somebody to look at it is an error, with severity=page."""
    match signal:
        case Relayed(relay, stream, events, position, _):
            _lines.debug(
                "relayed", subscription=relay, stream=stream, events=events, position=position, status_result="success"
            )
        case Rejection(relay, envelope, attempts, code, message, buried):
            _lines.error(
                "rejected",
                **_event(relay, envelope),
                attempts=attempts,
                status_result="dead" if buried else "failed",
                error_code=code,
                error=message,
                buried=buried,
                severity="page",
            )
        case Rewound(subscription, stream, position, end, at, whole):
            _lines.error(
                "rewound",
                subscription=subscription,
                stream=stream,
                position=position,
                end=end,
                back_to=None if at is None else at.isoformat(),
                whole=whole,
                severity="page",
                hint=None if whole else "older events are not in the stream any more: relay them into a new stream",
            )
        case Trimmed(subscription, stream, position):
            _lines.error(
                "trimmed",
                subscription=subscription,
                stream=stream,
                position=position,
                severity="page",
                hint="entries were removed before they were read: keep more of the stream",
            )
        case Intruded(relay, stream, entries, event_id):
            _lines.error(
                "intruded",
                subscription=relay,
                stream=stream,
                entries=entries,
                event_id=None if event_id is None else str(event_id),
                hint="somebody else writes to this stream: a relay needs streams of its own",
            )
        case BrokerDown(subscription, code, message, in_a_row):
            _lines.error("broker_down", subscription=subscription, error_code=code, error=message, in_a_row=in_a_row)
        case BrokerUp(subscription):
            _lines.info("broker_up", subscription=subscription)
        case Ingested(inbox, stream, events, known, refused, position):
            _lines.debug(
                "ingested",
                subscription=inbox,
                stream=stream,
                events=events,
                known=known,
                refused=refused,
                position=position,
            )
        case EntryRefused(inbox, stream, position, message):
            _lines.error(
                "entry_refused",
                subscription=inbox,
                stream=stream,
                position=position,
                error=message,
                severity="page",
            )


def _write_job(
    signal: JobEnqueued | JobsClaimed | JobsCompleted | JobFailed | JobReleased | LeaseLost,
) -> None:
    match signal:
        case JobEnqueued(job_type, job_id, outcome, details):
            if _logger.isEnabledFor(logging.DEBUG):
                asked = details()
                _lines.debug(
                    "enqueued",
                    job_id=str(job_id),
                    job_type=job_type,
                    key=asked.key,
                    outcome=outcome,
                    workspace_id=asked.workspace_id,
                    trace_id=trace_id(asked.trace_context),
                )
        case JobsClaimed(_, details):
            if _logger.isEnabledFor(logging.DEBUG):
                for run in details():
                    _lines.debug("claimed", **_job(run))
        case JobsCompleted(_, details):
            if _logger.isEnabledFor(logging.DEBUG):
                for run, duration_ms in details():
                    _lines.debug("completed", **_job(run), duration_ms=round(duration_ms, 3), status_result="success")
        case JobFailed(run, duration_ms, code, message, outcome, raised):
            quiet = raised is None or isinstance(raised, SAID_ON_PURPOSE)
            (_lines.error if outcome == "buried" else _lines.warning)(
                "failed",
                traceback=None if quiet or raised is None else _traceback(raised),
                **_job(run),
                duration_ms=round(duration_ms, 3),
                status_result="dead" if outcome == "buried" else "failed",
                error_code=code,
                error=message,
                will_retry=outcome == "retry",
                outcome=outcome,
            )
        case JobReleased(run, outcome):
            _lines.info("released", **_job(run), outcome=outcome)
        case LeaseLost(run, reason):
            _lines.warning("lease_lost", **_job(run), reason=reason)


def _job(run: JobRun) -> dict[str, Any]:
    return {
        "job_id": str(run.job_id),
        "job_type": run.subscription,
        "handler_name": run.subscription,
        "key": run.key,
        "attempt": run.attempt,
        "attempts": run.attempt,
        "worker_id": run.worker,
        "workspace_id": run.workspace_id,
        "trace_id": run.trace_id,
    }


def _traceback(error: BaseException) -> str | None:
    """By our own words at its end: what the error itself says may hold a password, or a payload."""
    try:
        where = "".join(traceback.format_tb(error.__traceback__, limit=-30))
        return sanitise(mask(f"Traceback (most recent call last):\n{where}")) + describe(error)
    except Exception:
        return None


def _event(subscription: str, envelope: Envelope) -> dict[str, Any]:
    return {
        "event_id": str(envelope.id),
        "event_type": envelope.event_type,
        "source": envelope.source,
        "target": envelope.target,
        "workspace_id": envelope.workspace_id,
        "handler_name": subscription,
        "trace_id": trace_id(envelope.trace_context),
    }
