"""What an inbox is: which stream it reads, from where, and where its entries go: to the log, or to a table of the app."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypedDict

from outrider import names
from outrider.config import Settings
from outrider.envelope import Envelope
from outrider.errors import DeclarationError, Undecodable
from outrider.options import Declaration, option, seconds, whole
from outrider.postgres import content_classes, inboxes, replicas
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import InboxProgress, Refused, Stamp
from outrider.retry import Duration
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.replica import ReplicaChange, ReplicaCodec, read_change
from outrider.streams.stream import Source
from outrider.streams.untrusted_json import refuse_long
from outrider.subscription import Subscription
from outrider.worker.channels import channels

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?\Z")
MOST_BATCH = 10_000
AROUND = 64 * 1024
"""Bytes of an entry that are not its payload."""


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


class Destination(Protocol):
    def decode(self, data: bytes) -> object:
        """The value of one entry. Whatever this raises is the reason why the entry is refused."""
        ...

    async def learn(self, conn: AsyncSession) -> bool:
        """Ask the database what it allows. True: that has changed, so refused entries may be fine."""
        ...

    async def store(
        self, conn: AsyncSession, progress: InboxProgress, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.IngestResult:
        """The values, the refused entries and the new position, in one transaction."""
        ...


def _refuse_long_entry(data: bytes, payload_limit: int) -> None:
    """Before anything of it is parsed: as objects, it may take 20 times as much memory. A codec of yours may be wordy."""
    if len(data) > (most := 2 * payload_limit + AROUND):
        raise Undecodable(
            f"the entry has {len(data):,} bytes, at most {most:,} are read: twice payload_limit, and 64 KiB"
        )


class LogDestination:
    def __init__(self, decode: Callable[[bytes], Envelope], stamp: Stamp, payload_limit: int, schema: str) -> None:
        self._decode = decode
        self._stamp = stamp
        self._payload_limit = payload_limit
        self._schema = schema
        self._content_classes = frozenset(names.CONTENT_CLASSES)

    async def learn(self, conn: AsyncSession) -> bool:
        before = self._content_classes
        self._content_classes = before.union(await content_classes.allowed(conn, self._schema))
        return self._content_classes != before

    def decode(self, data: bytes) -> Envelope:
        _refuse_long_entry(data, self._payload_limit)
        envelope = self._decode(data)
        if envelope.content_class not in self._content_classes:
            known = ", ".join(sorted(self._content_classes))
            raise Undecodable(
                f"content_class: {envelope.content_class!r:.60} is not one of {known}: if it should be, outrider setting "
                "allow-content-class, then outrider inbox retry"
            )
        refuse_long(envelope.payload_json, self._payload_limit)
        return envelope

    async def store(
        self, conn: AsyncSession, progress: InboxProgress, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.IngestResult:
        envelopes = [value for value in values if isinstance(value, Envelope)]
        return await inboxes.ingest(conn, progress, envelopes, refused, self._stamp, self._schema)


class ReplicaDestination:
    """Keeps the newest version of each aggregate."""

    def __init__(self, table: str, payload_limit: int, schema: str) -> None:
        self._table = table
        self._payload_limit = payload_limit
        self._schema = schema

    async def learn(self, conn: AsyncSession) -> bool:  # noqa: ARG002
        return False

    def decode(self, data: bytes) -> ReplicaChange:
        _refuse_long_entry(data, self._payload_limit)
        change = read_change(data, self._payload_limit)
        if change.aggregate_id is None or change.entity_version is None:
            raise Undecodable("a replica needs aggregate_id and entity_version: publish with key= and entity_version=")
        return change

    async def store(
        self, conn: AsyncSession, progress: InboxProgress, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.IngestResult:
        changes = [value for value in values if isinstance(value, ReplicaChange)]
        return await replicas.apply(conn, progress, self._table, changes, refused, self._schema)


def destination_of(inbox: Inbox, settings: Settings) -> Destination:
    if inbox.table is not None:
        return ReplicaDestination(inbox.table, settings.payload_limit, settings.schema)
    generation = settings.generation
    stamp = Stamp(channels(generation, ())[0], generation, settings.notify)
    return LogDestination(inbox.source.codec.decode, stamp, settings.payload_limit, settings.schema)
