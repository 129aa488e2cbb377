"""drain and drain_sync: handlers inside the test's own transaction, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from tests.testing.orders import OrderPlaced, OrderShipped, committed, order

from outrider import Bury, HandlerContext, Outrider, OutriderError, SyncHandlerContext, TerminalError
from outrider.errors import ConfigError, CursorError, Undecodable
from outrider.testing import assert_published_in, assert_published_in_sync, capture, drain, drain_sync, draining

INVOICE = "insert into invoice (order_id, made_by) values (%s, %s)"


@pytest.fixture
def app() -> Outrider:
    return Outrider(context="shop")


@pytest.fixture
async def conn(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(database) as conn:
        await conn.execute("create table invoice (order_id text, made_by text)")
        yield conn
        await conn.rollback()
    assert committed(database) == {}


@pytest.fixture
def blocking(database: str) -> Iterator[Connection[Any]]:
    with psycopg.connect(database) as conn:
        conn.execute("create table invoice (order_id text, made_by text)")
        yield conn
        conn.rollback()
    assert committed(database) == {}


async def invoices(conn: AsyncConnection[Any]) -> list[tuple[str, str]]:
    return await (await conn.execute("select order_id, made_by from invoice order by order_id, made_by")).fetchall()


def declare_every_kind(app: Outrider) -> None:
    """One handler of each kind, each invoicing under its own name."""

    @app.handler(OrderPlaced, name="shop.a_async")
    async def in_async(event: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute(INVOICE, [event.order_id, "async"])

    @app.handler(OrderPlaced, name="shop.b_sync")
    def in_sync(event: OrderPlaced, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(INVOICE, [event.order_id, "sync"])

    @app.handler(OrderPlaced, name="shop.c_batch")
    async def in_batch(events: list[OrderPlaced], ctx: HandlerContext) -> None:
        await ctx.tx.execute(INVOICE, ["+".join(event.order_id for event in events), "batch"])

    @app.handler(OrderPlaced, name="shop.d_sync_batch")
    def in_sync_batch(events: list[OrderPlaced], ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(INVOICE, ["+".join(event.order_id for event in events), "sync batch"])

    def made_with(tx: AsyncConnection[Any]) -> Any:
        async def handle(event: OrderPlaced) -> None:
            await tx.execute(INVOICE, [event.order_id, "factory"])

        return handle

    app.subscribe(OrderPlaced, made_with, name="shop.e_factory")


EVERY_KIND = [
    ("1", "async"),
    ("1", "factory"),
    ("1", "sync"),
    ("1+2", "batch"),
    ("1+2", "sync batch"),
    ("2", "async"),
    ("2", "factory"),
    ("2", "sync"),
]


async def test_handlers_of_every_kind(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    await app.publish_many(conn, [order(1), order(2)])
    drained = await drain(app, conn)
    assert await invoices(conn) == EVERY_KIND
    assert (drained.handled, drained.duplicates, drained.to_retry, drained.buried) == (10, 0, 0, 0)
    assert set(drained.by_handler.values()) == {2}


def test_handlers_of_every_kind_on_a_blocking_connection(app: Outrider, blocking: Connection[Any]) -> None:
    declare_every_kind(app)
    app.publish_many_sync(blocking, [order(1), order(2)])
    assert drain_sync(app, blocking).handled == 10
    found = blocking.execute("select order_id, made_by from invoice order by order_id, made_by").fetchall()
    assert found == EVERY_KIND
    assert drain_sync(app, blocking).handled == 0


def test_blocking_handlers_run_in_the_callers_thread_without_a_loop(app: Outrider, blocking: Connection[Any]) -> None:
    seen: list[threading.Thread] = []

    @app.handler(OrderPlaced, name="shop.look")
    def look(_: OrderPlaced) -> None:
        seen.append(threading.current_thread())
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    app.publish_sync(blocking, order(1))
    drain_sync(app, blocking)
    assert seen == [threading.current_thread()]


async def test_a_second_drain_handles_only_what_is_new(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    await app.publish(conn, order(1))
    assert (await drain(app, conn, handlers=["shop.a_*"])).by_handler == {"shop.a_async": 1}
    assert (
        str(await drain(app, conn, handlers=["shop.a_*"]))
        == "0 handled, 0 to retry, 0 dead letters, 0 duplicates skipped"
    )
    await app.publish(conn, order(2))
    assert (await drain(app, conn, exclude=["shop.[b-z]*"])).handled == 1
    assert (await drain(app, conn)).handled == 8
    with pytest.raises(ConfigError, match="no handler, job, relay, inbox or rollup is called"):
        await drain(app, conn, handlers=["shop.unknown"])


async def test_what_handlers_publish_is_handled_and_captured(app: Outrider, conn: AsyncConnection[Any]) -> None:
    @app.handler(OrderShipped, name="shop.invoice")
    def invoice(event: OrderShipped, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(INVOICE, [event.order_id, "shipped"])
        app.publish_sync(ctx.tx, OrderPlaced(order_id="again"))

    @app.handler(OrderPlaced, name="shop.ship")
    async def ship(event: OrderPlaced, ctx: HandlerContext) -> None:
        if event.order_id != "again":
            await app.publish(ctx.tx, OrderShipped(order_id=event.order_id))

    await app.publish(conn, order(1))
    with capture(app) as published:
        drained = await drain(app, conn)
    assert drained.by_handler == {"shop.ship": 2, "shop.invoice": 1}
    assert published.events == [OrderShipped(order_id="1"), OrderPlaced(order_id="again")]
    assert await invoices(conn) == [("1", "shipped")]
    assert await assert_published_in(conn, OrderPlaced, key="again")


def test_what_handlers_publish_is_captured_on_a_blocking_connection(app: Outrider, blocking: Connection[Any]) -> None:
    @app.handler(OrderPlaced, name="shop.ship")
    async def ship(event: OrderPlaced, ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, OrderShipped(order_id=event.order_id))

    @app.handler(OrderPlaced, name="shop.ship_too")
    def ship_too(event: OrderPlaced, ctx: SyncHandlerContext) -> None:
        app.publish_sync(ctx.tx, OrderShipped(order_id=event.order_id))

    app.publish_sync(blocking, order(1))
    with capture(app) as published:
        drain_sync(app, blocking)
    assert published.events == [OrderShipped(order_id="1")] * 2
    assert_published_in_sync(blocking, OrderShipped, times=2)


async def test_a_loop_without_end_is_told(
    app: Outrider, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "MOST_CAUSED", 50)

    @app.handler(OrderPlaced, name="shop.echo")
    async def echo(event: OrderPlaced, ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, event)

    await app.publish_many(conn, [order(n) for n in range(30)])
    with pytest.raises(OutriderError, match=r"have published 60 events.*shop\.echo 90"):
        await drain(app, conn)


async def test_only_what_the_handler_wants(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    await app.publish(conn, OrderShipped(order_id="1"))
    await app.publish(conn, order(1), target="elsewhere")
    assert (await drain(app, conn, handlers=["shop.a_async"])).handled == 0
    await app.publish(conn, order(2), target="shop")
    assert (await drain(app, conn, handlers=["shop.a_async"])).handled == 1


async def test_a_duplicate_is_conceded(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    for number in (1, 2):
        await app.publish(conn, order(number), idempotency_key="once")
    await app.publish(conn, OrderShipped(order_id="3"), idempotency_key="once")
    drained = await drain(app, conn, handlers=["shop.a_async", "shop.c_batch"])
    assert (drained.handled, drained.duplicates) == (2, 2)
    assert await invoices(conn) == [("1", "async"), ("1", "batch")]
    keys = await conn.execute("select distinct idempotency_key from outrider.event_handled")
    assert await keys.fetchall() == [("kit.placed:once",)]


async def test_committed_events_are_not_touched(app: Outrider, database: str) -> None:
    declare_every_kind(app)
    async with await AsyncConnection.connect(database) as conn:
        await app.publish(conn, order(1))
        await conn.commit()
        await conn.execute("select 1")
        assert (await drain(app, conn)).handled == 0


async def test_inside_savepoints_of_the_test(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    async with conn.transaction(force_rollback=True):
        await app.publish(conn, order(1))
        async with conn.transaction():
            await app.publish(conn, order(2))
            assert (await drain(app, conn, handlers=["shop.a_async"])).handled == 2
        assert await invoices(conn) == [("1", "async"), ("2", "async")]
    assert await invoices(conn) == []
    assert (await drain(app, conn)).handled == 0


async def test_on_an_autocommit_connection(app: Outrider, database: str) -> None:
    declare_every_kind(app)
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        async with conn.transaction(force_rollback=True):
            await conn.execute("create table invoice (order_id text, made_by text)")
            await app.publish(conn, order(1))
            assert (await drain(app, conn)).handled == 5
        with pytest.raises(CursorError, match=r"drain reads an open transaction.*use app.drain\(\)"):
            await drain(app, conn)
        with pytest.raises(TypeError, match=r"this is a psycopg AsyncConnection: use drain\(\) with it"):
            drain_sync(app, conn)
    assert committed(database) == {}


async def test_a_failure_is_raised_and_its_savepoint_rolled_back(app: Outrider, conn: AsyncConnection[Any]) -> None:
    @app.handler(OrderPlaced, name="shop.fail")
    async def fail(event: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute(INVOICE, [event.order_id, "fail"])
        if event.order_id == "2":
            raise ZeroDivisionError("two")

    await app.publish_many(conn, [order(1), order(2), order(3)])
    with pytest.raises(ZeroDivisionError, match="two"):
        await drain(app, conn)
    assert await invoices(conn) == [("1", "fail")]
    receipts = await conn.execute("select count(*) from outrider.event_handled")
    assert await receipts.fetchone() == (1,)


@pytest.mark.parametrize("order_", ["key", "none", "total"])
async def test_failures_are_counted_and_hold_what_must_wait(
    app: Outrider, conn: AsyncConnection[Any], order_: Any
) -> None:
    broken = True

    @app.handler(OrderPlaced, name="shop.fail", order=order_)
    def fail(event: OrderPlaced, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(INVOICE, [event.order_id, str(event.total)])
        if broken and event.total == 1:
            raise ZeroDivisionError
        if broken and event.total == 2:
            raise Bury("for good")

    for number, total in (("a", 2), ("a", 1), ("a", 3), ("b", 4)):
        await app.publish(conn, OrderPlaced(order_id=number, total=total))
    drained = await drain(app, conn, raise_on_failure=False)
    assert (drained.to_retry, drained.buried) == (1, 1)
    wanted = {"key": [("b", "4")], "none": [("a", "3"), ("b", "4")], "total": []}
    assert await invoices(conn) == wanted[order_]
    broken = False
    assert (await drain(app, conn)).handled == 4 - drained.handled


@pytest.mark.parametrize("blocking_handler", [False, True])
async def test_a_failing_batch_is_tried_one_by_one(
    app: Outrider, conn: AsyncConnection[Any], blocking_handler: bool
) -> None:
    calls: list[list[str]] = []

    def note(events: list[OrderPlaced]) -> None:
        calls.append([event.order_id for event in events])
        if "2" in calls[-1]:
            raise ZeroDivisionError

    async def note_async(events: list[OrderPlaced]) -> None:
        note(events)

    app.handler(OrderPlaced, name="shop.note", limit=3)(note if blocking_handler else note_async)
    await app.publish_many(conn, [order(n) for n in range(5)])
    drained = await drain(app, conn, raise_on_failure=False)
    assert (drained.handled, drained.to_retry) == (4, 1)
    assert calls == [["0", "1", "2"], ["0"], ["1"], ["2"], ["3", "4"]]
    with pytest.raises(ZeroDivisionError):
        await drain(app, conn)


async def test_an_undecodable_event_leaves_its_batch(app: Outrider, conn: AsyncConnection[Any]) -> None:
    declare_every_kind(app)
    await app.publish(conn, order(1))
    await conn.execute("select outrider.publish('kit.placed', '{}')")
    await app.publish(conn, order(2))
    drained = await drain(app, conn, handlers=["shop.c_batch"], raise_on_failure=False)
    assert (drained.handled, drained.buried) == (2, 1)
    assert await invoices(conn) == [("1+2", "batch")]
    with pytest.raises(Undecodable, match="order_id"):
        await drain(app, conn, handlers=["shop.a_async"])


async def test_a_swallowed_database_error_is_a_failure(app: Outrider, conn: AsyncConnection[Any]) -> None:
    @app.handler(OrderPlaced, name="shop.swallow")
    async def swallow(_: OrderPlaced, ctx: HandlerContext) -> None:
        with pytest.raises(psycopg.Error):
            await ctx.tx.execute("select 1 / 0")

    await app.publish(conn, order(1))
    assert (await drain(app, conn, raise_on_failure=False)).to_retry == 1
    assert await invoices(conn) == []


async def test_a_handler_that_ends_the_transaction_is_told_in_any_case(app: Outrider, database: str) -> None:
    @app.handler(OrderPlaced, name="shop.roll_back")
    async def roll_back(_: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute("rollback")

    async with await AsyncConnection.connect(database) as conn:
        await app.publish(conn, order(1))
        with pytest.raises(TerminalError, match="ended its transaction"):
            await drain(app, conn, raise_on_failure=False)


async def test_a_handler_that_takes_too_long(app: Outrider, conn: AsyncConnection[Any]) -> None:
    @app.handler(OrderPlaced, name="shop.hang", timeout=0.05)
    async def hang(_: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute("select pg_sleep(60)")

    await app.publish(conn, order(1))
    assert (await drain(app, conn, raise_on_failure=False)).to_retry == 1
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        await drain(app, conn)
    assert await invoices(conn) == []


async def test_what_the_context_says(app: Outrider, conn: AsyncConnection[Any]) -> None:
    seen: list[Any] = []

    @app.handler(OrderPlaced, name="shop.look")
    async def look(_: OrderPlaced, ctx: HandlerContext) -> None:
        seen.append((ctx.envelope, ctx.attempt, ctx.tx))
        with pytest.raises(psycopg.ProgrammingError, match="belongs to the worker"):
            await ctx.tx.commit()

    written = await app.publish(conn, order(1), workspace_id="acme")
    await drain(app, conn)
    [(envelope, attempt, tx)] = seen
    assert (envelope.id, envelope.workspace_id, envelope.seq, attempt) == (written.id, "acme", written.seq, 1)
    with pytest.raises(psycopg.InterfaceError, match="after its handler had returned"):
        await tx.execute("select 1")


async def test_another_schema(empty_database: str) -> None:
    app = Outrider(context="shop", dsn=empty_database, schema="other_log")
    handled: list[str] = []
    app.handler(OrderPlaced, name="shop.note")(lambda event: handled.append(event.order_id))
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish(conn, order(1))
            await drain(app, conn)
            await assert_published_in(conn, OrderPlaced, schema="other_log")
            await conn.rollback()
    assert handled == ["1"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_blocking_handler_that_takes_too_long_costs_the_connection(
    app: Outrider, database: str, kind: str
) -> None:
    """Its thread cannot be stopped, only cut off; so this is raised whatever was asked."""

    @app.handler(OrderPlaced, name="shop.hang", timeout=0.05)
    def hang(_: OrderPlaced, ctx: SyncHandlerContext) -> None:
        threading.Event().wait(0.3)
        ctx.tx.execute("select 1")

    if kind == "async":
        async with await AsyncConnection.connect(database) as conn:
            await app.publish(conn, order(1))
            with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
                await drain(app, conn, raise_on_failure=False)
            assert conn.closed
    else:
        with psycopg.connect(database) as blocking:
            app.publish_sync(blocking, order(1))
            with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
                drain_sync(app, blocking, raise_on_failure=False)
            assert blocking.closed
    assert committed(database) == {}
