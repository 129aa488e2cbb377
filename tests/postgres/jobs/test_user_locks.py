"""Transactions of users stay open as long as they like: what they lock may delay the job that it concerns, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import Conn, Lease, claim, done, enqueue, expire, fail, reap, register, settle, sound

from outrider.errors import SubscriptionRefused
from outrider.postgres import generations
from outrider.postgres.admin import jobs as admin
from outrider.postgres.connection import connect
from outrider.signed import UNSIGNED

pytestmark = pytest.mark.also_on(15)

KEYED = "mail.keyed"


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("set statement_timeout = '5s'")  # whoever waits for a user fails here
        register(conn, "mail.send")
        register(conn, KEYED, key_concurrency=1)
        yield conn
        sound(conn)


@pytest.fixture
def user(database: str) -> Iterator[Conn]:
    """In a transaction that stays open."""
    with psycopg.connect(database) as user:
        yield user


def one(conn: Conn, name: str = "mail.send") -> Lease:
    (lease,) = claim(conn, 1, [name]).jobs
    return lease


@pytest.mark.parametrize("how", ["keep", "replace", "debounce"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_next_of_a_key_is_being_enqueued_again_when_its_turn_comes(
    conn: Conn, user: Conn, how: str, ends: str
) -> None:
    enqueue(conn, KEYED, "first", key="k")
    enqueue(conn, KEYED, "second", key="k", unique_key="u", ago=-0.001)
    first = one(conn, KEYED)
    assert not claim(conn, 9, [KEYED]).jobs
    enqueue(user, KEYED, "again", key="k", unique_key="u", on_conflict=how)
    done(conn, first)
    held = claim(conn, 9, [KEYED])
    assert held.jobs == []
    assert held.due_in == 1
    getattr(user, ends)()
    assert claim(conn, 9, [KEYED]).names == ["again" if ends == "commit" and how != "keep" else "second"]


def test_of_a_key_others_go_on_meanwhile(conn: Conn, user: Conn) -> None:
    enqueue(conn, KEYED, "first", key="k")
    enqueue(conn, KEYED, "second", key="k", unique_key="u")
    enqueue(conn, KEYED, "third", key="k")
    first = one(conn, KEYED)
    claim(conn, 9, [KEYED])
    enqueue(user, KEYED, "again", key="k", unique_key="u", on_conflict="replace")
    done(conn, first)
    assert claim(conn, 9, [KEYED]).names == ["third"]


@pytest.mark.parametrize("name", ["mail.send", KEYED])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_failed_job_whose_unique_key_is_being_enqueued(conn: Conn, user: Conn, name: str, ends: str) -> None:
    """Whether it yields is known when the user's transaction ends; until then it stays its worker's."""
    enqueue(conn, name, "old", unique_key="u", key="a")
    enqueue(conn, name, "other", key="b")
    enqueue(conn, name, "third", key="c", ago=-0.001)
    old, other = claim(conn, 2, [name]).jobs
    enqueue(user, name, "new", unique_key="u", key="a")
    later = {"verdict": "later", "code": "ValueError", "message": "no"}
    others = [{"delivery": each.delivery, "token": each.token, **later} for each in (old, other)]
    assert sqljobs.settle_all(conn, [], others, names=[name]) == {old.delivery: "held", other.delivery: "retry"}
    assert sorted(claim(conn, 9, [name]).names) == ["other", "third"]
    getattr(user, ends)()
    assert fail(conn, old) == ("superseded" if ends == "commit" else "retry")


def test_a_dead_workers_job_whose_unique_key_is_being_enqueued(conn: Conn, user: Conn) -> None:
    enqueue(conn, "mail.send", "old", unique_key="u")
    enqueue(conn, "mail.send", "other")
    leases = claim(conn, 2).jobs
    enqueue(user, "mail.send", "new", unique_key="u")
    expire(conn, *leases)
    assert claim(conn, 9).names == ["other"]
    user.rollback()
    expire(conn, leases[0])
    assert reap(conn) == 1


def test_done_while_somebody_is_cancelling_it(conn: Conn, user: Conn) -> None:
    enqueue(conn, n="cancelled")
    enqueue(conn, n="other")
    cancelled, other = claim(conn, 2).jobs
    assert sqljobs.cancel(user, cancelled.id) == "cancelling"
    assert done(conn, cancelled, other) == {cancelled.delivery: "held", other.delivery: "done"}
    assert fail(conn, cancelled) == "held"
    user.commit()
    assert done(conn, cancelled) == {cancelled.delivery: "done"}


def test_a_replay_of_several_of_which_one_is_being_enqueued(conn: Conn, user: Conn) -> None:
    """The others run again; who enqueues their keys waits for the replay, so it must not wait for the user."""
    for key in ("a", "u", "b", "v"):
        enqueue(conn, n=key, unique_key=key)
    leases = claim(conn, 9).jobs
    for lease in leases:
        settle(conn, lease, "dead", code="E", message="no")
    for key in ("u", "v"):
        enqueue(user, n="new", unique_key=key)
    dead = [lease.delivery for lease in leases]
    told = "select changed, skipped, held from outrider.change_jobs('retry', %s, '{failed}')"
    assert conn.execute(told, [dead]).fetchall() == [(2, 2, [])]
    assert claim(conn, 9).names == ["a", "b"]
    user.rollback()
    assert sqljobs.replay(conn, dead[1], dead[3]) == ["replayed"] * 2


@pytest.mark.parametrize("how", ["keep", "replace"])
async def test_an_operator_does_not_wait_for_a_user_without_limit(conn: Conn, user: Conn, how: str) -> None:
    """While a generation is moved, nobody takes its events."""
    job, _ = enqueue(conn, unique_key="u", ago=-100)
    enqueue(user, unique_key="u", on_conflict=how)
    for verb in ("cancel", "run_now", "move_generation"):
        [(limit,)] = conn.execute("select proconfig from pg_proc where proname = %s", [verb]).fetchall()
        assert "lock_timeout=10s" in limit
        conn.execute(f"alter function outrider.{verb} set lock_timeout = '50ms'")
    async with await connect(conn.info.dsn, autocommit=True) as session:
        with pytest.raises(SubscriptionRefused, match="a transaction that enqueues onto the job has locked it"):
            await admin.cancel(session, job, "outrider", by=None, reason=None)
        with pytest.raises(SubscriptionRefused, match="a transaction that enqueues onto the job has locked it"):
            await admin.run_now(session, job, "outrider", by=None, reason=None)
        if how == "replace":  # who keeps a job does not mind
            with pytest.raises(SubscriptionRefused, match="or a job of it enqueued"):
                await generations.move(session, "mail.send", 0, 7, UNSIGNED, "outrider")
    user.rollback()
    assert sqljobs.cancel(conn, job) == "cancelled"


def test_overlapping_keeps_do_not_starve_their_job(conn: Conn, database: str) -> None:
    """Each keeps the job until it commits, since the job shall see what it wrote; but not beyond the job's turn."""
    enqueue(conn, n="first", unique_key="u")
    with psycopg.connect(database) as one_user, psycopg.connect(database) as other:
        assert enqueue(one_user, n="second", unique_key="u")[1] == "kept"
        assert claim(conn).due_in == 1
        assert enqueue(other, n="third", unique_key="u")[1] == "created"
        assert claim(conn).jobs == []
        one_user.commit()
        assert claim(conn).names == ["first"]
        other.commit()
        assert claim(conn).names == ["third"]


