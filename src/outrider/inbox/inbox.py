"""What an inbox is: which stream it reads, from where, and what becomes of its entries. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypedDict

from outrider import names
from outrider.errors import DeclarationError
from outrider.retry import Duration, option_duration
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.replica import ReplicaCodec
from outrider.streams.stream import Source
from outrider.subscription import Subscription

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?\Z")
POLL = timedelta(milliseconds=500)
MOST_BATCH = 10_000


class InboxOptions(TypedDict, total=False):
    start: Literal["beginning"] | str
    """For a new inbox: "beginning" (the default), or a position after which it begins, as current_hwm gives it."""
    batch: int
    """The most entries of one transaction. Default 500."""
    poll: Duration
    """How long it waits for new entries before it looks again. Default 500 ms."""


@dataclass(frozen=True, slots=True)
class Inbox:
    subscription: Subscription
    source: Source
    start: str
    """The position after which it begins, the first time."""
    batch: int
    poll: float
    table: str | None = None
    """Of a replica: its entries go there, instead of into the log."""

    @property
    def name(self) -> str:
        return self.subscription.name


def declare_inbox(context: str, name: str, source: Source, options: InboxOptions, table: str | None = None) -> Inbox:
    if wrong := names.unknown_option("an inbox", options, InboxOptions.__annotations__):
        raise TypeError(wrong)
    if not callable(getattr(source, "read", None)):
        raise DeclarationError(
            f"{name}: {source!r} is no source: it has no read(). RedisStreams and JetStream are sources"
        )
    batch = options.get("batch", 500)
    if type(batch) is not int or not 1 <= batch <= MOST_BATCH:
        raise DeclarationError(f"{name}: batch={batch!r} is not a whole number from 1 to {MOST_BATCH}")
    poll = option_duration("poll", options.get("poll", POLL), name).total_seconds()
    if poll <= 0:
        raise DeclarationError(f"{name}: poll={options.get('poll')!r} is no time at all")
    begin = options.get("start", "beginning")
    if begin != "beginning":
        try:
            source.sort_key(begin)
        except ValueError as error:
            raise DeclarationError(f"{name}: start={begin!r} is neither 'beginning' nor a position: {error}") from None
    if table is not None and not _TABLE.match(table):
        raise DeclarationError(f"{name}: {table!r} is not the name of a table, like 'customer' or 'crm.customer'")
    _fitting(name, getattr(source, "codec", None), table)
    subscription = Subscription(name, "inbox", context, ())
    return Inbox(subscription, source, source.start if begin == "beginning" else begin, batch, poll, table)


def _fitting(name: str, codec: object, table: str | None) -> None:
    """Of the codecs that are known here. One of somebody's own, also one made of these, may do what it likes."""
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
