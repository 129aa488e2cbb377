"""Dead letters: which there are, by what went wrong and one by one; many replayed or discarded at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

from outrider import Event, Outrider
from outrider.errors import ConfigError, CursorError, Interrupted, ReplayRefused
from outrider.postgres.admin import dead_letters, recovery
from outrider.postgres.admin.dead_letters import Filter, Letter
from outrider.postgres.admin.recovery import Done, Pace
from outrider.postgres.admin.replay import HELD
from outrider.postgres.admin.replay import replay as replay_one

SCHEMA = "outrider"
LETTERS = """
with published as materialized (
    select n, outrider.publish('dead.' || (array['placed', 'paid'])[1 + n %% 2], jsonb_build_object('n', n),
                               key => 'k' || n %% 7, workspace_id => 'w' || n %% 3) as id
    from generate_series(1, %(letters)s) as n
)
select count(*) from published
"""
BURIED = """
insert into outrider.delivery (
    subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at, attempts, buried_at,
    last_error_code, last_error, first_failed_at, failure_history)
select s.name, coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (s.partitions - 1), o.seq, o.id, o.event_type,
       o.aggregate_id, 'failed', false, false, now(), 1, now(), 'timeout',
       format('TimeoutError: order %%s of host "h%%s" did not answer', o.seq, o.seq), now(),
       jsonb_build_array(outrider.failure(1, 1, 'timeout', 'TimeoutError', 'a worker'))
