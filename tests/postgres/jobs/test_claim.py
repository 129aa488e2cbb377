"""What a claim takes: never more than asked, in the order promised, within the limits, and at a cost that grows with what
it takes and not with what waits."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.mutants import changed
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import Conn, claim, done, enqueue, enqueue_many, fail, register, serve, settle, sound

pytestmark = pytest.mark.also_on(15, 16)

JOINS = ("enable_nestloop", "enable_hashjoin", "enable_mergejoin")
TOUCHED = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'r'), 0) as by_seq_scan,
           coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid)), 0) as rows,
           coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'i'), 0) as entries
    from pg_class as c
    where c.oid = 'outrider.job'::regclass
       or c.oid in (select i.indexrelid from pg_index as i where i.indrelid = 'outrider.job'::regclass)
"""


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        register(conn, "mail.send")
        yield conn


def touched(conn: Conn) -> tuple[int, ...]:
    row = conn.execute(TOUCHED).fetchone()
    assert row is not None
    return tuple(int(count) for count in row)


def reading(conn: Conn, limit: int, names: list[str]) -> tuple[int, int, int, int]:
    """How many jobs a claim took; rows by sequential scans, rows by indexes, index entries. Rolled back."""
    with conn.transaction(force_rollback=True):
        before = touched(conn)
        taken = len(claim(conn, limit, names).jobs)
        by_seq_scan, rows, entries = (b - a for a, b in zip(before, touched(conn), strict=True))
        return taken, by_seq_scan, rows, entries


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_never_more_than_asked_however_it_is_joined(conn: Conn, lanes: int, analyzed: bool) -> None:
    """Each claim in a session of new plans; the settings of the session reach the joins inside of the function."""
    register(conn, "mail.limited", concurrency=20, key_concurrency=2)
    for name in ("mail.send", "mail.limited"):
        enqueue_many(conn, name, 300, keys=[f"k{n}" for n in range(50)], lanes=lanes)
    if analyzed:
        conn.execute("analyze outrider.job, outrider.subscription")
    for off in itertools.chain.from_iterable(itertools.combinations(JOINS, n) for n in range(4)):
        with psycopg.connect(conn.info.dsn) as other:
            for setting in off:
                other.execute(f"set {setting} = off".encode())
            assert [len(claim(other, n).jobs) for n in (1, 7, 50)] == [1, 7, 50], off
            assert [len(claim(other, n, ["mail.limited"]).jobs) for n in (1, 7, 50)] == [1, 7, 12], off
            assert len(claim(other, 11, ["mail.limited", "mail.send"]).jobs) == 11, off
            other.rollback()


def test_ageing_weighs_a_step_of_priority_as_a_minute(conn: Conn) -> None:
    enqueue(conn, n="now", ago=0)
    enqueue(conn, n="urgent", ago=0, priority=5)
    enqueue(conn, n="older by less than 5 steps", ago=299)
    enqueue(conn, n="older by more than 5 steps", ago=310)
    enqueue(conn, n="can wait", ago=30, priority=-1)
    assert claim(conn, 9).names == [
        "older by more than 5 steps",
        "urgent",
        "older by less than 5 steps",
        "now",
        "can wait",
    ]


def test_then_by_age(conn: Conn) -> None:
    """At the same weight the older job comes first, whatever its time."""
    for n, (ago, priority) in enumerate([(60, 1), (120, 0), (60, 1), (0, 2), (120, 0)]):
        enqueue(conn, n=n, ago=ago, priority=priority)
    conn.execute("update outrider.job set run_at = date_trunc('minute', run_at)")
    assert claim(conn, 9).names == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [1, 4, 7, 500])
