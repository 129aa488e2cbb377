"""What the dashboard asks beside `status` reads no more than it shows: 100,000 events, 20,000 dead letters, 50 segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.test_plans import APPEND, SEGMENTS

from outrider.postgres.admin import activity, waiting
from outrider.postgres.admin.status import status
from outrider.postgres.connection import connect
from outrider.postgres.statement import ONE_MOMENT, statement

Conn = psycopg.Connection[Any]
LOG = 100_000
SMALL = ("subscription", "setting")
LINES = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached,
                               run_at, attempts, buried_at)
select 'a.handler', 0, o.seq, o.id, o.event_type, case when o.seq <= 20000 then 'dead' || o.seq else o.aggregate_id end,
       case when o.seq <= 20000 then 'failed' else 'pending' end, o.seq between 20001 and 20050, true,
       now() + o.seq * interval '1 s', 1, case when o.seq <= 20000 then now() end
from outrider.outbox as o where o.seq <= 30000
"""

REST = """
set session_replication_role = replica;
insert into outrider.stream_refused (subscription, stream, position, data, message)
select 'a.in', 's', n::text, '', 'no' from generate_series(1, 20000) as n;
insert into outrider.rollup_pending (rollup, group_key, carried, set_aside_at, processed_at)
select 'a.rollup', 'k' || n % 100, '{}', case when n % 100 = 0 then now() end,
       case when n <= 50000 and n % 100 > 0 then now() end
from generate_series(1, 60000) as n;
insert into outrider.rollup_log (rollup, result, pending_pre, pending_post, duration_ms)
select 'a.rollup', case n % 2 when 0 then 'idle' else 'processed' end, 1, 0, 1 from generate_series(1, 20000) as n;
insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
select 'a.job', o.id::text, o.id, o.seq, 0, 'internal' from outrider.outbox as o where o.seq <= 20000;
insert into outrider.subscription (name, kind, context, event_types) values ('a.job', 'job', 'a', '{}');
insert into outrider.audit (by, action, details) select 'ada', 'pause', '{}' from generate_series(1, 20000);
set session_replication_role = default
"""

pytestmark = [pytest.mark.xdist_group("activity"), pytest.mark.verify, pytest.mark.also_on(15)]


@pytest.fixture(scope="module")
def log(server: str) -> Iterator[str]:
    name = "test_activity"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create database {name} template outrider_template".encode())
        dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SEGMENTS)
            conn.execute("select outrider.register('a.handler', 'handler', 'a', '{a.common,a.rare}', 4)")
            conn.execute(APPEND, [LOG])
            conn.execute(LINES)
            conn.execute(REST.encode())
        yield dsn
        admin.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(params=[False, True], ids=["no statistics", "analyzed"])
def conn(log: str, request: pytest.FixtureRequest) -> Iterator[Conn]:
    with psycopg.connect(log, autocommit=True) as conn:
        if request.param:
            conn.execute("analyze")
        yield conn


def rows_read(conn: Conn, name: str, params: dict[str, Any]) -> int:
    """Rows that the scans of tables and indexes have read or thrown away."""

    def count(node: dict[str, Any]) -> int:
        assert node["Node Type"] != "Seq Scan" or node["Actual Rows"] == 0 or node["Relation Name"] in SMALL, node
        own = 0
        if "Relation Name" in node and not node["Relation Name"].startswith("pg_"):
            own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        return int(own) + sum(count(each) for each in node.get("Plans", ()))

    with conn.transaction():
        conn.execute(ONE_MOMENT)
        text = b"explain (analyze, format json) " + statement(name, "outrider")
        row = conn.execute(text, params).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return count(plan[0]["Plan"])


TOUCHED = """
select coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid)), 0)
       + coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relname = 'delivery'), 0) as rows
from pg_class as c where c.oid = 'outrider.delivery'::regclass
"""


def test_waiting_events_read_what_they_show(conn: Conn) -> None:
    """50 of 10,000 waiting events are retried; each has 199 behind it. 20,000 dead letters are not touched."""
    place = None
    for most, limit in ((1000, 50 * 201), (10, 50 * 12)):
        with conn.transaction():
            rows = conn.execute(
                "select place from outrider.waiting_events('a.handler', p_most => %s)", [most]
            ).fetchall()
            [(touched,)] = conn.execute(TOUCHED).fetchall()
        assert len(rows) == 50
        assert touched <= limit
        place = rows[39][0]
    with conn.transaction():
        rows = conn.execute(
            "select place from outrider.waiting_events('a.handler', %s, p_most => 10)", [place]
        ).fetchall()
        [(touched,)] = conn.execute(TOUCHED).fetchall()
    assert len(rows) == 10
    assert touched <= 10 * 12, "a later page does not read the earlier ones"


def test_what_waits_behind_an_event_is_read_by_its_key(conn: Conn) -> None:
    [(head,)] = conn.execute("select event_id from outrider.waiting_events(p_limit => 1)").fetchall()
    with conn.transaction():
        rows = conn.execute("select seq from outrider.waiting_behind(%s, p_limit => 20)", [head]).fetchall()
        [(touched,)] = conn.execute(TOUCHED).fetchall()
    assert len(rows) == 20
    assert touched <= 22
    after = rows[-1][0]
    rows = conn.execute(
        "select seq from outrider.waiting_behind(%s, p_after => %s, p_limit => 500)", [head, after]
    ).fetchall()
    assert len(rows) == 179


