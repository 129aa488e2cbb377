"""Jobs that misbehave as they are told, and an oracle for them: what was enqueued, what was done outside, what is left."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from tests.oracle import append

from outrider import Event, Job, JobContext, Outrider, RetryPolicy, SyncJobContext
from outrider.worker.duties import Duties
from outrider.worker.site import WorkerTimes
from outrider.worker.worker import Worker

RETRY = RetryPolicy(retries=30, base="10ms", cap="40ms")
LEASE = 2.0
POLL = 0.5
HEARTBEAT = 0.5


class Task(Job, type="fault.task", key="key"):
    """`act` says what running it does."""

    n: int
    key: str = "k"
    act: str = ""


class Chore(Job, type="fault.chore"):
    """The same, in a thread."""

    n: int
    act: str = ""


class Noted(Event, type="fault.noted", key="n"):
    n: int


def make(dsn: str, outside: Path | None = None, *, lease: float = LEASE, **settings: Any) -> Outrider:
    app = Outrider(context="fault", dsn=dsn, **({"poll": POLL} | settings))
    failed: set[int] = set()

    def trace(n: int) -> None:
        if outside is not None:
            append(outside, f"{n}\n")

    def act(what: str, n: int) -> None:
        match what:
            case "fail" if n not in failed:
                failed.add(n)
                raise RuntimeError(f"{n} fails as told")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)

    @app.job(Task, lease=lease, retry=RETRY)
    async def task(job: Task, ctx: JobContext) -> int:
        act(job.act, job.n)
        if job.act == "linger":
            await asyncio.sleep(0.2)
        trace(job.n)
        return os.getpid()

    @app.job(Chore, lease=lease, retry=RETRY)
    def chore(job: Chore, ctx: SyncJobContext) -> int:
        act(job.act, job.n)
        trace(job.n)
        return os.getpid()

    @app.job(on=Noted, name="fault.note", lease=lease, retry=RETRY)
    async def note(event: Noted, ctx: JobContext) -> int:
        trace(event.n)
        return os.getpid()

    return app


def worker_of(app: Outrider, slots: int = 10, grace: float = 10) -> Worker:
    """As app.worker(), with a heartbeat short enough for tests."""
    served = app.chosen().jobs
    register = lambda: app._register([each.subscription for each in served])  # noqa: E731
    times = WorkerTimes(heartbeat=HEARTBEAT, grace=grace)
    return Worker(app._site(), Duties(jobs=served, slots=slots), register, times)


class Enqueuer:
    """Enqueues through its own connection, and remembers what was committed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.ok: list[int] = []
        self._app = make(dsn)

    async def burst(self, count: int, *, failing: float = 0, act: str = "") -> None:
        """Tasks, chores and events in turn."""
        first = len(self.ok) + 1
        async with await AsyncConnection.connect(self._dsn) as conn:
            for n in range(first, first + count):
                what = act or ("fail" if failing and n % round(1 / failing) == 0 else "")
                match n % 3:
                    case 0:
                        await self._app.enqueue(conn, Task(n=n, key=str(n % 5), act=what))
                    case 1:
                        await self._app.enqueue(conn, Chore(n=n, act=what))
                    case _:
                        await self._app.publish(conn, Noted(n=n))
                await conn.commit()
                self.ok.append(n)

    async def one(self, job: Job, **options: Any) -> None:
        async with await AsyncConnection.connect(self._dsn) as conn:
            await self._app.enqueue(conn, job, **options)
        self.ok.append(job.n)  # type: ignore[attr-defined]


async def setup(dsn: str) -> None:
    async with make(dsn) as app:
        await app.migrate()


async def finish(dsn: str, outside: Path, seconds: float = 75) -> None:
    """A healthy worker does what is left, once leases have run out."""
    async with make(dsn, outside) as app, worker_of(app):
        try:
            async with asyncio.timeout(seconds):
                await settled(dsn)
        except TimeoutError:
            raise AssertionError(f"something is stuck: {left_over(dsn)}") from None


def left_over(dsn: str) -> list[dict[str, Any]]:
    query = """select d.id, d.subscription, d.status, d.attempts, d.crashes, d.run_at - now() as due_in, d.waits_for,
                      d.queue, d.lease_expires_at - now() as lapses_in, d.locked_at - now() as locked, w.pid,
                      w.seen_at - now() as seen, w.stopping, d.last_error_code, d.payload
               from outrider.job as d left join outrider.worker as w on w.id = d.locked_by
               where d.status in ('pending', 'in_flight')"""
    sessions = """select pid, application_name, state, now() - query_start as since, wait_event_type, wait_event,
                         pg_blocking_pids(pid) as blocked_by, left(query, 60) as query
                  from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        cursors = conn.execute(
            "select subscription, seq, (select max(seq) from outrider.outbox) as last from outrider.cursor"
        )
        return cursors.fetchall() + conn.execute(query).fetchall() + conn.execute(sessions).fetchall()


async def settled(dsn: str) -> None:
    """Nothing waits and nothing runs; every event has become a job."""
    left = """select (select count(*) from outrider.job where status in ('pending', 'in_flight'))
                     + (select count(*) from outrider.outbox where seq > (select min(seq) from outrider.cursor))"""
    with psycopg.connect(dsn, autocommit=True) as conn:
        await until(lambda: conn.execute(left).fetchone() == (0,))


async def until(look: Callable[[], object]) -> None:
    """For what other processes do, which give no signal."""
    while not look():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def check(dsn: str, outside: Path, ok: list[int], *, crashes: int, at_once: int = 60, dead: int = 0) -> None:
    """I1, I2, I4, I6, I7, I10 of the fault list, for jobs; every job has one receipt, or is a dead letter."""
    done = Counter(int(line) for line in outside.read_text().split()) if outside.exists() else Counter[int]()
    with psycopg.connect(dsn) as conn:
        letters = conn.execute("select count(*) from outrider.job where status = 'failed'").fetchone()
        left = conn.execute("select status, attempts, crashes from outrider.job where status <> 'failed'").fetchall()
        receipts = conn.execute(
            "select count(*), count(distinct idempotency_key) from outrider.event_handled"
        ).fetchone()
        used = conn.execute("select count(*) from outrider.job where attempts > 31").fetchone()
    assert left == [], "something is stuck"
    assert letters == (dead,)
    assert receipts == (len(ok) - dead, len(ok) - dead)
    lost = set(ok) - set(done)
    assert len(lost) <= dead, f"lost: {lost}"
    assert not set(done) - set(ok), "done, and never enqueued"
    assert sum(done.values()) - len(done) <= crashes * at_once, "more doubles than crashes explain"
    assert used == (0,)


def patient(dsn: str, outside: Path | None = None) -> Outrider:
    """Its leases outlast the start of a side process on a busy machine."""
    return make(dsn, outside, lease=30)


def slow(dsn: str, outside: Path | None = None) -> Outrider:
    """Its leases would last an hour, and its jobs too."""
    app = Outrider(context="fault", dsn=dsn, poll=POLL)

    @app.job(Task, lease="1h", retry=RETRY)
    async def task(job: Task) -> None:
        assert outside is not None
        append(outside, f"{job.n}\n")
        await asyncio.sleep(3600)

    return app
