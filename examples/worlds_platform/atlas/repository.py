"""The projection's tables. Written on the connection of the handler's transaction, so it commits with the receipt."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

TABLES = """
create schema if not exists atlas;
create table if not exists atlas.world_snapshot (
    world_id     uuid    primary key,
    world_name   text    not null,
    scan_id      uuid    not null,
    number       integer not null,
    habitability numeric not null,
    titles       text[]  not null,
    snapshot     text    not null
);
-- Every time the projection was written. Nothing here is unique: an event that is handled twice shows.
create table if not exists atlas.indexed (
    place    bigint  generated always as identity primary key,
    world_id uuid    not null,
    scan_id  uuid    not null,
    number   integer not null,
    release  bigint  not null  -- the generation of the worker that wrote it
);
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    world_id: UUID
    world_name: str
    scan_id: UUID
    number: int
    habitability: Decimal
    titles: list[str]
    snapshot: str
    """The producer's payload as the log holds it, byte for byte."""


class SnapshotRepository:
    def __init__(self, conn: AsyncConnection[Any], release: int = 0) -> None:
        self._conn = conn
        self._release = release

    async def put(self, found: Snapshot) -> None:
        await self._conn.execute(
            """
            insert into atlas.world_snapshot values (%s, %s, %s, %s, %s, %s, %s)
            on conflict (world_id) do update set
                (world_name, scan_id, number, habitability, titles, snapshot) =
                (excluded.world_name, excluded.scan_id, excluded.number, excluded.habitability, excluded.titles,
                 excluded.snapshot)
            """,
            [
                found.world_id,
                found.world_name,
                found.scan_id,
                found.number,
                found.habitability,
                found.titles,
                found.snapshot,
            ],
        )
        await self._conn.execute(
            "insert into atlas.indexed (world_id, scan_id, number, release) values (%s, %s, %s, %s)",
            [found.world_id, found.scan_id, found.number, self._release],
        )

    async def all(self) -> list[Snapshot]:
        async with self._conn.cursor(row_factory=class_row(Snapshot)) as cursor:
            await cursor.execute("select * from atlas.world_snapshot order by world_name")
            return await cursor.fetchall()

    async def has(self, scan_id: UUID) -> bool:
        return await self.times_indexed(scan_id) > 0

    async def times_indexed(self, scan_id: UUID) -> int:
        cursor = await self._conn.execute("select count(*) from atlas.indexed where scan_id = %s", [scan_id])
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    async def numbers(self, world_id: UUID) -> list[int]:
        """The scans of a world in the order in which they were indexed."""
        query = "select number from atlas.indexed where world_id = %s order by place"
        return [number async for (number,) in await self._conn.execute(query, [world_id])]

    async def releases(self) -> dict[UUID, list[int]]:
        """By scan, the releases that have indexed it: one, unless it was handled twice."""
        query = "select scan_id, array_agg(release) from atlas.indexed group by scan_id"
        return {scan_id: releases async for scan_id, releases in await self._conn.execute(query)}
