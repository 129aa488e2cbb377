"""Outrider: events out of your Postgres transaction, to every subscriber."""

from outrider.app import Outrider
from outrider.dispatch.context import HandlerContext, SyncHandlerContext
from outrider.envelope import Envelope
from outrider.errors import OutriderError, PublishRefused
from outrider.event import Event
from outrider.outcome import Bury, Retry, Snooze, TerminalError
from outrider.postgres.log import Batch
from outrider.protocols import EventHandler, EventListener, EventPublisher
from outrider.reader import Reader
from outrider.retry import DEFAULT_RETRY_POLICY, PATIENT_RETRY_POLICY, Backoff, Breaker, RetryPolicy

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "PATIENT_RETRY_POLICY",
    "Backoff",
    "Batch",
    "Breaker",
    "Bury",
    "Envelope",
    "Event",
    "EventHandler",
    "EventListener",
    "EventPublisher",
    "HandlerContext",
    "Outrider",
    "OutriderError",
    "PublishRefused",
    "Reader",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "SyncHandlerContext",
    "TerminalError",
]
