"""One batch of an inbox: read → decode → ingest. The broker is read outside of a transaction; what was read counts only if
the inbox still stands where it was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from outrider.envelope import Envelope
from outrider.error_text import describe
from outrider.errors import SubscriptionRefused, Undecodable
from outrider.failpoint import hit
from outrider.inbox.inbox import Inbox
from outrider.payload import in_full
from outrider.postgres import inboxes, replicas
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import Place, Refused, Stamp
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import EntryRefused, Ingested, Rewound, Signals, Trimmed
from outrider.streams.replica import Change, read_change
from outrider.streams.stream import Page, StreamEntry

FIRST = 16
BYTES = 4 * 1024 * 1024
"""Of one batch. A broker counts entries, so the next batch has fewer of them when this one was larger."""


class Landing(Protocol):
    """Where entries go, and what they become there."""

    def decode(self, data: bytes) -> object: ...

    async def land(
        self, conn: AsyncSession, place: Place, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.Ingested: ...


class IntoLog:
    """Events of this log."""

    def __init__(self, decode: Callable[[bytes], Envelope], stamp: Stamp, limit: int, schema: str) -> None:
        self._decode = decode
        self._stamp = stamp
        self._limit = limit
        self._schema = schema

    def decode(self, data: bytes) -> Envelope:
        envelope = self._decode(data)
        size = len(envelope.payload_json.encode())
        more = in_full(envelope.payload_json) if size <= self._limit else 0
        if size + more > self._limit:
            full = " with its numbers in full" * (more > 0)
            raise Undecodable(
                f"the payload has {size + more:,} bytes{full}, at most {self._limit:,} are allowed (payload_limit)"
            )
        return envelope

    async def land(
        self, conn: AsyncSession, place: Place, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.Ingested:
        envelopes = [each for each in values if isinstance(each, Envelope)]
        return await inboxes.ingest(conn, place, envelopes, refused, self._stamp, self._schema)


class IntoTable:
    """Rows of a replica: the newest version of each thing."""

    def __init__(self, table: str, schema: str) -> None:
        self._table = table
        self._schema = schema

    def decode(self, data: bytes) -> Change:
        change = read_change(data)
        if change.aggregate_id is None or change.entity_version is None:
            raise Undecodable("a replica needs aggregate_id and entity_version: publish with key= and entity_version=")
        return change

    async def land(
        self, conn: AsyncSession, place: Place, values: Sequence[object], refused: Sequence[Refused]
    ) -> inboxes.Ingested:
        changes = [each for each in values if isinstance(each, Change)]
        return await replicas.apply(conn, place, self._table, changes, refused, self._schema)


class Receiver:
    """Brings in what one inbox finds."""

    def __init__(self, inbox: Inbox, landing: Landing, lanes: WorkerSessions, signals: Signals, schema: str) -> None:
        self.inbox = inbox
        self._landing = landing
        self._lanes = lanes
        self._signals = signals
        self._schema = schema
        self.events = 0
        """That were new, so far."""
        self._limit = min(FIRST, inbox.batch)
        """How many entries to read at once."""
        self._after: str | None = None
        """Where it stands, as far as this process knows."""

    async def step(self, wait: float) -> str:
        """One batch, committed. ingested; idle; moved: another session has read on; paused."""
        inbox = self.inbox
        if self._after is None:
            async with self._lanes.session(inbox.name) as conn:
                self._after = await inboxes.open_stream(
                    conn, inbox.name, inbox.source.stream, inbox.start, self._schema
                )
        after = self._after
        page = await self._read(after, wait)
        self._learn(page)
        hit("inbox.read")
        if not page.entries and page.position == after:
            return "idle"
        async with self._lanes.session(inbox.name) as conn:
            self._after = None  # until it is known that this was committed
            return await self._land(conn, page, after)

    async def _read(self, after: str, wait: float) -> Page:
        """A position of another kind of broker, which was there before this one, means nothing here: read it all."""
        source = self.inbox.source
        try:
            source.sort_key(after)
        except ValueError:
            page = await source.read(source.start, self._limit, wait)
            return Page(page.entries, page.position, rewound=True)
        return await source.read(after, self._limit, wait)

    def _learn(self, page: Page) -> None:
        size = sum(len(each.data) for each in page.entries)
        if size > BYTES:
            self._limit = max(1, len(page.entries) * BYTES // size)
        elif len(page.entries) >= self._limit and 2 * size <= BYTES:
            self._limit = min(self.inbox.batch, self._limit * 2)

    async def _land(self, conn: AsyncSession, page: Page, after: str) -> str:
        values, refused = self._decoded(page.entries)
        try:
            return await self._put(conn, page, after, values, refused)
        except inboxes.Unstorable as error:
            if len(page.entries) == 1:
                [entry] = page.entries
                unstorable = Refused(entry.position, entry.data, inboxes.reason(error))
                return await self._put(conn, page, after, [], [unstorable])
        return await self._one_by_one(conn, page, after)

    async def _one_by_one(self, conn: AsyncSession, page: Page, after: str) -> str:
        """One of them is to blame. If each is, for the same reason, it is the table's fault: that is raised, nothing moves.

        What is refused is kept with the next one that can be stored: until then it is not known to be a refusal.
        """
        outcome, stored, rest = "ingested", False, page
        refused, faults = list[Refused](), list[tuple[str | None, str | None]]()
        for entry in page.entries:
            single = replace(rest, entries=[entry], position=entry.position)
            values, unreadable = self._decoded([entry])
            if unreadable:
                refused += unreadable
                continue
            try:
                outcome = await self._put(conn, single, after, values, refused)
            except inboxes.Unstorable as error:
                faults.append(inboxes.fault(error))
                refused.append(Refused(entry.position, entry.data, inboxes.reason(error)))
                continue
            if outcome != "ingested":
                return outcome
            after, stored, refused = single.position, True, []
            rest = replace(page, rewound=False, trimmed=False)
        if not stored and len(faults) > 1 and len(set(faults)) == 1:
            raise SubscriptionRefused(
                f"{self.inbox.name}: none of {len(faults)} entries can be stored, all for the same reason, so the table is "
                f"taken to be at fault, and nothing was passed over: {refused[-1].message}"
            )
        if refused or after != page.position:
            outcome = await self._put(conn, rest, after, [], refused)
        return outcome

    def _decoded(self, entries: Sequence[StreamEntry]) -> tuple[list[object], list[Refused]]:
        values: list[object] = []
        refused: list[Refused] = []
        for entry in entries:
            try:
                values.append(self._landing.decode(entry.data))
            except Exception as error:  # the codec may be anybody's
                refused.append(Refused(entry.position, entry.data, describe(error)))
        return values, refused

    async def _put(
        self, conn: AsyncSession, page: Page, after: str, values: Sequence[object], refused: Sequence[Refused]
    ) -> str:
        inbox, stream = self.inbox, self.inbox.source.stream
        place = Place(inbox.name, stream, after, page.position)
        landed = await self._landing.land(conn, place, values, refused)
        hit("inbox.settled")
        if landed.outcome != "ingested":
            self._after = landed.stands if landed.outcome == "paused" else None
            return landed.outcome
        self._after = landed.stands
        self.events += landed.events
        if page.rewound:
            self._signals.emit(Rewound(inbox.name, stream, after, page.position, None, True))
        if page.trimmed:
            self._signals.emit(Trimmed(inbox.name, stream, after))
        for each in refused:
            self._signals.emit(EntryRefused(inbox.name, stream, each.position, each.message))
        known = len(values) - landed.events
        self._signals.emit(Ingested(inbox.name, stream, landed.events, known, len(refused), page.position))
        return "ingested"
