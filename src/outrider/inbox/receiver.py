"""One batch of an inbox: read → decode → ingest.

The broker is read outside of a transaction. What was read counts only if the inbox still stands where the read began.
`retry_refused` stores refused entries again, from their copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.error_text import describe
from outrider.errors import SubscriptionRefused
from outrider.failpoint import hit
from outrider.inbox.inbox import Destination, Inbox
from outrider.postgres import inboxes
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import InboxProgress, Kept, Refused
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import EntryRefused, Ingested, Rewound, Signals, Trimmed
from outrider.streams.stream import Page, StreamEntry

FIRST_BATCH = 16
"""Entries of the first read, when their size is not known yet."""
BATCH_BYTES = 4 * 1024 * 1024
"""Brokers limit reads by entries, not by bytes. So the next read asks for fewer entries if this one was larger."""
PAGE = 500


class Receiver:
    def __init__(
        self, inbox: Inbox, destination: Destination, sessions: WorkerSessions, signals: Signals, schema: str
    ) -> None:
        self._inbox = inbox
        self._destination = destination
        self._sessions = sessions
        self._signals = signals
        self._schema = schema
        self.events = 0
        """New events so far."""
        self._limit = min(FIRST_BATCH, inbox.batch)
        """Entries to read at once."""
        self._after: str | None = None
        """The position of the inbox; None if it must be read from the database."""

    async def step(self, wait: float) -> str:
        """One batch, committed: "ingested", "idle", "moved" (another session has read on) or "paused"."""
        inbox = self._inbox
        if self._after is None:
            async with self._sessions.session(inbox.name) as conn:
                self._after = await inboxes.open_stream(
                    conn, inbox.name, inbox.source.stream, inbox.start, self._schema
                )
        after = self._after
        page = await self._read(after, wait)
        self._adapt_limit(page)
        hit("inbox.read")
        if not page.entries and page.position == after:
            return "idle"
        async with self._sessions.session(inbox.name) as conn:
            self._after = None  # until the commit is known
            return await self._ingest(conn, page, after)

    async def _read(self, after: str, wait: float) -> Page:
        """A position of another kind of broker, used before, means nothing here: read everything."""
        source = self._inbox.source
        try:
            source.sort_key(after)
        except ValueError:
            page = await source.read(source.start, self._limit, wait)
            return Page(page.entries, page.position, rewound=True)
        return await source.read(after, self._limit, wait)

    def _adapt_limit(self, page: Page) -> None:
        size = sum(len(entry.data) for entry in page.entries)
        if size > BATCH_BYTES:
            self._limit = max(1, len(page.entries) * BATCH_BYTES // size)
        elif len(page.entries) >= self._limit and 2 * size <= BATCH_BYTES:
            self._limit = min(self._inbox.batch, self._limit * 2)

    async def _ingest(self, conn: AsyncSession, page: Page, after: str) -> str:
        values, refused = self._decode(page.entries)
        if refused and await self._destination.learn(conn):
            values, refused = self._decode(page.entries)
        try:
            return await self._store(conn, page, after, values, refused)
        except inboxes.Unstorable as error:
            if len(page.entries) == 1:
                [entry] = page.entries
                unstorable = Refused(entry.position, entry.data, inboxes.reason(error))
                return await self._store(conn, page, after, [], [unstorable])
        return await self._ingest_one_by_one(conn, page, after)

    async def _ingest_one_by_one(self, conn: AsyncSession, page: Page, after: str) -> str:
        """Finds the entry that the database refuses. If it refuses all of them for the same reason, the table is at fault.

        Then that is raised, and the inbox stays where it is. So refused entries are only written together with the next one
        that can be stored, or at the end.
        """
        outcome, stored, rest = "ingested", False, page
        refused, faults = list[Refused](), list[tuple[str | None, str | None]]()
        for entry in page.entries:
            single = replace(rest, entries=[entry], position=entry.position)
            values, undecodable = self._decode([entry])
            if undecodable:
                refused += undecodable
                continue
            try:
                outcome = await self._store(conn, single, after, values, refused)
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
                f"{self._inbox.name}: none of {len(faults)} entries can be stored, all for the same reason, so the table "
                f"must be at fault. No entry was skipped: {refused[-1].message}"
            )
        if refused or after != page.position:
            outcome = await self._store(conn, rest, after, [], refused)
        return outcome

    def _decode(self, entries: Sequence[StreamEntry]) -> tuple[list[object], list[Refused]]:
        values: list[object] = []
        refused: list[Refused] = []
        for entry in entries:
            try:
                values.append(self._destination.decode(entry.data))
            except Exception as error:  # the codec may be a user's
                refused.append(Refused(entry.position, entry.data, describe(error)))
        return values, refused

    async def _store(
        self, conn: AsyncSession, page: Page, after: str, values: Sequence[object], refused: Sequence[Refused]
    ) -> str:
        name, stream = self._inbox.name, self._inbox.source.stream
        progress = InboxProgress(name, stream, after, page.position)
        stored = await self._destination.store(conn, progress, values, refused)
        hit("inbox.settled")
        if stored.outcome != "ingested":
            self._after = stored.stands if stored.outcome == "paused" else None
            return stored.outcome
        self._after = stored.stands
        self.events += stored.events
        if page.rewound:
            self._signals.emit(Rewound(name, stream, after, page.position, None, True))
        if page.trimmed:
            self._signals.emit(Trimmed(name, stream, after))
        for entry in refused:
            self._signals.emit(EntryRefused(name, stream, entry.position, entry.message))
        known = len(values) - stored.events
        self._signals.emit(Ingested(name, stream, stored.events, known, len(refused), page.position))
        return "ingested"


@dataclass(frozen=True, slots=True)
class RetryResult:
    ingested: int
    """New events."""
    known: int
    """Entries that had come in before, or are older than what a replica holds."""
    refused: Sequence[tuple[Kept, str]]
    """Entries that are still refused, without their data, and why."""


async def retry_refused(conn: AsyncSession, name: str, destination: Destination, schema: str) -> RetryResult:
    """All refused entries of an inbox, in one transaction. The position of the inbox stays."""
    events, through, refused = 0, list[int](), list[tuple[Kept, str]]()
    async with conn.transaction():
        stands = await inboxes.hold_streams(conn, name, schema)
        await destination.learn(conn)
        after = 0
        while kept := await inboxes.refused_again(conn, name, after, PAGE, schema):
            after = kept[-1].id
            for stream in dict.fromkeys(each.stream for each in kept):
                progress = InboxProgress(name, stream, stands[stream], stands[stream])
                readable, unreadable = _decoded([each for each in kept if each.stream == stream], destination)
                stored, unstorable = await _store(conn, progress, readable, destination)
                events += stored
                left = unreadable + unstorable
                refused += [(replace(each, data=b""), why) for each, why in left]
                through += sorted({each.id for each, _ in readable} - {each.id for each, _ in left})
        await inboxes.forget_refused(conn, through, schema)
    return RetryResult(events, len(through) - events, refused)


def _decoded(
    kept: Sequence[Kept], destination: Destination
) -> tuple[list[tuple[Kept, object]], list[tuple[Kept, str]]]:
    readable, refused = list[tuple[Kept, object]](), list[tuple[Kept, str]]()
    for each in kept:
        try:
            readable.append((each, destination.decode(each.data)))
        except Exception as error:  # the codec may be a user's
            refused.append((each, describe(error)))
    return readable, refused


async def _store(
    conn: AsyncSession, progress: InboxProgress, readable: Sequence[tuple[Kept, object]], destination: Destination
) -> tuple[int, list[tuple[Kept, str]]]:
    """All in one savepoint. If the database refuses that, one by one, to find out which entry it was."""
    if not readable:
        return 0, []
    try:
        stored = await destination.store(conn, progress, [value for _, value in readable], ())
    except inboxes.Unstorable as error:
        if len(readable) == 1:
            return 0, [(readable[0][0], inboxes.reason(error))]
        events, refused = 0, list[tuple[Kept, str]]()
        for each in readable:
            more, unstorable = await _store(conn, progress, [each], destination)
            events += more
            refused += unstorable
        return events, refused
    if stored.outcome != "ingested":
        raise SubscriptionRefused(
            f"nothing was ingested: {progress.subscription} is {stored.outcome}; to go on, run outrider subscription resume"
        )
    return stored.events, []
