"""What an inbox is: which stream it reads, from where, and what becomes of its entries. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypedDict

from outrider.errors import DeclarationError
from outrider.options import Declaration, option, seconds, whole
from outrider.retry import Duration
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.replica import ReplicaCodec
from outrider.streams.stream import Source
from outrider.subscription import Subscription

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?\Z")
MOST_BATCH = 10_000


class InboxOptions(TypedDict, total=False):
    """The keyword arguments of app.inbox and app.replica. `Inbox` explains them."""

    start: Literal["beginning"] | str
    batch: int
    poll: Duration


@dataclass(frozen=True, kw_only=True)
class Inbox(Declaration):
    kind: ClassVar = "an inbox"

    context: str
    source: Source
    table: str | None = None
    """Of a replica: its entries go there, instead of into the log."""
    start: str = option("beginning")
    """Where a new inbox starts: "beginning", or after a position, as current_hwm gives it. Kept as a position."""
    batch: int = option(500, whole(1, MOST_BATCH))
    """The most entries of one transaction."""
    poll: float = option("500ms", seconds)
    """How long it waits for new entries before it looks again."""
    subscription: Subscription = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.source, "read", None)):
            raise DeclarationError(
                f"{self.name}: {self.source!r} is no source: it has no read(). RedisStreams and JetStream are sources"
            )
        object.__setattr__(self, "start", self._position())
        if self.table is not None and not _TABLE.match(self.table):
            raise DeclarationError(
                f"{self.name}: {self.table!r} is not the name of a table, like 'customer' or 'crm.customer'"
            )
        _fitting(self.name, getattr(self.source, "codec", None), self.table)
        object.__setattr__(self, "subscription", Subscription(self.name, "inbox", self.context, ()))

    def _position(self) -> str:
        if self.start == "beginning":
            return self.source.start
        try:
            self.source.sort_key(self.start)
        except ValueError as error:
            raise DeclarationError(
                f"{self.name}: start={self.start!r} is neither 'beginning' nor a position: {error}"
            ) from None
        return self.start


def _fitting(name: str, codec: object, table: str | None) -> None:
    """Checks our own codecs. A codec of yours, or a subclass of ours, may do what it likes."""
    if table is None and type(codec) is ReplicaCodec:
        raise DeclarationError(
            f"{name}: the replica codec leaves out fields that an event has: read the stream with "
            f"app.replica({name!r}, source, table=...), or let the relay use the envelope codec"
        )
    if table is not None and type(codec) in (EnvelopeCodec, CloudEventsCodec):
        raise DeclarationError(
            f"{name}: a replica reads a stream of the replica codec, not of {type(codec).__name__}: give the source "
            "codec=ReplicaCodec(), or read it with app.inbox"
        )
