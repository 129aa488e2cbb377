"""Growth: with ten million events behind them, take and publish cost what they cost with ten thousand.

Two databases on one quiet server, on disk; the counters (buffers, WAL, segments touched) decide, the times are reported and
bounded generously. What a million events occupy is reported too."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.clusters import migrated

from outrider import Event, Outrider
from outrider.postgres.embedded import Embedded
from outrider.postgres.embedded.home import shared_folder

pytestmark = pytest.mark.verify

Conn = psycopg.Connection[Any]

SMALL, LARGE = 10_000, 10_000_000
CHUNK = 500_000
NAME = "a.handler"
BATCH = 100
ROUNDS = 60
SETTINGS = {
    "shared_buffers": "256MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
    "maintenance_work_mem": "256MB",
}  # fmt: skip
LOG = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
         select 'a.grown', 'a', 'customer-' || n %% 1000,
                jsonb_build_object('customer', 'customer-' || n, 'note', repeat('x', 90))
         from generate_series(%s::bigint, %s) as n"""
RECEIPTS = """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
              select %s, id::text, id, seq, generation, content_class from outrider.outbox where seq >= %s and seq <= %s"""
TAKE = f"select * from outrider.take('{NAME}', 0, {BATCH}, 10000, p_knows => '{{a.grown}}')"
EXPLAIN = f"explain (analyze, buffers, wal, format json) {TAKE}"
SIZES = """select case when relname ~ '^outbox' then 'log' else 'receipts' end, relkind = 'i',
                  sum(pg_relation_size(oid)) from pg_class
           where relnamespace = 'outrider'::regnamespace and relkind in ('r', 'i') and relname ~ '^(outbox|event_handled)'
           group by 1, 2 order by 1, 2"""


INDEXES = """select replace(indexdef, ' ON ONLY ', ' ON ') from pg_indexes
             where schemaname = 'outrider' and tablename = 'outbox' and indexname <> 'outbox_pkey'"""
BARE = (
    "drop index outrider.outbox_tx_seq, outrider.outbox_id",
    "alter table outrider.outbox drop constraint outbox_pkey",
    "alter table outrider.outbox disable trigger accept_event",
    "alter table outrider.event_handled drop constraint event_handled_pkey",
)
WHOLE = (
    "alter table outrider.outbox add primary key (seq)",
    "alter table outrider.outbox enable trigger accept_event",
    "alter table outrider.event_handled add primary key (handler_name, idempotency_key)",
)


class Grown(Event, type="a.grown", key="customer"):
    customer: str
    note: str


@dataclass
class Costs:
    """Medians: of a take of a hundred events, and of a publish."""

    take_buffers: float
    take_wal: float
    take_ms: float
    publish_buffers: float
    publish_wal: float
    publish_ms: float


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    """On disk: it takes eight gigabytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(shared_folder()))
    with Embedded.temporary(settings=SETTINGS) as server:
        yield server


def load(conn: Conn, events: int, tell: bool) -> None:
    """Rows first, indexes after: as if they had come one by one, in a quarter of the time."""
    indexes = [definition for (definition,) in conn.execute(INDEXES).fetchall()]
    for change in BARE:
        conn.execute(change.encode())
    begun = time.monotonic()
    for first in range(1, events + 1, CHUNK):
        last = min(first + CHUNK - 1, events)
        conn.execute(LOG, [first, last])
        conn.execute(RECEIPTS, [NAME, first, last])
        if tell:
            print(f"{last:>12,} events after {time.monotonic() - begun:.0f} s", flush=True)
    for change in (*indexes, *WHOLE):
        conn.execute(change.encode())
    if tell:
        print(f"{'indexed':>12} after {time.monotonic() - begun:.0f} s", flush=True)
    conn.execute("select outrider.register(%s, 'handler', 'a', '{a.grown}')", [NAME])
    conn.execute("analyze outrider.outbox, outrider.event_handled")
    conn.execute("checkpoint")


def wal(conn: Conn) -> int:
    row = conn.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def measure(conn: Conn, app: Outrider) -> Costs:
    """Publishes a batch, one by one, then takes it, many times over; the first rounds warm up."""
    takes: list[tuple[float, ...]] = []
    publishes: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        with conn.transaction():
            app.publish_many_sync(conn, [Grown(customer="c", note="x" * 90)] * (BATCH - 20))
        for _ in range(20):
            before, begun = wal(conn), time.perf_counter()
            with conn.transaction():
                app.publish_sync(conn, Grown(customer="c", note="x" * 90))
            publishes.append((wal(conn) - before, (time.perf_counter() - begun) * 1000))
        with conn.transaction():
            before = wal(conn)
            row = conn.execute(EXPLAIN).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            assert plan["Actual Rows"] == BATCH + 1
            conn.execute("select outrider.settle(current_setting('outrider.batch')::bigint)")
            buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            takes.append((buffers, wal(conn) - before, plan["Actual Total Time"]))
    with conn.transaction(force_rollback=True):
        insert = "explain (analyze, buffers, format json) " + LOG
        plans = [conn.execute(insert, [1, 1]).fetchone() for _ in range(ROUNDS)]
    published = statistics.median(
        row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"] for row in plans if row
    )
    take_buffers, take_wal, take_ms = (statistics.median(column) for column in zip(*takes[10:], strict=True))
    publish_wal, publish_ms = (statistics.median(column) for column in zip(*publishes[200:], strict=True))
    return Costs(take_buffers, take_wal, take_ms, published, publish_wal, publish_ms)


def touched(conn: Conn) -> set[str]:
    """The segments that one more take reads from."""
    conn.execute(LOG, [1, BATCH])
    with conn.transaction(force_rollback=True):
        conn.execute(TAKE)
        rows = conn.execute(
            """select distinct substring(relname from '^outbox_(s[0-9]+|tail)_') from pg_class
               where relnamespace = 'outrider'::regnamespace and relname ~ '^outbox_(s[0-9]+|tail)_' and relkind = 'i'
                 and pg_stat_get_xact_tuples_fetched(oid) + pg_stat_get_xact_tuples_returned(oid) > 0"""
        )
        return {name for (name,) in rows}


@pytest.mark.long
@pytest.mark.timed
def test_ten_million_events_cost_what_ten_thousand_cost(quiet: Embedded) -> None:
    found: dict[int, Costs] = {}
    for events in (SMALL, LARGE):
        asyncio.run(migrated(quiet, f"log_{events}"))
        dsn = quiet.dsn(f"log_{events}")
        with psycopg.connect(dsn, autocommit=True) as conn:
            load(conn, events, tell=events == LARGE)
            found[events] = measure(conn, Outrider(context="a", dsn=dsn))
            assert len(touched(conn)) == 1
            if events == LARGE:
                for kind, index, size in conn.execute(SIZES):
                    print(
                        f"{kind:9} {'indexes' if index else 'rows':8} {int(size) * 1e6 / events / 2**20:8.0f} MiB a million"
                    )
    small, large = found[SMALL], found[LARGE]
    print(f"{'median':16} {SMALL:>12,} {LARGE:>12,}    ratio")
    for name, one in vars(small).items():
        other = getattr(large, name)
        print(f"{name:16} {one:12.2f} {other:12.2f} {other / one:8.2f}")
    for name in ("take_buffers", "take_wal", "publish_buffers", "publish_wal"):
        assert getattr(large, name) <= 1.5 * getattr(small, name), name
    for name in ("take_ms", "publish_ms"):
        assert getattr(large, name) <= 3 * getattr(small, name), name