@pytest.mark.parametrize("how", ["replace", "debounce"])
@pytest.mark.parametrize("newer", ["done", "running"])
def test_a_job_that_is_kept_does_not_run_an_older_payload_last(conn: Conn, user: Conn, how: str, newer: str) -> None:
    """Who keeps it needs a run after the commit. That run has the payload of the newer job."""
    enqueue(conn, n=1, unique_key="u")
    assert enqueue(user, n=1, unique_key="u")[1] == "kept"
    assert claim(conn).due_in == 1
    assert enqueue(conn, n=2, unique_key="u", on_conflict=how)[1] == "created"
    second = one(conn)
    if newer == "done":
        done(conn, second)
    user.commit()
    assert claim(conn).names == [2]


@pytest.mark.parametrize("how", ["replace", "debounce"])
@pytest.mark.parametrize("first", ["keep", "replace"])
def test_a_job_that_is_kept_follows_every_newer_payload(conn: Conn, user: Conn, first: str, how: str) -> None:
    enqueue(conn, n=1, unique_key="u")
    assert enqueue(user, n=1, unique_key="u")[1] == "kept"
    assert claim(conn).due_in == 1
    assert enqueue(conn, n=2, unique_key="u", on_conflict=first)[1] == "created"
    assert enqueue(conn, n=3, unique_key="u", on_conflict=how)[1] == f"{how}d"
    done(conn, one(conn))
    user.commit()
    assert claim(conn).names == [3]


def test_a_job_that_is_kept_and_waits_for_its_key_may_lose_it(conn: Conn, user: Conn) -> None:
    register(conn, KEYED, key_concurrency=1)
    enqueue(conn, KEYED, key="a")
    running = one(conn, KEYED)
    enqueue(conn, KEYED, n=1, key="a", unique_key="u")
    assert enqueue(user, KEYED, n=1, key="a", unique_key="u")[1] == "kept"
    conn.execute(
        "update outrider.job set closed = true where unique_key = 'u'"
    )  # as a claim does while the key is free
    user.commit()
    assert claim(conn, 9, [KEYED]).jobs == []
    assert enqueue(conn, KEYED, n=2, unique_key="u", on_conflict="replace")[1] == "created"
    assert claim(conn, 9, [KEYED]).names == [2, 2]
    done(conn, running)


