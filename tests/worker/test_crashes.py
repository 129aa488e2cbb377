"""Events that kill their worker: noticed across deaths, isolated, counted, buried; the innocent ones beside them go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from psycopg import AsyncConnection
from tests.mutants import changed
from tests.worker.shop import Placed, Shop, opened

from outrider import HandlerContext
from outrider.postgres import connection
from outrider.worker.handler_reader import HandlerReader

POISON = "c3"


def deadly(reached: asyncio.Event) -> Callable[[Shop], None]:
    """A handler that never comes back from the poison; whoever waits for it is ended from outside."""

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            if f"{event.customer}{event.n}" == POISON:
                reached.set()
                await asyncio.Event().wait()

    return declare


async def die(dsn: str) -> None:
    """A worker takes, runs into the poison, and is gone."""
    reached = asyncio.Event()
    async with opened(dsn, deadly(reached)) as shop:
        task = asyncio.create_task(shop.app.drain())
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        waiting.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


async def test_three_deaths_isolate_and_three_more_bury(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "b2", POISON, "c4", "d5")
        for _ in range(3):
            await die(database)
            assert await shop.parked() == {}
        await die(database)
        parked = await shop.parked()
        assert parked.keys() == {POISON, "c4", "d5"}, "the batch was parked, and its events run one at a time"
        assert all(row["suspect"] for row in parked.values())
        assert parked[POISON]["crashes"] == 1
        assert await shop.effects() == ["a1", "b2"]
        for deaths in (2, 3):
            await shop.make_due()
            await die(database)
            assert (await shop.parked())[POISON]["crashes"] == deaths
        await shop.make_due()
        await shop.app.drain()
        parked = await shop.parked()
        assert parked.keys() == {POISON}
        assert (parked[POISON]["status"], parked[POISON]["last_error_code"]) == ("failed", "worker_crash")
        assert parked[POISON]["failure_history"][-1]["code"] == "worker_crash"
        assert sorted(await shop.effects()) == ["a1", "b2", "c4", "d5"]


async def test_a_rollback_is_excused_before_it_waits_for_the_cursor(database: str) -> None:
    """While it waits, others take the cursor, fail and wait as well: three of them would look like three deaths."""
    excused = "select coalesce(pg_sequence_last_value('outrider.excused_1'), 0)"
    failed = '[{"seq": 1, "attempt": 1, "delay": 60, "code": "ValueError", "counted": true, "dead": false}]'
    async with opened(database) as shop, contextlib.AsyncExitStack() as stack:
        await shop.publish("a1")
        holder, parking, looking = [
            await stack.enter_async_context(await AsyncConnection.connect(database, autocommit=True)) for _ in range(3)
        ]
        async with holder.transaction():
            await holder.execute("select from outrider.cursor where id = 1 for update")
            park = "select outrider.park('shop.effect', 1, %s)"
            waiting = asyncio.create_task(parking.execute(park, [failed]))
            blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
            while (await (await looking.execute(blocked, [parking.info.backend_pid])).fetchone()) != (True,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await (await looking.execute(excused)).fetchone() == (1,)
        assert await (await waiting).fetchone() == ([1],)
        assert await (await looking.execute(excused)).fetchone() == (1,), "once"


async def test_an_excuse_that_is_on_its_way_is_waited_for(database: str) -> None:
    """Between a rollback and its excuse another worker may take: the rollback would look like a death."""
    take = "select seq from outrider.take('shop.effect', p_knows => %s) where seq is not null"
    async with (
        opened(database) as shop,
        await AsyncConnection.connect(database) as taking,
        await AsyncConnection.connect(database, autocommit=True) as other,
    ):
        await shop.publish("a1", "b2")
        # It waits ten times, on a busy machine too briefly for this test.
        await other.execute(changed("count_deaths", ("pg_sleep(0.02)", "pg_sleep(1)")).encode())
        await other.execute("select nextval('outrider.takes_1') from generate_series(1, 3)")
        taken = asyncio.create_task(taking.execute(take, [["dispatch.placed", "dispatch.cancelled"]]))
        sleeps = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
        while await (await other.execute(sleeps, [taking.info.backend_pid])).fetchone() is None and not taken.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await other.execute("select nextval('outrider.excused_1') from generate_series(1, 3)")
        assert await (await taken).fetchall() == [(1,), (2,)], "nothing is under suspicion"
        await taking.rollback()


async def test_a_rollback_in_good_order_is_no_death(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish(*(f"a{n}" for n in range(8)))
        for n in range(1, 8, 2):

            def fail() -> None:
                raise ValueError

            shop.wrong[f"a{n}"] = fail
        await shop.app.drain()
        assert not any(row["suspect"] for row in (await shop.parked()).values())


async def test_a_sequence_that_jumped_is_no_death(database: str) -> None:
    """After a crash of the server a sequence goes on some numbers further on."""
    async with opened(database) as shop:
        [row] = await shop.rows("select id from outrider.cursor")
        await shop.rows(f"select setval('outrider.takes_{row['id']}', 20)")
        await shop.publish("a1", "a2")
        assert (await shop.app.drain()).handled == 2
        assert await shop.parked() == {}


async def test_a_suspect_that_has_to_wait_for_its_partition_is_run_and_not_counted_again(database: str) -> None:
    """It is counted, and committed, before it runs; in between another worker may get hold of the partition."""
    async with opened(database) as shop:
        await shop.publish("a1")
        [row] = await shop.rows("select id from outrider.cursor")
        await shop.rows(f"select nextval('outrider.takes_{row['id']}') from generate_series(1, 3)")
        tail = HandlerReader(shop.app.handlers[0], shop.app.signals, schema="outrider", generation=0, worker="test")
        async with (
            await connection.connect(database, autocommit=True) as conn,
            await connection.connect(database, autocommit=True) as other,
        ):
            assert (await tail.step(conn)).outcome == "more", "parked as suspect"
            assert (await tail.step(conn)).outcome == "armed"
            async with other.transaction():
                await other.execute("select from outrider.cursor for update")
                for _ in range(3):
                    assert (await tail.step(conn)).outcome == "busy"
            assert (await tail.step(conn)).handled == 1
        tail.close()
        assert await shop.effects() == ["a1"]
        assert await shop.parked() == {}


async def leave(shop: Shop, reached: asyncio.Event) -> None:
    """A worker is told to leave while it runs into the poison, and its grace time is over at once."""
    reached.clear()
    worker = shop.app.worker(grace=0)
    running = asyncio.create_task(worker.run())
    await reached.wait()
    worker.stop()
    assert not await running


async def test_a_worker_that_is_told_to_leave_counts_no_death(database: str) -> None:
    """Its grace time is over before the handler returns: three of those do not make a suspect of the event."""
    reached = asyncio.Event()
    async with opened(database, deadly(reached)) as shop:
        await shop.publish(POISON)
        for _ in range(4):
            await leave(shop, reached)
        assert await shop.parked() == {}


async def test_a_suspect_whose_worker_is_told_to_leave_is_not_counted(database: str) -> None:
    reached = asyncio.Event()
    async with opened(database, deadly(reached)) as shop:
        await shop.publish(POISON)
        [row] = await shop.rows("select id from outrider.cursor")
        await shop.rows(f"select nextval('outrider.takes_{row['id']}') from generate_series(1, 3)")
        for _ in range(2):
            await leave(shop, reached)
            parked = await shop.parked()
            assert (parked[POISON]["suspect"], parked[POISON]["crashes"]) == (True, 0)