from outrider.outbox as o cross join outrider.subscription as s
where not exists (select from outrider.delivery as d where d.subscription = s.name and d.seq = o.seq)
order by o.seq, s.name
"""
DEAD_JOBS = """
insert into outrider.job (subscription, event_id, workspace_id, status, run_at, queue, buried_at, last_error_code)
select 'dead.one', gen_random_uuid(), 'w' || n % 3, 'failed', now(), 'default', now(), 'timeout'
from generate_series(1, 1500) as n
"""
MOST = {"dead.one": 2}


class Placed(Event, type="dead.placed"):
    n: int


@pytest.fixture
def letters(database: str) -> str:
    """Twelve events that two subscriptions have buried: 24 dead letters of one cause."""
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("dead.one", "dead.two"):
            conn.execute(
                "select outrider.register(%s, 'handler', 'dead', '{dead.placed,dead.paid}', %s, 'now', 'none')",
                [name, MOST.get(name, 1)],
            )
    bury(database, 12)
    return database


def bury(dsn: str, events: int) -> None:
    """As park writes them."""
    with psycopg.connect(dsn) as conn:
        conn.execute(LETTERS, {"letters": events})
        conn.execute(BURIED, {})


@pytest.fixture
async def conn(letters: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(letters, autocommit=True) as opened:
        yield opened


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def pending(dsn: str) -> int:
    ((count,),) = query(dsn, "select count(*) from outrider.delivery where status = 'pending'")
    return int(count)


# Which there are


async def test_groups_have_one_cause_each(conn: AsyncConnection[Any], letters: str) -> None:
    """Numbers and quoted values make no difference; the subscription, the type and the words do."""
    query(letters, "update outrider.delivery set last_error = 'TimeoutError: another text' where seq = 12")
    found = await dead_letters.groups(conn, Filter(), SCHEMA)
    told = sorted(
        (each.subscription, each.event_type, each.message == "TimeoutError: another text", each.letters)
        for each in found
    )
    assert told == sorted(
        (name, *rest)
        for name in ("dead.one", "dead.two")
        for rest in (("dead.paid", False, 6), ("dead.placed", False, 5), ("dead.placed", True, 1))
    )
    assert [each.letters for each in found] == sorted((each.letters for each in found), reverse=True)
    largest = found[0]
    assert len({each.fingerprint for each in found}) == 2
    assert largest.oldest == largest.newest
    assert largest.message is not None
    newest = query(
        letters,
        f"select max(seq) from outrider.delivery where fingerprint = '{largest.fingerprint}' and event_type = 'dead.paid'",
    )
    assert query(letters, f"select seq from outrider.outbox where id = '{largest.sample}'") == newest
    assert f"order {newest[0][0]} of" in largest.message


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Filter(), 24),
        (Filter(subscription="dead.one"), 12),
        (Filter(event_type="dead.paid"), 12),
        (Filter(event_type=Placed), 12),
        (Filter(event_type=Placed, subscription="dead.two"), 6),
        (Filter(code="timeout"), 24),
        (Filter(code="other"), 0),
        (Filter(fingerprint="none of them"), 0),
        (Filter(workspace_id="w1"), 8),
        (Filter(generation=0), 24),
        (Filter(generation=7), 0),
        (Filter(since="1h"), 22),
        (Filter(until="1h"), 2),
        (Filter(since=timedelta(hours=3), until="1h"), 2),
        (Filter(until=timedelta(hours=3)), 0),
    ],
    ids=str,
)
async def test_filters(conn: AsyncConnection[Any], letters: str, which: Filter, expected: int) -> None:
    query(letters, "update outrider.delivery set buried_at = now() - interval '2 hours' where seq = 1")
    assert (await dead_letters.count(conn, which, SCHEMA)).letters == expected
    assert len(await dead_letters.letters(conn, which, SCHEMA)) == expected
    assert sum(each.letters for each in await dead_letters.groups(conn, which, SCHEMA)) == expected


async def test_times_are_those_of_the_burial(conn: AsyncConnection[Any], letters: str) -> None:
    ((first, second),) = query(letters, "select now() - interval '2 hours', now() - interval '1 hour'")
    query(letters, f"update outrider.delivery set buried_at = '{first}' where seq = 1")
    query(letters, f"update outrider.delivery set buried_at = '{second}' where seq = 2")
    for since, until, expected in ((first, second, 2), (first, None, 24), (second, None, 22), (None, first, 0)):
        found = await dead_letters.count(conn, Filter(since=since, until=until), SCHEMA)
        assert found.letters == expected


async def test_the_clock_is_the_databases(conn: AsyncConnection[Any]) -> None:
    now = datetime.fromisoformat("2026-07-31T09:30+02:00")
    which = Filter(since="2h", until=now).at(now)
    assert (which.since, which.until) == (now - timedelta(hours=2), now)


def test_filters_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="since: 2026-07-31T09:30:00 has no time zone"):
        Filter(since=datetime.fromisoformat("2026-07-31T09:30"))
    with pytest.raises(ConfigError, match="until: 'soon' is not a duration"):
        Filter(until="soon")
    assert not Filter()
    assert Filter(generation=0)


async def test_pages_go_on_where_the_last_one_ended(conn: AsyncConnection[Any], letters: str) -> None:
    bury(letters, 500)
    found = [each async for each in dead_letters.each(conn, Filter(), SCHEMA)]
    assert len(found) == 24 + 1000
    assert all(one.id < two.id for one, two in pairwise(found))
    three = await dead_letters.letters(conn, Filter(), SCHEMA, limit=3, after=found[0].id)
    assert three == found[1:4]


async def test_a_letter(conn: AsyncConnection[Any], letters: str) -> None:
    [letter] = await dead_letters.letters(conn, Filter(subscription="dead.two"), SCHEMA, limit=1)
    ((event_id, delivery),) = query(
        letters, "select event_id, id from outrider.delivery where seq = 1 and subscription = 'dead.two'"
    )
    assert letter == Letter(
        id=delivery, event_id=event_id, subscription="dead.two", event_type="dead.paid", key="k1", attempts=1, cycle=1,
        code="timeout", message='TimeoutError: order 1 of host "h1" did not answer', fingerprint=letter.fingerprint,
        buried_at=letter.buried_at, workspace_id="w1", generation=0,
    )  # fmt: skip


async def test_a_letter_in_full(conn: AsyncConnection[Any], letters: str) -> None:
    ((event_id,),) = query(letters, "select id from outrider.outbox where seq = 1")
    both = await dead_letters.letter(conn, event_id, None, SCHEMA)
    assert [each.subscription for each in both] == ["dead.one", "dead.two"]
    [one] = await dead_letters.letter(conn, event_id, "dead.one", SCHEMA)
    assert one == both[0]
    assert (one.status, one.payload, one.edited, one.handled_at) == ("failed", '{\n    "n": 1\n}', None, None)
    assert [entry["code"] for entry in one.failure_history] == ["timeout"]
    query(letters, """update outrider.delivery set status = 'discarded', payload = '{"n": 2}'""")
    [one] = await dead_letters.letter(conn, event_id, "dead.one", SCHEMA)
    assert (one.status, one.edited) == ("discarded", '{\n    "n": 2\n}')
    assert await dead_letters.letter(conn, UUID(int=0), None, SCHEMA) == []


async def test_those_that_were_handled_meanwhile_are_counted(conn: AsyncConnection[Any], letters: str) -> None:
    query(
        letters,
        """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
           select 'dead.one', id::text, id, seq, 0, 'internal' from outrider.outbox where seq <= 5""",
    )
    count = await dead_letters.count(conn, Filter(), SCHEMA)
    assert (count.letters, count.handled) == (24, 5)
    done = await recovery.replay(conn, Filter(), SCHEMA)
    assert done == Done(replayed=19, skipped_handled=5)
    assert (await dead_letters.count(conn, Filter(), SCHEMA)).letters == 5


@pytest.mark.parametrize(
    "named",
    [
        "",
        "p_subscription => 'dead.one'",
        "p_error_code => 'timeout'",
        "p_workspace_id => 'w1'",
        "p_since => '2000-01-01'",
    ],
)
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
def test_a_page_reads_little_more_than_itself(letters: str, named: str, analyzed: bool) -> None:
    """However many there are; also when a session has settled on a generic plan."""
    bury(letters, 1500)
    query(letters, DEAD_JOBS)
    touched = """select sum(pg_stat_get_xact_tuples_returned(t) + pg_stat_get_xact_tuples_fetched(t))
                 from unnest('{outrider.delivery, outrider.job}'::regclass[]) as t"""
    page = (
        f"select count(*) from outrider.dead_letters(p_after => 100, p_limit => 50{', ' * bool(named)}{named})".encode()
    )
    with psycopg.connect(letters, autocommit=True) as conn:
        if analyzed:
            conn.execute("analyze outrider.delivery, outrider.job, outrider.outbox")
        for _ in range(8):
            with conn.transaction():
                assert conn.execute(page).fetchone() == (50,)
                ((read,),) = conn.execute(touched).fetchall()
            assert read <= 50 * 4 + 10


# Many at once


async def test_chunks_are_transactions_of_their_own(conn: AsyncConnection[Any], letters: str) -> None:
    seen: list[tuple[int, int]] = []
    done = await recovery.replay(
        conn,
        Filter(),
        SCHEMA,
        by="an operator",
        batch=10,
        on_progress=lambda so_far: seen.append((so_far.replayed, pending(letters))),
    )
    assert seen == [(10, 10), (20, 20), (24, 24)]
    assert done == Done(replayed=24)
    assert query(letters, "select distinct failure_history -> 1 ->> 'by' from outrider.delivery") == [("an operator",)]


async def test_a_filter_leaves_the_others_alone(conn: AsyncConnection[Any], letters: str) -> None:
    done = await recovery.replay(conn, Filter(subscription="dead.two", event_type=Placed), SCHEMA, batch=4)
    assert done == Done(replayed=6)
    assert query(
        letters, "select distinct subscription, event_type from outrider.delivery where status = 'pending'"
    ) == [("dead.two", "dead.placed")]


async def test_what_is_buried_while_it_runs_is_left_alone(conn: AsyncConnection[Any], letters: str) -> None:
    """Both what fails again after its replay and what fails for the first time."""
    began: list[Done] = []

    def fail_again(so_far: Done) -> None:
        """At once, as a worker would; and new ones, which come after all others."""
        query(
            letters,
            "update outrider.delivery set status = 'failed', buried_at = clock_timestamp() where status = 'pending'",
        )
        if not began:
            bury(letters, 5)
        began.append(so_far)

    done = await recovery.replay(conn, Filter(), SCHEMA, batch=7, on_progress=fail_again)
    assert done == Done(replayed=24)
    assert query(letters, "select cycle, count(*) from outrider.delivery group by 1 order by 1") == [(1, 10), (2, 24)]


async def test_what_was_buried_after_a_moment_is_left_alone(conn: AsyncConnection[Any], letters: str) -> None:
    """What an operator has seen counted is what is replayed, and no more."""
    which = await recovery.until_now(conn, Filter(), SCHEMA)
    bury(letters, 3)
    assert (await recovery.replay(conn, which, SCHEMA)).replayed == 24
    later = replace(Filter(), until=(await dead_letters.clock(conn, SCHEMA)) + timedelta(days=1))
    assert (await recovery.until_now(conn, later, SCHEMA)).until != later.until


async def test_two_operators_at_once(conn: AsyncConnection[Any], letters: str) -> None:
    bury(letters, 200)
    async with await AsyncConnection.connect(letters, autocommit=True) as other:
        runs = [recovery.replay(each, Filter(), SCHEMA, batch=20) for each in (conn, other)]
        one, two = await asyncio.gather(*runs)
    assert one.replayed + two.replayed == 424
    assert query(letters, "select distinct cycle, status from outrider.delivery") == [(2, "pending")]


async def test_it_stops_after_the_chunk_when_told(conn: AsyncConnection[Any], letters: str) -> None:
    stop = asyncio.Event()
    done = await recovery.replay(conn, Filter(), SCHEMA, batch=5, stop=stop, on_progress=lambda _: stop.set())
    assert done == Done(replayed=5, stopped=True)
    assert pending(letters) == 5
    assert (await recovery.replay(conn, Filter(), SCHEMA)).replayed == 19


async def test_it_stops_in_the_middle_of_a_pause(conn: AsyncConnection[Any], letters: str) -> None:
    """A letter in an hour: nobody would wait for the second."""
    stop = asyncio.Event()
    asking = asyncio.get_running_loop()
    done = await recovery.replay(
        conn, Filter(), SCHEMA, rate=1 / 3600, stop=stop, on_progress=lambda _: asking.call_soon(stop.set)
    )
    assert done == Done(replayed=1, stopped=True)


async def test_a_lost_database_says_how_far_it_came(conn: AsyncConnection[Any], letters: str) -> None:
    def end(so_far: Done) -> None:
        if so_far.replayed == 20:
            query(letters, f"select pg_terminate_backend({conn.info.backend_pid}, 5000)")

    with pytest.raises(Interrupted, match=r"ended after 20 dead letters \(20 replayed, .* run it again") as ended:
        await recovery.replay(conn, Filter(), SCHEMA, batch=10, on_progress=end)
    assert ended.value.done == Done(replayed=20)
    assert pending(letters) == 20
    async with await AsyncConnection.connect(letters, autocommit=True) as again:
        assert await recovery.replay(again, Filter(), SCHEMA) == Done(replayed=4)


@pytest.fixture
def impatient(letters: str) -> None:
    """A replay waits 50 ms for a batch at work, instead of 10 s."""
    for name in query(letters, "select oid::regprocedure from pg_proc where proname = 'replay'"):
        query(letters, f"alter function {name[0]} set lock_timeout = '50ms'")


@pytest.mark.usefixtures("impatient")
async def test_it_waits_for_a_long_batch(
    conn: AsyncConnection[Any], letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again; then it goes on as if nothing had been."""
    monkeypatch.setattr(recovery, "PATIENCE", 1000)  # a busy machine may not see each of the times
    begun = "select count(distinct query_start) from seen"
    query(letters, "create table seen (query_start timestamptz)")
    with psycopg.connect(letters) as working, psycopg.connect(letters, autocommit=True) as looking:
        working.execute("select from outrider.cursor for update")
        run = asyncio.create_task(recovery.replay(conn, Filter(), SCHEMA))
        while looking.execute(begun).fetchone() < (4,):  # type: ignore[operator]
            look = (
                "insert into seen select query_start from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
            )
            looking.execute(look, [conn.info.backend_pid])
            await asyncio.sleep(0)
        working.rollback()
        assert await run == Done(replayed=24)


