"""What the dashboard asks beside `status`: open transactions, the pace of publishing, the types of the newest events,
partitions of a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from outrider.postgres.statement import looking

MOST_TRANSACTIONS = 20


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written. Events that it has published are seen when it commits, and never if it does not."""

    pid: int
    application: str
    role: str
    state: str
    age: timedelta
    query: str | None
    """The current statement, or the last one. None: this role may not see it."""
    publishes: bool
    """It has written to the log, or into the jobs."""


@dataclass(frozen=True, slots=True)
class Partition:
    generation: int
    partition: int
    seq: int
    lag: int
    failures: int
    open_until: datetime | None
    """Until when its breaker is open."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Events of one type, version and source."""

    event_type: str
    event_version: int
    source: str
    """The context that published them."""
    origin: str | None
    """The inbox that brought them."""
    events: int
    newest_at: datetime


async def open_transactions(conn: AsyncConnection[Any], schema: str) -> list[OpenTransaction]:
    """The oldest first."""
    async with looking(conn, schema) as look:
        rows = await look.rows("admin/open_transactions", {"most": MOST_TRANSACTIONS})
    return [OpenTransaction(*row) for row in rows]


async def published(conn: AsyncConnection[Any], schema: str) -> list[tuple[datetime, int]]:
    """The log positions at each minute of the last hour, the oldest first, by the times in the ids of the events."""
    async with looking(conn, schema) as look:
        return [(at, seq) for at, seq in await look.rows("admin/published") if seq is not None]


async def traffic(conn: AsyncConnection[Any], schema: str, *, after: int = 0, most: int) -> list[Flow]:
    """Of the newest `most` events above the position `after`."""
    async with looking(conn, schema) as look:
        return [Flow(*row) for row in await look.rows("admin/traffic", {"after": after, "most": most})]


async def partitions(conn: AsyncConnection[Any], name: str, schema: str) -> list[Partition]:
    async with looking(conn, schema) as look:
        return [Partition(*row) for row in await look.rows("admin/partitions", {"name": name})]
