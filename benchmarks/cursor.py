"""Publish and the cursor, each beside the plainest thing that could do its work without its promises."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import AsyncConnection

from benchmarks.event import Measured
from benchmarks.measure import Cases, Conn, compare, show
from outrider import Outrider
from outrider.envelope import Envelope
from outrider.postgres import connection, log
from outrider.postgres.embedded import Embedded
from outrider.postgres.schema import migrate

EVENT = Measured(customer="customer-7", note="x" * 90)
FIELDS = (
    "seq", "id", "event_type", "event_version", "occurred_at", "source", "target", "content_class", "channel",
    "generation", "workspace_id", "aggregate_kind", "key", "entity_version", "payload_json", "idempotency_key",
    "trace_context", "origin",
)  # fmt: skip
COLUMNS = """seq, id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
    workspace_id, aggregate_kind, aggregate_id, entity_version, payload::text, coalesce(idempotency_key, id::text),
    trace_context::text, origin"""
PLAIN = "insert into plain (payload) values (%s)"


def publish_cases(conn: Conn, app: Outrider) -> Cases:
    text = EVENT.model_dump_json()

    def plain() -> None:
        for _ in range(500):
            conn.execute(PLAIN, [text])
            conn.commit()

    def one_per_commit() -> None:
        for _ in range(500):
            app.publish_sync(conn, EVENT)
            conn.commit()

    def plain_many() -> None:
        conn.execute("insert into plain (payload) select unnest(%s::text[])::jsonb", [[text] * 5000])
        conn.commit()

    def many() -> None:
        app.publish_many_sync(conn, [EVENT] * 5000)
        conn.commit()

    return {
        "plain insert": (500, plain),
        "publish": (500, one_per_commit),
        "plain insert of 5,000": (5000, plain_many),
        "publish_many of 5,000": (5000, many),
    }


def drain_cases(dsn: str, admin: Conn, events: int) -> Cases:
    def rewind(name: str) -> None:
        admin.execute("delete from outrider.subscription where name = %s", [name])
        admin.execute("select outrider.register(%s, 'reader', 'bench', null, 1, 'beginning')", [name])

    def naive(batch: int) -> Callable[[], None]:
        async def read() -> None:
            position = 0
            async with await AsyncConnection.connect(dsn) as conn, conn.cursor(binary=True) as cursor:
                while True:
                    await cursor.execute(
                        f"select {COLUMNS} from outrider.outbox where seq > %s order by seq limit %s",
                        [position, batch],
                    )
                    rows: list[Any] = await cursor.fetchall()
                    await conn.commit()
                    if not rows:
                        return
                    position = [Envelope.of(dict(zip(FIELDS, row, strict=True))) for row in rows][-1].seq or 0

        return lambda: asyncio.run(read())

    def exact(batch: int) -> Callable[[], None]:
        async def read() -> None:
            async with await AsyncConnection.connect(dsn) as conn:
                while (await log.take(conn, f"bench.b{batch}", 0, batch, max(batch, 10_000), "outrider")).more:
                    await conn.commit()
                await conn.commit()

        def run() -> None:
            rewind(f"bench.b{batch}")
            asyncio.run(read())

        return run

    cases: Cases = {"seq > position, batch 500 (*)": (events, naive(500))}
    for batch in (100, 500, 1000, 2000):
        cases[f"exact cursor, batch {batch}"] = (events, exact(batch))
    return cases


async def _migrate(dsn: str) -> None:
    async with await connection.connect(dsn, autocommit=True) as conn:
        await migrate.migrate(conn, "outrider", "benchmark")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cursor", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with Embedded.temporary(settings={"fsync": "on", "shared_buffers": "256MB"}) as server:
        server.ensure_database("bench")
        dsn = server.dsn("bench")
        asyncio.run(_migrate(dsn))
        app = Outrider(context="bench", dsn=dsn)
        with psycopg.connect(dsn, autocommit=True) as admin, psycopg.connect(dsn) as conn:
            admin.execute("create table plain (id bigint generated always as identity primary key, payload jsonb)")
            results = compare(admin, publish_cases(conn, app), options.repeats)
            show("Publish: one per commit", results[:2])
            show("Publish: many at once", results[2:])
            admin.execute("truncate outrider.outbox")
            for _ in range(options.events // 10_000):
                app.publish_many_sync(conn, [EVENT] * 10_000)
                conn.commit()
            admin.execute("vacuum analyze outrider.outbox")
            cases = drain_cases(dsn, admin, options.events)
            show(f"Read {options.events:,} events, one process", compare(admin, cases, options.repeats))