@pytest.mark.usefixtures("impatient")
async def test_it_does_not_wait_for_ever(conn: AsyncConnection[Any], letters: str) -> None:
    event = (await dead_letters.letters(conn, Filter(), SCHEMA, limit=1))[0].event_id
    with psycopg.connect(letters) as working:
        working.execute("select from outrider.cursor for update")
        with pytest.raises(Interrupted, match=f"ended after 0 dead letters .*{re.escape(HELD)}"):
            await recovery.replay(conn, Filter(), SCHEMA)
        with pytest.raises(ReplayRefused, match=re.escape(HELD)):
            await replay_one(conn, event, SCHEMA)
    assert pending(letters) == 0


async def test_to_another_generation(conn: AsyncConnection[Any], letters: str) -> None:
    """Refused as a whole while the first chunk shows it; later, what was done is said."""
    query(letters, "select outrider.open_generation('dead.one', 7)")
    with pytest.raises(CursorError, match=r"no worker of generation 7 has started for .dead\.two"):
        await recovery.replay(conn, Filter(), SCHEMA, generation=7)
    assert pending(letters) == 0
    with pytest.raises(Interrupted, match=r"ended after 1 dead letter .* no worker of generation 7"):
        await recovery.replay(conn, Filter(), SCHEMA, generation=7, batch=1)
    assert (await recovery.replay(conn, Filter(subscription="dead.one"), SCHEMA, generation=7)).replayed == 11
    assert query(letters, "select distinct subscription, generation from outrider.delivery order by 1") == [
        ("dead.one", 7),
        ("dead.two", 0),
    ]


