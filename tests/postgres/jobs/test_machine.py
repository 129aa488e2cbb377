"""Whatever happens to jobs, in whatever order, the database and a model of a few lines a verb agree about every row.

The model knows no SQL: a list of jobs, and what each verb does to them. Times that the database's clock gives are read
back, and must lie within the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.mutants import changed
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import Conn, Lease

PLAIN, LIMITED = "mail.plain", "mail.limited"
TYPES = (PLAIN, LIMITED)
CONCURRENCY, KEY_CONCURRENCY = 3, 1
MINUTE = timedelta(minutes=1)
ALIVE, SILENT, UNKNOWN = (UUID(int=n) for n in (1, 2, 3))
PAST = {"keep": "kept", "replace": "replaced", "debounce": "debounced"}


@dataclass
class Job:
    """One row, as the model has it."""

    delivery: int
    id: UUID
    job_type: str
    n: int
    run_at: datetime
    priority: int
    key: str | None
    unique: str | None
    status: str = "pending"
    waiting: bool = False
    attempts: int = 0
    crashes: int = 0
    cycle: int = 1
    token: int | None = None
    worker: UUID | None = None
    expired: int | None = None
    cancelled: bool = False
    superseded: bool = False
    told: list[str] = field(default_factory=list)

    @property
    def weight(self) -> tuple[datetime, int]:
        return self.run_at - self.priority * MINUTE, self.delivery

    def seen(self) -> dict[str, Any]:
        return {
            "delivery": self.delivery,
            "id": self.id,
            "job_type": self.job_type,
            "n": self.n,
            "run_at": self.run_at,
            "priority": self.priority,
            "key": self.key,
            "unique": self.unique,
            "status": self.status,
            "waiting": self.waiting,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "cycle": self.cycle,
            "token": self.token,
            "worker": self.worker,
            "cancelled": self.cancelled,
            "superseded": self.superseded,
            "told": self.told,
        }


def told(entry: dict[str, Any]) -> str:
    """An entry of the history in a word."""
    if "code" in entry:
        return f"{entry['code']} {entry['cycle']}.{entry['attempt']}"
    return str(next(name for name in entry if name.endswith("_at")))


def row_seen(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "delivery": row["id"],
        "id": row["event_id"],
        "job_type": row["subscription"],
        "n": row["payload"]["n"],
        "run_at": row["run_at"],
        "priority": row["priority"],
        "key": row["job_key"],
        "unique": row["unique_key"],
        "status": row["status"],
        "waiting": row["waits_for"] == "key",
        "attempts": row["attempts"],
        "crashes": row["crashes"],
        "cycle": row["cycle"],
        "token": row["lease_token"],
        "worker": row["locked_by"],
        "cancelled": row["cancelled_at"] is not None,
        "superseded": row["superseded_at"] is not None,
        "told": [told(entry) for entry in row["failure_history"] or ()],
    }


class Model:
    """What should be. `soon` stands for a time that the database will give."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.receipts: set[UUID] = set()
        self.paused: set[str] = set()

    def pending_with(self, job_type: str, unique: str | None) -> Job | None:
        return next(
            (
                job
                for job in self.jobs.values()
                if unique is not None and (job.job_type, job.unique, job.status) == (job_type, unique, "pending")
            ),
            None,
        )

    def admit(self) -> None:
        """What waits for its key may be claimed, as many as there is room for."""
        waiting = [job for job in self.jobs.values() if job.waiting]
        if self.running(LIMITED) >= CONCURRENCY:
            return
        for key in {job.key for job in waiting}:
            line = sorted((job for job in waiting if job.key == key), key=lambda job: job.weight)
            for job in line[: KEY_CONCURRENCY - self.running(LIMITED, key)]:
                job.waiting = False

    def running_with(self, job: Job) -> list[Job]:
        """Others with its unique key."""
        return [
            other
            for other in self.jobs.values()
            if other is not job
            and job.unique is not None
            and other.status == "in_flight"
            and (other.job_type, other.unique) == (job.job_type, job.unique)
        ]

    def finish(self, job: Job) -> None:
        del self.jobs[job.delivery]
        if job.job_type == LIMITED or job.told:
            self.receipts.add(job.id)
        for other in self.running_with(job):
            other.superseded = other.superseded or other.delivery < job.delivery

    def running(self, job_type: str, key: str | None = None) -> int:
        return sum(
            job.status == "in_flight" and job.job_type == job_type and key in (None, job.key)
            for job in self.jobs.values()
        )

    def release(self, job: Job, verdict: str, soon: datetime, code: str | None = None, counted: bool = True) -> str:
        attempt = job.attempts
        outcome = {"later": "retry", "dead": "buried", "cancelled": "cancelled"}.get(verdict, "back")
        status = {"dead": "failed", "cancelled": "discarded"}.get(verdict, "pending")
        if verdict == "later":
            job.run_at, job.crashes = soon, 0
            job.attempts -= not counted
        elif verdict in ("back", "lapsed", "crashed"):
            job.attempts -= 1
        if verdict == "crashed":
            job.crashes += 1
            job.run_at, code = soon, "worker_crash"
            outcome, status = ("buried", "failed") if job.crashes == 3 else ("retry", "pending")
        if verdict == "lapsed":
            code = "lease_lost"
        if verdict == "cancelled" or (status == "pending" and job.cancelled):
            outcome, status, code = "cancelled", "discarded", "cancelled"
        if code is not None:
            job.told.append(f"{code} {job.cycle}.{attempt}")
        newer = any(other.delivery > job.delivery for other in self.running_with(job))
        if status in ("pending", "failed") and (newer or job.superseded or self.pending_with(job.job_type, job.unique)):
            outcome, status = "superseded", "discarded"
            job.told.append("superseded_at")
        job.status, job.token, job.worker, job.expired, job.cancelled = status, None, None, None, False
        job.superseded = False
        return outcome

    def reap(self, names: Iterable[str], soon: datetime, worker: UUID | None = None) -> int:
        lost = [
            job
            for job in self.jobs.values()
            if job.status == "in_flight"
            and job.job_type in names
            and (job.expired is not None if worker is None else job.worker == worker)
        ]
        # Those that have not run out have a time after all that have, and the order of the claims.
        for n, job in enumerate(sorted(lost, key=lambda job: (job.job_type, job.expired or 10**9, job.token))):
            lapsed = worker is None and job.worker == ALIVE
            self.release(job, "lapsed" if lapsed else "crashed", soon + n * timedelta(microseconds=1))
        return len(lost)

    def claim(self, names: Iterable[str], limit: int, now: datetime, suspect: bool) -> list[Job]:
        active = sorted(set(names) - self.paused)
        if LIMITED in active:
            self.admit()
        due = [
            job
            for job in self.jobs.values()
            if job.job_type in active and job.status == "pending" and not job.waiting and job.run_at <= now
        ]
        picked: list[Job] = []

        def pick(job: Job) -> None:
            same = [other for other in picked if other.job_type == job.job_type]
            if job.job_type == LIMITED and (
                self.running(LIMITED) + len(same) >= CONCURRENCY
                or (
                    job.key is not None
                    and self.running(LIMITED, job.key) + sum(other.key == job.key for other in same) >= KEY_CONCURRENCY
                )
            ):
                return
            picked.append(job)

        suspects = [job for job in due if job.crashes]
        for job in sorted(suspects, key=lambda job: job.weight):
            if suspect and not picked:
                pick(job)
        for job in sorted((job for job in due if not job.crashes), key=lambda job: job.weight):
            if len(picked) < limit:
                pick(job)
        return sorted(picked, key=lambda job: job.weight)


