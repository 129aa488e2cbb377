"""Faults 1 and 2: workers die at every point of the hot path, and in a storm; nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import subject, test_jobs_kill, test_relay
from tests.faults.nursery import Nursery
from tests.faults.subject import Producer
from tests.oracle import Oracle, check
from tests.tiers import one_in_test

from outrider import failpoint

POINTS = ("take.sent", "take.done", "handle.before", "handle.after", "commit.before", "commit.after", "rollback.after")
ENDS = {"exit": failpoint.EXIT_CODE, "kill": -9}


@pytest.fixture
def unarmed() -> Iterator[None]:
    yield
    failpoint.load(os.environ)


async def die_at(dsn: str, folder: Path, point: str, seeds: range, handlers: str = "tests.faults.subject") -> None:
    oracle = Oracle(folder)
    await subject.setup(dsn)
    async with Nursery(dsn, oracle, handlers) as nursery:
        for seed in seeds:
            producer, action = Producer(dsn, oracle, seed), ["exit", "kill"][seed % 2]
            hits = random.Random(f"{point} {seed}").randint(1, 2 if point == "rollback.after" else 6)
            await producer.burst(15, failing=0.3)
            worker = await nursery.start(f"{point}:{action}:{hits}")
            async with subject.beside(producer.burst(15, failing=0.3)):
                assert await nursery.end_of(worker) == ENDS[action], "the point was not hit"
            await subject.finish(dsn, oracle, handlers)
    check(dsn, oracle, crashes=len(seeds))


@pytest.mark.parametrize("point", one_in_test(POINTS, "commit.before"))
async def test_a_worker_that_dies_at(database: str, tmp_path: Path, point: str, long: bool) -> None:
    """Once by exit, once by SIGKILL; the others then find what it left."""
    await die_at(database, tmp_path, point, range(20 if long else 2))


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [
        "commit.before",
        "commit.after",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("handle.after", "rollback.after")),
    ],
)
async def test_effects_of_sessions_and_their_receipts_commit_together(
    database: str, tmp_path: Path, point: str, long: bool
) -> None:
    """The same with handlers that write through a Session or an AsyncSession of SQLAlchemy."""
    await die_at(database, tmp_path, point, range(20 if long else 2), "tests.faults.session_subject")


@pytest.mark.usefixtures("unarmed")
async def test_no_point_is_out_of_the_way(database: str, tmp_path: Path) -> None:
    oracle, log = Oracle(tmp_path), tmp_path / "hits"
    await subject.setup(database)
    await Producer(database, oracle).burst(10, failing=0.5)
    failpoint.load({"OUTRIDER_FAIL_LOG": str(log)})
    await subject.finish(database, oracle)
    assert set(log.read_text().split()) == set(POINTS)
    assert {*POINTS, *test_jobs_kill.POINTS, *test_relay.POINTS, *test_relay.INBOX_POINTS} == failpoint.POINTS
    check(database, oracle)


async def storm(dsn: str, folder: Path, seed: int, seconds: float) -> None:
    oracle = Oracle(folder)
    await subject.setup(dsn)
    chance, crashes = random.Random(seed), 0
    stop = asyncio.get_running_loop().time() + seconds
    async with Nursery(dsn, oracle) as nursery:
        workers = [await nursery.start(), await nursery.start()]
        producer = Producer(dsn, oracle, seed)
        while asyncio.get_running_loop().time() < stop or len(oracle.attempts()) <= 50:
            victim = chance.randrange(2)
            async with subject.beside(producer.burst(12, failing=0.1)):
                await asyncio.sleep(0.3)
            assert await nursery.kill(workers[victim]) == -9
            crashes += 1
            workers[victim] = await nursery.start()
        async with subject.make(dsn, oracle.outside_file) as app:
            await subject.eventually(dsn, "select count(*) > 0 from effect")
            await nursery.kill(workers[0])
            await nursery.kill(workers[1])
            await subject.heal(app, dsn)
    check(dsn, oracle, crashes=crashes + 2)


@pytest.mark.verify
async def test_a_storm_of_kills(database: str, tmp_path: Path, long: bool) -> None:
    await storm(database, tmp_path, seed=0, seconds=20 if long else 3)


@pytest.mark.verify
@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
async def test_more_storms_of_kills(database: str, tmp_path: Path, seed: int) -> None:
    await storm(database, tmp_path, seed, seconds=20)
