"""Three sessions, a verb in the open transaction of each, in every order of verbs and commits.

Who must wait for another's lock waits, and the others go on; nobody waits in a circle. Afterwards: each job is there, or
has its receipt, and not both; a lease ended once; and what is left can be worked off.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.mutants import changed
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import Conn, Lease
from tests.tiers import one_in_test

LIMITED, PLAIN = "mail.limited", "mail.plain"
NAMES = [LIMITED, PLAIN]
FIRST, SECOND = UUID(int=1), UUID(int=2)


@dataclass(frozen=True)
class Scene:
    """One job runs, and its lease has run out; one of the same unique key is dead; one of the same key waits."""

    running: Lease
    dead: Lease
    behind: UUID
    job_type: str


def landed(outcome: str | None) -> str | None:
    """A worker whose job is held by others asks again; here it dies before."""
    return None if outcome == "held" else outcome


VERBS: dict[str, Callable[[Scene, Conn], Any]] = {
    "claim": lambda _, conn: sqljobs.claim(conn, 2, NAMES, worker=SECOND),
    "renew": lambda _, conn: sqljobs.renew(conn, FIRST, NAMES),
    "done": lambda scene, conn: landed(sqljobs.done(conn, scene.running).get(scene.running.delivery)),
    "fail": lambda scene, conn: landed(sqljobs.fail(conn, scene.running)),
    "reap": lambda _, conn: sqljobs.reap(conn, NAMES),
    "replay": lambda scene, conn: sqljobs.replay(conn, scene.dead.delivery),
    "cancel": lambda scene, conn: sqljobs.cancel(conn, scene.running.id),
    "enqueue": lambda scene, conn: sqljobs.enqueue(
        conn, scene.job_type, "new", key="l", unique_key="u", on_conflict="replace"
    ),
}


class Stage:
    """Sessions that do one thing at a time, and somebody who sees which of them wait."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.sessions = [psycopg.connect(dsn) for _ in range(3)]
        self.threads = [ThreadPoolExecutor(1) for _ in self.sessions]
        self.waited: set[int] = set()

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown()
        for conn in (self.conn, *self.sessions):
            conn.close()

    def scene(self, job_type: str) -> Scene:
        self.conn.execute("delete from outrider.job")
        self.conn.execute("delete from outrider.event_handled")
        sqljobs.enqueue(self.conn, job_type, "dead", key="k", unique_key="u", ago=60)
        (dead,) = sqljobs.claim(self.conn, 1, NAMES).jobs
        assert sqljobs.settle(self.conn, dead, "dead", code="ValueError", message="no") == "buried"
        sqljobs.enqueue(self.conn, job_type, "running", key="k", unique_key="u", ago=60)
        behind, _ = sqljobs.enqueue(self.conn, job_type, "behind", key="k", ago=-1000)
        (running,) = sqljobs.claim(self.conn, 1, NAMES, worker=FIRST).jobs
        sqljobs.run_now(self.conn, behind)
        if job_type == LIMITED:
            assert not sqljobs.claim(self.conn, 9, NAMES).jobs
        sqljobs.expire(self.conn, running)
        return Scene(running, dead, behind, job_type)

    def play(self, scene: Scene, verbs: tuple[str, ...], order: Iterable[int]) -> dict[str, Any]:
        """order: whose turn it is; its first turn is the verb, its second the commit."""
        told: dict[str, Any] = {}
        pending: list[Future[None]] = []
        self.waited.clear()
        turns: list[Iterator[Callable[[], None]]] = [
            iter([partial(self._act, scene, verb, conn, told), conn.commit])
            for verb, conn in zip(verbs, self.sessions, strict=True)
        ]
        for who in order:
            pending.append(self.threads[who].submit(next(turns[who])))
            self._until_done_or_waiting(who, pending[-1])
        wait(pending, timeout=60)
        for future in pending:
            future.result(timeout=0)
        assert not {verbs[who] for who in self.waited} & {"renew"}, "a renewal waited"
        return told

    def _act(self, scene: Scene, verb: str, conn: Conn, told: dict[str, Any]) -> None:
        told[verb] = VERBS[verb](scene, conn)

    def _until_done_or_waiting(self, who: int, future: Future[None]) -> None:
        """A session whose verb waits has its commit behind it: nothing more is to be seen of it until another commits."""
        blocked = "select pg_blocking_pids(%s) <> '{}'"
        while not wait([future], timeout=0.002).done:
            if self.conn.execute(blocked, [self.sessions[who].info.backend_pid]).fetchone() == (True,):
                self.waited.add(who)
                return


