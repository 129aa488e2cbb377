"""The errors that Outrider raises on purpose. Each message says what is wrong and what to do about it.

Three kinds live elsewhere: what a handler raises to choose its outcome (`outcome`: Bury, Retry, Snooze), what derives from a
driver's class, and what never leaves its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from outrider.postgres.admin.bulk_jobs import JobsDone
    from outrider.postgres.admin.recovery import Done


class OutriderError(Exception):
    """The base class of the errors below, except most of those that a handler causes (at the end)."""


# Settings and declarations


class ConfigError(OutriderError):
    """A setting is missing, unknown or out of range."""


class DeclarationError(OutriderError):
    """An event, a job or a subscription is declared in a way that cannot work."""


# Publish, enqueue, read


class PublishRefused(OutriderError, ValueError):
    """An event was refused before anything was sent: the caller's transaction is untouched and usable.

    `field` is the path within the payload (or the name of the argument), `rule` the rule that it breaks.
    """

    verb = "published"

    def __init__(self, event_type: str, field: str, rule: str) -> None:
        super().__init__(f"{event_type} was not {self.verb}: {field}: {rule}")
        self.event_type = event_type
        self.field = field
        self.rule = rule


class EnqueueRefused(PublishRefused):
    """The same for a job; `event_type` is its type."""

    verb = "enqueued"


class NoTransaction(OutriderError):
    """A publish outside of a transaction would commit the event without the change that it announces."""

    def __init__(self, instead: str) -> None:
        super().__init__(
            "publish needs your open transaction, or the event would be committed without the change that it announces: "
            f"{instead}"
        )


class Undecodable(OutriderError, ValueError):
    """The payload of an event does not have the shape that was asked for."""


class CursorError(OutriderError):
    """A cursor cannot be read: unknown, ahead of the log, or taken in an unsuitable transaction."""


# The database and its schema


class DatabaseUnavailable(OutriderError):
    """The database cannot be used: unreachable, refused, missing or too old."""


class SchemaMismatch(OutriderError):
    """The schema in the database and this code do not fit together."""


class EmbeddedError(OutriderError):
    """The embedded Postgres could not be set up, started or reached."""


class MigrationRefused(OutriderError):
    """A migration must not be applied now, or another session holds a lock that it needs."""


class UninstallRefused(OutriderError):
    """Uninstalling would lose or break something, or leave something without its tables."""


# Brokers


class BrokerUnavailable(OutriderError):
    """The broker does not answer, or cannot accept anything now. What was sent may have arrived."""


class StreamMissing(OutriderError):
    """The stream does not exist, or is not what it must be. The message says what to do."""


class StreamOccupied(StreamMissing):
    """Somebody else has written to the stream. The message says what to do."""


# Operations. Where one is refused, nothing was changed.


class SubscriptionRefused(OutriderError):
    """An operation on a subscription would lose something, or names one that does not exist."""


class RollupRefused(OutriderError):
    """A rollup cannot be installed, ticked or uninstalled as it is."""


class UpkeepRefused(OutriderError):
    """Upkeep cannot do this now, or not with these settings."""


class NotConfirmed(OutriderError):
    """A command asked for confirmation and did not get it; nothing was changed."""


class ReplayRefused(OutriderError):
    """A dead letter cannot be replayed."""


class RolesRefused(OutriderError):
    """Roles cannot be created or changed."""


class TenantsRefused(OutriderError):
    """Nothing was done for a tenant; the message says why."""


class TakeoverRefused(OutriderError):
    """A takeover cannot go on; the message says why and what to do."""


class WithdrawRefused(OutriderError):
    """An event cannot be withdrawn now."""


class NoSuchEvent(OutriderError):
    """No event with that id is visible in the log."""

    def __init__(self, event_id: UUID, schema: str) -> None:
        super().__init__(
            f'there is no event {event_id} in the schema "{schema}" of this database: the transaction that published it '
            "was rolled back or is still open, or the event is in another schema (--schema) or database"
        )


class NoSuchJob(OutriderError):
    def __init__(self, job_id: UUID, schema: str) -> None:
        super().__init__(
            f'no trace of the job {job_id} is kept in the schema "{schema}" of this database. It may have finished: a job '
            "without a result and without a failure leaves none (set keep= in @app.job to see it), and receipts expire. Or "
            "the id is unknown here: the transaction that enqueued the job was rolled back or is still open, or the job is "
            "in another schema (--schema) or database"
        )


class NoSuchType(OutriderError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no job type {name!r}; there are: {', '.join(known) or 'none'}")


class Interrupted(OutriderError):
    """A bulk action ended early; `done` counts what was done until then."""

    def __init__(self, done: Done | JobsDone, unsure: int, reason: str) -> None:
        super().__init__(
            f"ended after {done}: {reason}. "
            f"What was done stays done{f', and perhaps {unsure:,} more' * (unsure > 0)}: run it again for the rest"
        )
        self.done = done


# What handlers and jobs cause, or raise themselves


class TerminalError(Exception):
    """Trying again cannot help: the event or job becomes a dead letter at once. Derive your own errors from it."""


class TransactionEnded(TerminalError):
    """The handler ended the transaction of its batch."""


class SwallowedError(Exception):
    """The handler caught a database error, which had aborted the transaction, and returned."""


class UnfinishedError(Exception):
    """The handler returned while something that it had started on its transaction was still running."""


class RolledBack(OutriderError):
    """The handler rolled its session back and returned without an error."""

    def __init__(self) -> None:
        super().__init__(
            "the handler rolled back its Session, which is the worker's transaction, and returned: raise instead, or wrap "
            "what may fail in `session.begin_nested()`"
        )


class Cancelled(Exception):
    """Raised by ctx.check() when an operator has cancelled the job, or the worker stops."""


class Died(Exception):
    """The process that ran the job has died."""
