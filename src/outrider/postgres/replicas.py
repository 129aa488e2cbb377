"""Replicas: a table that holds the newest version of each entity, updated from the changes of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from outrider.errors import DeclarationError
from outrider.postgres import inboxes
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import InboxProgress, IngestResult, Refused
from outrider.postgres.statement import fetch
from outrider.streams.replica import ReplicaChange

DDL = """create table {table} (
    aggregate_kind text not null,
    aggregate_id   text not null,
    entity_version bigint not null,
    topic          text not null,
    payload        jsonb not null,
    event_id       uuid not null,
    committed_at   timestamptz not null,
    primary key (aggregate_kind, aggregate_id)
)"""

_UPSERT = """
insert into {table} as r (aggregate_kind, aggregate_id, entity_version, topic, payload, event_id, committed_at)
select distinct on (c.aggregate_kind, c.aggregate_id)
       c.aggregate_kind, c.aggregate_id, c.entity_version, c.topic, c.payload::jsonb, c.event_id::uuid,
       c.committed_at::timestamptz
from unnest(%(aggregate_kind)s::text[], %(aggregate_id)s::text[], %(entity_version)s::bigint[], %(topic)s::text[],
            %(payload)s::text[], %(event_id)s::text[], %(committed_at)s::text[]) with ordinality
    as c (aggregate_kind, aggregate_id, entity_version, topic, payload, event_id, committed_at, place)
order by c.aggregate_kind, c.aggregate_id, c.entity_version desc, c.place desc
on conflict (aggregate_kind, aggregate_id) do update
set entity_version = excluded.entity_version, topic = excluded.topic, payload = excluded.payload,
    event_id = excluded.event_id, committed_at = excluded.committed_at
where r.entity_version < excluded.entity_version
"""


async def apply(
    conn: AsyncSession,
    progress: InboxProgress,
    table: str,
    changes: Sequence[ReplicaChange],
    refused: Sequence[Refused],
    schema: str,
) -> IngestResult:
    """Writes newer versions, refused entries and the position in one transaction."""
    async with conn.transaction():
        if await _paused(conn, progress.subscription, schema):
            return IngestResult("paused", 0, progress.after)
        if not await inboxes.move(conn, progress, refused, schema):
            return IngestResult("moved", 0, progress.after)
        newer = await upsert(conn, table, changes)
        await fetch(conn, "streams/inbox_count", schema, _counted(progress, newer))
        return IngestResult("ingested", newer, progress.position)


def _counted(progress: InboxProgress, events: int) -> dict[str, Any]:
    return {"subscription": progress.subscription, "stream": progress.stream, "events": events}


async def upsert(conn: AsyncSession, table: str, changes: Sequence[ReplicaChange]) -> int:
    """Writes the changes that are newer than the table's rows; returns how many."""
    if not changes:
        return 0
    query = sql.SQL(_UPSERT).format(table=sql.Identifier(*table.split(".")))
    try:
        return (await conn.execute(query, _columns(changes))).rowcount
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedColumn,
        psycopg.errors.InvalidColumnReference,
    ) as error:
        raise DeclarationError(
            f"the table {table} does not exist, or is not a replica table ({error.diag.message_primary}). Create it:\n"
            + DDL.format(table=table)
        ) from error


async def stitch(
    conn: AsyncSession,
    progress: InboxProgress,
    table: str,
    snapshot: Iterable[ReplicaChange],
    ahead: Callable[[str], bool],
    schema: str,
) -> int:
    """Writes a snapshot, and moves the replica to the snapshot's position unless it is already ahead."""
    newer = 0
    async with conn.transaction():
        stands = await inboxes.open_stream(conn, progress.subscription, progress.stream, progress.after, schema)
        if not ahead(stands):
            await inboxes.move(conn, replace(progress, after=stands), (), schema)
        for page in _pages(snapshot):
            newer += await upsert(conn, table, page)
    return newer


def _pages(changes: Iterable[ReplicaChange]) -> Iterator[list[ReplicaChange]]:
    rest = iter(changes)
    while page := list(islice(rest, 1000)):
        yield page


async def _paused(conn: AsyncSession, subscription: str, schema: str) -> bool:
    return bool(await fetch(conn, "streams/held_back", schema, {"subscription": subscription}))


def _columns(changes: Sequence[ReplicaChange]) -> dict[str, list[Any]]:
    return {
        "aggregate_kind": [each.aggregate_kind or "" for each in changes],
        "aggregate_id": [each.aggregate_id for each in changes],
        "entity_version": [each.entity_version for each in changes],
        "topic": [each.topic for each in changes],
        "payload": [json.dumps(each.payload) for each in changes],
        "event_id": [str(each.event_id) for each in changes],
        "committed_at": [each.committed_at.isoformat() for each in changes],
    }
