"""What a take reads grows with the batch, not with the log or the backlog: 50 segments, batches of 100, 500 and 2,000.

Two looks at the same thing. The counters of the real function's own transaction say how many rows and index entries it
touched. EXPLAIN ANALYZE of its statement says how: both for the plan with known values and for the generic one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outrider.postgres import statement

Conn = psycopg.Connection[Any]

SEGMENT = 2_000
LOG = 100_000
SEGMENTS = f"""
do $$ declare segment regclass; begin
    for segment in select inhrelid from pg_inherits where inhparent = 'outrider.outbox'::regclass loop
        execute 'drop table ' || segment;
    end loop;
    for n in 0..48 loop
        execute format('create table outrider.outbox_s%s partition of outrider.outbox for values from (%s) to (%s)',
                       n, n * {SEGMENT}, (n + 1) * {SEGMENT});
    end loop;
    create table outrider.outbox_tail partition of outrider.outbox for values from ({49 * SEGMENT}) to (maxvalue);
end $$
"""
APPEND = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
            select case when n %% 1000 = 0 then 'a.rare' else 'a.common' end, 'a', 'k' || n %% 50, '{"name": "x"}'
            from generate_series(1, %s) as n"""
TOUCHED = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'r'), 0) as by_seq_scan,
           coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid)), 0) as rows,
           coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'i'), 0) as entries
    from pg_class as c where c.relnamespace = 'outrider'::regnamespace and c.relname like 'outbox_s%'
         or c.relnamespace = 'outrider'::regnamespace and c.relname like 'outbox_tail%'
"""


@pytest.fixture(scope="module")
def log(server: str) -> Iterator[str]:
    """One database with 50 segments and 100,000 events, and subscriptions at different places of it."""
    name = "test_plans"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create database {name} template outrider_template".encode())
        dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SEGMENTS)
            for subscription in ("a.first", "a.split", "a.sparse"):
                types = ["a.rare"] if subscription == "a.sparse" else None
                partitions = 4 if subscription == "a.split" else 1
                conn.execute("select outrider.register(%s, 'reader', 'a', %s, %s)", [subscription, types, partitions])
            conn.execute("select outrider.register('a.handler', 'handler', 'a', '{a.common,a.rare}')")
            conn.execute(APPEND, [LOG])
            conn.execute("select outrider.register('a.late', 'reader', 'a', null)")
            conn.execute("select outrider.register('a.near', 'reader', 'a', null)")
        yield dsn
        admin.execute(f"drop database {name} with (force)".encode())


pytestmark = [pytest.mark.xdist_group("plans"), pytest.mark.verify, pytest.mark.also_on(15, 16)]


@pytest.fixture(params=[False, True], ids=["no statistics", "analyzed"])
def conn(log: str, request: pytest.FixtureRequest) -> Iterator[Conn]:
    """Autovacuum may or may not have come by: the plans must be good either way."""
    with psycopg.connect(log) as conn:
        if request.param:
            conn.execute("analyze outrider.outbox")
            conn.commit()
        yield conn
        conn.rollback()


def take(conn: Conn, subscription: str, limit: int, scan: int = 10_000) -> tuple[int, dict[str, int]]:
    """Take once, roll back; the events read, and what the function touched in the log."""
    before = touched(conn)
    asked = "select count(seq) from outrider.take(%s, 0, %s, %s, p_excused => 1)"
    row = conn.execute(asked, [subscription, limit, scan]).fetchone()
    after = touched(conn)
    conn.rollback()
    assert row is not None
    return row[0], {name: after[name] - before[name] for name in after}


def touched(conn: Conn) -> dict[str, int]:
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        row = cursor.execute(TOUCHED).fetchone()
        assert row is not None
        return {name: int(count) for name, count in row.items()}


@pytest.mark.parametrize("limit", [100, 500, 2000])
@pytest.mark.parametrize("repeat", [1, 8], ids=["first plan", "cached plan"])
@pytest.mark.parametrize("subscription", ["a.first", "a.handler"])
def test_a_batch_reads_only_itself(conn: Conn, subscription: str, limit: int, repeat: int) -> None:
    """100,000 events behind, and the eighth take of a session, when Postgres may have settled on a generic plan."""
    for _ in range(repeat):
        events, read = take(conn, subscription, limit)
    assert events == limit
    assert read["by_seq_scan"] == 0
    assert read["rows"] <= 2 * limit + 2, "once to choose them, once for what they hold"
    assert read["entries"] <= 2 * limit + 60


def test_a_caught_up_cursor_reads_only_what_is_new(conn: Conn) -> None:
    conn.execute(APPEND, [10])
    conn.commit()
    with psycopg.connect(conn.info.dsn, autocommit=True) as other:
        while other.execute("select outcome from outrider.take('a.near', 0, 2000)").fetchone() != ("idle",):
            pass
        other.execute(APPEND, [3])
    events, read = take(conn, "a.near", 500)
    assert events == 3
    assert read["by_seq_scan"] == 0
    assert read["rows"] <= 6
    assert read["entries"] <= 10


def test_an_idle_take_reads_nothing(conn: Conn) -> None:
    with psycopg.connect(conn.info.dsn, autocommit=True) as other:
        while other.execute("select outcome from outrider.take('a.near', 0, 2000)").fetchone() != ("idle",):
            pass
    events, read = take(conn, "a.near", 500)
    assert events == 0
    assert read == {"by_seq_scan": 0, "rows": 0, "entries": 0}


def test_a_partition_reads_in_proportion(conn: Conn) -> None:
    events, read = take(conn, "a.split", 100)
    assert events == 100
    assert read["by_seq_scan"] == 0
    assert read["rows"] <= 100 * 4 * 3


def test_a_sparse_subscription_is_bounded_by_its_scan(conn: Conn) -> None:
    events, read = take(conn, "a.sparse", 100, scan=3_000)
    assert events == 3
    assert read["by_seq_scan"] == 0
    assert read["rows"] <= 2 * 3_000 + 10, "once to look, once to find where the step ends"
    assert read["entries"] <= 2 * 3_000 + 60


@pytest.mark.parametrize("limit", [100, 500, 2000])
def test_a_late_transaction_is_read_in_pages(conn: Conn, limit: int) -> None:
    """10,000 late events cost as much per page as a few."""
    with psycopg.connect(conn.info.dsn) as slow, psycopg.connect(conn.info.dsn, autocommit=True) as other:
        slow.execute(APPEND, [10_000])
        other.execute(APPEND, [1])
        while other.execute("select outcome from outrider.take('a.late', 0, 2000)").fetchone() != ("idle",):
            pass
        slow.commit()
        # Each event is read to choose it and for what it holds; before the first page, also to find that they are many.
        for times in (3, 2, 2):
            events, read = take(conn, "a.late", limit)
            assert events == limit
            assert read["by_seq_scan"] == 0
            assert read["rows"] <= times * limit + 2 * 50, "planning may look at both ends of each segment"
            assert read["entries"] <= times * limit + 2 * 50
            other.execute("select count(*) from outrider.take('a.late', 0, %s)", [limit])
        while other.execute("select outcome from outrider.take('a.late', 0, 2000)").fetchone() != ("idle",):
            pass


def test_the_floor_of_a_new_cursor_does_not_cost_the_log(conn: Conn) -> None:
    with psycopg.connect(conn.info.dsn) as slow:
        slow.execute("select pg_current_xact_id()")
        before = touched(conn)
        assert conn.execute("select outrider.foreign_floor(pg_current_snapshot())").fetchone() == (0,)
        after = touched(conn)
    assert after["by_seq_scan"] == before["by_seq_scan"]
    assert after["entries"] - before["entries"] <= 4 * 50, "planning may look at both ends of each segment"


# EXPLAIN of the statement inside read


TYPES = {
    "cur": "outrider.cursor",
    "p_subscription": "outrider.subscription",
    "q": "bigint",
    "r": "xid8",
    "upto": "bigint",
}
TYPES |= {"p_limit": "int", "p_scan": "int", "others": "bigint[]", "withdrawn": "bool", "payloads": "text"}


def inner_statement() -> str:
    """The statement that reads and advances, with the function's variables as parameters."""
    text = dict(statement.functions())["read"]
    found = re.search(r"\n( +with snapshot as.*?)\n +into outcome, seqs\n( +from advance);", text, re.DOTALL)
    assert found is not None
    body = "\n".join(found.groups())
    for place, name in enumerate(TYPES, 1):
        body = re.sub(rf"(?<![\w.]){name}\b(?!\()", f"(${place})" if place <= 2 else f"${place}", body)
    return statement.render(body, "outrider")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.parametrize("filtered", [False, True], ids=["plain", "generations and withdrawals"])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("limit", [100, 500, 2000])