@pytest.mark.parametrize(
    "busy", ["something is due soon", "a lease ends soon", "a backlog", "a backlog of other lanes"]
)
def test_overlapping_keeps_do_not_starve_their_job_while_its_worker_is_busy(conn: Conn, user: Conn, busy: str) -> None:
    """A claim that is full, or that need not wait for what it passed over, looks at it nevertheless."""
    enqueue(conn, n="first", unique_key="u", ago=9000)
    if busy == "something is due soon":
        enqueue(conn, n="soon", ago=-0.9)
    elif busy == "a lease ends soon":
        register(conn, KEYED, lease="0.9s")
        enqueue(conn, KEYED)
        one(conn, KEYED)
    else:
        lanes = 1 if busy == "a backlog" else 3
        sqljobs.enqueue_many(conn, "mail.send", 30, lanes=lanes)
    assert enqueue(user, n="second", unique_key="u")[1] == "kept"
    claim(conn, 5, ["mail.send", KEYED])
    assert enqueue(conn, n="third", unique_key="u")[1] == "created"


def test_overlapping_keeps_do_not_starve_a_suspect(conn: Conn, user: Conn) -> None:
    enqueue(conn, n="first", unique_key="u")
    expire(conn, one(conn))
    reap(conn)
    assert enqueue(user, n="second", unique_key="u")[1] == "kept"
    assert claim(conn).due_in == 1
    assert enqueue(conn, n="third", unique_key="u")[1] == "created"
    assert claim(conn).names == ["third"]
    user.commit()
    assert claim(conn).names == ["first"]


@pytest.mark.parametrize("name", ["mail.send", KEYED])
@pytest.mark.parametrize("crashes", [0, 1])
@pytest.mark.parametrize("lock", ["for key share", "for no key update"])
def test_a_transaction_that_keeps_very_many_jobs_starves_no_other(
    conn: Conn, user: Conn, database: str, name: str, crashes: int, lock: str
) -> None:
    """Those behind them are closed, too, when their turn has come."""
    sqljobs.enqueue_many(conn, name, 1200)
    conn.execute("update outrider.job set unique_key = id, crashes = %s", [crashes])
    user.execute(f"select from outrider.job {lock}")
    enqueue(conn, name, "first", unique_key="u")
    conn.execute("update outrider.job set crashes = %s where unique_key = 'u'", [crashes])
    with psycopg.connect(database) as other:
        assert enqueue(other, name, "second", unique_key="u")[1] == "kept"
        for _ in range(3):
            claim(conn, 9, [name], suspect=False)
            if crashes:  # a worker that runs one claims no other: its claims look for them in turn
                claim(conn, 9, [name])
        assert enqueue(conn, name, "third", unique_key="u")[1] == "created"
    assert claim(conn, 9, [name]).names == ["first", "third"]


@pytest.mark.parametrize("ends", ["done", "failed", "dead"])
def test_a_transaction_that_holds_many_jobs_holds_up_no_other(conn: Conn, user: Conn, ends: str) -> None:
    """Only the first of them is waited for: the others most likely are held by the same one."""
    many = 30
    for verb in ("settle_jobs", "reap"):
        conn.execute(f"alter function outrider.{verb} set lock_timeout = '1s'")
    conn.execute("set statement_timeout = '20s'")
    for n in range(many):
        enqueue(conn, n=n, unique_key=str(n))
    enqueue(conn, n="other")
    *leases, other = claim(conn, many + 1).jobs
    if ends == "done":
        user.execute("select outrider.change_jobs('cancel', %s, '{running}')", [[each.delivery for each in leases]])
        settled = done(conn, *leases, other)
        assert settled == dict.fromkeys((each.delivery for each in leases), "held") | {other.delivery: "done"}
        return
    for n in range(many):
        enqueue(user, unique_key=str(n))
    if ends == "failed":
        later = {"verdict": "later", "code": "ValueError", "message": "no"}
        others = [{"delivery": each.delivery, "token": each.token, **later} for each in (*leases, other)]
        settled = sqljobs.settle_all(conn, [], others)
        assert settled == dict.fromkeys((each.delivery for each in leases), "held") | {other.delivery: "retry"}
    else:
        expire(conn, *leases, other)
        assert claim(conn).names == ["other"]


def test_a_job_that_nobody_claims_is_kept_however_long_it_is_due(conn: Conn) -> None:
    enqueue(conn, n="first", unique_key="u", ago=500)
    assert [enqueue(conn, n=n, unique_key="u")[1] for n in range(3)] == ["kept"] * 3