class Jobs(RuleBasedStateMachine):
    def __init__(self, conn: Conn) -> None:
        super().__init__()
        self.conn = conn
        self.model = Model()
        self.leases: list[Lease] = []
        self.known: list[int] = []
        self.number = 0
        self.expiries = 0
        with conn.transaction():
            conn.execute("truncate outrider.job, outrider.event_handled, outrider.worker, outrider.audit")
            conn.execute("update outrider.subscription set paused_at = null")
            conn.execute(
                """insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at)
                   select id, 'h', 1, '1', 0, '{}', seen_at
                   from unnest(%s::uuid[], array['infinity', '-infinity']::timestamptz[]) as w (id, seen_at)""",
                [[ALIVE, SILENT]],
            )
        self.base = self.now()

    def now(self) -> datetime:
        row = self.conn.execute("select clock_timestamp()").fetchone()
        assert row is not None
        assert isinstance(row[0], datetime)
        return row[0]

    def during(self, call: Callable[[], Any], *, after: timedelta = timedelta()) -> tuple[Any, datetime, datetime]:
        """What it returned, and between which times the database's clock was read."""
        before = self.now()
        result = call()
        return result, before + after, self.now() + after

    def read_back(self, before: datetime, upto: datetime) -> None:
        """The times that the database gave, where the model only knows that they lie within the call."""
        rows = dict(self.conn.execute("select id, run_at from outrider.job").fetchall())
        for job in self.model.jobs.values():
            if job.run_at >= before and job.delivery in rows and job.run_at != rows[job.delivery]:
                assert before <= rows[job.delivery] <= upto, (job, rows[job.delivery])
                job.run_at = rows[job.delivery]

    @initialize(keys=st.lists(st.sampled_from([None, "a", "a", "a", "b"]), min_size=7, max_size=7))
    def begin(self, keys: list[str | None]) -> None:
        for n, key in enumerate(keys):
            self.enqueue_one(TYPES[n % 3 > 0], key, "u" if n in (1, 3) else None, "keep", 0, -n)

    @rule(
        job_type=st.sampled_from([PLAIN, LIMITED, LIMITED]),
        key=st.sampled_from([None, "a", "a", "b"]),
        unique=st.sampled_from([None, "u", "u", "v"]),
        how=st.sampled_from(list(PAST)),
        priority=st.sampled_from([0, 0, -1, 2]),
        offset=st.sampled_from([-1, -30, -90, -200, 5000]),
    )
    def enqueue(self, job_type: str, key: str | None, unique: str | None, how: str, priority: int, offset: int) -> None:
        self.enqueue_one(job_type, key, unique, how, priority, offset)

    def enqueue_one(
        self, job_type: str, key: str | None, unique: str | None, how: str, priority: int, offset: int
    ) -> None:
        self.number += 1
        run_at = self.base + timedelta(seconds=offset, milliseconds=self.number)
        before = self.model.pending_with(job_type, unique)
        made = self.conn.execute(
            """select job_id, outcome from outrider.enqueue_one(
                   %s, jsonb_build_object('n', %s::int), null, %s, %s, %s, %s, 'default', %s)""",
            [job_type, self.number, run_at, priority, unique, how, key],
        ).fetchone()
        assert made is not None
        job_id, outcome = made
        (delivery,) = self.conn.execute("select id from outrider.job where event_id = %s", [job_id]).fetchone() or (0,)
        if before is None:
            assert outcome == "created"
            assert delivery not in self.model.jobs
            self.model.jobs[delivery] = Job(delivery, job_id, job_type, self.number, run_at, priority, key, unique)
            self.known.append(delivery)
            return
        assert (outcome, delivery) == (PAST[how], before.delivery)
        if how != "keep":
            before.run_at = run_at if how == "replace" else max(before.run_at, run_at)
            before.n, before.priority, before.key, before.waiting = self.number, priority, key, False
            before.attempts = before.crashes = 0

    @rule(worker=st.sampled_from([ALIVE, SILENT, UNKNOWN]), limit=st.integers(1, 5))
    def claim_any(self, worker: UUID, limit: int) -> None:
        self.claim_as(TYPES, limit, worker, True)

    @rule(
        names=st.sampled_from([TYPES, TYPES, (PLAIN,), (LIMITED,)]),
        limit=st.integers(1, 5),
        worker=st.sampled_from([ALIVE, SILENT, UNKNOWN]),
        suspect=st.sampled_from([True, True, False]),
    )
    def claim(self, names: tuple[str, ...], limit: int, worker: UUID, suspect: bool) -> None:
        self.claim_as(names, limit, worker, suspect)

    def claim_as(self, names: tuple[str, ...], limit: int, worker: UUID, suspect: bool) -> None:
        claimed, before, upto = self.during(
            lambda: sqljobs.claim(self.conn, limit, names, worker=worker, suspect=suspect)
        )
        self.model.reap(names, before)
        cancelled = {
            job.delivery
            for job in self.model.jobs.values()
            if job.status == "in_flight" and job.worker == worker and job.cancelled
        }
        picked = self.model.claim(names, limit, upto, suspect)
        assert [job.delivery for job in claimed.jobs] == [job.delivery for job in picked]
        assert set(claimed.cancelled) == cancelled
        coming = any(
            job.job_type in names
            and (
                job.status == "in_flight"
                or (
                    job.status == "pending"
                    and not job.waiting
                    and job.run_at > upto
                    and job.job_type not in self.model.paused
                )
            )
            for job in self.model.jobs.values()
        )
        assert claimed.due_in == 0 if len(picked) == limit else (claimed.due_in is not None) == coming
        for lease, job in zip(claimed.jobs, picked, strict=True):
            job.status, job.token, job.worker = "in_flight", lease.token, worker
            job.attempts += 1
            assert (lease.attempt, lease.crashes, lease.id) == (job.attempts, job.crashes, job.id)
        # Which are set aside is the claim's own affair, as long as their key lets none of them run.
        waits = dict(self.conn.execute("select id, waits_for = 'key' from outrider.job").fetchall())
        for job in self.model.jobs.values():
            if waits.get(job.delivery) and not job.waiting:
                assert (job.job_type, job.status, job.crashes) == (LIMITED, "pending", 0)
                assert job.key is not None
                job.waiting = True
        self.read_back(before, upto)
        self.leases += claimed.jobs

    def live(self) -> list[Lease]:
        held = {job.token for job in self.model.jobs.values()}
        return [lease for lease in self.leases if lease.token in held and self.holds(lease)]

    def holds(self, lease: Lease) -> bool:
        job = self.model.jobs.get(lease.delivery)
        return job is not None and job.token == lease.token

    @precondition(lambda self: self.live())
    @rule(
        at=st.integers(0, 99),
        verdict=st.sampled_from(["done", "later", "later", "snooze", "dead", "back", "cancelled"]),
        delay=st.sampled_from([0, 0, 5000]),
    )
    def settle(self, at: int, verdict: str, delay: int) -> None:
        live = self.live()
        self.settle_as(live[at % len(live)], verdict, delay)

    @precondition(lambda self: len(self.live()) < len(self.leases))
    @rule(at=st.integers(0, 99), verdict=st.sampled_from(["done", "later", "dead", "back", "cancelled"]))
    def settle_too_late(self, at: int, verdict: str) -> None:
        lost = [lease for lease in self.leases if not self.holds(lease)]
        self.settle_as(lost[at % len(lost)], verdict, 0)

    def settle_as(self, lease: Lease, verdict: str, delay: int) -> None:
        job = self.model.jobs.get(lease.delivery)
        mine = job is not None and job.token == lease.token
        if verdict == "done":
            assert sqljobs.done(self.conn, lease) == ({lease.delivery: "done"} if mine else {})
            if mine and job:
                self.model.finish(job)
            return
        details: dict[str, Any] = {"delay": delay}
        if verdict == "snooze":
            details["counted"] = False
        elif verdict in ("later", "dead"):
            details |= {"code": "ValueError", "message": "no"}
        asked = "later" if verdict == "snooze" else verdict
        outcome, before, upto = self.during(
            lambda: sqljobs.settle(self.conn, lease, asked, **details), after=timedelta(seconds=delay)
        )
        if not mine or job is None:
            assert outcome is None
            return
        assert outcome == self.model.release(job, asked, before, details.get("code"), verdict != "snooze")
        self.read_back(before, upto)

    @precondition(lambda self: self.live())
    @rule(at=st.integers(0, 99), then=st.sampled_from(["", "reap", "renew"]))
    def expire(self, at: int, then: str) -> None:
        live = self.live()
        job = self.model.jobs[live[at % len(live)].delivery]
        self.expire_one(job)
        if then == "renew" and job.worker is not None:
            self.renew_as(job.worker, TYPES)
        if then:
            self.reap_all(TYPES)

    def expire_one(self, job: Job) -> None:
        self.expiries += 1
        job.expired = self.expiries
        self.conn.execute(
            "update outrider.job set lease_expires_at = %s where id = %s",
            [self.base - timedelta(hours=1) + timedelta(seconds=self.expiries), job.delivery],
        )

    @rule(worker=st.sampled_from([ALIVE, SILENT, UNKNOWN]), names=st.sampled_from([TYPES, (LIMITED,)]))
    def renew(self, worker: UUID, names: tuple[str, ...]) -> None:
        self.renew_as(worker, names)

    def renew_as(self, worker: UUID, names: tuple[str, ...]) -> None:
        held = [
            job
            for job in self.model.jobs.values()
            if job.status == "in_flight" and job.worker == worker and job.job_type in names
        ]
        renewed = sqljobs.renew(self.conn, worker, names)
        assert {d: (token, stop) for d, (token, _, stop) in renewed.items()} == {
            job.delivery: (job.token, job.cancelled) for job in held
        }
        assert all(lease > 200 for _, lease, _ in renewed.values())
        for job in held:
            job.expired = None

    def any(self, at: int, *statuses: str) -> Job:
        found = [job for job in self.model.jobs.values() if not statuses or job.status in statuses]
        return found[at % len(found)]

    @rule(names=st.sampled_from([TYPES, TYPES, (PLAIN,)]))
    def reap(self, names: tuple[str, ...]) -> None:
        self.reap_all(names)

    def reap_all(self, names: tuple[str, ...]) -> None:
        reaped, before, upto = self.during(lambda: sqljobs.reap(self.conn, names))
        assert reaped == self.model.reap(names, before)
        self.read_back(before, upto)

    @rule(worker=st.sampled_from([ALIVE, SILENT, UNKNOWN]), limit=st.integers(1, 3))
    def claim_and_die(self, worker: UUID, limit: int) -> None:
        self.claim_as(TYPES, limit, worker, True)
        self.kill_one(worker)

    @rule(worker=st.sampled_from([ALIVE, SILENT]))
    def kill(self, worker: UUID) -> None:
        self.kill_one(worker)

    def kill_one(self, worker: UUID) -> None:
        reaped, before, upto = self.during(lambda: sqljobs.reap(self.conn, TYPES, worker))
        assert reaped == self.model.reap(TYPES, before, worker)
        self.read_back(before, upto)

    @precondition(lambda self: self.model.jobs)
    @rule(at=st.integers(0, 99))
    def cancel(self, at: int) -> None:
        job = self.any(at)
        outcome = sqljobs.cancel(self.conn, job.id)
        if job.status == "in_flight":
            job.cancelled = True
            assert outcome == "cancelling"
            return
        assert outcome == "cancelled"
        if job.status != "discarded":
            job.waiting, job.status = False, "discarded"
            job.told.append("cancelled_at")

    @precondition(lambda self: self.model.jobs)
    @rule(at=st.integers(0, 99))
    def run_now(self, at: int) -> None:
        job = self.any(at)
        outcome, before, upto = self.during(lambda: sqljobs.run_now(self.conn, job.id))
        said = {"pending": "due", "in_flight": "running", "failed": "dead", "discarded": "cancelled"}
        assert outcome == said[job.status]
        if job.status == "pending":
            job.run_at = min(job.run_at, before)
            self.read_back(before, upto)

    @precondition(lambda self: any(job.status in ("failed", "discarded") for job in self.model.jobs.values()))
    @rule(at=st.integers(0, 99), force=st.booleans())
    def replay(self, at: int, force: bool) -> None:
        delivery = self.any(at, "failed", "discarded").delivery
        (outcome,), before, upto = self.during(lambda: sqljobs.replay(self.conn, delivery, force=force))
        job = self.model.jobs.get(delivery)
        if job is None or not (job.status == "failed" or (force and job.status == "discarded")):
            assert outcome == "not_found"
        elif self.model.pending_with(job.job_type, job.unique):
            assert outcome == "superseded"
        else:
            assert outcome == "replayed"
            job.status, job.attempts, job.crashes, job.run_at = "pending", 0, 0, before
            job.cycle += 1
            job.told.append("replayed_at")
            self.read_back(before, upto)

    @rule(at=st.integers(0, 99))
    def replay_anything(self, at: int) -> None:
        """Also what is no dead letter, or gone."""
        delivery = self.known[at % len(self.known)]
        job = self.model.jobs.get(delivery)
        if job is None or job.status in ("pending", "in_flight"):
            assert sqljobs.replay(self.conn, delivery, force=True) == ["not_found"]

    @rule(at=st.integers(0, 99))
    def discard(self, at: int) -> None:
        delivery = self.known[at % len(self.known)]
        row = self.conn.execute("select outrider.discard(%s)", [[delivery]]).fetchone()
        job = self.model.jobs.get(delivery)
        if job is None or job.status != "failed":
            assert row == (0,)
            return
        assert row == (1,)
        job.status = "discarded"
        job.told.append("discarded_at")

    @rule(job_type=st.sampled_from(TYPES))
    def pause(self, job_type: str) -> None:
        """One at most."""
        self.model.paused = {job_type} - self.model.paused
        self.conn.execute(
            "update outrider.subscription set paused_at = case when name = any (%s) then now() end",
            [list(self.model.paused)],
        )

    @invariant()
    def no_difference(self) -> None:
        rows = [row_seen(row) for row in sqljobs.jobs(self.conn)]
        assert rows == [job.seen() for _, job in sorted(self.model.jobs.items())]
        assert set(sqljobs.receipts(self.conn)) == self.model.receipts

    def teardown(self) -> None:
        """In the end all that is owed comes, and nothing is left waiting."""
        sqljobs.sound(self.conn)
        self.conn.execute("update outrider.subscription set paused_at = null")
        self.conn.execute("update outrider.job set run_at = now() where status = 'pending'")
        for worker in (ALIVE, SILENT, UNKNOWN):
            sqljobs.reap(self.conn, TYPES, worker)
        while jobs := sqljobs.claim(self.conn, 4, TYPES).jobs:
            sqljobs.done(self.conn, *jobs)
        assert {row["status"] for row in sqljobs.jobs(self.conn)} <= {"failed", "discarded"}


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        sqljobs.register(conn, PLAIN)
        sqljobs.register(conn, LIMITED, concurrency=CONCURRENCY, key_concurrency=KEY_CONCURRENCY, keep="1 day")
        yield conn


