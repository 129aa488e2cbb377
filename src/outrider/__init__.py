"""Outrider: events out of your Postgres transaction, to every subscriber.

Rarer names live in `outrider.errors`, `outrider.protocols`, `outrider.reader`, `outrider.retry`, `outrider.rollup`,
`outrider.signals`, `outrider.streams` and `outrider.testing`.
"""

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
