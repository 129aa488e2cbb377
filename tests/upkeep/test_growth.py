"""A log of 200,000 events in twenty segments costs publish, take, receipts and claims what one of 10,000 in three does.

Counters, never the clock: the blocks and rows that the very statements touch, by EXPLAIN (ANALYZE, BUFFERS) and by the
statistics of their own transaction, after the session's plans are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

Conn = psycopg.Connection[Any]
SEGMENT = 10_000
SMALL, LARGE = SEGMENT, 20 * SEGMENT
PUBLISH = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
             select 'a.happened', 'a', 'k' || n %% 50, '{"name": "x"}' from generate_series(1, %s) as n"""
CLAIM = "select count(*) from outrider.claim(gen_random_uuid(), '{a.job}', 10)"
DRAIN = "select count(seq), min(outcome) from outrider.take(%s, 0, 2000)"
TOUCHED = """select c.relname, pg_stat_get_xact_tuples_fetched(c.oid) + pg_stat_get_xact_tuples_returned(c.oid) as touched
             from pg_class as c where c.relnamespace = 'outrider'::regnamespace and c.relkind in ('r', 'i')"""

pytestmark = [pytest.mark.xdist_group("growth"), pytest.mark.verify]


def grown(server: str, name: str, events: int) -> Iterator[str]:
    """A log of so many events, with a reader at its end, one at its beginning, a handler at its end, and a job of each."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create database {name} template outrider_template".encode())
        dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("update outrider.setting set value = %s where name = 'segments.size'", [SEGMENT])
                conn.execute(
                    "update outrider.setting set value = %s where name = 'segments.ahead'", [events // SEGMENT + 2]
                )
                conn.execute(
                    """do $$ declare part regclass; begin
                           for part in select inhrelid from pg_inherits where inhparent = 'outrider.outbox'::regclass loop
                               execute 'drop table ' || part;
                           end loop;
                       end $$"""
                )
                for _ in range(2):  # the first under a lock, then the others
                    [(action,)] = conn.execute("select action from outrider.upkeep_segments()").fetchall()
                    assert action == "made"
                conn.execute("select outrider.register('a.first', 'reader', 'a', null, 1, 'beginning')")
                conn.execute(PUBLISH, [events])
                conn.execute("select outrider.register('a.near', 'reader', 'a', null)")
                conn.execute("select outrider.register('a.handler', 'handler', 'a', null)")
                conn.execute("select outrider.register('a.job', 'job', 'a', '{a.never}')")
                conn.execute(
                    """insert into outrider.job (subscription, seq, event_id, event_type, run_at, queue)
                       select 'a.job', seq, id, event_type, now(), 'default' from outrider.outbox"""
                )
                conn.execute(
                    """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation,
                           content_class)
                       select 'a.handler', id::text, id, seq, 0, 'internal' from outrider.outbox"""
                )
                conn.execute("vacuum analyze outrider.outbox, outrider.event_handled, outrider.job")
            yield dsn
        finally:
            admin.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(scope="module")
def small(quiet_server: str) -> Iterator[str]:
    yield from grown(quiet_server, "test_growth_small", SMALL)


@pytest.fixture(scope="module")
def large(quiet_server: str) -> Iterator[str]:
    yield from grown(quiet_server, "test_growth_large", LARGE)


def blocks(conn: Conn, query: str, *params: object) -> int:
    """Shared blocks that a run touches, when everything is warm and planned; nothing of it stays."""
    used = 0
    for _ in range(3):
        [[(plan,)]] = [conn.execute(f"explain (analyze, buffers, format json) {query}".encode(), params).fetchall()]
        root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        used = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
        conn.rollback()
    return int(used)


def touched(conn: Conn, query: str, *params: object) -> dict[str, int]:
    """Rows and index entries that a run touches, by relation; nothing of it stays."""
    found: dict[str, int] = {}
    for _ in range(2):
        before = dict(conn.execute(TOUCHED).fetchall())
        conn.execute(query.encode(), params)
        found = {name: number - before[name] for name, number in conn.execute(TOUCHED) if number > before.get(name, 0)}
        conn.rollback()
    return found


def measured(dsn: str) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    with psycopg.connect(dsn) as conn:
        rows, cost = {}, {}
        take = "select count(seq) from outrider.take(%s, 0, 200)"
        with psycopg.connect(dsn, autocommit=True) as other:
            for name in ("a.near", "a.handler"):
                while other.execute(DRAIN, [name]).fetchall()[0][1] != "idle":
                    pass
            for kind, params in (("fresh from the beginning", ["a.first"]), ("idle", ["a.near"])):
                rows[kind], cost[kind] = touched(conn, take, *params), blocks(conn, take, *params)
            with psycopg.connect(dsn) as late:
                late.execute(PUBLISH, [20])
                other.execute(PUBLISH, [200])
                while other.execute(DRAIN, ["a.near"]).fetchall()[0][1] == "more":
                    pass
                late.commit()
            for kind, name in (("late", "a.near"), ("with receipts", "a.handler")):
                rows[kind], cost[kind] = touched(conn, take, name), blocks(conn, take, name)
        cost["publish"] = blocks(conn, PUBLISH, 1)
        rows["claim"], cost["claim"] = touched(conn, CLAIM), blocks(conn, CLAIM)
    return cost, rows


def of_log(touched: dict[str, int]) -> set[str]:
    """Segments whose rows, or index entries, were looked at."""
    return {name.split("_pkey")[0].split("_tx")[0].split("_id_")[0] for name in touched if name.startswith("outbox_")}


def test_it_costs_the_same(small: str, large: str) -> None:
    few, rows_of_few = measured(small)
    many, rows_of_many = measured(large)
    for kind, cost in many.items():
        # An index of 200,000 entries may be a level deeper than one of 10,000; a segment's never is.
        assert cost <= few[kind] * 1.15 + 10, f"{kind}: {few} {many}"
    for kind, rows in rows_of_many.items():
        assert sum(rows.values()) <= sum(rows_of_few[kind].values()) * 1.25 + 40, (
            f"{kind}: {rows_of_few} {rows_of_many}"
        )
        assert len(of_log(rows)) <= 2, f"{kind} opens {of_log(rows)}"
    assert of_log(rows_of_many["idle"]) == set()
