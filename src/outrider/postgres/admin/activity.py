"""What the dashboard asks beside `status`: open transactions, samples of the last hour, the types of the newest events,
partitions of a subscription. Workers take the samples, one per minute over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from outrider.postgres.admin.status import SCAN, Status, waiting_since, workers_of
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.statement import fetch_call, looking

MOST_TRANSACTIONS = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """How much there was to do at one time."""

    at: datetime
    seq: int
    """The newest log position."""
    waiting: float
    """Seconds that the oldest event or job has waited that a worker could take."""
    owed: int
    """Events that wait for a retry, and jobs that are pending or running."""
    dead: int
    handled: int = 0
    """Events and jobs that the workers have handled since each of them started."""
    failed: int = 0
    """Attempts that have failed there."""

    @classmethod
    def of(cls, status: Status) -> Sample:
        return cls(
            status.read_at,
            status.seq,
            waited([each.waiting_since for each in status.subscriptions], status.read_at),
            sum(each.waiting for each in status.subscriptions),
            sum(each.dead for each in status.subscriptions),
            sum(each.handled for each in status.workers),
            sum(each.failed for each in status.workers),
        )


def waited(since: Iterable[datetime | None], now: datetime) -> float:
    """Seconds since the earliest of these times."""
    return max((max(0.0, (now - at).total_seconds()) for at in since if at is not None), default=0.0)


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


async def samples(conn: AsyncConnection[Any], schema: str) -> list[Sample]:
    """Those of the last hour, the oldest first."""
    async with looking(conn, schema) as look:
        return [Sample(*row) for row in await look.rows("admin/samples")]


async def take_sample(conn: AsyncConnection[Any], schema: str) -> None:
    """Keeps the state of now as the sample of this minute."""
    async with looking(conn, schema) as look:
        [(now, seq, all_paused_at)] = await look.rows("admin/moment")
        standings = await look.rows("admin/standings", {"most": MOST})
        unread = await look.rows("admin/oldest_unread", {"scan": SCAN, "relay_scan": SCAN})
        workers = await workers_of(look)
    oldest = {name: at for name, at, *_ in unread}
    since = [
        waiting_since(kind, paused_at or all_paused_at, oldest[name], due_at)
        for name, kind, _, _, _, _, paused_at, _, _, _, due_at, _ in standings
    ]
    owed, dead = (sum(row[place] for row in standings) for place in (7, 11))
    kept = {"seq": seq, "waiting": waited(since, now), "owed": owed, "dead": dead}
    kept |= {"handled": sum(each.handled for each in workers), "failed": sum(each.failed for each in workers)}
    await fetch_call(conn, "keep_sample", schema, kept)


async def traffic(conn: AsyncConnection[Any], schema: str, *, after: int = 0, most: int) -> list[Flow]:
    """Of the newest `most` events above the position `after`."""
    async with looking(conn, schema) as look:
        return [Flow(*row) for row in await look.rows("admin/traffic", {"after": after, "most": most})]


async def partitions(conn: AsyncConnection[Any], name: str, schema: str) -> list[Partition]:
    async with looking(conn, schema) as look:
        return [Partition(*row) for row in await look.rows("admin/partitions", {"name": name})]