def test_one_order_over_all_lanes(conn: Conn, limit: int) -> None:
    """Types, priorities, queues, generations: batch after batch, as if it were one line."""
    register(conn, "mail.other")
    for n in range(60):
        enqueue(
            conn,
            ("mail.send", "mail.other")[n % 2],
            n,
            ago=(n * 7919) % 601,
            priority=n % 5 - 2,
            queue=("default", "slow", "fast")[n % 3],
            generation=n % 2 * 4,
        )
    order = conn.execute(
        "select payload ->> 'n' from outrider.job order by run_at - priority * interval '1 minute', run_at, id"
    ).fetchall()
    claimed: list[str] = []
    while batch := claim(conn, limit, ["mail.other", "mail.send"]).names:
        claimed += map(str, batch)
    assert claimed == [n for (n,) in order]


def test_only_of_these_queues(conn: Conn) -> None:
    for queue in ("a", "b", "c"):
        enqueue(conn, n=queue, queue=queue)
    assert claim(conn, 9, queues=["c", "b"]).names == ["b", "c"]
    assert claim(conn, 9, queues=[]).names == []
    assert claim(conn, 9, queues=["a", "b"]).names == ["a"]


def test_jobs_of_a_generation_are_left_to_its_live_workers(conn: Conn) -> None:
    for generation in (0, 1, 2, 3, 4):
        enqueue(conn, n=generation, generation=generation)
    serve(conn, uuid4(), "mail.send", generation=1)
    serve(conn, uuid4(), "mail.send", generation=2, ago=40)
    serve(conn, uuid4(), "mail.other", generation=3)
    serve(conn, uuid4(), "mail.send", generation=4)
    conn.execute("update outrider.worker set stopping = true where generation = 4")
    assert claim(conn, 9, generation=5, strict=True).names == []
    assert claim(conn, 9, generation=5).names == [0, 2, 3, 4]
    assert claim(conn, 9, generation=1, strict=True).names == [1]


def test_a_suspect_of_a_generation_is_left_to_its_live_workers(conn: Conn) -> None:
    enqueue(conn, generation=1)
    serve(conn, worker := uuid4(), "mail.send", generation=1)
    (job,) = claim(conn, generation=1, worker=worker).jobs
    sqljobs.reap(conn, worker=worker)
    assert not claim(conn).jobs
    conn.execute("delete from outrider.worker")
    assert not claim(conn, generation=2, strict=True).jobs
    assert [again.id for again in claim(conn).jobs] == [job.id]


def test_what_is_not_due_is_not_claimed_and_due_in_says_when(conn: Conn) -> None:
    assert claim(conn).due_in is None
    enqueue(conn, n="later", ago=-500)
    enqueue(conn, n="sooner", ago=-100, priority=3)
    enqueue(conn, n="elsewhere", ago=-10, queue="b")
    assert not claim(conn, queues=["default"]).jobs
    assert claim(conn, queues=["default"]).due_in == pytest.approx(10, abs=5)
    enqueue(conn, n="due")
    assert claim(conn, 1).due_in == 0
    conn.execute("update outrider.job set run_at = clock_timestamp() where payload ->> 'n' = 'sooner'")
    assert claim(conn, 9).names == ["sooner"]


def test_due_in_says_when_the_first_lease_runs_out(conn: Conn) -> None:
    """Somebody must reap it then, and nobody else may be looking."""
    register(conn, "mail.brief", lease="20s")
    enqueue(conn, "mail.brief")
    enqueue(conn)
    names = ["mail.brief", "mail.send"]
    assert len(claim(conn, 2, names).jobs) == 2
    assert claim(conn, 2, names).due_in == pytest.approx(20, abs=5)


def test_two_claim_at_once_disjointly_and_each_gets_all_it_asked_for(conn: Conn) -> None:
    """One transaction is open while the other claims; one lane."""
    enqueue_many(conn, "mail.send", 20)
    with psycopg.connect(conn.info.dsn) as first, psycopg.connect(conn.info.dsn) as second:
        ours, theirs = claim(first, 10).names, claim(second, 10).names
        assert (len(ours), len(theirs)) == (10, 10)
        assert not set(ours) & set(theirs)


