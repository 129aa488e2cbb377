"""The statements of upkeep. SQL functions of the same names do the work, with the privileges of their owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

from outrider.errors import UpkeepRefused
from outrider.postgres.connection import AsyncSession
from outrider.postgres.errors import in_our_words
from outrider.postgres.statement import Params, call, fetch

Step = Literal["segments", "dead_letters", "log", "receipts", "traces", "reap"]
STEPS: tuple[Step, ...] = ("segments", "dead_letters", "log", "receipts", "traces", "reap")


@dataclass(frozen=True, slots=True)
class Did:
    """What one step did, or in a dry run would do."""

    action: str
    """make, made, cut, detached, dropped, attached, expired, reaped, ticked. kept, busy: no change. more: call again."""
    subject: str
    number: int
    detail: str | None


@dataclass(frozen=True, slots=True)
class Segment:
    name: str
    first_seq: int
    last_seq: int | None
    """None = unbounded."""
    state: Literal["ahead", "written", "closed", "last", "detached"]
    events: int
    """An estimate from the statistics."""
    bytes: int
    begun_at: datetime | None
    closed_at: datetime | None
    detached_at: datetime | None
    kept: str | None
    """Why it is kept beyond its retention."""
    due_at: datetime | None
    """When it may be detached; for a detached segment, when it is dropped."""


async def begin(conn: AsyncSession, every: timedelta, schema: str) -> bool:
    """False: another run has started within `every`."""
    [(turn,)] = await _call(conn, "upkeep_begin", schema, {"every": every})
    return bool(turn)


async def step(conn: AsyncSession, name: Step, schema: str, *, dry: bool = False) -> list[Did]:
    return [Did(*row) for row in await _call(conn, f"upkeep_{name}", schema, {"dry": dry})]


async def overdue_rollups(conn: AsyncSession, schema: str) -> list[str]:
    return [name for (name,) in await _call(conn, "overdue_rollups", schema, {})]


async def segments(conn: AsyncSession, schema: str) -> list[Segment]:
    return [Segment(*row) for row in await fetch(conn, "upkeep/segments", schema)]


async def attach(
    conn: AsyncSession, name: str, schema: str, *, days: int, by: str | None = None, reason: str | None = None
) -> Did:
    """Makes a detached segment part of the log again, for `days` days."""
    [row] = await _call(conn, "attach_segment", schema, {"name": name, "days": days, "by": by, "reason": reason})
    return Did(*row)


async def _call(conn: AsyncSession, name: str, schema: str, params: Params) -> list[tuple[Any, ...]]:
    """In a transaction of its own, whatever the session's default is."""
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute("set transaction isolation level read committed")
            with in_our_words(schema):
                await cursor.execute(call(name, schema, tuple(params)), params)
                return await cursor.fetchall()
    except psycopg.errors.LockNotAvailable as error:
        raise UpkeepRefused("nothing was changed: other sessions hold the locks that it needs: try again") from error
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, psycopg.Error) and cause.sqlstate == "OR009":
            raise UpkeepRefused(str(error)) from cause
        raise