def test_the_plan_uses_the_ordered_index(conn: Conn, mode: str, limit: int, filtered: bool) -> None:
    conn.execute("set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off")
    conn.execute(f"set local plan_cache_mode = {mode}".encode())
    conn.execute(f"prepare inner_read({', '.join(TYPES.values())}) as {inner_statement()}".encode())
    row = conn.execute(
        """select c::text, s::text, pg_sequence_last_value('outrider.outbox_seq'), pg_current_xact_id()::text,
                  pg_sequence_last_value('outrider.outbox_seq')
           from outrider.cursor as c join outrider.subscription as s on s.name = c.subscription
           where s.name = 'a.first'"""
    ).fetchone()
    assert row is not None
    args = [*row, limit, 10_000, [7] if filtered else [], filtered, "select"]
    explain = sql.SQL("explain (analyze, format json) execute inner_read({})").format(sql.SQL(", ").join(args))
    found = conn.execute(explain).fetchone()
    assert found is not None
    plan = found[0] if isinstance(found[0], list) else json.loads(found[0])
    scans = [n for n in nodes(plan[0]["Plan"]) if n.get("Relation Name", "").startswith("outbox_")]
    used = [n for n in scans if n["Actual Loops"] > 0]
    assert used, "the plan reads the log"
    assert "wanted(" not in json.dumps(plan), "the filter is part of the plan, not called for each row"
    assert {n["Node Type"] for n in used} <= {"Index Scan", "Index Only Scan"}
    assert sum(n["Actual Rows"] * n["Actual Loops"] for n in used) <= limit + 10
    assert len(used) <= 2 + limit // SEGMENT, "segments beyond the batch are not opened"
