"""Fault 17: an event that kills its worker becomes a dead letter after three deaths; its neighbours are handled once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.nursery import Nursery
from tests.faults.subject import KEYED, LOOSE, NAMES, TOTAL, Producer
from tests.oracle import Oracle, check

pytestmark = pytest.mark.verify

BURIED = "select count(*) from outrider.delivery where status = 'failed' and last_error_code = 'worker_crash'"
DONE = """select (select count(*) from effect) + (select count(*) from outrider.delivery where status = 'failed') >= %s
                 and not exists (select from outrider.delivery where status = 'pending')"""
DUE = "update outrider.delivery set run_at = now() where status = 'pending' and head"
ENDS = {"exit": 3, "kill": -9, "segfault": -11}
MOST_DEATHS = 16


async def poison(dsn: str, folder: Path, act: str, name: str, before: int = 5, neighbour: str = "") -> int:
    """Restart the worker as a supervisor would, until all is done; how often it died."""
    oracle = Oracle(folder)
    await subject.setup(dsn)
    producer, deaths = Producer(dsn, oracle), 0
    await producer.publish(before, key="k0")
    await producer.publish(before, key="k1")
    await producer.publish(key="k2", act=neighbour)
    bad = await producer.publish(key="k0", act=act, on=name, times=10**6)
    await producer.publish(5, key="k0")
    await producer.publish(5, key="k1")
    events = 2 * before + 12
    async with Nursery(dsn, oracle) as nursery, await AsyncConnection.connect(dsn, autocommit=True) as conn:
        worker = await nursery.start()
        while not await _done(conn, events * len(NAMES)):
            await asyncio.sleep(0.02)
            if nursery.ended(worker):
                assert await nursery.end_of(worker) == ENDS[act]
                deaths += 1
                assert deaths <= MOST_DEATHS, f"the worker died {deaths} times and the poison is not buried"
                await conn.execute(DUE)
                worker = await nursery.start()
        await nursery.kill(worker)
    check(dsn, oracle, dead=[(name, bad[0])], crashes=deaths + 1)
    await subject.eventually(dsn, BURIED, 1)
    return deaths


async def _done(conn: AsyncConnection[tuple[bool]], settled: int) -> bool:
    row = await (await conn.execute(DONE, [settled])).fetchone()
    return row == (True,)


@pytest.mark.parametrize(
    ("act", "name"), [pytest.param("exit", KEYED, marks=pytest.mark.long), ("kill", LOOSE), ("segfault", TOTAL)]
)
async def test_an_event_that_kills_its_worker(database: str, tmp_path: Path, act: str, name: str) -> None:
    assert await poison(database, tmp_path, act, name) >= 4


async def test_a_slow_neighbour_is_not_taken_for_the_poison(database: str, tmp_path: Path) -> None:
    """Another handler of the same process is at work whenever the poison kills it."""
    await poison(database, tmp_path, "kill", LOOSE, before=1, neighbour="linger")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("act", ENDS)
@pytest.mark.parametrize("before", [0, 1, 40])
async def test_more_poison(database: str, tmp_path: Path, act: str, name: str, before: int) -> None:
    await poison(database, tmp_path, act, name, before)
