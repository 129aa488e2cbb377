"""A unique key: at most one pending job of a type has it, whoever enqueues, fails, reaps or replays at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import (
    Conn,
    Lease,
    claim,
    done,
    enqueue,
    expire,
    fail,
    job,
    reap,
    register,
    replay,
    settle,
    sound,
)

pytestmark = pytest.mark.also_on(15)


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        register(conn, "mail.send")
        yield conn
        sound(conn)


def one(conn: Conn) -> Lease:
    (lease,) = claim(conn).jobs
    return lease


def test_keep(conn: Conn) -> None:
    first, outcome = enqueue(conn, n=1, unique_key="u", ago=10, priority=3)
    assert outcome == "created"
    assert enqueue(conn, n=2, unique_key="u") == (first, "kept")
    (row,) = sqljobs.jobs(conn)
    assert (row["payload"], row["priority"]) == ({"n": 1}, 3)
    assert enqueue(conn, n=3, unique_key="v")[1] == "created"
    assert enqueue(conn, "mail.other", n=4, unique_key="u")[1] == "created"


def test_replace(conn: Conn) -> None:
    """All of the new one but its id, and all its attempts."""
    enqueue(conn, n=1, unique_key="u", ago=10, priority=3, key="k", queue="a")
    lease = one(conn)
    fail(conn, lease, delay=500)
    assert enqueue(conn, n=2, unique_key="u", on_conflict="replace", queue="b") == (lease.id, "replaced")
    (row,) = sqljobs.jobs(conn)
    assert (row["payload"], row["priority"], row["job_key"], row["queue"]) == ({"n": 2}, 0, None, "b")
    assert one(conn).attempt == 1


@pytest.mark.parametrize("how", ["replace", "debounce"])
def test_a_replaced_suspect_is_none(conn: Conn, how: str) -> None:
    enqueue(conn, unique_key="u")
    expire(conn, one(conn))
    reap(conn)
    enqueue(conn, unique_key="u", on_conflict=how)
    assert one(conn).crashes == 0


def test_debounce_never_runs_earlier(conn: Conn) -> None:
    first, _ = enqueue(conn, n=1, unique_key="u", ago=-100)
    assert enqueue(conn, n=2, unique_key="u", ago=-50, on_conflict="debounce") == (first, "debounced")
    assert claim(conn).due_in == pytest.approx(100, abs=5)
    assert enqueue(conn, n=3, unique_key="u", ago=-200, on_conflict="debounce") == (first, "debounced")
    assert claim(conn).due_in == pytest.approx(200, abs=5)
    assert sqljobs.jobs(conn)[0]["payload"] == {"n": 3}


@pytest.mark.parametrize("how", ["keep", "replace", "debounce"])
def test_one_that_runs_does_not_block(conn: Conn, how: str) -> None:
    first, _ = enqueue(conn, n=1, unique_key="u")
    running = one(conn)
    second, outcome = enqueue(conn, n=2, unique_key="u", on_conflict=how)
    assert outcome == "created"
    assert second != first
    assert done(conn, running) == {running.delivery: "done"}
    assert one(conn).id == second


@pytest.mark.parametrize("how", ["keep", "replace", "debounce"])
def test_a_dead_letter_does_not_block(conn: Conn, how: str) -> None:
    enqueue(conn, unique_key="u")
    settle(conn, one(conn), "dead", code="E", message="no")
    assert enqueue(conn, unique_key="u", on_conflict=how)[1] == "created"


def expired(conn: Conn, lease: Lease) -> str | None:
    expire(conn, lease)
    assert reap(conn) == 1
    return "superseded"


def buried(conn: Conn, lease: Lease) -> str | None:
    assert settle(conn, lease, "dead", code="E", message="no") == "buried"
    (outcome,) = replay(conn, lease.delivery)
    return outcome


def crashed(conn: Conn, lease: Lease) -> str | None:
    """For the third time."""
    conn.execute("update outrider.job set crashes = 2 where id = %s", [lease.delivery])
    return expired(conn, lease)


ENDS: dict[str, Callable[[Conn, Lease], str | None]] = {
    "retry": fail,
    "snooze": lambda conn, lease: settle(conn, lease, "later", delay=5, counted=False),
    "hand back": lambda conn, lease: settle(conn, lease, "back"),
    "reap": expired,
    "fails for good": lambda conn, lease: settle(conn, lease, "dead", code="E", message="no"),
    "third crash": crashed,
}


@pytest.mark.parametrize("newer", ["pending", "running", "done"])
@pytest.mark.parametrize("end", ENDS)
def test_yields_to_the_newer_one(conn: Conn, end: str, newer: str) -> None:
    enqueue(conn, n="old", unique_key="u")
    lease = one(conn)
    enqueue(conn, n="new", unique_key="u")
    if newer != "pending":
        new = one(conn)
    if newer == "done":
        done(conn, new)
    assert ENDS[end](conn, lease) == "superseded"
    old = job(conn, lease.delivery)
    assert (old["status"], old["buried_at"]) == ("discarded", None)
    assert "superseded_at" in old["failure_history"][-1]
    assert replay(conn, lease.delivery) == ["not_found"]
    assert claim(conn, 9).names == (["new"] if newer == "pending" else [])


def test_a_replay_yields_to_the_newer_one(conn: Conn) -> None:
    enqueue(conn, n="old", unique_key="u")
    lease = one(conn)
    settle(conn, lease, "dead", code="E", message="no")
    enqueue(conn, n="new", unique_key="u")
    assert replay(conn, lease.delivery) == ["superseded"]
    old = job(conn, lease.delivery)
    assert (old["status"], old["cycle"]) == ("failed", 1)
    assert claim(conn, 9).names == ["new"]


class Session(threading.Thread):
    """One call on a session of its own."""

    def __init__(self, dsn: str, call: Callable[[Conn], Any]) -> None:
        super().__init__()
        self.dsn = dsn
        self.call = call
        self.result: Any = None
        self.pid = 0
        self.connected = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                self.pid = conn.info.backend_pid
                self.connected.set()
                self.result = self.call(conn)
        except Exception as error:
            self.result = error
            self.connected.set()

    def until_it_waits(self, conn: Conn) -> None:
        self.connected.wait(10)
        blocked = "select pg_blocking_pids(%s) <> '{}'"
        while self.is_alive() and conn.execute(blocked, [self.pid]).fetchone() != (True,):
            pass

    def returned(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_replay_yields_to_one_that_is_not_committed_yet(conn: Conn, ends: str) -> None:
    """It cannot see the other, and the index would make it wait for as long as the user's transaction is open."""
    enqueue(conn, n="old", unique_key="u")
    lease = one(conn)
    with psycopg.connect(conn.info.dsn) as producer:
        enqueue(producer, n="new", unique_key="u")
        assert buried(conn, lease) == "superseded"
        getattr(producer, ends)()
    assert replay(conn, lease.delivery) == ["superseded" if ends == "commit" else "replayed"]
    (pending,) = (row["payload"]["n"] for row in sqljobs.jobs(conn) if row["status"] == "pending")
    assert pending == ("new" if ends == "commit" else "old")


