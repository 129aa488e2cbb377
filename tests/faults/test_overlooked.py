"""What a worker leaves behind is found by another without a poll, which is an hour away: each state is made by hand."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import IO, Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.faults.job_subject import RETRY, Enqueuer, Task, setup, until, worker_of
from tests.oracle import append

from outrider import Outrider
from outrider.config import Settings
from outrider.postgres import lease_renewer
from outrider.postgres.statement import call
from outrider.signals import Signals
from outrider.worker import job_loop
from outrider.worker.job_loop import JobLoop
from outrider.worker.leases import CrashRecord, Leases
from outrider.worker.site import Site
from outrider.worker.worker import Worker

NAME = "fault.task"
GONE = uuid4()
"""A worker that has claimed something and is no more."""
SOON = 25.0


@pytest.fixture
async def conn(database: str) -> AsyncIterator[psycopg.Connection[Any]]:
    await setup(database)
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


@asynccontextmanager
async def asleep(dsn: str, outside: Path, **limits: Any) -> AsyncIterator[Worker]:
    """A worker that has looked at everything and waits to be woken. Its first job never ends."""
    app = Outrider(context="fault", dsn=dsn, poll="1h")

    @app.job(Task, retry=RETRY, **limits)
    async def task(job: Task) -> None:
        if job.n == 1 and job.act == "linger":
            await asyncio.sleep(3600)
        append(outside, f"{job.n}\n")

    async with app:
        await app.migrate()
        async with worker_of(app, grace=0) as worker:
            await until(lambda: sleeps(worker))
            yield worker


def sleeps(worker: Worker) -> bool:
    [jobs] = [loop for loop in worker.loops if isinstance(loop, JobLoop)]
    return worker.listening and jobs._claim_at > monotonic() and not jobs._claiming


async def done(outside: Path, *numbers: int) -> None:
    async with asyncio.timeout(SOON):
        await until(lambda: outside.exists() and [int(n) for n in outside.read_text().split()] == [*numbers])


def claim(conn: psycopg.Connection[Any], worker: UUID = GONE) -> tuple[int, int]:
    """Its delivery and token; its lease ends after the test."""
    conn.execute("update outrider.subscription set lease = '1 hour'")
    asked = {"worker": worker, "names": [NAME], "limit": 1, "generation": 0, "queues": None, "suspect": True}
    row, _ = conn.execute(call("claim", "outrider", tuple(asked)), asked).fetchall()
    return row[1], row[2]


@pytest.mark.verify
@pytest.mark.parametrize("crashes", [0, 1])
@pytest.mark.parametrize("limits", [{}, {"concurrency": 5, "key_concurrency": 1}], ids=["free", "limited"])
async def test_a_job_that_somebody_held_when_it_was_looked_at(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path, limits: dict[str, int], crashes: int
) -> None:
    """As a claim does whose worker dies before it has its answer: it is rolled back, and nobody is told."""
    await Enqueuer(database).one(Task(n=1))
    conn.execute("update outrider.job set crashes = %s", [crashes])
    with psycopg.connect(database) as holding:
        holding.execute("select from outrider.job for update")
        async with asleep(database, tmp_path / "outside", **limits):
            holding.rollback()
            await done(tmp_path / "outside", 1)


@pytest.mark.verify
async def test_a_retry_whose_worker_is_gone_when_it_is_due(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    await Enqueuer(database).one(Task(n=1))
    delivery, token = claim(conn)
    async with asleep(database, tmp_path / "outside"):
        other = {"delivery": delivery, "token": token, "verdict": "later", "delay": 0.5, "code": "error"}
        conn.execute("select outrider.settle_jobs(%s, '{}', '{}', '{}', %s, 'w')", [[NAME], json.dumps([other])])
        await done(tmp_path / "outside", 1)


@pytest.mark.verify
@pytest.mark.parametrize("how", ["crashes = 2", "cancelled_at = now()"])
async def test_room_that_a_dead_worker_leaves(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path, how: str
) -> None:
    """The job that it ran does not come back."""
    for n in (1, 2):
        await Enqueuer(database).one(Task(n=n, key=str(n)))
    delivery, _ = claim(conn)
    conn.execute(f"update outrider.job set {how} where id = %s".encode(), [delivery])
    async with asleep(database, tmp_path / "outside", concurrency=1):
        conn.execute("select outrider.reap(%s, %s)", [[NAME], GONE])
        await done(tmp_path / "outside", 2)


@pytest.mark.verify
async def test_a_suspect_after_one_whose_lease_was_lost(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time: the first is this worker's no more, the second is next."""
    monkeypatch.setattr(job_loop, "RENEWAL", 0.5)
    for n in (1, 2):
        await Enqueuer(database).one(Task(n=n, act="linger"))
    conn.execute("update outrider.job set crashes = 1")
    query = "select payload -> 'n' from outrider.job where status = 'in_flight'"
    async with asleep(database, tmp_path / "outside", lease="1h"):
        await until(lambda: conn.execute(query).fetchall() == [(1,)])
        conn.execute(
            """update outrider.job set status = 'pending', run_at = now() + interval '1 hour', locked_by = null,
                      locked_at = null, lease_token = null, lease_expires_at = null where status = 'in_flight'"""
        )
        await done(tmp_path / "outside", 2)


@contextmanager
def side_process(dsn: str) -> Iterator[IO[bytes]]:
    """Its input, at whose end its worker is dead; waits for it in turn."""
    record = CrashRecord(1)
    memory = record.open()
    site = Site(dsn, cast(Any, None), Settings(context="fault"), Signals())
    leases = Leases(site, GONE, [NAME], 60, record, on_report=lambda _: None)
    command = [sys.executable, "-P", lease_renewer.__file__]
    with (
        closing(record),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[memory]) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(leases.instructions(memory))
        process.stdin.flush()
        yield process.stdin


@pytest.mark.verify
async def test_a_claim_that_lands_after_its_worker_has_died(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """Its lease lasts five minutes; the side process looks once more."""
    sessions = "select count(*) from pg_stat_activity where application_name = 'outrider leases' and datname = %s"
    await Enqueuer(database).one(Task(n=1))
    with psycopg.connect(database) as claiming:
        claim(claiming)
        with side_process(database) as worker:
            await until(lambda: conn.execute(sessions, [conn.info.dbname]).fetchone() == (1,))
            worker.close()
            await until(lambda: conn.execute(sessions, [conn.info.dbname]).fetchone() == (0,))
            claiming.commit()
    assert conn.execute("select status, attempts, crashes from outrider.job").fetchone() == ("pending", 0, 0)


@pytest.mark.verify
@pytest.mark.parametrize("name", [NAME, None], ids=["one", "all"])
async def test_what_waits_when_its_pause_ends(
    database: str, conn: psycopg.Connection[Any], tmp_path: Path, name: str | None
) -> None:
    await Enqueuer(database).one(Task(n=1))
    async with Outrider(context="fault", dsn=database) as operator:
        await operator.pause(name)
        async with asleep(database, tmp_path / "outside"):
            await operator.resume(name)
            await done(tmp_path / "outside", 1)