def compare(conn: Conn, examples: int, steps: int, phases: Collection[Phase] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        cast(Any, lambda: Jobs(conn)),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=phases,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.verify
def test_the_database_does_what_the_model_does(conn: Conn, long: bool) -> None:
    compare(conn, *((600, 60) if long else (60, 30)))


BACK = "told := 'back';\n            job.status := 'pending';\n"
MUTANTS = {
    "a token is not asked for": changed("settle_jobs", ("and d.lease_token = asked.token ", "")),
    "a snooze uses an attempt": changed("release", ("job.attempts - (not p_counted)::integer", "job.attempts")),
    "handing back uses an attempt": changed(
        "release",
        (f"{BACK}            job.attempts := job.attempts - 1;\n        when 'lapsed'", f"{BACK}        when 'lapsed'"),
    ),
    "a live worker's lapse is a crash": changed("reap", ("then 'lapsed'", "then 'crashed'")),
    "four crashes": changed(
        "release",
        ("told := case when job.crashes >= 3", "told := case when job.crashes >= 4"),
        ("job.status := case when job.crashes >= 3", "job.status := case when job.crashes >= 4"),
    ),
    "a cancelled job is tried again": changed("release", ("and p_job.cancelled_at is not null", "and false")),
    "suspects by the dozen": changed(
        "pick_suspect",
        ("j.id limit 1 for update", "j.id limit 12 for update"),
        ("picked.id limit 1)", "picked.id limit 12)"),
    ),
    "a claim lets nobody come": changed("claim", ("locked := /*schema*/admit(names);", "null;")),
    "more come than there is room for": changed(
        "admit", ("limit free.room for no key update", "limit 1000 for no key update")
    ),
    "a history is not kept": changed("settle_done", ("or said.anything or", "or")),
    "keep is not obeyed": changed("settle_done", ("s.keep is not null", "false")),
    "every job is kept": changed("settle_done", ("and s.keep is not null", "")),
    "who fails yields only to who is pending": changed(
        "release", ("or not p_job.closed and exists", "or false and exists")
    ),
    "who fails for good yields to nobody": changed(
        "release", ("job.status in ('pending', 'failed')", "job.status = 'pending'")
    ),
    "a suspect needs no room": changed(
        "pick_suspect",
        (
            "/*schema*/room(j.subscription, j.job_key, j.workspace_id) > 0)\n            order by",
            "true)\n            order by",
        ),
    ),
    "a suspect takes no room": changed("pick_limited", ("where j.ctid = any (p_chosen)", "where false")),
    "debouncing runs earlier": changed("enqueue_onto", ("greatest(d.run_at, p_run_at)", "p_run_at")),
    "priority is no matter": changed(
        "pick_limited", ("order by f.turn, f.lot, f.claim_at, f.id", "order by f.turn, f.lot, f.id")
    ),
    "what is paused is claimed": changed("claim", ("and s.paused_at is null", "")),
    "nobody renews": changed("renew", ("where d.ctid = q.place", "where false")),
    "replaced keeps attempts": changed("enqueue_onto", ("attempts = 0, crashes = 0,", "")),
    "a replay keeps its attempts": changed("replay_jobs", ("attempts = 0, crashes = 0,", "")),
    "greatest of nothing is nothing": changed(
        "claim", ("case when next_at < moment then moment else next_at end", "greatest(next_at, moment)")
    ),
    "nobody says when the next is due": changed(
        "admit_scheduled",
        (
            "    if (next_at <= p_moment) is not true then\n        return next_at;",
            "    if (next_at <= p_moment) is not true then\n        return null;",
        ),
    ),
}


QUICK = (
    "a cancelled job is tried again",
    "a claim lets nobody come",
    "suspects by the dozen",
)


@pytest.mark.verify
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in MUTANTS]
)
def test_a_broken_one_differs(conn: Conn, name: str) -> None:
    conn.execute(MUTANTS[name].encode())
    with pytest.raises((AssertionError, psycopg.Error, Flaky)):
        compare(conn, 4000, 40, [Phase.generate])