async def test_discarded_ones_stay_marked_and_come_back_only_by_force(conn: AsyncConnection[Any], letters: str) -> None:
    seen: list[int] = []
    done = await recovery.discard(
        conn, Filter(subscription="dead.one"), SCHEMA, by="an operator", reason="a test", batch=5,
        on_progress=lambda so_far: seen.append(so_far.discarded),
    )  # fmt: skip
    assert (done, seen) == (Done(discarded=12), [5, 10, 12])
    assert (await dead_letters.count(conn, Filter(), SCHEMA)).letters == 12
    marks = """select distinct failure_history -> 1 ->> 'by', failure_history -> 1 ->> 'reason'
               from outrider.delivery where status = 'discarded'"""
    assert query(letters, marks) == [("an operator", "a test")]
    audit = """select count(distinct event_id), min(action), min(details ->> 'code')
               from outrider.audit where by = 'an operator'"""
    assert query(letters, audit) == [(12, "discard", "timeout")]
    assert await recovery.replay(conn, Filter(), SCHEMA, force=True) == Done(replayed=12)
    assert query(letters, "select distinct subscription from outrider.delivery where status = 'pending'") == [
        ("dead.two",)
    ]
    ((event_id,),) = query(letters, "select id from outrider.outbox where seq = 1")
    assert await recovery.discard_one(conn, event_id, None, SCHEMA, by=None, reason=None) == 0