def test_a_lease_is_renewed_while_an_enqueue_holds_its_job(conn: Conn, user: Conn) -> None:
    worker = uuid4()
    enqueue(conn, unique_key="u")
    (lease,) = claim(conn, worker=worker).jobs
    user.execute("select from outrider.job where id = %s for key share", [lease.delivery])
    expire(conn, lease)
    assert sqljobs.renew(conn, worker)[lease.delivery][1] > 0


def test_a_retry_of_a_job_that_was_overtaken(conn: Conn) -> None:
    """The newer one is done: the older, which fails then, has nothing more to say."""
    enqueue(conn, n=1, unique_key="u")
    old = one(conn)
    enqueue(conn, n=2, unique_key="u", on_conflict="replace")
    done(conn, one(conn))
    assert fail(conn, old) == "superseded"
    assert not claim(conn).jobs


def test_a_retry_of_a_job_that_is_being_overtaken(conn: Conn) -> None:
    enqueue(conn, n=1, unique_key="u")
    old = one(conn)
    enqueue(conn, n=2, unique_key="u", on_conflict="replace")
    new = one(conn)
    assert fail(conn, old) == "superseded"
    assert fail(conn, new) == "retry"
    assert claim(conn).names == [2]


@pytest.mark.parametrize("first", ["old", "new"])
def test_both_end_in_one_settlement(conn: Conn, first: str) -> None:
    enqueue(conn, n=1, unique_key="u")
    old = one(conn)
    enqueue(conn, n=2, unique_key="u", on_conflict="replace")
    new = one(conn)
    failed = {"delivery": old.delivery, "token": old.token, "verdict": "later", "code": "E", "message": "no"}
    if first == "old":
        assert sqljobs.settle_all(conn, [new], [failed]) == {new.delivery: "done", old.delivery: "superseded"}
    else:
        assert sqljobs.settle_all(conn, [old, new], []) == {old.delivery: "done", new.delivery: "done"}
    assert not claim(conn).jobs


def test_a_key_whose_next_job_is_in_a_queue_that_nobody_serves(conn: Conn) -> None:
    enqueue(conn, KEYED, "first", key="k", queue="served")
    enqueue(conn, KEYED, "unserved", key="k", queue="unserved")
    enqueue(conn, KEYED, "second", key="k", queue="served")
    first = one(conn, KEYED)
    assert not claim(conn, 9, [KEYED]).jobs
    done(conn, first)
    assert claim(conn, 9, [KEYED], queues=["served"]).names == ["second"]


def test_a_key_fills_all_its_room_again(conn: Conn) -> None:
    """Two of it end in one settlement: two come."""
    register(conn, KEYED, key_concurrency=2)
    for n in range(4):
        enqueue(conn, KEYED, n, key="k")
    jobs = claim(conn, 9, [KEYED]).jobs
    assert len(jobs) == 2
    assert not claim(conn, 9, [KEYED]).jobs
    done(conn, *jobs)
    assert claim(conn, 9, [KEYED]).names == [2, 3]


def test_a_replaced_one_holds_up_nobody_of_its_key(conn: Conn, user: Conn) -> None:
    enqueue(conn, KEYED, "first", key="k", unique_key="u", ago=-100)
    enqueue(conn, KEYED, "second", key="k")
    enqueue(user, KEYED, "first again", key="other", unique_key="u", on_conflict="replace")
    assert claim(conn, 9, [KEYED]).names == ["second"]


def test_settling_waits_for_no_claim(conn: Conn) -> None:
    """Claims of a type with limits wait for each other; a settlement only makes room."""
    enqueue(conn, KEYED, key="k")
    lease = one(conn, KEYED)
    with psycopg.connect(conn.info.dsn) as claiming:
        claim(claiming, 9, [KEYED])
        assert done(conn, lease) == {lease.delivery: "done"}


@pytest.mark.parametrize("limits", [{}, {"key_concurrency": 2}, {"concurrency": 5}], ids=str)
def test_limits_change_while_a_job_that_waits_is_being_replaced(conn: Conn, user: Conn, limits: dict[str, Any]) -> None:
    """Whoever registers the type waits for no user, and what waited comes."""
    for n in ("first", "second"):
        enqueue(conn, KEYED, n, key="k", unique_key=n)
    assert claim(conn, 9, [KEYED]).names == ["first"]
    enqueue(user, KEYED, "again", key="k", unique_key="second", on_conflict="replace")
    register(conn, KEYED, **limits)
    assert claim(conn, 9, [KEYED]).jobs == []
    user.rollback()
    assert claim(conn, 9, [KEYED]).names == ["second"]