def judge(conn: Conn, scene: Scene, told: dict[str, Any]) -> None:
    sqljobs.sound(conn)
    rows = {row["event_id"]: row for row in sqljobs.jobs(conn)}
    receipts = sqljobs.receipts(conn)
    assert len(receipts) == len(set(receipts))
    for job in (scene.running.id, scene.dead.id, scene.behind):
        assert (job in rows) != (job in receipts), "a job is lost, or done and still there"
    assert (scene.running.id in receipts) == bool(told.get("done")), "a worker was told something else"

    history = (rows[scene.running.id]["failure_history"] if scene.running.id in rows else None) or []
    reaped = any(entry.get("code") in ("worker_crash", "lease_lost") for entry in history)
    cancelled = any(entry.get("code") == "cancelled" for entry in history)
    ended = [bool(told.get("done")), bool(told.get("fail")), reaped or (cancelled and not told.get("fail"))]
    assert sum(ended) <= 1, "a lease that ended twice"
    if not any(ended):
        assert rows[scene.running.id]["lease_token"] == scene.running.token, "a lease that nobody ended is gone"

    for lease in told["claim"].jobs if "claim" in told else ():
        row = rows.get(lease.id, {"lease_token": None})
        assert row["lease_token"] == lease.token, "a job was taken from the worker that had it"
        assert (row["status"], row["locked_by"]) == ("in_flight", SECOND)
        assert row["attempts"] == lease.attempt
    for delivery, (token, _, _) in told.get("renew", {}).items():
        assert (delivery, token) == (scene.running.delivery, scene.running.token)
    if "enqueue" in told:
        job, _ = told["enqueue"]
        assert rows[job]["payload"] == {"n": "new"}


def work_off(conn: Conn) -> None:
    for worker in (FIRST, SECOND):
        sqljobs.reap(conn, NAMES, worker)
    while jobs := sqljobs.claim(conn, 4, NAMES).jobs:
        sqljobs.sound(conn)
        sqljobs.done(conn, *jobs)
    assert {row["status"] for row in sqljobs.jobs(conn)} <= {"failed", "discarded"}


def every(stage: Stage, job_type: str, verbs: tuple[str, ...], sample: int | None, seed: int = 0) -> None:
    orders = sorted(set(itertools.permutations([0, 0, 1, 1, 2, 2])))
    for order in orders if sample is None else random.Random(f"{verbs}{seed}").sample(orders, sample):
        scene = stage.scene(job_type)
        try:
            told = stage.play(scene, verbs, order)
            judge(stage.conn, scene, told)
            work_off(stage.conn)
        except (AssertionError, psycopg.Error) as error:
            error.add_note(f"{job_type}: {verbs} in the order {order}")
            raise


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    stage = Stage(database)
    sqljobs.register(stage.conn, PLAIN, keep="1 day")
    sqljobs.register(stage.conn, LIMITED, concurrency=2, key_concurrency=1, keep="1 day")
    yield stage
    stage.close()


@pytest.mark.verify
@pytest.mark.parametrize("job_type", NAMES)
def test_any_three_verbs_in_any_order(stage: Stage, job_type: str, long: bool) -> None:
    for verbs in itertools.combinations(VERBS, 3):
        every(stage, job_type, verbs, None if long else 4)


BROKEN = {
    "a settle that names no lease": (
        ("claim", "done", "renew"),
        changed("settle_done", ("d.lease_token = named.token", "d.lease_token is not null")),
        "taken from the worker that had it",
    ),
    "a reap that does not lock": (
        ("done", "fail", "reap"),
        changed("reap", ("        for no key update skip locked\n", "")),
        "told something else|ended twice|attempts_check|lease_check|lock timeout",
    ),
    "a failure that does not lock": (
        ("fail", "reap", "claim"),
        changed("settle_jobs", ("d.status = 'in_flight'\n            for no key update;", "d.status = 'in_flight';")),
        "ended twice|taken from the worker that had it",
    ),
    "a retry that does not see the newer one": (
        ("enqueue", "fail", "cancel"),
        changed("release", ("exception when unique_violation then", "exception when division_by_zero then")),
        "job_unique",
    ),
    "a replay that does not look again": (
        ("enqueue", "replay", "renew"),
        changed(
            "replay_jobs", ("            when unique_violation then  --", "            when division_by_zero then  --")
        ),
        "job_unique",
    ),
    "a renewal that waits": (
        ("done", "renew", "cancel"),
        changed("renew", ("        for no key update of d skip locked", "")),
        "a renewal waited",
    ),
}


@pytest.mark.parametrize("name", one_in_test(BROKEN, "a settle that names no lease"))
def test_a_broken_one_is_seen(stage: Stage, name: str) -> None:
    verbs, mutant, seen = BROKEN[name]
    stage.conn.execute(mutant.encode())

    def play() -> None:
        """Several times: on a busy machine a commit may come after who waits for it has given up, 20 ms later."""
        for _ in range(20):
            every(stage, PLAIN, verbs, None)

    with pytest.raises((AssertionError, psycopg.Error), match=seen):
        play()