def test_who_claims_second_gets_the_next_of_other_lanes(conn: Conn) -> None:
    """The first jobs of all are of one lane, and the other session has them: those of the next lane are still due."""
    for n in range(5):
        enqueue(conn, n=n, ago=500)
    for n in range(5, 20):
        enqueue(conn, n=n, ago=1, priority=1)
    with psycopg.connect(conn.info.dsn) as first, psycopg.connect(conn.info.dsn) as second:
        assert claim(first, 5).names == [0, 1, 2, 3, 4]
        assert claim(second, 5).names == [5, 6, 7, 8, 9]
        assert claim(first, 7).names == [10, 11, 12, 13, 14, 15, 16]


def test_a_paused_type_rests_and_the_others_go_on(conn: Conn) -> None:
    register(conn, "mail.other")
    enqueue(conn, n="paused")
    enqueue(conn, "mail.other", "other")
    conn.execute("update outrider.subscription set paused_at = now() where name = 'mail.send'")
    assert claim(conn, 9, ["mail.send", "mail.other"]).names == ["other"]
    conn.execute("update outrider.subscription set paused_at = null")
    assert claim(conn, 9, ["mail.send", "mail.other"]).names == ["paused"]


def test_when_all_is_paused_nothing_is_claimed_but_reaped(conn: Conn) -> None:
    enqueue(conn)
    (job,) = claim(conn).jobs
    enqueue(conn)
    conn.execute("update outrider.setting set value = 1 where name = 'paused'")
    sqljobs.expire(conn, job)
    assert not claim(conn, 9).jobs
    assert {row["status"] for row in sqljobs.jobs(conn)} == {"pending"}
    conn.execute("update outrider.setting set value = 0 where name = 'paused'")
    assert len(claim(conn, 9).jobs) == 2


def test_what_nobody_registered_waits(conn: Conn) -> None:
    enqueue(conn, "mail.unknown")
    assert not claim(conn, 9, ["mail.unknown"]).jobs
    register(conn, "mail.unknown")
    assert len(claim(conn, 9, ["mail.unknown"]).jobs) == 1


@pytest.mark.verify
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
def test_a_claim_reads_what_it_takes(conn: Conn, analyzed: bool) -> None:
    """100,000 wait in 4 lanes, and 2,000 run; the fifth claim of a session too."""
    conn.execute("alter table outrider.job set (autovacuum_enabled = off)")
    enqueue_many(conn, "mail.send", 102_000, lanes=4)
    for _ in range(2):
        claim(conn, 1000)
    analyze = ", analyze" if analyzed else ""
    conn.execute(f"vacuum (index_cleanup on{analyze}) outrider.job".encode())
    for _ in range(5):
        taken, by_seq_scan, rows, entries = reading(conn, 50, ["mail.send"])
        assert (taken, by_seq_scan) == (50, 0)
        assert rows <= 50 * 7 + 50, "the next of 4 lanes, the chosen, the changed"
    assert entries <= 50 * 7 + 50


