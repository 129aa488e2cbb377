"""The dedup race: one fact, announced many times under many ordering keys, met by all partitions at the same moment.

Once with a shared idempotency key, where the primary key of the receipts is the gate; once with a handler that looks
first and inserts afterwards, as many do by hand.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

from outrider import HandlerContext

from .atlas.events import ScanCompleted
from .atlas.repository import SnapshotRepository
from .composition import PARTITIONS, Connection, Platform, compose, index, opened
from .worlds import events

SESSIONS = PARTITIONS
TIMES = 256
"""Enough for every partition to get some."""


@dataclass(frozen=True, slots=True)
class Result:
    announced: int
    handled: int
    duplicates: int
    effects: int

    def __str__(self) -> str:
        return (
            f"announced {self.announced} times, {SESSIONS} sessions at once: "
            f"{self.handled} handled, {self.duplicates} duplicates skipped, indexed {self.effects}x"
        )


class HeldOpen:
    """The first to come indexes, and does not return before every other session waits for it."""

    def __init__(self, tx: Connection, all_have_met: asyncio.Event) -> None:
        self._tx = tx
        self._all_have_met = all_have_met

    async def __call__(self, event: ScanCompleted, ctx: HandlerContext) -> None:
        await index(self._tx)(event, ctx)
        while not self._all_have_met.is_set():
            if await self._waiting() == SESSIONS - 1:
                self._all_have_met.set()

    async def _waiting(self) -> int:
        query = "select count(*) from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid))"
        row = await (await self._tx.execute(query)).fetchone()
        assert row is not None
        return int(row[0])


class LooksFirst:
    """How not to: between the look and the insert all the others look too, and none sees what is not committed."""

    def __init__(self, tx: Connection, all_have_looked: asyncio.Barrier) -> None:
        self._tx = tx
        self._all_have_looked = all_have_looked

    async def __call__(self, event: ScanCompleted, ctx: HandlerContext) -> None:
        if await SnapshotRepository(self._tx).has(event.scan_id):
            return
        await self._all_have_looked.wait()
        await index(self._tx)(event, ctx)


async def with_receipts(dsn: str | None, world_id: UUID) -> Result:
    met = asyncio.Event()
    return await _race(compose(dsn, make=lambda tx: HeldOpen(tx, met)), world_id, shared_key=True)


async def with_a_look_first(dsn: str | None, world_id: UUID) -> Result:
    looked = asyncio.Barrier(SESSIONS)
    return await _race(compose(dsn, make=lambda tx: LooksFirst(tx, looked)), world_id, shared_key=False)


async def _race(platform: Platform, world_id: UUID, *, shared_key: bool) -> Result:
    scan_id = uuid4()
    async with opened(platform):
        await _announce(platform, world_id, scan_id, shared_key=shared_key)
        drained = await asyncio.gather(*(platform.atlas.drain(raise_on_failure=True) for _ in range(SESSIONS)))
        async with platform.atlas.connect() as conn:
            effects = await SnapshotRepository(conn).times_indexed(scan_id)
    handled, duplicates = sum(each.handled for each in drained), sum(each.duplicates for each in drained)
    return Result(TIMES, handled, duplicates, effects)


async def _announce(platform: Platform, world_id: UUID, scan_id: UUID, *, shared_key: bool) -> None:
    """A scan, and an import that is retried over one relay station after the other, each with its own order."""
    app = platform.worlds
    async with app.connect() as conn, conn.transaction():
        first = await platform.survey.complete_scan(
            conn, world_id, scan_id, completed_at=datetime.now(UTC), habitability=Decimal("0.5"), findings=[]
        )
        scan = first.decode(events.ScanCompleted)
        again = str(scan_id) if shared_key else None
        stations = [f"station-{n}" for n in range(1, TIMES)]
        await app.publish_many(conn, [app.envelope(scan, key=each, idempotency_key=again) for each in stations])