def test_partitions_read_the_cursors_of_one_subscription(conn: Conn) -> None:
    assert rows_read(conn, "admin/partitions", {"name": "a.handler"}) == 4


def test_the_types_of_the_newest_events_read_what_is_asked(conn: Conn) -> None:
    assert rows_read(conn, "admin/traffic", {"after": 0, "most": 1000}) == 1000
    assert rows_read(conn, "admin/traffic", {"after": LOG - 5, "most": 1000}) == 5


def test_a_time_is_found_by_ids(conn: Conn) -> None:
    assert rows_read(conn, "admin/event_list_ends", {"until": "2001-01-01"}) <= 51, "at most one of each segment"


def test_one_event_and_one_job_are_found_by_index(conn: Conn) -> None:
    """However many events and receipts there are."""
    [(event,)] = conn.execute("select id from outrider.outbox where seq = 500").fetchall()
    assert rows_read(conn, "admin/event", {"event_id": event}) <= 2
    assert rows_read(conn, "jobs/job", {"id": event}) <= 10


def test_children_are_looked_for_close_to_their_cause(conn: Conn) -> None:
    """Twice 1,000 events: after the event, and after it was handled. And one of each segment for the time."""
    [(event, at)] = conn.execute("select id, occurred_at from outrider.outbox where seq = 500").fetchall()
    near = {"event_id": event, "seq": 500, "most": 1000, "total": 5000}
    assert rows_read(conn, "admin/children", near | {"handled": []}) == 1000
    assert rows_read(conn, "admin/children", near | {"handled": [at]}) <= 2000 + 51


HANDLED = """
select array_agg(to_timestamp(('x' || left(replace(o.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0 + 2))
from outrider.outbox as o where o.seq > 500 and o.seq % {apart} = 0 and o.seq <= 500 + 30 * {apart}
"""


@pytest.mark.parametrize(("apart", "most"), [(100, 4_500), (3_000, 5_000)])
def test_children_are_looked_for_once_however_often_it_was_handled(conn: Conn, apart: int, most: int) -> None:
    """By 30 subscribers, soon one after the other, or at different times. Each time is one row of each segment.

    The ids of one millisecond are in any order, so a time may be found some events later: 500 of them are allowed for.
    """
    [(event,)] = conn.execute("select id from outrider.outbox where seq = 500").fetchall()
    [(handled,)] = conn.execute(HANDLED.format(apart=apart).encode()).fetchall()
    assert len(set(handled)) > 20
    near = {"event_id": event, "seq": 500, "most": 1000, "total": 5000, "handled": handled}
    assert rows_read(conn, "admin/children", near) <= most + 30 * 51


def test_where_an_event_has_passed_reads_its_row_and_the_marks(conn: Conn) -> None:
    assert rows_read(conn, "admin/passages", {"seq": 500}) <= 3


def test_refused_entries_and_rollups_read_one_page(conn: Conn) -> None:
    assert rows_read(conn, "streams/refused", {"subscription": None, "after": 0, "limit": 50}) == 50
    assert rows_read(conn, "rollups/rollup_groups", {"name": "a.rollup", "most": 1000, "limit": 50}) == 1000
    assert rows_read(conn, "rollups/rollup_runs", {"name": "a.rollup", "most": 1000, "limit": 50}) <= 1000
    assert rows_read(conn, "rollups/rollup_set_aside", {"name": "a.rollup", "most": 50}) <= 600


def test_a_page_of_the_audit_and_of_the_log_is_read_by_primary_key(conn: Conn) -> None:
    which = dict.fromkeys(("subscription", "by", "since", "before"))
    assert rows_read(conn, "admin/audit", which | {"limit": 100}) == 100
    page = dict.fromkeys(("key", "event_type", "workspace_id", "since", "until"))
    read = rows_read(conn, "admin/event_list", page | {"before": LOG, "lowest": 0, "scan": 1000, "limit": 10})
    assert read <= 1000 + 10 * 20


async def test_what_they_find(log: str) -> None:
    async with await connect(log, autocommit=True) as conn:
        retries = await waiting.events(conn, "outrider", subscription="a.handler", limit=5)
        assert [(each.attempts, each.behind) for each in retries] == [(1, 199)] * 5
        assert [each.partition for each in await activity.partitions(conn, "a.handler", "outrider")] == [0, 1, 2, 3]
        await activity.take_sample(conn, "outrider")
        [sample] = await activity.samples(conn, "outrider")
        seen = activity.Sample.of(await status(conn, "outrider"))
        assert (sample.seq, sample.owed, sample.dead) == (seen.seq, seen.owed, seen.dead)
        assert sample.waiting == pytest.approx(seen.waiting, abs=60)
        with psycopg.connect(log) as publisher:
            publisher.execute("select outrider.publish('a.common', '{}')")
            found = await activity.open_transactions(conn, "outrider")
            assert [(each.pid, each.publishes) for each in found] == [(publisher.info.backend_pid, True)]
            assert "outrider.publish" in (found[0].query or "")
            publisher.rollback()
        assert await activity.open_transactions(conn, "outrider") == []
