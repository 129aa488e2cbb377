"""The statements of inboxes: ingest events, move positions, keep entries that were refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg

from outrider.envelope import Envelope
from outrider.postgres.connection import AsyncSession
from outrider.postgres.errors import in_our_words, queue_is_full
from outrider.postgres.event_inserts import COLUMNS, row_of
from outrider.postgres.statement import Params, fetch, fetch_call, statement
from outrider.redaction import sanitise

Unstorable = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
"""Errors that one entry causes. If every entry of a batch causes one, the reason is elsewhere."""


class CommitRefused(psycopg.OperationalError):
    """The queue of notifications filled before COMMIT."""

    sqlstate = "54000"


@dataclass(frozen=True, slots=True)
class InboxProgress:
    """One batch moves an inbox from the position `after` to `position`."""

    subscription: str
    stream: str
    after: str
    position: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the receiving log adds to its events."""

    channel: str
    generation: int
    notify: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that could not be turned into an event."""

    position: str
    data: bytes
    message: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A refused entry, as the database keeps it."""

    id: int
    inbox: str
    stream: str
    position: str
    data: bytes
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class IngestResult:
    outcome: str
    """ingested, moved or paused"""
    events: int
    """How many of them were new."""
    stands: str
    """The position of the inbox."""


def reason(error: psycopg.Error) -> str:
    """Without DETAIL, which quotes the row: it may be confidential."""
    return sanitise(f"the database refuses it: {error.diag.message_primary or error}")


def fault(error: psycopg.Error) -> tuple[str | None, str | None]:
    """What was violated. Entries with different faults are refused for different reasons."""
    return error.sqlstate, error.diag.constraint_name or error.diag.column_name


async def open_stream(conn: AsyncSession, subscription: str, stream: str, position: str, schema: str) -> str:
    """The position of the stream. A new stream starts at `position`."""
    params = {"subscription": subscription, "stream": stream, "position": position}
    [(stands,)] = await fetch(conn, "streams/inbox_open", schema, params)
    return str(stands)


async def ingest(
    conn: AsyncSession,
    progress: InboxProgress,
    envelopes: Sequence[Envelope],
    refused: Sequence[Refused],
    stamp: Stamp,
    schema: str,
) -> IngestResult:
    """Writes the events, their receipts, the refused entries and the position in one transaction."""
    written = False
    try:
        async with conn.transaction():
            if stamp.notify != "commit":
                await conn.execute("set local outrider.notify = 'off'")
            params = (
                _columns(envelopes)
                | {"channel": stamp.channel, "generation": stamp.generation}
                | _progress_params(progress)
            )
            [(outcome, events, stands)] = await fetch_call(conn, "ingest", schema, params)
            if outcome == "ingested":
                await _refuse(conn, progress, refused, schema)
            written = True
    except psycopg.errors.ProgramLimitExceeded as error:
        if written and queue_is_full(error):  # no entry is at fault
            raise CommitRefused(str(error)) from error
        raise
    return IngestResult(outcome, events, stands)


async def move(conn: AsyncSession, progress: InboxProgress, refused: Sequence[Refused], schema: str) -> bool:
    """Moves the position only. False if another worker has moved it."""
    moved = bool(await fetch(conn, "streams/inbox_move", schema, _progress_params(progress)))
    if moved:
        await _refuse(conn, progress, refused, schema)
    return moved


async def refused(
    conn: AsyncSession, schema: str, *, subscription: str | None = None, after: int = 0, limit: int = 100
) -> list[Kept]:
    rows = await fetch(conn, "streams/refused", schema, {"subscription": subscription, "after": after, "limit": limit})
    return [Kept(*row) for row in rows]


async def refused_again(conn: AsyncSession, subscription: str, after: int, limit: int, schema: str) -> list[Kept]:
    """The next refused entries of an inbox, up to the bytes of a batch, locked until the transaction ends."""
    params = {"subscription": subscription, "after": after, "limit": limit}
    return [Kept(*row) for row in await fetch(conn, "streams/refused_again", schema, params)]


async def hold_streams(conn: AsyncSession, subscription: str, schema: str) -> dict[str, str]:
    """The positions of an inbox's streams, locked until the transaction ends."""
    return dict(await fetch(conn, "streams/inbox_hold", schema, {"subscription": subscription}))


async def forget_refused(conn: AsyncSession, ids: Sequence[int], schema: str) -> None:
    with in_our_words(schema):
        await conn.execute(statement("streams/forget_refused", schema), {"ids": list(ids)})


async def _refuse(conn: AsyncSession, progress: InboxProgress, entries: Sequence[Refused], schema: str) -> None:
    if entries:
        params = {
            "subscription": progress.subscription,
            "stream": progress.stream,
            "positions": [each.position for each in entries],
            "data": [each.data for each in entries],
            "messages": [each.message for each in entries],
        }
        with in_our_words(schema):
            await conn.execute(statement("streams/refuse", schema), params)


def _progress_params(progress: InboxProgress) -> Params:
    return {name: getattr(progress, name) for name in progress.__slots__}


def _columns(envelopes: Sequence[Envelope]) -> Params:
    rows = [row_of(envelope) for envelope in envelopes]
    return {name: [row[name] for row in rows] for name in COLUMNS}