@pytest.mark.parametrize("tenants", [False, True], ids=["no tenants", "tenants"])
def test_statistics_of_a_table_that_was_empty_mislead_no_plan(conn: Conn, tenants: bool) -> None:
    """A short queue was worked off when ANALYZE came. Until the next one, the planner takes a scan of any whole index to
    cost one page, so no index may be offered that the statement does not need."""
    waiting, names = 6_000, ["mail.send", "mail.limited"]
    conn.execute("alter table outrider.job set (autovacuum_enabled = off)")
    register(conn, "mail.limited", concurrency=100, key_concurrency=2)
    enqueue_many(conn, "mail.send", 100)
    done(conn, *claim(conn, 100).jobs)
    conn.execute("analyze outrider.job")
    estimate = "select reltuples, relpages > 0 from pg_class where oid = 'outrider.job'::regclass"
    assert conn.execute(estimate).fetchone() == (0, True)
    enqueue_many(conn, "mail.send", waiting, lanes=2)
    enqueue_many(conn, "mail.limited", waiting, keys=[f"k{n}" for n in range(500)], lanes=2)
    conn.execute(
        """insert into outrider.job (subscription, event_id, run_at, queue, unique_key, payload)
           select 'mail.unique', gen_random_uuid(), now(), 'default', 'u' || n, '{}' from generate_series(1, %s) as n""",
        [waiting],
    )
    if tenants:
        conn.execute("update outrider.job set workspace_id = 'w' || id % 300 where subscription <> 'mail.unique'")
    lane = "select count(*) from outrider.claim_lane(gen_random_uuid(), 'mail.send', 0, 'default', '-infinity', 50)"
    works: list[Callable[[], object]] = [
        lambda: claim(conn, 50, names[:1]),
        lambda: claim(conn, 50, names[1:]),
        lambda: claim(conn, 50, names),
        lambda: conn.execute(lane.encode()),
        lambda: enqueue(conn, "mail.unique", unique_key="u7"),
        lambda: enqueue(conn, "mail.unique", unique_key="u8", on_conflict="replace"),
        lambda: conn.execute("select outrider.owed_of(gen_random_uuid())"),
    ]
    for work in works:
        with conn.transaction(force_rollback=True):
            before = touched(conn)
            work()
            by_seq_scan, rows, _ = (b - a for a, b in zip(before, touched(conn), strict=True))
        assert by_seq_scan == 0
        assert rows < waiting, "a look at what open transactions keep reads 500 of each of 8 lanes at most"


@pytest.mark.verify
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
def test_what_is_for_later_costs_nothing(conn: Conn, analyzed: bool) -> None:
    """300,000 jobs for tomorrow, each in a queue of its own, and one that is due behind all of them."""
    enqueue(conn, n="due", queue="z")
    alone = reading(conn, 50, ["mail.send"])
    conn.execute("""
        insert into outrider.job (subscription, event_id, run_at, queue, priority, payload)
        select 'mail.send', gen_random_uuid(), now() + interval '1 day', 'q' || n, n % 100, '{}'
        from generate_series(1, 300000) as n""")
    if analyzed:
        conn.execute("analyze outrider.job")
    for _ in range(5):
        taken, by_seq_scan, rows, entries = reading(conn, 50, ["mail.send"])
        assert (taken, by_seq_scan) == alone[:2] == (1, 0)
        assert rows <= alone[2] + 2, "the first of what is for later"
        assert entries <= alone[3] + 2


def test_what_comes_due_at_once_is_claimed_in_turn(conn: Conn) -> None:
    """2,500 at one time: a claim makes 1,000 of them claimable, and says that there are more."""
    enqueue_many(conn, "mail.send", 2500)
    conn.execute("update outrider.job set run_at = clock_timestamp() + interval '1 hour'")
    assert claim(conn, 9).names == []
    conn.execute("alter table outrider.job disable trigger await_changed_time")
    conn.execute("update outrider.job set run_at = clock_timestamp()")
    assert len(claim(conn, 9).jobs) == 9
    assert conn.execute("select count(*) from outrider.job where waits_for = 'time'").fetchone() == (1500,)
    claims = [claim(conn, 2500) for _ in range(3)]
    assert [(len(each.jobs), each.due_in) for each in claims][:2] == [(1991, 0), (500, pytest.approx(300, abs=60))]
    sound(conn)


ADMISSIONS = {
    "as it is": "select",
    "a job is claimed before its time": changed("admit_scheduled", ("and j.run_at <= p_moment\n", "\n")),
    "what has become due is not seen": changed("admit_scheduled", ("set waits_for = null", "set waits_for = 'time'")),
}


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_what_is_due_is_claimed_and_nothing_else(conn: Conn, admission: str) -> None:
    for n in ("due", "later"):
        enqueue(conn, n=n, ago=-3600)
    conn.execute("alter table outrider.job disable trigger await_changed_time")
    conn.execute("update outrider.job set run_at = clock_timestamp() where id = (select min(id) from outrider.job)")
    conn.execute(ADMISSIONS[admission].encode())
    assert (claim(conn, 9).names == ["due"]) == (admission == "as it is")


