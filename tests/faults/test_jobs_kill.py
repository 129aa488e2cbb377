"""Faults 1, 2 and 17 for jobs: workers die at every point, in a storm, and by what they run."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.faults import job_subject, subject
from tests.faults.job_subject import Chore, Enqueuer, Task, until
from tests.faults.nursery import Nursery
from tests.oracle import Oracle

from outrider import failpoint

SUBJECT = "tests.faults.job_subject"
POINTS = ("claim.sent", "claim.done", "run.before", "run.after", "settle.sent", "settle.done", "route.done")
ENDS = {"exit": failpoint.EXIT_CODE, "kill": -9}


@pytest.fixture
def unarmed() -> Iterator[None]:
    yield
    failpoint.load(os.environ)


@pytest.mark.verify
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_at(database: str, tmp_path: Path, point: str, long: bool) -> None:
    """Once by exit, once by SIGKILL; its side process hands back what it held, and others do it."""
    oracle, crashes = Oracle(tmp_path), 0
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    async with Nursery(database, oracle, SUBJECT) as nursery:
        for seed in range(20 if long else 2):
            action = ["exit", "kill"][seed % 2]
            hits = random.Random(f"{point} {seed}").randint(1, 5 if point.startswith("run.") else 2)
            await enqueuer.burst(15, failing=0.2)
            worker = await nursery.start(f"{point}:{action}:{hits}")
            async with subject.beside(enqueuer.burst(15, failing=0.2)):
                assert await nursery.end_of(worker) == ENDS[action], "the point was not hit"
            crashes += 1
            await job_subject.finish(database, oracle.outside_file)
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=crashes)


@pytest.mark.verify
@pytest.mark.usefixtures("unarmed")
async def test_no_point_is_out_of_the_way(database: str, tmp_path: Path) -> None:
    log = tmp_path / "hits"
    await job_subject.setup(database)
    await Enqueuer(database).burst(9)
    failpoint.load({"OUTRIDER_FAIL_LOG": str(log)})
    await job_subject.finish(database, tmp_path / "outside")
    assert set(log.read_text().split()) == set(POINTS)


@pytest.mark.verify
async def test_a_dead_workers_jobs_do_not_wait_for_their_lease(database: str, tmp_path: Path) -> None:
    """The lease is an hour, and they are somebody else's at once: the side process has seen its worker die."""
    oracle = Oracle(tmp_path)
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    async with Nursery(database, oracle, f"{SUBJECT}:slow") as nursery:
        worker = await nursery.start()
        await enqueuer.one(Task(n=1, act="linger"))
        query = "select count(*) from outrider.job where status = 'in_flight'"
        with psycopg.connect(database, autocommit=True) as conn:
            await until(lambda: oracle.outside_file.exists() and oracle.outside_file.read_text())
            await nursery.kill(worker)
            await until(lambda: conn.execute(query).fetchone() == (0,))
            row = conn.execute("select status, attempts, crashes, last_error_code from outrider.job").fetchone()
        assert row == ("pending", 0, 1, "worker_crash")
    await job_subject.finish(database, oracle.outside_file)
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=1)


async def test_a_kill_storm(database: str, tmp_path: Path, long: bool) -> None:
    oracle, chance, crashes = Oracle(tmp_path), random.Random(1), 0
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    stop = asyncio.get_running_loop().time() + (60 if long else 4)
    async with Nursery(database, oracle, SUBJECT) as nursery:
        workers = [await nursery.start() for _ in range(4 if long else 2)]
        while asyncio.get_running_loop().time() < stop:
            victim = chance.randrange(len(workers))
            async with subject.beside(enqueuer.burst(20, failing=0.1)):
                await asyncio.sleep(0.3)
            await until(lambda: not _ran_at_two_deaths(database))
            assert await nursery.kill(workers[victim]) == -9
            crashes += 1
            workers[victim] = await nursery.start()
        await job_subject.finish(database, oracle.outside_file)
    with psycopg.connect(database) as conn:
        dead = conn.execute("select count(*) from outrider.job where status = 'failed'").fetchone()
    assert dead == (0,), "what died with its worker three times in a storm was taken for its killer"
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=crashes)


def _ran_at_two_deaths(dsn: str) -> bool:
    """Whether the next kill might bury a job: on a busy machine one may be running whenever a worker is killed."""
    query = "select count(*) from outrider.job where crashes > 1 and status in ('pending', 'in_flight')"
    with psycopg.connect(dsn) as conn:
        return conn.execute(query).fetchone() != (0,)


@pytest.mark.verify
@pytest.mark.parametrize("act", [pytest.param("exit", marks=pytest.mark.long), "segfault", "kill"])
async def test_process_poison_is_buried_and_its_neighbours_finish(database: str, tmp_path: Path, act: str) -> None:
    """Fault 17: three workers die of it, then it is a dead letter; whoever ran beside it is done."""
    oracle, deaths = Oracle(tmp_path), 0
    await job_subject.setup(database)
    enqueuer = Enqueuer(database)
    await enqueuer.burst(15)
    await enqueuer.one(Chore(n=1001, act=act) if act == "segfault" else Task(n=1001, act=act))
    await enqueuer.burst(15)
    query = "select status, crashes, last_error_code, failure_history from outrider.job where status = 'failed'"
    with psycopg.connect(database, autocommit=True) as conn:
        async with Nursery(database, oracle, f"{SUBJECT}:patient") as nursery:
            while not (row := conn.execute(query).fetchone()):
                worker = await nursery.start()
                await until(lambda: nursery.ended(worker) or conn.execute(query).fetchone())  # noqa: B023
                deaths += nursery.ended(worker)
            await nursery.start()
            await job_subject.settled(database)
    assert row[:3] == ("failed", 3, "worker_crash")
    assert [each["code"] for each in row[3]] == ["worker_crash"] * 3
    assert deaths == 3
    job_subject.check(database, oracle.outside_file, enqueuer.ok, crashes=3, dead=1)
