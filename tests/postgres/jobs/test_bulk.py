"""All jobs that match a filter: found, counted, cancelled, run and retried, in batches; what is locked is left alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.jobs import sqljobs

from outrider.errors import ConfigError, NoSuchType
from outrider.postgres.admin import bulk_jobs
from outrider.postgres.admin.bulk_jobs import JobFilter, JobsDone
from outrider.postgres.connection import AsyncSession, connect

Conn = psycopg.Connection[Any]
MANY = """
insert into outrider.job (subscription, event_id, event_version, source, run_at, queue, job_key, workspace_id, payload)
select 'mail.send', gen_random_uuid(), 1, 'sql', clock_timestamp() + interval '1 hour',
       case when n % 2 = 0 then 'bulk' else 'default' end, 'k' || n % 10, case when n % 5 = 0 then 'acme' end,
       jsonb_build_object('n', n, 'campaign', case when n % 3 = 0 then 'spring' else 'autumn' end,
                          'to', jsonb_build_object('country', case when n % 4 = 0 then 'DE' else 'FR' end),
                          'list', jsonb_build_array(1))
from generate_series(1, 2500) as n
"""
COUNTS = "select status, count(*) from outrider.job group by 1 order by 1"


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        sqljobs.register(conn, "mail.send")
        sqljobs.register(conn, "mail.other")
        conn.execute(MANY)
        yield conn


@pytest.fixture
async def session(database: str, conn: Conn) -> AsyncIterator[AsyncSession]:
    async with await connect(database, autocommit=True) as session:
        yield session


def states(conn: Conn) -> dict[str, int]:
    return dict(conn.execute(COUNTS).fetchall())


def audit(conn: Conn) -> list[tuple[Any, ...]]:
    return conn.execute("select action, by, subscription, details from outrider.audit order by id").fetchall()


@pytest.mark.parametrize(
    ("which", "jobs"),
    [
        ({}, 2500),
        ({"name": "mail.send"}, 2500),
        ({"name": "mail.other"}, 0),
        ({"queue": "bulk"}, 1250),
        ({"key": "k3"}, 250),
        ({"workspace_id": "acme"}, 500),
        ({"payload": {"campaign": "spring"}}, 833),
        ({"payload": {"n": "7"}}, 1),
        ({"payload": {"to.country": "DE", "campaign": "spring"}}, 208),
        ({"payload": {"to": "DE"}}, 0),
        ({"payload": {"list": "[1]"}}, 0),
        ({"payload": {"missing": "1"}}, 0),
        ({"states": ["failed"]}, 0),
        ({"states": ["pending"], "queue": "bulk", "key": "k4", "workspace_id": "acme"}, 0),
    ],
)
async def test_a_job_must_match_all_fields(session: AsyncSession, which: Any, jobs: int) -> None:
    found = await bulk_jobs.count(session, JobFilter(**which), "outrider")
    assert (found.jobs, found.searched, found.more) == (jobs, 2500, False)


async def test_a_bounded_count_says_that_there_may_be_more(session: AsyncSession) -> None:
    found = await bulk_jobs.count(session, JobFilter(), "outrider", most=1000)
    assert (found.jobs, found.searched, found.more) == (1000, 1000, True)


async def test_a_search_continues_where_it_ended(session: AsyncSession) -> None:
    which, after, ids = JobFilter(key="k3"), 0, []
    for _ in range(5):
        found = await bulk_jobs.search(session, which, "outrider", after=after, limit=50)
        ids += found.ids
        if found.place is None:
            break
        after = found.place
    assert len(ids) == len(set(ids)) == 250
    assert found.place is None


async def test_jobs_of_events_have_the_key_tenant_and_payload_of_their_event(session: AsyncSession, conn: Conn) -> None:
    conn.execute("select outrider.register('mail.greet', 'job', 'mail', '{a.born}')")
    conn.execute("select outrider.publish('a.born', '{\"name\": \"Ada\"}', key => 'ada', workspace_id => 'acme')")
    conn.execute(
        """insert into outrider.job (subscription, event_id, event_type, seq, run_at, queue)
           select 'mail.greet', o.id, o.event_type, o.seq, now(), 'default' from outrider.outbox as o"""
    )
    given: list[dict[str, Any]] = [
        {"key": "ada"}, {"workspace_id": "acme", "name": "mail.greet"}, {"payload": {"name": "Ada"}}
    ]  # fmt: skip
    for which in given:
        assert (await bulk_jobs.count(session, JobFilter(**which), "outrider")).jobs == 1
    public = JobFilter(payload={"name": "Ada"}, classes=["public"])
    assert (await bulk_jobs.count(session, public, "outrider")).jobs == 0, "its event is internal"


async def test_all_that_match_are_cancelled_in_batches(session: AsyncSession, conn: Conn) -> None:
    seen: list[JobsDone] = []
    which = JobFilter(name="mail.send", payload={"campaign": "spring"})
    done = await bulk_jobs.act(
        session, "cancel", which, "outrider", by="ada", reason="the wrong list", on_progress=seen.append
    )
    assert (done.changed, done.stopping, done.skipped, done.held, done.stopped) == (833, 0, 0, 0, False)
    assert states(conn) == {"discarded": 833, "pending": 1667}
    assert len(seen) == 3, "a batch for each page"
    assert seen[-1] == done
    entries = audit(conn)
    assert [(action, by, name) for action, by, name, _ in entries] == [("cancel", "ada", "mail.send")] * 3
    assert sum(details["jobs"] for *_, details in entries) == 833
    assert entries[0][3]["reason"] == "the wrong list"
    assert entries[0][3]["types"] == ["mail.send"]
    assert len(entries[0][3]["ids"]) == 20
    assert entries[0][3]["which"] == {"type": "mail.send", "states": ["pending", "running"], "fields": ["campaign"]}
    [(history,)] = conn.execute(
        "select failure_history from outrider.job where status = 'discarded' limit 1"
    ).fetchall()
    assert (history[0]["by"], history[0]["reason"]) == ("ada", "the wrong list")


def test_the_audit_says_what_was_changed_whatever_the_caller_says(conn: Conn) -> None:
    sqljobs.enqueue(conn, "mail.other")
    jobs = conn.execute(
        """select (array_agg(id order by id))[1:2], (array_agg(event_id::text order by id))[1:2], subscription
           from outrider.job group by 3 order by 3"""
    ).fetchall()
    [(other, other_id, _), (send, send_id, _)] = jobs
    change = "select outrider.change_jobs('cancel', %s, '{pending}', 'ada', null, %s)"
    conn.execute(change, [other + send, json.dumps({"type": "mail.nothing", "more": "x" * 10_000})])
    [(_, by, name, details)] = audit(conn)
    assert (by, name, details["jobs"], details["types"]) == ("ada", None, 3, ["mail.other", "mail.send"])
    assert sorted(details["ids"]) == sorted(send_id + other_id)
    assert len(details["which"]) == 2000, "cut"
    sqljobs.enqueue(conn, "mail.other")
    [(last, event)] = conn.execute("select id, event_id from outrider.job order by id desc limit 1").fetchall()
    conn.execute(change, [[last], '{"type": "mail.nothing"}'])
    found = conn.execute("select subscription, event_id from outrider.audit order by id desc limit 1").fetchall()
    assert found == [("mail.other", event)]


async def test_running_jobs_are_told_to_stop(session: AsyncSession, conn: Conn) -> None:
    for _ in range(3):
        sqljobs.enqueue(conn, "mail.other")
    sqljobs.claim(conn, 2, ["mail.other"])
    done = await bulk_jobs.act(session, "cancel", JobFilter(name="mail.other"), "outrider")
    assert (done.changed, done.stopping) == (1, 2)
    rows = conn.execute(
        "select status, cancelled_at is not null from outrider.job where subscription = 'mail.other' order by 1"
    ).fetchall()
    assert rows == [("discarded", False), ("in_flight", True), ("in_flight", True)]
    done = await bulk_jobs.act(session, "cancel", JobFilter(name="mail.send", states=["running"]), "outrider")
    assert done.jobs == 0, "only the states that were asked for"


async def test_all_that_match_run_now(session: AsyncSession, conn: Conn) -> None:
    done = await bulk_jobs.act(session, "run_now", JobFilter(queue="bulk"), "outrider", by="ada")
    assert done.changed == 1250
    [(due,)] = conn.execute(
        "select count(*) from outrider.job where run_at <= clock_timestamp() and waits_for is null"
    ).fetchall()
    assert due == 1250
    again = await bulk_jobs.act(session, "run_now", JobFilter(queue="bulk"), "outrider", by="ada")
    assert (again.changed, again.skipped) == (0, 1250), "they are due already"
    assert {action for action, *_ in audit(conn)} == {"run_now"}


async def test_dead_letters_are_retried_and_unique_ones_once(session: AsyncSession, conn: Conn) -> None:
    conn.execute(
        "update outrider.job set status = 'failed', waits_for = null, buried_at = now(), attempts = 3 where id % 2 = 0"
    )
    conn.execute(
        "update outrider.job set unique_key = 'one' "
        "where id in (select id from outrider.job where status = 'failed' limit 2)"
    )
    done = await bulk_jobs.act(session, "retry", JobFilter(), "outrider", by="ada", reason="the server is back")
    assert (done.changed, done.skipped) == (1249, 1)
    assert states(conn) == {"failed": 1, "pending": 2499}
    entries = audit(conn)
    assert {(action, details["reason"]) for action, _, _, details in entries} == {("replay", "the server is back")}


async def test_what_others_have_locked_is_left_alone(session: AsyncSession, conn: Conn, database: str) -> None:
    await session.execute("set lock_timeout = '10s'")
    with psycopg.connect(database) as other:
        other.execute("select from outrider.job where payload ->> 'n' in ('7', '8') for key share")
        done = await bulk_jobs.act(session, "cancel", JobFilter(key="k7"), "outrider")
        assert (done.changed, done.held) == (249, 1)
    done = await bulk_jobs.act(session, "cancel", JobFilter(key="k7"), "outrider")
    assert (done.changed, done.held) == (1, 0)


async def test_jobs_that_come_during_a_run_are_left_alone(session: AsyncSession, conn: Conn) -> None:
    def enqueue(_: JobsDone) -> None:
        sqljobs.enqueue(conn, "mail.send", key="k1")

    done = await bulk_jobs.act(session, "cancel", JobFilter(name="mail.send"), "outrider", on_progress=enqueue)
    assert done.changed == 2500
    assert states(conn) == {"discarded": 2500, "pending": 3}


async def test_a_stopped_run_ends_after_its_batch(session: AsyncSession, conn: Conn) -> None:
    stop = asyncio.Event()
    done = await bulk_jobs.act(session, "cancel", JobFilter(), "outrider", on_progress=lambda _: stop.set(), stop=stop)
    assert (done.changed, done.stopped) == (1000, True)
    assert states(conn)["pending"] == 1500


async def test_no_page_reads_more_than_its_part(conn: Conn) -> None:
    with conn.transaction():
        conn.execute("select from outrider.jobs_page(p_key => 'k3', p_after => 500, p_scan => 100)")
        [(touched,)] = conn.execute(
            "select pg_stat_get_xact_tuples_fetched(t.oid) + pg_stat_get_xact_tuples_returned(t.oid) "
            "from pg_class as t where t.oid = 'outrider.job'::regclass"
        ).fetchall()
    assert touched <= 100


def test_what_cannot_be_searched_for_is_refused() -> None:
    for which, message in (
        ({"states": ["done"]}, "no such state: done"),
        ({"payload": {f"f{n}": "x" for n in range(9)}}, "at most 8 fields"),
        ({"payload": {"": "x"}}, "1 to 200 characters"),
        ({"payload": {"x": "y" * 1001}}, "its value at most 1,000"),
    ):
        with pytest.raises(ConfigError, match=message):
            JobFilter(**which)
    with pytest.raises(ConfigError, match="run now is for pending jobs, not for failed"):
        JobFilter(states=["failed"]).acted_on("run_now")
    with pytest.raises(ConfigError, match="no such action: drop"):
        JobFilter().acted_on("drop")  # type: ignore[arg-type]


async def test_an_unknown_type_is_refused(session: AsyncSession) -> None:
    with pytest.raises(NoSuchType):
        await bulk_jobs.act(session, "cancel", JobFilter(name="mail.sned"), "outrider")


def test_a_job_whose_state_has_changed_since_it_was_found_is_left_alone(conn: Conn) -> None:
    sqljobs.enqueue(conn, "mail.other")
    [lease] = sqljobs.claim(conn, 1, ["mail.other"]).jobs
    change = "select changed, stopping, skipped, held from outrider.change_jobs(%s, %s, '{pending}')"
    for action in ("cancel", "run_now"):
        assert conn.execute(change, [action, [lease.delivery]]).fetchall() == [(0, 0, 1, [])]
    assert conn.execute("select count(*) from outrider.job where cancelled_at is not null").fetchall() == [(0,)]
    assert audit(conn) == []


def test_the_function_refuses_other_actions(conn: Conn) -> None:
    with pytest.raises(psycopg.Error, match="jobs can be changed by cancel, run_now and retry"):
        conn.execute("select outrider.change_jobs('drop', '{1}', '{pending}')")


async def test_hostile_fields_are_values(session: AsyncSession, conn: Conn) -> None:
    hostile = {"'; drop table job; --": "x", "a{b,c}": "\\", "n": "7' or '1'='1"}
    assert (await bulk_jobs.count(session, JobFilter(payload=hostile), "outrider")).jobs == 0
    assert json.dumps(states(conn)) == '{"pending": 2500}'