def test_a_job_for_later_that_somebody_is_changing_is_looked_for_again(conn: Conn) -> None:
    """Its time comes while another transaction holds it: nobody will notify us when that rolls back."""
    enqueue(conn, n="held", ago=-3600, unique_key="u")
    conn.execute("alter table outrider.job disable trigger await_changed_time")
    conn.execute("update outrider.job set run_at = clock_timestamp()")
    with psycopg.connect(conn.info.dsn) as other:
        enqueue(other, n="new", unique_key="u", on_conflict="replace")
        found = claim(conn)
        assert (found.jobs, found.due_in) == ([], 1)
        other.rollback()
    assert claim(conn).names == ["held"]


@pytest.mark.parametrize(
    ("change", "waits_for"),
    [
        ("run_at = clock_timestamp() + interval '1 hour'", "time"),
        ("run_at = clock_timestamp() - interval '1 hour'", None),
        ("status = 'discarded', run_at = clock_timestamp() + interval '1 hour'", None),
    ],
)
def test_who_changes_the_time_changes_what_it_waits_for(conn: Conn, change: str, waits_for: str | None) -> None:
    for ago in (10, -10):
        enqueue(conn, ago=ago)
    assert [row["waits_for"] for row in sqljobs.jobs(conn)] == [None, "time"]
    conn.execute(f"update outrider.job set {change}".encode())
    assert [row["waits_for"] for row in sqljobs.jobs(conn)] == [waits_for, waits_for]


def test_a_claim_that_finds_nothing_does_not_read_what_runs(conn: Conn) -> None:
    enqueue_many(conn, "mail.send", 2000)
    assert len(claim(conn, 2000).jobs) == 2000
    conn.execute("vacuum (index_cleanup on) outrider.job")
    taken, by_seq_scan, rows, entries = reading(conn, 50, ["mail.send"])
    assert (taken, by_seq_scan) == (0, 0)
    assert rows <= 20
    assert entries <= 20


def test_a_hot_key_is_passed_once(conn: Conn) -> None:
    """5,000 jobs of one key, and others behind them: what has been set aside is not read again."""
    register(conn, "mail.keyed", key_concurrency=1)
    enqueue_many(conn, "mail.keyed", 5000, keys=["hot"])
    names = ["mail.keyed"]
    assert len(claim(conn, 10, names).jobs) == 1
    for n in range(20):
        enqueue(conn, "mail.keyed", f"cold {n}", key=f"cold {n}")
    cold: list[Any] = []
    while (found := claim(conn, 10, names)).due_in == 0:
        cold += found.names
    assert len(cold) == 20
    conn.execute("vacuum (index_cleanup on) outrider.job")
    taken, by_seq_scan, rows, entries = reading(conn, 10, names)
    assert (taken, by_seq_scan) == (0, 0)
    assert rows <= 60
    assert entries <= 60
    sound(conn)


@pytest.mark.parametrize("suspect", [False, True])
@pytest.mark.parametrize("analyze", ["", ", analyze"], ids=["no statistics", "analyzed"])
def test_the_next_of_a_hot_key_is_claimed_without_looking_at_the_others(
    conn: Conn, suspect: bool, analyze: str
) -> None:
    register(conn, "mail.keyed", key_concurrency=1)
    enqueue_many(conn, "mail.keyed", 5000, keys=["hot"])
    names, worker = ["mail.keyed"], uuid4()
    (first,) = claim(conn, 10, names, worker=worker).jobs
    while claim(conn, 10, names).due_in == 0:
        pass
    if suspect:
        sqljobs.reap(conn, names, worker)
    else:
        done(conn, first)
    conn.execute(f"vacuum (index_cleanup on{analyze}) outrider.job".encode())
    taken, by_seq_scan, rows, entries = reading(conn, 10, names)
    assert (taken, by_seq_scan) == (1, 0)
    assert rows <= 60
    assert entries <= 60


