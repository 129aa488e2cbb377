"""Outrider: events out of your Postgres transaction, to every subscriber."""

from outrider.app import Outrider
from outrider.envelope import Envelope
from outrider.errors import Cancelled, EnqueueRefused, OutriderError, PublishRefused, TerminalError
from outrider.event import Event
from outrider.job import Job
from outrider.outcome import Bury, Retry, Snooze
from outrider.postgres.job_inserts import Enqueued
from outrider.postgres.log import Batch
from outrider.protocols import EventHandler, EventListener, EventPublisher
from outrider.reader import Reader
from outrider.retry import DEFAULT_RETRY_POLICY, PATIENT_RETRY_POLICY, Backoff, Breaker, RetryPolicy
from outrider.rollup.rollup import Check, Column, Notification
from outrider.worker.handler_context import HandlerContext, SyncHandlerContext
from outrider.worker.job_context import JobContext, SyncJobContext

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "PATIENT_RETRY_POLICY",
    "Backoff",
    "Batch",
    "Breaker",
    "Bury",
    "Cancelled",
    "Check",
    "Column",
    "EnqueueRefused",
    "Enqueued",
    "Envelope",
    "Event",
    "EventHandler",
    "EventListener",
    "EventPublisher",
    "HandlerContext",
    "Job",
    "JobContext",
    "Notification",
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
