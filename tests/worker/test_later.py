"""ctx.later: statements that travel together, whose errors are blamed on the event that asked for them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.proxy import Proxy
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider import HandlerContext, SyncHandlerContext

pytestmark = pytest.mark.also_on(15)
INSERT = "insert into effect (handler, name) values ('later', %s)"


def name_of(event: Placed) -> str:
    return f"{event.customer}{event.n}"


def declare_later(shop: Shop, **options: Any) -> None:
    @shop.app.handler(Placed, name="shop.effect", retry=SOON, **options)
    async def effect(event: Placed, ctx: HandlerContext) -> None:
        shop.calls.append(name_of(event))
        ctx.later(INSERT, [name_of(event)])
        if name_of(event) in shop.wrong:
            shop.wrong[name_of(event)]()


async def forbid(shop: Shop, name: str) -> None:
    await shop.rows(f"alter table effect add constraint no_{name} check (name <> '{name}')")


async def test_effects_and_receipts_commit_together_in_order(database: str) -> None:
    names = [f"{customer}{n}" for n in range(1, 101) for customer in "abc"]
    async with opened(database, declare_later) as shop:
        await shop.publish(*names)
        assert (await shop.app.drain()).handled == 300
        assert await shop.effects() == names
        assert len(await shop.rows("select 1 from outrider.event_handled")) == 300


@pytest.mark.parametrize("wrong", ["a1", "b1", "c1"])
async def test_an_error_is_blamed_on_the_event_that_asked_for_the_statement(database: str, wrong: str) -> None:
    async with opened(database, declare_later) as shop:
        await forbid(shop, wrong)
        await shop.publish("a1", "b1", "c1")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (2, 1)
        assert await shop.effects() == [name for name in ("a1", "b1", "c1") if name != wrong]
        parked = await shop.parked()
        assert parked.keys() == {wrong}
        assert parked[wrong]["last_error_code"] == "23514"
        assert len(await shop.rows("select 1 from outrider.event_handled")) == 2


async def test_what_a_failed_handler_left_is_not_sent(database: str) -> None:
    async with opened(database, declare_later) as shop:

        def fail() -> None:
            raise ValueError("no stock")

        shop.wrong["b1"] = fail
        await shop.publish("a1", "b1", "c1")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry) == (2, 1)
        assert await shop.effects() == ["a1", "c1"]


async def test_a_statement_of_ctx_tx_sends_first_what_waits(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            ctx.later(INSERT, [f"{name_of(event)} first"])
            if event.n == 2:
                await ctx.tx.execute(INSERT, [f"{name_of(event)} second"])
                async with ctx.tx.cursor() as cursor:
                    ctx.later(INSERT, [f"{name_of(event)} third"])
                    await cursor.executemany(INSERT, [[f"{name_of(event)} fourth"], [f"{name_of(event)} fifth"]])
                ctx.later(INSERT, [f"{name_of(event)} last"])

    async with opened(database, declare) as shop:
        await shop.publish("a1", "a2", "a3")
        assert (await shop.app.drain()).handled == 3
        seconds = [f"a2 {which}" for which in ("first", "second", "third", "fourth", "fifth", "last")]
        assert await shop.effects() == ["a1 first", *seconds, "a3 first"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_error_that_another_handler_sees_is_blamed_on_its_own_event(database: str, swallows: bool) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            if event.customer == "a":
                ctx.later(INSERT, [name_of(event)])
                return
            try:
                await ctx.tx.execute(INSERT, [name_of(event)])
            except psycopg.Error as error:
                if not swallows:
                    raise ValueError("converted") from error

    async with opened(database, declare) as shop:
        await forbid(shop, "a1")
        await shop.publish("a1", "b1")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (1, 1)
        assert await shop.effects() == ["b1"]
        parked = await shop.parked()
        assert parked.keys() == {"a1"}
        assert parked["a1"]["last_error_code"] == "23514"


async def test_a_savepoint_of_the_handler_keeps_its_own_statements_only(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            if event.customer == "a":
                ctx.later(INSERT, [name_of(event)])
                return
            try:
                async with ctx.tx.transaction():
                    ctx.later(INSERT, [name_of(event)])
                    raise LookupError
            except LookupError:
                ctx.later(INSERT, [f"{name_of(event)} instead"])

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b1", "a2")
        assert (await shop.app.drain()).handled == 3
        assert await shop.effects() == ["a1", "b1 instead", "a2"]


async def test_each_event_writes_as_its_own_tenant(database: str) -> None:
    insert = "insert into effect (handler, name) values (current_setting('app.workspace_id'), %s)"

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            if event.n % 2:
                await ctx.tx.execute(insert, [name_of(event)])
            ctx.later(insert, [name_of(event)])

    async with opened(database, declare) as shop:
        for name, workspace in (("a1", "red"), ("a2", "blue"), ("a3", None), ("a4", "red"), ("a5", None), ("a6", None)):
            await shop.publish(name, workspace_id=workspace)
        assert (await shop.app.drain()).handled == 6
        rows = await shop.rows("select distinct name, handler from effect order by name")
        assert [(row["name"], row["handler"]) for row in rows] == [
            ("a1", "red"), ("a2", "blue"), ("a3", ""), ("a4", "red"), ("a5", ""), ("a6", ""),
        ]  # fmt: skip


async def test_statements_of_a_batch_travel_in_few_round_trips(database: str) -> None:
    async with opened(database, declare_later) as shop:
        await shop.publish(*(f"a{n}" for n in range(90)))
        with Proxy(database) as proxy:
            async with opened(proxy.dsn, declare_later) as other:
                before = proxy.round_trips
                assert (await other.app.drain()).handled == 90
                assert proxy.round_trips - before < 40, "not one each"
        assert len(await shop.effects()) == 90


async def test_blocking_handlers_and_whole_batches(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.blocking", retry=SOON)
        def blocking(event: Placed, ctx: SyncHandlerContext) -> None:
            ctx.later(INSERT, [f"{name_of(event)} first"])
            ctx.tx.execute(INSERT, [f"{name_of(event)} second"])

        @shop.app.handler(Placed, name="shop.batch", retry=SOON)
        async def batch(events: list[Placed], ctx: HandlerContext) -> None:
            for event in events:
                ctx.later("insert into effect (handler, name) values ('batch', %s)", [name_of(event)])

    async with opened(database, declare) as shop:
        await forbid(shop, "b2")
        await shop.publish("a1", "b2", "c3")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (5, 1)
        rows = await shop.rows("select handler, name from effect order by handler, id")
        assert [row["name"] for row in rows if row["handler"] == "batch"] == ["a1", "c3"]
        assert [row["name"] for row in rows if row["handler"] == "later"] == [
            f"{name} {which}" for name in ("a1", "b2", "c3") for which in ("first", "second")
        ]


@pytest.mark.parametrize("statement", ["commit", " Rollback to x", "copy effect from stdin", "begin"])
async def test_what_cannot_travel_is_refused(database: str, statement: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            ctx.later(statement)

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        drained = await shop.app.drain()
        assert drained.handled == 0
        assert "ctx.later takes no COPY" in str((await shop.parked())["a1"]["failure_history"])


async def test_inside_a_pipeline_block_it_is_refused(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            ctx.later(INSERT, [name_of(event)])
            async with ctx.tx.pipeline():
                await ctx.tx.execute(INSERT, [name_of(event)])
                if event.n == 2:
                    ctx.later(INSERT, [name_of(event)])

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry + drained.buried) == (1, 1)
        assert await shop.effects() == ["a1", "a1"]
        assert "call it before or after the block" in str((await shop.parked())["b2"]["failure_history"])


async def test_a_hidden_commit_is_noticed(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON)
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            ctx.later("/* hidden */ commit")

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        assert (await shop.app.drain()).handled == 0
        assert "a handler must not commit it" in str((await shop.parked())["a1"]["failure_history"])


async def test_a_statement_that_hangs_fails_by_the_timeout(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=SOON, timeout="2s")
        async def effect(event: Placed, ctx: HandlerContext) -> None:
            ctx.later("select pg_sleep(%s)", [30 if event.n == 1 else 0])
            ctx.later(INSERT, [name_of(event)])

    async with opened(database, declare) as shop:
        await shop.publish("a0", "b1", "c2")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry) == (2, 1)
        assert await shop.effects() == ["a0", "c2"]
        assert (await shop.parked()).keys() == {"b1"}