async def test_one_event_is_discarded(conn: AsyncConnection[Any], letters: str) -> None:
    ((event_id,),) = query(letters, "select id from outrider.outbox where seq = 1")
    assert await recovery.discard_one(conn, event_id, "dead.two", SCHEMA, by="me", reason="no") == 1
    assert await recovery.discard_one(conn, event_id, None, SCHEMA, by="me", reason="no") == 1
    assert query(letters, "select count(*) from outrider.delivery where status = 'discarded'") == [(2,)]


# How fast


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("rate", "chunk"), [(0.1, 1), (10, 1), (19, 1), (100, 10), (2_500, 250), (1_000_000, 500), (None, 500)]
)
def test_chunks_are_small_enough_to_be_smooth(rate: float | None, chunk: int) -> None:
    assert Pace(rate).chunk == chunk


def test_the_pace_is_kept_and_lost_time_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(10, clock=clock)
    pace.begin()
    assert pace.wait(1) == pytest.approx(0.1)
    clock.now += 0.1
    pace.begin()
    clock.now += 0.04  # the chunk itself took a while
    assert pace.wait(1) == pytest.approx(0.06)
    clock.now += 5  # the database was slow
    pace.begin()
    assert pace.wait(1) == pytest.approx(0.1)
    assert pace.wait(0) == pytest.approx(0.1), "what is skipped costs nothing"
    assert Pace(None, clock=clock).wait(500) == 0


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rates_that_make_no_sense(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        Pace(rate)


async def test_a_rate_cuts_the_chunks(conn: AsyncConnection[Any]) -> None:
    seen: list[int] = []
    await recovery.replay(conn, Filter(), SCHEMA, rate=100, on_progress=lambda so_far: seen.append(so_far.letters))
    assert seen == [10, 20, 24]


# The app's own


async def test_the_app_gives_them(letters: str) -> None:
    async with Outrider(context="dead", dsn=letters) as app:
        assert sum(group.letters for group in await app.dead_letters.groups(event_type=Placed)) == 12
        assert [
            each.event_type async for each in app.dead_letters.each(subscription="dead.one", event_type=Placed)
        ] == ["dead.placed"] * 6
        assert (await app.dead_letters.count(code="timeout")).letters == 24
        assert (await app.dead_letters.replay(subscription="dead.one", rate=10_000, by="me")).replayed == 12
        assert (await app.dead_letters.discard(subscription="dead.two", reason="no")).discarded == 12
        with pytest.raises(TypeError, match="unexpected keyword"):
            await app.dead_letters.groups(type=Placed)  # type: ignore[call-arg]


async def test_the_app_must_be_open(letters: str) -> None:
    with pytest.raises(ConfigError, match="not open"):
        await Outrider(context="dead", dsn=letters).dead_letters.groups()
