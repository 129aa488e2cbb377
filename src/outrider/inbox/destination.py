"""Where the entries of an inbox go: into the log as events, or into the table of a replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.config import Settings
from outrider.envelope import Envelope
from outrider.errors import Undecodable
from outrider.inbox.inbox import Inbox
from outrider.payload import in_full
from outrider.postgres import inboxes, replicas
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import InboxProgress, Refused, Stamp
from outrider.streams.replica import ReplicaChange, read_change
from outrider.worker.channels import channels


class Destination(Protocol):
    def decode(self, data: bytes) -> object:
        """The value of one entry. Whatever this raises is the reason why the entry is refused."""
        ...

    async def store(
        self, conn: AsyncSession, progress: InboxProgress, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.IngestResult:
        """The values, the refused entries and the new position, in one transaction."""
        ...


class LogDestination:
    def __init__(self, decode: Callable[[bytes], Envelope], stamp: Stamp, payload_limit: int, schema: str) -> None:
        self._decode = decode
        self._stamp = stamp
        self._payload_limit = payload_limit
        self._schema = schema

    def decode(self, data: bytes) -> Envelope:
        envelope = self._decode(data)
        size = len(envelope.payload_json.encode())
        more = in_full(envelope.payload_json) if size <= self._payload_limit else 0
        if size + more > self._payload_limit:
            full = " with its numbers in full" * (more > 0)
            raise Undecodable(
                f"the payload has {size + more:,} bytes{full}, at most {self._payload_limit:,} are allowed (payload_limit)"
            )
        return envelope

    async def store(
        self, conn: AsyncSession, progress: InboxProgress, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.IngestResult:
        envelopes = [value for value in values if isinstance(value, Envelope)]
        return await inboxes.ingest(conn, progress, envelopes, refused, self._stamp, self._schema)


class ReplicaDestination:
    """Keeps the newest version of each aggregate."""

    def __init__(self, table: str, schema: str) -> None:
        self._table = table
        self._schema = schema

    def decode(self, data: bytes) -> ReplicaChange:
        change = read_change(data)
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
        return ReplicaDestination(inbox.table, settings.schema)
    generation = settings.generation
    stamp = Stamp(channels(generation, ())[0], generation, settings.notify)
    return LogDestination(inbox.source.codec.decode, stamp, settings.payload_limit, settings.schema)
