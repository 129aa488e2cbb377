"""Fault 15: deadlocks, serialization failures, lock timeouts: nobody's fault. All is done in the end, no attempt used."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.subject import LOOSE, Ear, Fact, Producer
from tests.oracle import EFFECT, Oracle, check

from outrider import HandlerContext, Outrider
from outrider.signals import Troubled

pytestmark = pytest.mark.verify

ROWS = (
    "create table account (id integer primary key, n integer not null default 0); insert into account values (1), (2)"
)
FIRST, SECOND = "fault.first", "fault.second"
TAKE_LOCK = "update account set n = n + 1 where id = %s"
SERIALIZATION = "do $$ begin raise exception 'as told' using errcode = '40001'; end $$"


async def setup(dsn: str, app: Outrider) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(ROWS)
    await subject.setup(dsn, app)


async def test_handlers_that_deadlock(database: str, tmp_path: Path, long: bool) -> None:
    """Two handlers take the same two locks in opposite orders, and wait for each other on purpose."""
    oracle, app = Oracle(tmp_path), Outrider(context="fault", dsn=database, poll=0.5)
    both = asyncio.Barrier(2)

    def declare(name: str, *order: int) -> None:
        @app.handler(Fact, name=name)
        async def opposing(fact: Fact, ctx: HandlerContext) -> None:
            await ctx.tx.execute("set local deadlock_timeout = '20ms'")
            await ctx.tx.execute(EFFECT, [name, fact.key, fact.n, ctx.envelope.seq])
            await ctx.tx.execute(TAKE_LOCK, [order[0]])
            try:
                async with asyncio.timeout(0.05):
                    await both.wait()
            except (TimeoutError, asyncio.BrokenBarrierError):
                await both.reset()
            await ctx.tx.execute(TAKE_LOCK, [order[1]])

    declare(FIRST, 1, 2)
    declare(SECOND, 2, 1)
    await setup(database, app)
    async with app:
        ear = Ear(app)
        async with subject.worker_of(app):
            rounds = 0
            while rounds < (30 if long else 3) or "40P01" not in [each.code for each in ear.all(Troubled)]:
                rounds += 1  # on a busy machine they may not meet
                await Producer(database, oracle).publish(3, key="k")
                await subject.all_handled(database, oracle, FIRST, SECOND)
    check(database, oracle, blameless=True, unsuspected=True)


async def test_serialization_failures(database: str, tmp_path: Path, long: bool) -> None:
    oracle, app, met = Oracle(tmp_path), Outrider(context="fault", dsn=database, poll=0.5), Counter[int]()

    @app.handler(Fact, name=LOOSE, order="none", partitions=4)
    async def serialized(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [LOOSE, fact.key, fact.n, ctx.envelope.seq])
        met[fact.n] += 1
        if fact.n % 4 == 0 and met[fact.n] < 3:
            await ctx.tx.execute(SERIALIZATION)

    await subject.setup(database, app)
    async with app:
        ear = Ear(app)
        async with subject.worker_of(app):
            await Producer(database, oracle).publish(400 if long else 24, key="k")
            await subject.all_handled(database, oracle, LOOSE, seconds=60)
        assert {troubled.code for troubled in ear.all(Troubled)} == {"40001"}
    check(database, oracle, blameless=True, unsuspected=True)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_row_that_stays_locked(database: str, tmp_path: Path, workers: int) -> None:
    """Every try ends with a lock timeout, in whichever session of whichever worker; then the row is free."""
    oracle, app = Oracle(tmp_path), Outrider(context="fault", dsn=database, poll=0.2)

    @app.handler(Fact, name=LOOSE, partitions=2)
    async def impatient(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute("set local lock_timeout = '5ms'")
        await ctx.tx.execute(TAKE_LOCK, [1])
        await ctx.tx.execute(EFFECT, [LOOSE, fact.key, fact.n, ctx.envelope.seq])

    await setup(database, app)
    async with app, await AsyncConnection.connect(database) as blocking:
        ear = Ear(app)
        await blocking.execute(TAKE_LOCK, [1])
        await Producer(database, oracle).publish(8, key="k")
        async with asyncio.TaskGroup() as group:
            running = [subject.worker_of(app) for _ in range(workers)]
            for each in running:
                group.create_task(each.run())
            await ear.until(lambda: len(ear.all(Troubled)) >= 9)
            await blocking.rollback()
            await subject.eventually(
                database, "select count(*) = 8 or (select bool_or(suspect) from blame) from effect"
            )
            for each in running:
                each.stop()
        await subject.heal(app, database)
        assert {troubled.code for troubled in ear.all(Troubled)} == {"55P03"}
    check(database, oracle, blameless=True, unsuspected=True)


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_suspect_that_meets_infrastructure_trouble(database: str, tmp_path: Path, workers: int) -> None:
    """Its worker has died before, so it runs alone and counted. A serialization failure is not a death of the worker,
    also where each worker meets one, and then ends in good order."""
    oracle, app = Oracle(tmp_path), Outrider(context="fault", dsn=database, poll=0.1)
    calm = asyncio.Event()

    @app.handler(Fact, name=LOOSE)
    async def serialized(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [LOOSE, fact.key, fact.n, ctx.envelope.seq])
        if not calm.is_set():
            await ctx.tx.execute(SERIALIZATION)

    await subject.setup(database, app)
    await Producer(database, oracle).publish(key="k")
    async with app, await AsyncConnection.connect(database, autocommit=True) as conn:
        for _ in range(3):
            await conn.execute("begin")
            await conn.execute(f"select outrider.take('{LOOSE}', p_knows => '{{fault.fact}}')".encode())
            await conn.execute("rollback")
        ear = Ear(app)
        for _ in range(workers):
            troubles = len(ear.all(Troubled)) + 5 // workers
            async with subject.worker_of(app):
                await ear.until(lambda: len(ear.all(Troubled)) >= troubles)  # noqa: B023
            await conn.execute("update outrider.delivery set run_at = now() where head and status = 'pending'")
        calm.set()
        await subject.heal(app, database)
    check(database, oracle, blameless=True)
