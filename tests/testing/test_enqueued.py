"""assert_enqueued and its forms on a connection: what was enqueued, also when it is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.testing.orders import OrderPlaced, SendReceipt, committed, order

from outrider import HandlerContext, Job, Outrider
from outrider.errors import ConfigError, CursorError
from outrider.testing import (
    assert_enqueued,
    assert_enqueued_in,
    assert_enqueued_in_sync,
    assert_published,
    capture,
    drain,
    drain_sync,
)

Conn = AsyncConnection[tuple[object, ...]]


class Reindex(Job, type="kit.reindex"):
    shelf: str


def receipt(number: int, copies: int = 1) -> SendReceipt:
    return SendReceipt(order_id=str(number), copies=copies)


@pytest.fixture
def app() -> Outrider:
    return Outrider(context="shop")


@pytest.fixture
async def conn(database: str) -> AsyncIterator[Conn]:
    async with await AsyncConnection.connect(database) as conn:
        yield conn
        await conn.rollback()


@pytest.fixture
def blocking(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(database) as conn:
        yield conn
        conn.rollback()
    assert committed(database) == {}


async def test_what_the_block_enqueued_and_nothing_before_or_after(app: Outrider, conn: Conn) -> None:
    await app.enqueue(conn, receipt(1))
    with capture(app) as captured:
        async with conn.transaction(force_rollback=True):
            made = await app.enqueue(conn, receipt(2))
        await app.enqueue_many(conn, [receipt(3), receipt(4)], delay="1h", workspace_id="north")
        await app.publish(conn, order(7))
    await app.enqueue(conn, receipt(5))
    assert captured.jobs == [receipt(2), receipt(3), receipt(4)]
    assert captured.enqueued[0].id == made.id
    assert {each.workspace_id for each in captured.enqueued[1:]} == {"north"}
    assert captured.of(SendReceipt) == captured.jobs
    assert captured.events == [order(7)]
    assert assert_enqueued(captured, SendReceipt, key=3) == [receipt(3)]
    assert assert_enqueued(captured, SendReceipt, times=3, where=lambda job: job.copies == 1)
    assert_enqueued(captured, Reindex, times=0)
    assert_published(captured, OrderPlaced)


async def test_what_was_kept_is_not_enqueued(app: Outrider, conn: Conn) -> None:
    await app.enqueue(conn, Reindex(shelf="a"), unique_key="a")
    with capture(app) as captured:
        assert (await app.enqueue(conn, Reindex(shelf="a"), unique_key="a")).outcome == "kept"
        newer = await app.enqueue(conn, Reindex(shelf="b"), unique_key="a", on_conflict="replace")
    assert assert_enqueued(captured, Reindex) == [Reindex(shelf="b")]
    assert captured.enqueued[0].id == newer.id
    assert await assert_enqueued_in(conn, Reindex) == [Reindex(shelf="b")]


async def test_jobs_of_others_are_hinted_at(app: Outrider, conn: Conn) -> None:
    with capture(app) as outer:
        pass
    with capture(app) as captured:
        captured.elsewhere_jobs = 2
        await app.enqueue(conn, receipt(1, copies=3))
    with pytest.raises(AssertionError) as failing:
        assert_enqueued(captured, SendReceipt, fields={"copies": 2})
    assert str(failing.value).splitlines()[:3] == [
        "SendReceipt (kit.send_receipt) with copies=2: wanted once, enqueued not at all",
        "enqueued were:",
        "  kit.send_receipt, key '1': copies is 3, wanted 2",
    ]
    assert "2 more were enqueued meanwhile" in str(failing.value)
    with pytest.raises(AssertionError, match="nothing was enqueued"):
        assert_enqueued(outer, SendReceipt)


def test_events_are_published_and_jobs_enqueued() -> None:
    with pytest.raises(TypeError, match="OrderPlaced is an event: use assert_published"):
        assert_enqueued([], OrderPlaced, times=0)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="SendReceipt is a job: use assert_enqueued"):
        assert_published([], SendReceipt, times=0)


async def test_in_the_open_transaction(app: Outrider, conn: Conn, database: str) -> None:
    """Whatever the savepoints, and however often they were rolled back; not what others commit meanwhile."""
    await app.enqueue(conn, receipt(1))
    await conn.commit()
    async with conn.transaction():
        await app.enqueue(conn, receipt(2))
        async with await AsyncConnection.connect(database) as other:
            await app.enqueue(other, receipt(5))
        async with conn.transaction(), conn.transaction():
            await app.enqueue(conn, receipt(3))
            async with conn.transaction(force_rollback=True):
                await app.enqueue(conn, receipt(4))
            await conn.execute("""select outrider.enqueue('kit.send_receipt', '{"order_id": "6"}', key => '6')""")
            assert await assert_enqueued_in(conn, SendReceipt, times=3) == [receipt(2), receipt(3), receipt(6)]
        assert await assert_enqueued_in(conn, SendReceipt, key="3") == [receipt(3)]
        for number in (1, 4, 5):
            await assert_enqueued_in(conn, SendReceipt, key=number, times=0)
    with pytest.raises(CursorError, match="assert_enqueued_in reads an open transaction"):
        await assert_enqueued_in(conn, SendReceipt)


def test_in_the_open_transaction_of_a_blocking_connection(
    app: Outrider, blocking: psycopg.Connection[tuple[object, ...]]
) -> None:
    blocking.execute("select 1")
    assert assert_enqueued_in_sync(blocking, SendReceipt, times=0) == []
    app.enqueue_sync(blocking, receipt(1))
    assert assert_enqueued_in_sync(blocking, SendReceipt, key="1") == [receipt(1)]
    with pytest.raises(AssertionError, match="wanted once, enqueued not at all"):
        assert_enqueued_in_sync(blocking, Reindex)


async def test_what_a_handler_enqueues_in_a_drain(app: Outrider, conn: Conn) -> None:
    @app.handler(OrderPlaced, name="shop.invoice")
    async def invoice(event: OrderPlaced, ctx: HandlerContext) -> None:
        await app.enqueue(ctx.tx, SendReceipt(order_id=event.order_id))

    @app.job(SendReceipt)
    async def send(job: SendReceipt) -> None:
        raise AssertionError("jobs are not run here")

    with capture(app) as captured:
        await app.publish(conn, order(1))
        drained = await drain(app, conn)
    assert (drained.handled, drained.jobs, drained.jobs_failed) == (1, 0, 0)
    assert assert_enqueued(captured, SendReceipt) == [receipt(1)]
    assert await assert_enqueued_in(conn, SendReceipt) == [receipt(1)]


async def test_a_drain_of_jobs_alone_is_refused(app: Outrider, conn: Conn) -> None:
    @app.job(SendReceipt)
    async def send(job: SendReceipt) -> None:
        pass

    await app.enqueue(conn, receipt(1))
    with pytest.raises(ConfigError, match=r"kit\.send_receipt is a job.*assert_enqueued_in.*app\.drain\(\)"):
        await drain(app, conn)

    @app.handler(OrderPlaced, name="shop.invoice")
    async def invoice(event: OrderPlaced) -> None:
        pass

    assert (await drain(app, conn)).handled == 0
    with pytest.raises(ConfigError, match="is a job"):
        await drain(app, conn, handlers=["kit.*"])


def test_a_blocking_drain_of_jobs_alone_is_refused(
    app: Outrider, blocking: psycopg.Connection[tuple[object, ...]]
) -> None:
    app.job(SendReceipt)(lambda _: None)
    app.enqueue_sync(blocking, receipt(1))
    with pytest.raises(ConfigError, match="is a job"):
        drain_sync(app, blocking)
