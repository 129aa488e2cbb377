"""Order within a key, and of everything where it was asked for, across retries and deaths of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.nursery import Nursery
from tests.faults.subject import KEYED, NAMES, RETRY, TOTAL, Ear, Fact, Producer
from tests.oracle import EFFECT, Oracle, check
from tests.tiers import one_in_test

from outrider import HandlerContext, Outrider, RetryPolicy
from outrider.signals import Failed, ListenerUp, RetryScheduled

WRONG_TOTAL = f"""select count(*) from (
    select seq < max(seq) over (order by at) as wrong from effect where subscription = '{TOTAL}') as e where wrong"""


async def retries(dsn: str, folder: Path, seed: int, transactions: int = 30) -> None:
    """Events that fail at random, once to four times, in one process; one producer, so that the total order is seq."""
    oracle = Oracle(folder)
    await subject.setup(dsn)
    producer = Producer(dsn, oracle, seed, keys=4)
    async with subject.make(dsn, oracle.outside_file, poll=0.1) as app:
        async with subject.worker_of(app), await AsyncConnection.connect(dsn) as conn:
            for _ in range(transactions):
                acts: dict[str, Any] = {}
                if producer.random.random() < 0.25:
                    on, times = producer.random.choice(["", *NAMES]), producer.random.randint(1, 4)
                    acts = {"act": "fail", "on": on, "times": times}
                await producer.publish_on(conn, producer.random.randint(1, 3), **acts)
            await subject.all_handled(dsn, oracle, seconds=30)
        await subject.heal(app, dsn)
    check(dsn, oracle, unsuspected=True)
    await subject.eventually(dsn, WRONG_TOTAL, 0, seconds=0.1)


@pytest.mark.parametrize("seed", one_in_test(range(2), 0))
async def test_order_across_retries(database: str, tmp_path: Path, seed: int) -> None:
    await retries(database, tmp_path, seed)


@pytest.mark.verify
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
async def test_order_across_more_retries(database: str, tmp_path: Path, seed: int) -> None:
    await retries(database, tmp_path, seed, transactions=300)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(1))
async def test_order_across_retries_and_deaths(database: str, tmp_path: Path, seed: int, long: bool) -> None:
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    producer = Producer(database, oracle, seed, keys=4)
    rounds = 40 if long else 6
    async with Nursery(database, oracle) as nursery:
        workers = [await nursery.start(), await nursery.start()]
        for number in range(rounds):
            before = len(oracle.outside())
            await producer.burst(15, failing=0.3)
            await subject.so(lambda: len(oracle.outside()) > before)  # noqa: B023
            await nursery.kill(workers[number % 2])
            workers[number % 2] = await nursery.start()
        for worker in workers:
            await nursery.kill(worker)
        await subject.finish(database, oracle)
    check(database, oracle, crashes=rounds + 2)
    await subject.eventually(database, WRONG_TOTAL, 0, seconds=0.1)


@pytest.mark.verify
@pytest.mark.parametrize("order", ["key", "none", "total"])
async def test_a_retry_comes_when_it_is_due(database: str, tmp_path: Path, order: str) -> None:
    """Also the second and the third, without a poke and with an hour between polls."""
    oracle, app = Oracle(tmp_path), Outrider(context="fault", dsn=database, poll=3600)

    @app.handler(Fact, name=KEYED, order=order, retry=RETRY)  # type: ignore[arg-type]
    async def failing(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
        if ctx.attempt < 5:
            raise RuntimeError("as told")

    await subject.setup(database, app)
    async with app:
        ear = Ear(app)
        async with subject.worker_of(app):
            await ear.until(lambda: bool(ear.all(ListenerUp)))
            await Producer(database, oracle).publish(key="k")
            await subject.all_handled(database, oracle, KEYED, seconds=25)
        assert [parked.attempt for parked in ear.all(RetryScheduled)] == [1, 2, 3, 4]
    check(database, oracle, unsuspected=True)


@pytest.mark.verify
async def test_every_failure_is_counted_once(database: str, tmp_path: Path) -> None:
    """A failed event that the next, smaller take does not reach stays in mind, whatever that take parks."""
    oracle, app = Oracle(tmp_path), Outrider(context="fault", dsn=database)

    @app.handler(Fact, name=KEYED, retry=RetryPolicy(retries=1, base="1h", cap="1h", jitter="none"))
    async def failing(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
        if fact.act == "fail" and ctx.attempt == 1:
            raise RuntimeError("as told")

    await subject.setup(database, app)
    producer = Producer(database, oracle)
    async with app:
        ear = Ear(app)
        await producer.publish(key="parked", act="fail")
        await app.drain()
        # Batches of 16, 32, 64; then one of 105 that fails, and one of 64 that does not reach the failure.
        await producer.publish(112 + 50, key="fine")
        await producer.publish(key="parked")
        await producer.publish(50, key="fine")
        await producer.publish(key="late", act="fail")
        await producer.publish(3, key="fine")
        await app.drain()
        await subject.eventually(database, "select count(*) from outrider.delivery where status = 'pending'", 3)
        failures = [(failed.envelope.key, failed.attempt) for failed in ear.all(Failed)]
        assert failures == [("parked", 1), ("late", 1)]
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            await conn.execute("update outrider.delivery set run_at = now() where head")
        await subject.heal(app, database)
    check(database, oracle, unsuspected=True)
