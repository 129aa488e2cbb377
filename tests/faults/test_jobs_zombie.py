"""Faults 3, 32 and 33 for jobs: stopped workers, workers that are told to end, a slow or full database."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.faults import job_subject
from tests.faults.job_subject import Enqueuer, Task, until
from tests.faults.nursery import Nursery
from tests.oracle import Oracle
from tests.proxy import Proxy

from outrider import JobContext, Outrider, failpoint
from outrider.signals import LeaseLost, Troubled
from outrider.testing import expect
from outrider.worker.worker import Worker

MANY = 100


def zombie(dsn: str, outside: Path | None = None) -> Outrider:
    """A hundred jobs at once. The first worker to have finished them all stops before it can say so."""
    app = Outrider(context="fault", dsn=dsn, poll=0.2)
    running, all_run, first = 0, asyncio.Event(), outside is not None and not outside.exists()
    if first:
        assert outside is not None
        outside.touch()

    @app.job(Task, lease=3)
    async def task(job: Task, ctx: JobContext) -> int:
        nonlocal running
        running += 1
        if first and running == MANY:
            failpoint.load({"OUTRIDER_FAIL": "settle.sent:stop:1"})
            all_run.set()
        if first:
            await all_run.wait()
        return os.getpid()

    def heard(signal_: object) -> None:
        if isinstance(signal_, LeaseLost) and outside is not None:
            with outside.with_suffix(".lost").open("a") as file:
                file.write(f"{os.getpid()} {signal_.run.job_id} {signal_.reason}\n")

    app.signals.listen(heard)
    return app


def worker_of(app: Outrider) -> Worker:
    return job_subject.worker_of(app, slots=MANY)


async def test_a_hundred_zombies_are_fenced(database: str, tmp_path: Path) -> None:
    """SIGSTOP after the work, before it is settled; another does it all; SIGCONT: not one of a hundred lands.

    Takes 3 s, in which the leases run out."""
    oracle = Oracle(tmp_path)
    async with zombie(database) as app:
        await app.migrate()
        async with app.connect() as producing, producing.transaction():
            await app.enqueue_many(producing, [Task(n=n) for n in range(MANY)])
    in_flight = "select count(*) from outrider.job where status = 'in_flight'"
    with psycopg.connect(database, autocommit=True) as conn:
        async with Nursery(database, oracle, "tests.faults.test_jobs_zombie:zombie") as nursery:
            first = await nursery.start()
            await until(lambda: _stopped(first))
            assert conn.execute(in_flight).fetchone() == (MANY,)
            second = await nursery.start()
            await until(lambda: conn.execute("select count(*) from outrider.event_handled").fetchone() == (MANY,))
            os.kill(first, signal.SIGCONT)
            lost = oracle.outside_file.with_suffix(".lost")
            await until(lambda: len(_lost_by(first, lost)) == MANY)
            results = conn.execute("select result, count(*) from outrider.event_handled group by 1").fetchall()
            assert results == [(second, MANY)], "a zombie has settled"
        assert conn.execute("select count(*) from outrider.job").fetchone() == (0,)


def _lost_by(pid: int, told: Path) -> set[str]:
    """The jobs whose leases this worker has lost. On a busy machine the other one may lose some too."""
    lines = told.read_text().splitlines() if told.exists() else []
    return {line.split()[1] for line in lines if line.startswith(f"{pid} ")}


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


APP = """
import asyncio, threading
from outrider import Job, Outrider

class Wedge(Job, type="fault.wedge"):
    kind: str = ""

app = Outrider(context="fault")

@app.job(Wedge)
async def wedge(job: Wedge) -> None:
    if job.kind == "stubborn":
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
    await asyncio.sleep(0.001 if job.kind == "quick" else 3600)
"""


@pytest.mark.verify
@pytest.mark.parametrize(("kind", "second"), [("", False), ("stubborn", False), ("", True)])
async def test_a_worker_that_is_told_to_end(database: str, tmp_path: Path, kind: str, second: bool) -> None:
    """Fault 32: SIGTERM under load; jobs that do not end, even ones that refuse to; a second SIGTERM. All leases are given
    back, or end with the process, and no attempt is used."""
    (tmp_path / "wedged.py").write_text(APP)
    env = {**os.environ, "OUTRIDER_DSN": database, "PYTHONPATH": str(tmp_path)}
    async with Outrider(context="fault", dsn=database) as app:
        await app.migrate()
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.enqueue('fault.wedge', '{\"kind\": \"quick\"}') from generate_series(1, 200)")
        conn.execute(
            f"select outrider.enqueue('fault.wedge', '{{\"kind\": \"{kind}\"}}') from generate_series(1, 5)".encode()
        )
        worker = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "outrider",
                "worker",
                "--app",
                "wedged:app",
                "--grace",
                "60s" if second else "1s",
            ),
            cwd=tmp_path,
            env=env,
            stderr=asyncio.subprocess.DEVNULL,
        )
        held = "select count(*) from outrider.job where status = 'in_flight'"
        try:
            await until(lambda: conn.execute(held).fetchone() == (5,))
            worker.send_signal(signal.SIGTERM)
            if second:
                await until(lambda: conn.execute("select bool_or(stopping) from outrider.worker").fetchone() == (True,))
                worker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await worker.wait() != 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        await until(lambda: conn.execute(held).fetchone() == (0,))
        rows = conn.execute("select distinct status, attempts from outrider.job").fetchall()
        assert rows == [("pending", 0)]


@pytest.mark.verify
async def test_a_slow_database(database: str, tmp_path: Path) -> None:
    """Fault 33: each answer comes 200 ms late."""
    oracle = Oracle(tmp_path)
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    await enqueuer.burst(60, failing=0.1)
    with Proxy(database) as proxy:
        proxy.slow(0.2)
        async with job_subject.make(proxy.dsn, oracle.outside_file, lease=10) as app, job_subject.worker_of(app):
            await job_subject.settled(database)
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=0)


@pytest.mark.verify
async def test_a_full_database(database: str, tmp_path: Path) -> None:
    """Fault 33: a role whose connections are used up, until some are given back."""
    oracle = Oracle(tmp_path)
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    await enqueuer.burst(30)
    role = sql.Identifier(f"few_{uuid.uuid4().hex[:8]}")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(sql.SQL("create role {} login connection limit 5").format(role))
        try:
            conn.execute(sql.SQL("grant usage on schema outrider to {}").format(role))
            for kind in ("tables", "sequences", "functions"):
                rights = sql.SQL(f"grant all on all {kind} in schema outrider to {{}}")
                conn.execute(rights.format(role))
            dsn = make_conninfo(database, user=role.as_string().strip('"'))
            async with job_subject.make(dsn, oracle.outside_file, lease=10, pool_size=1) as app:
                hogs = [psycopg.connect(dsn) for _ in range(3)]
                async with expect(app, Troubled, timeout=60):
                    working = asyncio.create_task(job_subject.worker_of(app).run())
                await enqueuer.burst(30)
                for hog in hogs:
                    hog.close()
                await job_subject.settled(database)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        finally:
            conn.execute(sql.SQL("drop owned by {}").format(role))
            conn.execute(sql.SQL("drop role {}").format(role))
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=0)
