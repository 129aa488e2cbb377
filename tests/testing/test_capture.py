"""capture: exactly what this block published."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.testing.orders import OrderPlaced, OrderShipped, PlacedElsewhere, order

from outrider import Outrider
from outrider.testing import capture

Conn = AsyncConnection[tuple[object, ...]]


@pytest.fixture
def app() -> Outrider:
    return Outrider(context="shop")


@pytest.fixture
async def conn(database: str) -> AsyncIterator[Conn]:
    async with await AsyncConnection.connect(database) as conn:
        yield conn
        await conn.rollback()


async def test_what_the_block_published_and_nothing_before_or_after(app: Outrider, conn: Conn) -> None:
    await app.publish(conn, order(1))
    with capture(app) as published:
        two = await app.publish(conn, order(2))
        three, _ = await app.publish_many(conn, [order(3), OrderShipped(order_id="3")])
    await app.publish(conn, order(4))
    assert published.events == [order(2), order(3), OrderShipped(order_id="3")]
    assert published.envelopes[:2] == [two, three]
    assert published.of(OrderPlaced) == [order(2), order(3)]
    assert published.of(PlacedElsewhere) == [PlacedElsewhere(order_id="2"), PlacedElsewhere(order_id="3")]


async def test_a_rolled_back_publish_is_seen(app: Outrider, conn: Conn) -> None:
    with capture(app) as published:
        async with conn.transaction(force_rollback=True):
            await app.publish(conn, order(1))
    assert published.events == [order(1)]


def test_in_blocking_code(app: Outrider, database: str) -> None:
    with capture(app) as published, psycopg.connect(database) as conn:
        app.publish_sync(conn, order(1))
    assert published.events == [order(1)]


async def test_blocks_in_parallel_see_their_own(app: Outrider, database: str) -> None:
    ready = asyncio.Barrier(5)

    async def publish(number: int) -> tuple[list[object], int]:
        async with await AsyncConnection.connect(database) as conn:
            await ready.wait()
            with capture(app) as published:
                await ready.wait()
                await app.publish(conn, order(number))
                await ready.wait()
            return [*published.events], published.elsewhere

    assert await asyncio.gather(*map(publish, range(5))) == [([order(n)], 4) for n in range(5)]


async def test_tasks_and_threads_that_the_block_starts(app: Outrider, conn: Conn, database: str) -> None:
    def in_thread(number: int) -> None:
        with psycopg.connect(database) as blocking:
            app.publish_sync(blocking, order(number))

    with capture(app) as published:
        await asyncio.create_task(app.publish(conn, order(1)))
        await asyncio.to_thread(in_thread, 2)
    assert published.events == [order(1), order(2)]


async def test_everywhere_sees_threads_of_others(app: Outrider, database: str) -> None:
    go = threading.Event()

    def in_thread() -> None:
        go.wait()
        with psycopg.connect(database) as blocking:
            app.publish_sync(blocking, order(1))

    thread = threading.Thread(target=in_thread)
    thread.start()
    with capture(app) as published, capture(app, everywhere=True) as everything:
        go.set()
        await asyncio.to_thread(thread.join)
    assert (published.events, published.elsewhere) == ([], 1)
    assert everything.events == [order(1)]


async def test_blocks_in_blocks(app: Outrider, conn: Conn) -> None:
    with capture(app) as outer:
        await app.publish(conn, order(1))
        with capture(app) as inner:
            await app.publish(conn, order(2))
    assert outer.events == [order(1), order(2)]
    assert inner.events == [order(2)]


async def test_another_app_is_not_heard(app: Outrider, conn: Conn) -> None:
    with capture(app) as published:
        await Outrider(context="other").publish(conn, order(1))
    assert published.events == []


async def test_a_block_that_fails_listens_no_longer(app: Outrider, conn: Conn) -> None:
    with pytest.raises(ZeroDivisionError), capture(app) as published:
        raise ZeroDivisionError
    await app.publish(conn, order(1))
    assert (published.events, published.elsewhere) == ([], 0)
