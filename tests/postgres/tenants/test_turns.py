"""One tenant's backlog does not starve the others: they take turns, whatever the limits, and nobody else pays for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.mutants import changed
from tests.postgres.jobs.sqljobs import Claim, claim, done, enqueue, register

pytestmark = pytest.mark.also_on(15)

Conn = psycopg.Connection[Any]

BACKLOG = 10_000
PUT = """
insert into outrider.job (
    subscription, event_id, event_version, source, workspace_id, run_at, queue, priority, job_key, payload)
select 'mail.send', gen_random_uuid(), 1, 'sql', %(tenant)s,
       clock_timestamp() - %(ago)s * interval '1 minute' + n * interval '1 millisecond', 'default', %(priority)s,
       case when %(keys)s > 0 then 'k' || n %% %(keys)s end, jsonb_build_object('n', coalesce(%(tenant)s, ''))
from generate_series(1, %(jobs)s) as n
"""


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def put(conn: Conn, tenant: str | None, jobs: int, *, ago: float = 1, priority: int = 0, keys: int = 0) -> None:
    params = {"tenant": tenant, "jobs": jobs, "ago": ago, "priority": priority, "keys": keys}
    conn.execute(PUT, params)


def settled(conn: Conn, got: Claim) -> Counter[str]:
    done(conn, *got.jobs)
    return Counter(got.names)


LIMITS: dict[str, dict[str, Any]] = {
    "no limits": {},
    "of the type": {"concurrency": 12},
    "of a key": {"key_concurrency": 2},
    "of both": {"concurrency": 12, "key_concurrency": 2},
}


@pytest.mark.parametrize("limits", LIMITS)
def test_a_backlog_does_not_starve_the_others(conn: Conn, limits: str) -> None:
    """Two tenants, and what has no tenant, come after ten thousand jobs of a third: ten claims do."""
    register(conn, "mail.send", **LIMITS[limits])
    put(conn, "big", BACKLOG, ago=60, priority=5, keys=200)
    for small in ("a", "b", None):
        put(conn, small, 10, ago=0.1, keys=200)
    conn.execute("analyze outrider.job")
    seen: Counter[str] = Counter()
    for _ in range(10):
        seen += settled(conn, claim(conn, 10))
    assert seen == {"big": 70, "a": 10, "b": 10, "": 10}


def test_one_at_a_time_is_fair_too(conn: Conn) -> None:
    """A worker with one free place asks for one job: whoever has fewer running comes first, then it is drawn."""
    register(conn, "mail.send")
    put(conn, "big", 500, ago=60)
    put(conn, "a", 5)
    put(conn, "b", 5)
    running = Counter(name for _ in range(9) for name in claim(conn, 1).names)
    assert running == {"big": 3, "a": 3, "b": 3}
    got = Counter[str]()
    for _ in range(100):  # each has ended before the next is claimed: nobody runs more than another
        got += settled(conn, claim(conn, 1))
        if got["a"] == got["b"] == 2:
            break
    assert got["a"] == got["b"] == 2


def test_within_a_tenant_the_order_is_as_ever(conn: Conn) -> None:
    register(conn, "mail.send")
    put(conn, "big", 50, ago=60)
    for n, (ago, priority) in enumerate([(10, 0), (30, 0), (20, 0), (0, 1)]):
        enqueue(conn, n=n, ago=ago, priority=priority)
    conn.execute("update outrider.job set workspace_id = 'a' where workspace_id is null")
    got = [name for _ in range(8) for name in sorted(claim(conn, 2).names, key=str) if name != "big"]
    assert got == [3, 1, 2, 0]


@pytest.mark.verify
def test_many_tenants_are_looked_at_in_turn_and_few_at_once(conn: Conn) -> None:
    """Of 500 tenants with more to do than fits, each claim looks at a bounded number; and none is left out."""
    register(conn, "mail.send")
    conn.execute(
        "insert into outrider.job (subscription, event_id, event_version, source, workspace_id, run_at, queue, payload)"
        " select 'mail.send', gen_random_uuid(), 1, 'sql', 't' || n % 500,"
        " clock_timestamp() - case n % 500 when 0 then 120 else 1 end * interval '1 minute', 'default',"
        " jsonb_build_object('n', 't' || n % 500) from generate_series(1, 5000) as n"
    )
    put(conn, "t0", 5000, ago=120)
    conn.execute("analyze outrider.job")
    reads = "select sum(idx_tup_fetch) from pg_stat_xact_user_tables where schemaname = 'outrider' and relname = 'job'"
    with conn.transaction(force_rollback=True):
        before = conn.execute(reads).fetchone()
        assert len(claim(conn, 50).jobs) == 50
        after = conn.execute(reads).fetchone()
        assert after is not None
        assert after[0] - (before[0] or 0 if before else 0) < 1500
    seen: Counter[str] = Counter()
    for _ in range(450):  # which ones is drawn by lot
        seen += settled(conn, claim(conn, 20))
        if len(seen) == 500:
            break
    assert len(seen) == 500


def test_who_waits_for_later_holds_nobody_up(conn: Conn) -> None:
    """A thousand tenants have only jobs for tomorrow: what is due is found all the same."""
    register(conn, "mail.send")
    conn.execute(
        "insert into outrider.job (subscription, event_id, workspace_id, run_at, queue, payload)"
        " select 'mail.send', gen_random_uuid(), 't' || n,"
        " now() + interval '1 day', 'default', '{\"n\": \"later\"}' from generate_series(1, 1000) as n"
    )
    put(conn, "a", 15)
    put(conn, None, 15)
    assert Counter(claim(conn, 20).names).total() == 20
    assert Counter(claim(conn, 20).names).total() == 10
    assert claim(conn, 20).jobs == []


LATER = """
insert into outrider.job (subscription, event_id, workspace_id, run_at, queue, priority, payload)
select 'mail.send', gen_random_uuid(), {tenant}, now() + interval '1 day',
       'default', {priority}, '{{"n": "later"}}' from generate_series(1, {jobs}) as n
