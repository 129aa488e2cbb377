"""The statements of relays: take, settle, reject; their streams and their marks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import AsyncCursor
from psycopg.rows import tuple_row

from outrider.envelope import Envelope
from outrider.postgres.connection import AsyncSession
from outrider.postgres.errors import in_our_words
from outrider.postgres.handler_batches import Lost
from outrider.postgres.log import ATTEMPT, DELIVERY, DUE_IN, OUTCOME, envelope_of
from outrider.postgres.statement import Params, call, fetch, fetch_call, statement
from outrider.postgres.worker_sessions import begin, together
from outrider.signed import Signed

Row = tuple[Any, ...]
MARKS = 20
FLUSHED = (
    """select set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') = 'off'"""
)


class Item:
    """One event of a batch, with its state."""

    __slots__ = ("attempt", "delivery", "due_in", "envelope", "replayed", "state")

    def __init__(self, row: Row) -> None:
        self.envelope: Envelope = envelope_of(row)
        self.attempt: int = row[ATTEMPT]
        """1 + the number of times that it was rejected."""
        self.delivery: int | None = None
        """The delivery of an event that was rejected."""
        self.state: str | None = None
        """ahead: it is already in its stream. Otherwise, the status of its delivery."""
        self.due_in = 0.0
        """Seconds until it is tried again."""
        self.replayed = False
        """It is a replayed dead letter, sent out of order."""


@dataclass(frozen=True, slots=True)
class RelayBatch:
    """The result of a take for a relay: first the replayed dead letters, then the events of the log."""

    outcome: str
    due_in: float | None
    positions: Mapping[str, str]
    items: Sequence[Item]

    @property
    def taken(self) -> bool:
        """Something was read: the transaction is open, and the cursor is locked."""
        return self.outcome in ("more", "done")