def dead(conn: Conn, many: int) -> list[int]:
    """So many dead letters of one unique key."""
    deliveries = []
    for _ in range(many):
        enqueue(conn, unique_key="u")
        lease = one(conn)
        settle(conn, lease, "dead", code="E", message="no")
        deliveries.append(lease.delivery)
    return deliveries


def test_of_several_that_are_replayed_the_newest_is(conn: Conn) -> None:
    deliveries = dead(conn, 3)
    assert replay(conn, *deliveries) == ["superseded", "superseded", "replayed"]


def test_the_newest_that_can_be_replayed(conn: Conn) -> None:
    """The newest was discarded: it stays so, and the one before it is what there is."""
    deliveries = dead(conn, 3)
    conn.execute("select outrider.discard(%s)", [deliveries[2:]])
    assert replay(conn, *deliveries) == ["superseded", "replayed", "not_found"]


def test_what_is_no_dead_letter_is_not_superseded(conn: Conn) -> None:
    enqueue(conn, unique_key="u")
    lease = one(conn)
    enqueue(conn, unique_key="u")
    assert replay(conn, lease.delivery) == ["not_found"]


@pytest.mark.parametrize("how", ["keep", "replace", "debounce"])
def test_sixteen_at_once_make_one(conn: Conn, how: str) -> None:
    gate = threading.Barrier(16)

    def call(own: Conn) -> tuple[UUID, str]:
        gate.wait(30)
        return enqueue(own, n=str(uuid4()), unique_key="u", on_conflict=how)

    told = [session.returned() for session in [Session(conn.info.dsn, call) for _ in range(16)]]
    past = {"keep": "kept", "replace": "replaced", "debounce": "debounced"}[how]
    assert Counter(outcome for _, outcome in told) == {"created": 1, past: 15}
    (row,) = sqljobs.jobs(conn)
    assert {made for made, _ in told} == {row["event_id"]}


def test_none_is_lost_between_those_who_enqueue_and_those_who_claim(conn: Conn) -> None:
    """Each enqueue is answered by a job that runs after it, with its payload or a newer one."""
    rounds, seen = 60, []
    stop = threading.Event()

    def producer(own: Conn) -> None:
        for n in range(rounds):
            enqueue(own, n=n, unique_key="u", on_conflict="replace")

    def worker(own: Conn) -> None:
        last = False
        while not last:
            last = stop.is_set()
            for lease in claim(own, 5).jobs:
                seen.append(lease.payload["n"])
                succeeds = len(seen) % 3
                # held: an enqueue has it locked, and whoever settles it asks again
                while (done(own, lease).get(lease.delivery) if succeeds else fail(own, lease)) == "held":
                    pass

    working = [Session(conn.info.dsn, worker) for _ in range(2)]
    Session(conn.info.dsn, producer).returned()
    stop.set()
    for session in working:
        session.returned()
    while leases := claim(conn, 5).jobs:
        seen += [lease.payload["n"] for lease in leases]
        done(conn, *leases)
    assert rounds - 1 in seen
    assert {row["status"] for row in sqljobs.jobs(conn)} <= {"discarded"}