"""


@pytest.mark.parametrize("wanted", [1, 10])
@pytest.mark.parametrize("ago", [0.1, 30])
def test_nobody_starves_behind_those_who_wait_for_later(conn: Conn, wanted: int, ago: float) -> None:
    """Few tenants have something due, beside a backlog and thousands that have nothing due: whether theirs is newer than the
    backlog or in its midst."""
    register(conn, "mail.send")
    conn.execute(LATER.format(tenant="'t' || n", priority=0, jobs=3000).encode())
    put(conn, "big", 3000, ago=60)
    put(conn, "big", 3000, ago=1)
    small = {"a", "b", "c"}
    for each in small:
        put(conn, each, 1, ago=ago)
    conn.execute("analyze outrider.job")
    seen: Counter[str] = Counter()
    claims = 0
    while not small <= set(seen):
        seen += settled(conn, claim(conn, wanted))
        claims += 1
        assert claims <= (25 if ago < 1 else 100), seen


def test_a_tenant_of_many_lanes_does_not_hide_its_neighbour(conn: Conn) -> None:
    """Its hash lies just before that of the other, and it has a job for later at every priority."""
    register(conn, "mail.send")
    [[victim]] = conn.execute("select hashtextextended('victim', 0)").fetchall()
    [[hostile]] = conn.execute(
        """select name from (select 'h' || n as name, hashtextextended('h' || n, 0) as place
                             from generate_series(1, 200000) as n) as h
           where place < %s order by place desc limit 1""",
        [victim],
    ).fetchall()
    conn.execute(LATER.format(tenant=f"'{hostile}'", priority="n - 101", jobs=201).encode())
    put(conn, "big", 1000, ago=60)
    put(conn, "big", 1000, ago=1)
    put(conn, "victim", 1, ago=30)
    conn.execute("analyze outrider.job")
    for _ in range(20):
        if "victim" in settled(conn, claim(conn, 5)):
            return
    pytest.fail("it was never its turn")


def test_without_turns_the_small_ones_starve(conn: Conn) -> None:
    """Broken on purpose, to see that it would be seen."""
    conn.execute(changed("pick", ("places := /*schema*/take_turns(p_lanes, p_wanted);", "null;")).encode())
    register(conn, "mail.send")
    put(conn, "big", 500, ago=60)
    put(conn, "a", 5)
    assert Counter(name for _ in range(10) for name in claim(conn, 10).names) == {"big": 100}