@dataclass(slots=True)
class Settling:
    """The arguments of the SQL function relay_settle."""

    subscription: str
    positions: dict[str, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    sent: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    found: list[UUID] = field(default_factory=list)
    done: bool = False
    mark: bool = False

    def params(self) -> Params:
        return {
            "subscription": self.subscription,
            "streams": list(self.positions),
            "positions": list(self.positions.values()),
            "events": [self.events[name] for name in self.positions],
            "sent": self.sent,
            "passed": self.passed,
            "found": self.found,
            "done": self.done,
            "mark": self.mark,
        }


@dataclass(frozen=True, slots=True)
class Take:
    """The arguments of a take for a relay."""

    subscription: str
    limit: int
    scan: int
    knows: list[str] | None
    workspace: str | None
    """The tenant whose events are read."""

    async def send(self, conn: AsyncSession, schema: str) -> _Reading:
        events, state = AsyncCursor(conn, row_factory=tuple_row), AsyncCursor(conn, row_factory=tuple_row)
        asked = {
            "subscription": self.subscription,
            "limit": self.limit,
            "scan": max(self.scan, self.limit),
            "knows": self.knows,
        }
        await begin(conn)
        if self.workspace is not None:
            await conn.execute("select set_config('app.workspace_id', %s, true)", [self.workspace])
        await events.execute(call("relay_take", schema, tuple(asked)), asked, binary=True)
        await state.execute(statement("streams/relay_state", schema), {"subscription": self.subscription})
        return _Reading(self, events, state)


@dataclass(frozen=True, slots=True)
class _Reading:
    take: Take
    events: AsyncCursor[Row]
    state: AsyncCursor[Row]

    async def batch(self, conn: AsyncSession, schema: str) -> RelayBatch:
        head, *rows = await self.events.fetchall()
        [(positions, owes)] = await self.state.fetchall()
        outcome, due_in, items = head[OUTCOME], head[DUE_IN], [Item(row) for row in rows]
        if owes and outcome in ("more", "done"):
            items = await _with_state(conn, self.take.subscription, self.take.limit, items, schema)
        return RelayBatch(outcome, due_in, json.loads(positions), items)


async def take(conn: AsyncSession, asked: Take, schema: str) -> RelayBatch:
    """Begin, lock, read, advance: one round trip."""
    with in_our_words(schema):
        async with together(conn):
            reading = await asked.send(conn, schema)
        return await reading.batch(conn, schema)


async def _with_state(conn: AsyncSession, subscription: str, limit: int, items: list[Item], schema: str) -> list[Item]:
    """The replayed dead letters, then the items, completed with their state."""
    by_seq = {each.envelope.seq: each for each in items}
    params = {"subscription": subscription, "seqs": list(by_seq), "ids": [each.envelope.id for each in items]}
    for seq, delivery, status, attempts, due_in, ahead, payload in await fetch(
        conn, "streams/relay_owed", schema, params
    ):
        item = by_seq[seq]
        if payload is not None:
            item.envelope = Envelope.of(vars(item.envelope) | {"payload_json": payload})
        item.delivery, item.state = delivery, "ahead" if ahead else status
        if delivery is not None:
            item.attempt, item.due_in = attempts + 1, due_in
    replayed = []
    for row in await fetch(conn, "streams/relay_replayed", schema, {"subscription": subscription, "limit": limit}):
        item = Item(row)
        item.state, item.delivery, item.replayed = row[OUTCOME], row[DELIVERY], True
        replayed.append(item)
    return [*replayed, *items]


async def settle(conn: AsyncSession, settling: Settling, asked: Take | None, schema: str) -> RelayBatch | None:
    """Stores the positions of the streams, commits, and sends the next take, if any: one round trip."""
    with in_our_words(schema):
        async with together(conn):
            await move(conn, settling, schema)
            ended = await conn.execute("commit")
            reading = None if asked is None else await asked.send(conn, schema)
        if ended.statusmessage != "COMMIT":
            raise Lost(f"the batch was not committed: the server answered {ended.statusmessage}")
        return None if reading is None else await reading.batch(conn, schema)


async def reject(
    conn: AsyncSession,
    subscription: str,
    seq: int,
    why: tuple[str, str],
    delay: timedelta,
    most: int,
    bury: bool,
    worker: str,
    schema: str,
) -> tuple[int, bool]:
    """Returns how often the event was rejected, and whether it is a dead letter now."""
    code, message = why
    [(attempts, buried)] = await fetch_call(
        conn,
        "relay_reject",
        schema,
        {
            "subscription": subscription,
            "seq": seq,
            "code": code,
            "message": message,
            "worker": worker,
            "delay": delay,
            "most": most,
            "bury": bury,
        },
    )
    return attempts or 0, buried


async def positions(conn: AsyncSession, subscription: str, schema: str) -> dict[str, str]:
    rows = await fetch(conn, "streams/streams", schema, {"subscription": subscription, "name": None, "kind": None})
    return {name: position for _, _, name, position, _, _ in rows}


async def marks(conn: AsyncSession, subscription: str, schema: str) -> AsyncIterator[tuple[datetime, dict[str, str]]]:
    """The newest first, read a few at a time, because a mark is large with many streams."""
    before: datetime | None = None
    while True:
        params = {"subscription": subscription, "before": before, "limit": MARKS}
        rows = await fetch(conn, "streams/marks", schema, params)
        for at, known in rows:
            yield at, known
        if len(rows) < MARKS:
            return
        before = rows[-1][0]


async def open_streams(
    conn: AsyncSession, subscription: str, ends: Mapping[str, str], schema: str, *, adopt: bool = False
) -> None:
    """Committed to disk before the relay writes to the streams: after a crash, it must still know that they are its own."""
    params = {"subscription": subscription, "streams": list(ends), "positions": list(ends.values()), "adopt": adopt}
    async with conn.transaction():
        await conn.execute(FLUSHED)
        await fetch_call(conn, "relay_open", schema, params)


async def wrote(
    conn: AsyncSession, subscription: str, workspace: str | None, stream: str, ids: Sequence[UUID], schema: str
) -> bool:
    """Whether the relay itself wrote a stream that it does not know and that holds these events."""
    async with conn.transaction():
        if workspace is not None:
            await conn.execute("select set_config('app.workspace_id', %s, true)", [workspace])
        params = {"subscription": subscription, "stream": stream, "ids": list(ids)}
        [(own,)] = await fetch(conn, "streams/relay_wrote", schema, params)
    return bool(own)


@asynccontextmanager
async def holding(conn: AsyncSession, subscription: str, schema: str) -> AsyncIterator[bool]:
    """A transaction that locks the relay's cursor. False if another session holds it."""
    async with conn.transaction():
        yield bool(await fetch_call(conn, "relay_hold", schema, {"subscription": subscription}))


async def rewind(conn: AsyncSession, subscription: str, at: datetime, schema: str) -> None:
    await fetch_call(conn, "relay_rewind", schema, {"subscription": subscription, "at": at})


async def put_ahead(
    conn: AsyncSession, subscription: str, events: Sequence[UUID], schema: str
) -> tuple[int, UUID | None]:
    """Records that the events are already in a stream. Returns how many are not of this log, and one of those."""
    [(strangers, stranger)] = await fetch_call(
        conn, "relay_ahead", schema, {"subscription": subscription, "events": list(events)}
    )
    return strangers, stranger


async def move(conn: AsyncSession, settling: Settling, schema: str) -> None:
    """Like settle, in the caller's transaction."""
    params = settling.params()
    await conn.execute(call("relay_settle", schema, tuple(params)), params)


async def note_adoption(
    conn: AsyncSession, subscription: str, stream: str, positions: tuple[str | None, str], signed: Signed, schema: str
) -> None:
    """Writes to the audit where the relay was in the stream, and where it continues."""
    before, position = positions
    params = {"subscription": subscription, "stream": stream, "before": before, "position": position} | signed.params()
    with in_our_words(schema):
        await conn.execute(call("note_adoption", schema, tuple(params)), params)
