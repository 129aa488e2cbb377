"""The domain service of this context and its tables. The caller owns the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from outrider import Envelope, Outrider

from .events import Finding, ScanCompleted

Connection = AsyncConnection[Any]

TABLES = """
create schema if not exists worlds;
create table if not exists worlds.world (
    id           uuid    primary key,
    name         text    not null,
    scans        integer not null default 0,
    habitability numeric
);
create table if not exists worlds.scan (
    id           uuid        primary key,
    world_id     uuid        not null references worlds.world (id),
    number       integer     not null,
    completed_at timestamptz not null,
    habitability numeric     not null,
    findings     jsonb       not null,
    unique (world_id, number)
);
"""


class UnknownWorld(LookupError):
    """There is no world with this id."""


class Survey:
    def __init__(self, app: Outrider) -> None:
        self._app = app

    async def discover(self, conn: Connection, world_id: UUID, name: str) -> None:
        await conn.execute(
            "insert into worlds.world (id, name) values (%s, %s) on conflict (id) do nothing", [world_id, name]
        )

    async def complete_scan(
        self,
        conn: Connection,
        world_id: UUID,
        scan_id: UUID,
        *,
        completed_at: datetime,
        habitability: Decimal,
        findings: Sequence[Finding],
        audience: str | None = None,
    ) -> Envelope:
        """Change the world and say so, in one transaction. `audience`: the one context that shall hear of it."""
        # The lock makes the order of publishing the order of the scans: promise 4 asks for it.
        cursor = await conn.execute("select name, scans + 1 from worlds.world where id = %s for update", [world_id])
        world = await cursor.fetchone()
        if world is None:
            raise UnknownWorld(world_id)
        name, number = world
        await conn.execute(
            "insert into worlds.scan values (%s, %s, %s, %s, %s, %s)",
            [
                scan_id,
                world_id,
                number,
                completed_at,
                habitability,
                Jsonb([f.model_dump(mode="json") for f in findings]),
            ],
        )
        await conn.execute(
            "update worlds.world set scans = %s, habitability = %s where id = %s", [number, habitability, world_id]
        )
        event = ScanCompleted(
            world_id=world_id,
            world_name=name,
            scan_id=scan_id,
            number=number,
            completed_at=completed_at,
            habitability=habitability,
            findings=tuple(findings),
        )
        return await self._app.publish(
            conn,
            event,
            idempotency_key=str(scan_id),
            target=audience,
            aggregate_kind="world",
            entity_version=number,
        )
