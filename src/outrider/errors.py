"""Every error that Outrider raises on purpose. Each message says what is wrong and what to do about it."""

from __future__ import annotations


class OutriderError(Exception):
    """The root of all errors below."""


class ConfigError(OutriderError):
    """A setting is missing, unknown or out of range."""


class DeclarationError(OutriderError):
    """An event or a subscription is declared in a way that cannot work."""


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


class Undecodable(OutriderError, ValueError):
    """The payload of an event does not have the shape that was asked for."""


class DatabaseUnavailable(OutriderError):
    """The database cannot be used: unreachable, refused, missing or too old."""


class SchemaMismatch(OutriderError):
    """The schema in the database and this code do not fit together."""


class EmbeddedError(OutriderError):
    """The embedded Postgres could not be set up, started or reached."""


class CursorError(OutriderError):
    """A cursor cannot be read: unknown, ahead of the log, or taken in an unsuitable transaction."""


class SubscriptionRefused(OutriderError):
    """An operation on a subscription would lose something, or names one that is not there."""


class RollupRefused(OutriderError):
    """A rollup cannot be installed, ticked or taken off as it is; nothing was changed."""


class UpkeepRefused(OutriderError):
    """Upkeep cannot do this now, or not with these settings; nothing was changed."""


class NoTransaction(OutriderError):
    """A publish outside of a transaction would stand alone: what it tells of could fail, or come later."""

    def __init__(self, instead: str) -> None:
        super().__init__(
            f"publish needs your open transaction, or the event would be committed without what it tells of: {instead}"
        )
