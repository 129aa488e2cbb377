"""One line per signal, through structlog into the standard logger "outrider".

A line reads as logfmt on any handler. The same fields are on the record as `extra`, for JSON formatters.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from contextvars import Context
from functools import partial
from typing import Any

import structlog

from outrider.envelope import Envelope
from outrider.error_text import describe
from outrider.errors import TerminalError, Undecodable
from outrider.job import JobRun
from outrider.observe.log_fields import merge_bound, safe
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
    JobsClaimed,
    JobsCompleted,
    LeaseLost,
    LeasesRenewed,
    ListenerDown,
    ListenerUp,
    LoopHeld,
    Notified,
    Published,
    Recovered,
    Rejection,
    Relayed,
    RelayLease,
    RetryScheduled,
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

DELIBERATE = (Retry, Snooze, TerminalError, Undecodable)
"""Errors whose traceback would say nothing more."""


def _as_record(logger: Any, method: str, fields: Any) -> tuple[tuple[str], dict[str, Any]]:
    """A traceback stands below the line. On the record it is a field like the others."""
    told = {name: safe(name, value) for name, value in fields.items()}
    shown = {name: value for name, value in told.items() if value is not None}
    below = shown.pop("traceback", "")
    return (f"{_render(logger, method, shown)}\n{below}".rstrip(),), {"extra": told}


_lines = structlog.wrap_logger(_logger, processors=[structlog.stdlib.filter_by_level, merge_bound, _as_record])
_unbound = structlog.wrap_logger(_logger, processors=[structlog.stdlib.filter_by_level, _as_record])


def write_summary(**fields: Any) -> None:
    """Without bound fields: it is about many calls, and written in the context of any one of them."""
    _unbound.info("summary", **fields)


_PLAIN: dict[type[Signal], tuple[int, str]] = {
    Fired: (logging.INFO, "fired"),
    ListenerUp: (logging.INFO, "listener_up"),
    ListenerDown: (logging.WARNING, "listener_down"),
    BrokerUp: (logging.INFO, "broker_up"),
    WorkerDown: (logging.INFO, "worker_down"),
    Routed: (logging.DEBUG, "routed"),
    Notified: (logging.DEBUG, "notified"),
    LeasesRenewed: (logging.DEBUG, "leases_renewed"),
    Woken: (logging.DEBUG, "woken"),
    Taken: (logging.DEBUG, "taken"),
}
"""Signals whose line has the fields of the signal: its level and name."""


FREQUENT = frozenset({Published, JobEnqueued})
"""Signals of which one call sends thousands. They have a line at debug only."""


def write_line(signal: Signal) -> None:
    """The line of a signal: those of failures always, the others at debug."""
    if type(signal) in FREQUENT and not _logger.isEnabledFor(logging.DEBUG):
        return
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
                    _say_after(
                        one.context,
                        "handled",
                        **_event(subscription, one.envelope),
                        attempts=one.attempt,
                        duration_ms=round(one.duration_ms, 3),
                        status_result="success",
                    )
        case Failed(subscription, envelope, attempt, duration_ms, verdict, raised):
            _lines.warning(
                "failed",
                traceback=None if isinstance(raised, DELIBERATE) else _traceback(raised),
                **_event(subscription, envelope),
                attempts=attempt,
                duration_ms=round(duration_ms, 3),
                status_result="dead" if isinstance(verdict, Dead) else "failed",
                error_code=verdict.code,
                error=verdict.message,
            )
        case RetryScheduled(subscription, envelope, attempt, code, delay):
            _lines.info(
                "retry_scheduled",
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
            if in_a_row & (in_a_row - 1) == 0:  # 1, 2, 4, 8, …
                _lines.warning("troubled", handler_name=subscription, error_code=code, error=message, in_a_row=in_a_row)
        case Recovered(subscription, in_a_row, _):
            _lines.info("recovered", handler_name=subscription, in_a_row=in_a_row)
        case Skipped(subscription, reason):
            hint = {
                "paused": f"outrider subscription resume {subscription} ends the pause",
                "not installed": f"outrider rollup install {subscription} installs it",
                "changed": f"the declaration has changed since it was installed: outrider rollup install {subscription}",
                "unknown": "this code does not know all its event types: outrider migrate --app names them",
            }
            _lines.warning("skipped", handler_name=subscription, reason=reason, hint=hint.get(reason))
        case LoopHeld(subscription, seconds, where):
            _lines.warning(
                "loop_held",
                handler_name=subscription,
                held_s=round(seconds, 1),
                where=where,
                hint="everything else in this worker waits: declare the blocking function with def to run it in a thread",
            )
        case JobEnqueued() | JobsClaimed() | JobsCompleted() | JobFailed() | JobReleased() | LeaseLost():
            _write_job(signal)
        case Relayed() | Rejection() | Rewound() | Trimmed() | Intruded() | BrokerDown() | Ingested() | EntryRefused():
            _write_stream(signal)
        case RelayLease(relay, result):
            say = {"renewed": _lines.debug, "lost": _lines.warning}.get(result, _lines.info)
            say("relay_lease", subscription=relay, result=result)
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
                hint="waiting for them until the grace time is over; a second Ctrl-C or SIGTERM cancels them at once, "
                "and they run again later"
                if running
                else None,
            )
        case _:
            level, name = _PLAIN[type(signal)]
            if _logger.isEnabledFor(level):
                fields = {each.name: getattr(signal, each.name) for each in dataclasses.fields(signal)}
                getattr(_lines, logging.getLevelName(level).lower())(name, **fields)


def _write_stream(
    signal: Relayed | Rejection | Rewound | Trimmed | Intruded | BrokerDown | Ingested | EntryRefused,
) -> None:
    """Signals that need attention are errors, with severity=page."""
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
                hint=None if whole else "older events are missing in the stream: relay them into a new stream",
            )
        case Trimmed(subscription, stream, position):
            _lines.error(
                "trimmed",
                subscription=subscription,
                stream=stream,
                position=position,
                severity="page",
                hint="entries were removed before they were read: raise the retention of the stream",
            )
        case Intruded(relay, stream, entries, event_id):
            _lines.error(
                "intruded",
                subscription=relay,
                stream=stream,
                entries=entries,
                event_id=None if event_id is None else str(event_id),
                hint="something else writes to this stream: a relay must be the only writer",
            )
        case BrokerDown(subscription, code, message, in_a_row):
            _lines.error("broker_down", subscription=subscription, error_code=code, error=message, in_a_row=in_a_row)
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
                envelope = details()
                _lines.debug(
                    "enqueued",
                    job_id=str(job_id),
                    job_type=job_type,
                    key=envelope.key,
                    outcome=outcome,
                    workspace_id=envelope.workspace_id,
                    trace_id=trace_id(envelope.trace_context),
                )
        case JobsClaimed(_, details):
            if _logger.isEnabledFor(logging.DEBUG):
                for run in details():
                    _lines.debug("claimed", **_job(run))
        case JobsCompleted(_, details):
            if _logger.isEnabledFor(logging.DEBUG):
                for run, duration_ms in details():
                    _say_after(
                        run.context,
                        "completed",
                        **_job(run),
                        duration_ms=round(duration_ms, 3),
                        status_result="success",
                    )
        case JobFailed(run, duration_ms, code, message, outcome, raised):
            quiet = raised is None or isinstance(raised, DELIBERATE)
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


def _say_after(context: Context | None, name: str, **fields: Any) -> None:
    """Say it with what the call has bound."""
    say = partial(_lines.debug, name, **fields)
    say() if context is None else context.copy().run(say)


def _traceback(error: BaseException) -> str | None:
    """It ends with `describe(error)`: the text of the error itself may contain a password or a payload."""
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
