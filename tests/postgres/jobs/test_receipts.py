"""A finished job leaves a receipt only where somebody needs it: an event became it, it has a result or a history, or its
type sets keep=."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import (
    Conn,
    Lease,
    cancel,
    claim,
    done,
    enqueue,
    enqueue_many,
    expire,
    fail,
    reap,
    receipts,
    register,
    replay,
    run_now,
    settle,
    sound,
)

pytestmark = pytest.mark.also_on(15)

KEPT = "mail.kept"
DONE = 5000


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        register(conn, "mail.send")
        register(conn, KEPT, keep="7 days")
        yield conn
        sound(conn)


def one(conn: Conn, job_type: str = "mail.send") -> Lease:
    (lease,) = claim(conn, names=[job_type]).jobs
    return lease


def contents(conn: Conn) -> list[tuple[Any, ...]]:
    return conn.execute(
        """select event_id, seq, result, jsonb_array_length(failure_history), workspace_id, job_key
           from outrider.event_handled"""
    ).fetchall()


def test_a_plain_job_leaves_nothing(conn: Conn) -> None:
    enqueue(conn)
    lease = one(conn)
    assert done(conn, lease) == {lease.delivery: "done"}
    assert done(conn, lease) == {}
    assert not sqljobs.jobs(conn)
    assert not receipts(conn)
    assert (cancel(conn, lease.id), run_now(conn, lease.id)) == ("not_found", "not_found")


@pytest.mark.parametrize("result", [{"sent": 1}, 0, False, "", []])
def test_a_result_is_kept(conn: Conn, result: object) -> None:
    enqueue(conn, key="k")
    lease = one(conn)
    assert done(conn, lease, result=result) == {lease.delivery: "done"}
    assert contents(conn) == [(lease.id, 0, result, None, None, "k")]
    assert (cancel(conn, lease.id), run_now(conn, lease.id)) == ("done", "done")


def test_so_is_what_failed_before(conn: Conn) -> None:
    enqueue(conn, key="k")
    assert fail(conn, one(conn)) == "retry"
    lease = one(conn)
    assert done(conn, lease) == {lease.delivery: "done"}
    assert contents(conn) == [(lease.id, 0, None, 1, None, "k")]


@pytest.mark.parametrize("crashed", [False, True])
def test_so_is_a_job_whose_worker_was_lost(conn: Conn, crashed: bool) -> None:
    enqueue(conn)
    worker = uuid4()
    (lease,) = claim(conn, worker=worker).jobs
    if crashed:
        assert reap(conn, worker=worker) == 1
    else:
        expire(conn, lease)
    lease = one(conn)
    done(conn, lease)
    assert receipts(conn) == [lease.id]


def test_a_job_that_was_handed_back_has_not_failed(conn: Conn) -> None:
    enqueue(conn)
    assert settle(conn, one(conn), "back") == "back"
    done(conn, one(conn))
    assert not receipts(conn)


def test_so_is_a_replayed_dead_letter(conn: Conn) -> None:
    enqueue(conn)
    lease = one(conn)
    assert settle(conn, lease, "dead", code="no", message="no") == "buried"
    assert replay(conn, lease.delivery) == ["replayed"]
    done(conn, one(conn))
    assert contents(conn) == [(lease.id, 0, None, 2, None, None)]


def test_so_is_every_job_of_a_type_with_keep(conn: Conn) -> None:
    enqueue(conn, KEPT, key="k", unique_key="u")
    lease = one(conn, KEPT)
    assert done(conn, lease) == {lease.delivery: "done"}
    # Nothing in it is anybody's: erase has nothing to remove.
    assert contents(conn) == [(lease.id, 0, None, None, None, None)]
    assert (cancel(conn, lease.id), run_now(conn, lease.id)) == ("done", "done")


def test_in_one_settlement_each_goes_by_its_own_rule(conn: Conn) -> None:
    enqueue(conn, ago=30)
    assert fail(conn, one(conn)) == "retry"
    for job_type in ("mail.send", KEPT, "mail.send", KEPT):
        enqueue(conn, job_type)
    leases = claim(conn, 9, ["mail.send", KEPT]).jobs
    assert done(conn, *leases) == {lease.delivery: "done" for lease in leases}
    assert set(receipts(conn)) == {each.id for each in leases if each.job_type == KEPT or each.attempt == 2}
    assert len(receipts(conn)) == 3


def test_a_registration_without_keep_ends_it(conn: Conn) -> None:
    register(conn, KEPT)
    enqueue(conn, KEPT)
    done(conn, one(conn, KEPT))
    assert not receipts(conn)


@pytest.mark.parametrize("key", [None, "once"])
def test_a_job_of_an_event_always_leaves_one(conn: Conn, key: str | None) -> None:
    """It keeps the event, or the next one with its key, from becoming a job again."""
    conn.execute("select outrider.register('mail.welcome', 'job', 'mail', '{user.came}')")
    for _ in range(2):
        conn.execute("select outrider.publish('user.came', '{}', idempotency_key => %s)", [key])
        conn.execute("select outrider.route('mail.welcome', 9, 9, '{user.came}', 'default', 0)")
        done(conn, *claim(conn, 9, ["mail.welcome"]).jobs)
    assert len(receipts(conn)) == (2 if key is None else 1)
    assert conn.execute("select count(*) from outrider.event_handled where seq = 0").fetchone() == (0,)


def test_an_id_may_be_used_again(conn: Conn) -> None:
    """Whoever enqueues chooses the id. The receipt is that of the first job that needed one."""
    for result in (None, 1, 2):
        conn.execute("select outrider.enqueue_one('mail.send', '{\"n\": 1}', p_id => %s)", [UUID(int=7)])
        lease = one(conn)
        assert done(conn, lease, result=result) == {lease.delivery: "done"}
    assert [row[:3] for row in contents(conn)] == [(UUID(int=7), 0, 1)]


def test_ids_used_twice_in_one_settlement(conn: Conn) -> None:
    for _ in range(3):
        conn.execute("select outrider.enqueue_one(%s, '{\"n\": 1}', p_id => %s)", [KEPT, UUID(int=7)])
    enqueue(conn, KEPT)
    leases = claim(conn, 9, [KEPT]).jobs
    assert done(conn, *leases) == {lease.delivery: "done" for lease in leases}
    assert not sqljobs.jobs(conn)
    assert len(receipts(conn)) == 2


def test_an_older_job_yields_to_a_newer_one_that_is_done_without_a_trace(conn: Conn) -> None:
    enqueue(conn, unique_key="u")
    older = one(conn)
    enqueue(conn, unique_key="u")
    newer = one(conn)
    assert done(conn, newer) == {newer.delivery: "done"}
    assert not receipts(conn)
    assert fail(conn, older) == "superseded"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_settlement_reads_what_it_settles(conn: Conn, analyzed: bool, kept: bool) -> None:
    """However many run and wait: a nested loop over the wrong index would be quadratic."""
    job_type = KEPT if kept else "mail.send"
    enqueue_many(conn, job_type, 3000)
    leases = claim(conn, 1000, [job_type]).jobs
    if analyzed:
        conn.execute("analyze outrider.job, outrider.event_handled, outrider.subscription")
    read = """select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
              where relid = 'outrider.job'::regclass"""
    for batch in (leases[:500], leases[500:]):
        with conn.transaction():
            [(before,)] = conn.execute(read).fetchall()
            assert len(done(conn, *batch)) == 500
            [(after,)] = conn.execute(read).fetchall()
        assert after - before == 500
    assert len(receipts(conn)) == (1000 if kept else 0)


def test_a_table_that_statistics_call_empty_is_not_read_whole(conn: Conn, database: str) -> None:
    """An old snapshot keeps the rows of jobs that are done, and ANALYZE counts only rows that are alive: none. Until the
    next one, the planner takes a scan of any whole index to cost one page."""
    entries = """select coalesce(sum(pg_stat_get_xact_tuples_returned(indexrelid)), 0) from pg_index
                 where indrelid = 'outrider.job'::regclass"""
    with psycopg.connect(database) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from outrider.job")
        enqueue_many(conn, "mail.send", DONE)
        done(conn, *claim(conn, DONE).jobs)
        conn.execute("vacuum analyze outrider.job")
        estimate = "select reltuples, relpages > 0 from pg_class where oid = 'outrider.job'::regclass"
        assert conn.execute(estimate).fetchone() == (0, True)
        enqueue_many(conn, "mail.send", 500)
        worker = uuid4()
        claimed = claim(conn, 500, worker=worker)
        conn.execute("update outrider.job set lease_expires_at = now() + interval '1 minute'")
        # A renewal reads the running jobs, dead rows included: twice. A settlement reads the versions of each of its rows.
        for work, most in (
            (lambda: sqljobs.renew(conn, worker), 3 * DONE),
            (lambda: done(conn, *claimed.jobs), 5 * 500),
        ):
            with conn.transaction():
                [(before,)] = conn.execute(entries).fetchall()
                assert len(work()) == 500
                [(after,)] = conn.execute(entries).fetchall()
            assert after - before < most