class Crew:
    """Claimers and settlers in threads, on sessions of their own, until nothing is left."""

    def __init__(self, dsn: str, names: list[str], size: int = 4) -> None:
        self.dsn = dsn
        self.names = names
        self.settled: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=[n]) for n in range(size)]

    def _run(self, n: int) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                for turn in itertools.count(n):
                    jobs = claim(conn, 1 + turn % 5, self.names).jobs
                    sound(conn)
                    for place, job in enumerate(jobs):
                        if job.attempt == 1 and turn % 3 == 0 and place == 0:
                            assert fail(conn, job) == "retry"
                        elif place % 2 and job.attempt < 3:
                            assert settle(conn, job, "back") == "back"
                        else:
                            assert done(conn, job) == {job.delivery: "done"}
                            self.settled[str(job.id)] += 1
                    left = conn.execute("select count(*) from outrider.job where status <> 'failed'").fetchone()
                    if left == (0,):
                        return
        except BaseException as error:
            self.errors.append(error)

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(60)
        for error in self.errors:
            raise error
        assert not any(thread.is_alive() for thread in self._threads)


def test_a_type_never_runs_more_than_it_may_and_drains(conn: Conn) -> None:
    register(conn, "mail.limited", concurrency=3, keep="1 day")
    register(conn, "mail.send", keep="1 day")
    enqueue_many(conn, "mail.limited", 150, lanes=3)
    enqueue_many(conn, "mail.send", 50)
    (crew := Crew(conn.info.dsn, ["mail.limited", "mail.send"])).run()
    assert sorted(crew.settled.values()) == [1] * 200
    assert len(sqljobs.receipts(conn)) == 200


@pytest.mark.parametrize("key_concurrency", [1, pytest.param(2, marks=pytest.mark.verify)])
def test_a_key_never_runs_more_than_it_may_and_drains(conn: Conn, key_concurrency: int) -> None:
    register(conn, "mail.keyed", concurrency=5, key_concurrency=key_concurrency)
    enqueue_many(conn, "mail.keyed", 200, keys=["a", "a", "a", "b", "c", None], lanes=2)
    (crew := Crew(conn.info.dsn, ["mail.keyed", "mail.send"])).run()
    assert sorted(crew.settled.values()) == [1] * 200


def test_a_claim_without_limits_runs_over(conn: Conn) -> None:
    """Broken on purpose: nobody holds the limits while he counts."""
    conn.execute(changed("hold_limits", ("where s.name = any (p_names)", "where false")).encode())
    register(conn, "mail.limited", concurrency=3)
    enqueue_many(conn, "mail.limited", 20)
    with psycopg.connect(conn.info.dsn) as first, psycopg.connect(conn.info.dsn) as second:
        claim(first, 3, ["mail.limited"])
        claim(second, 3, ["mail.limited"])
        first.commit()
        second.commit()
    with pytest.raises(AssertionError, match="more running than the type may"):
        sound(conn)


def test_the_limits_of_all_types_are_held(conn: Conn) -> None:
    register(conn, "mail.a", concurrency=1)
    register(conn, "mail.b", key_concurrency=1)
    with psycopg.connect(conn.info.dsn) as other:
        claim(other, 1, ["mail.b", "mail.a", "mail.send"])
        free = "select subscription from outrider.job_limit for update skip locked"
        assert conn.execute(free).fetchall() == []
        other.rollback()
        claim(other, 1, ["mail.b", "mail.send"])
        other.commit()
        assert conn.execute("select subscription from outrider.job_limit").fetchall() == [("mail.b",)]


def test_new_limits_look_again_at_what_was_set_aside(conn: Conn) -> None:
    register(conn, "mail.keyed", key_concurrency=1)
    for n in range(5):
        enqueue(conn, "mail.keyed", n, key="k")
    assert claim(conn, 9, ["mail.keyed"]).names == [0]
    register(conn, "mail.keyed", key_concurrency=3)
    assert claim(conn, 9, ["mail.keyed"]).names == [1, 2]
    register(conn, "mail.keyed")
    assert claim(conn, 9, ["mail.keyed"]).names == [3, 4]


