"""Outrider: events out of your Postgres transaction, to every subscriber.

Rarer names live in `outrider.errors`, `outrider.protocols`, `outrider.reader`, `outrider.retry`, `outrider.rollup`,
`outrider.signals`, `outrider.streams` and `outrider.testing`.

A name is imported when it is first used, so that `import outrider` and the command line start quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.app import Outrider
    from outrider.envelope import Envelope
    from outrider.errors import Cancelled, EnqueueRefused, OutriderError, PublishRefused, TerminalError
    from outrider.event import Event
    from outrider.job import Job
    from outrider.outcome import Bury, Retry, Snooze
    from outrider.postgres.job_inserts import Enqueued
    from outrider.reader import Reader
    from outrider.retry import PATIENT_RETRY_POLICY, Backoff, Breaker, RetryPolicy
    from outrider.worker.handler_context import HandlerContext, SyncHandlerContext
    from outrider.worker.job_context import JobContext, SyncJobContext

_HOMES = {
    "Backoff": "outrider.retry",
    "Breaker": "outrider.retry",
    "Bury": "outrider.outcome",
    "Cancelled": "outrider.errors",
    "EnqueueRefused": "outrider.errors",
    "Enqueued": "outrider.postgres.job_inserts",
    "Envelope": "outrider.envelope",
    "Event": "outrider.event",
    "HandlerContext": "outrider.worker.handler_context",
    "Job": "outrider.job",
    "JobContext": "outrider.worker.job_context",
    "Outrider": "outrider.app",
    "OutriderError": "outrider.errors",
    "PATIENT_RETRY_POLICY": "outrider.retry",
    "PublishRefused": "outrider.errors",
    "Reader": "outrider.reader",
    "Retry": "outrider.outcome",
    "RetryPolicy": "outrider.retry",
    "Snooze": "outrider.outcome",
    "SyncHandlerContext": "outrider.worker.handler_context",
    "SyncJobContext": "outrider.worker.job_context",
    "TerminalError": "outrider.errors",
}
__all__ = [
    "PATIENT_RETRY_POLICY",
    "Backoff",
    "Breaker",
    "Bury",
    "Cancelled",
    "EnqueueRefused",
    "Enqueued",
    "Envelope",
    "Event",
    "HandlerContext",
    "Job",
    "JobContext",
    "Outrider",
    "OutriderError",
    "PublishRefused",
    "Reader",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "SyncHandlerContext",
    "SyncJobContext",
    "TerminalError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__]