def test_a_key_does_not_keep_its_urgent_job_behind(conn: Conn) -> None:
    register(conn, "mail.keyed", key_concurrency=1)
    enqueue(conn, "mail.keyed", "whenever", key="k", priority=-50)
    enqueue(conn, "mail.keyed", "urgent", key="k", priority=50)
    enqueue(conn, "mail.keyed", "other", key="o")
    assert claim(conn, 1, ["mail.keyed"]).names == ["urgent"]
    assert claim(conn, 9, ["mail.keyed"]).names == ["other"]
    sound(conn)


def test_a_job_from_sql(conn: Conn) -> None:
    """Its id comes back; generation and workspace are the session's."""
    with conn.transaction():
        conn.execute("set local outrider.generation = '7'")
        conn.execute("set local app.workspace_id = 'w'")
        row = conn.execute("select outrider.enqueue('mail.send', '{\"n\": 1}', unique_key => 'u')").fetchone()
        again = conn.execute("select outrider.enqueue('mail.send', unique_key => 'u')").fetchone()
    (job,) = sqljobs.jobs(conn)
    assert row == again == (job["event_id"],)
    assert (job["generation"], job["workspace_id"], job["payload"], job["queue"]) == (7, "w", {"n": 1}, "default")
    assert [lease.id for lease in claim(conn).jobs] == [job["event_id"]]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("'Mail'", "job type"),
        ("null", "job type"),
        ("'mail.send', '[]'", "JSON object"),
        ("'mail.send', null", "JSON object"),
        ("'mail.send', jsonb_build_object('n', repeat('x', 300000))", "the limit is"),
        ("'mail.send', on_conflict => 'ignore'", "on_conflict"),
        ("'mail.send', on_conflict => null", "on_conflict"),
        ("'mail.send', priority => 101", "priority"),
        ("'mail.send', queue => 'A b'", "queue"),
        ("'mail.send', queue => null", "queue"),
        ("'mail.send', key => ''", "empty key"),
        ("'mail.send', unique_key => ''", "empty key"),
        ("'mail.send', key => repeat('k', 513)", "512 bytes"),
        ("'mail.send', unique_key => repeat('k', 513)", "512 bytes"),
    ],
)
def test_what_sql_may_not_enqueue(conn: Conn, asked: str, why: str) -> None:
    with pytest.raises(psycopg.Error, match=why) as raised:
        conn.execute(f"select outrider.enqueue({asked})".encode())
    assert raised.value.sqlstate == "OR004"
    assert not sqljobs.jobs(conn)


@pytest.mark.parametrize("when", ["infinity", "-infinity", "20000-01-01"])
def test_a_time_that_nobody_can_read_is_refused(database: str, when: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("select outrider.enqueue('factory.make', '{}', run_at => %s::timestamptz)", [when])


@pytest.mark.verify
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "analyzed"])
def test_a_settle_reads_what_it_settles(conn: Conn, analyzed: bool) -> None:
    """20,000 wait and 2,000 run."""
    enqueue_many(conn, "mail.send", 22_000)
    jobs = claim(conn, 2000).jobs
    conn.execute(
        "vacuum (analyze, index_cleanup on) outrider.job" if analyzed else "vacuum (index_cleanup on) outrider.job"
    )
    with conn.transaction(force_rollback=True):
        before = touched(conn)
        assert len(done(conn, *jobs[:50])) == 50
        assert fail(conn, jobs[50]) == "retry"
        by_seq_scan, rows, entries = (b - a for a, b in zip(before, touched(conn), strict=True))
        assert by_seq_scan == 0
        assert rows <= 60
        assert entries <= 60


def test_a_claim_that_counts_the_best_of_each_lane_takes_too_many(conn: Conn) -> None:
    """Broken on purpose, to see that it would be seen."""
    counting = ("            order by j.claim_at, j.id limit p_wanted\n", "")
    conn.execute(changed("pick", counting).encode())
    enqueue_many(conn, "mail.send", 300, lanes=3)
    assert len(claim(conn, 7).jobs) == 21
