"""Handlers on the happy path: effects and receipt together, each event once per handler, every kind of handler."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.proxy import Proxy
from tests.worker.shop import Cancelled, Placed, Shop, opened

from outrider import Event, HandlerContext, Outrider, SyncHandlerContext
from outrider.errors import ConfigError, DeclarationError
from outrider.signals import Settled, Signal
from outrider.worker import next_take
from outrider.worker.batch_size import Size

pytestmark = pytest.mark.also_on(15)


async def test_effects_and_receipts_commit_together(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "b1", "a2")
        drained = await shop.app.drain()
        assert drained.handled == 3
        assert drained.by_handler == {"shop.effect": 3}
        assert await shop.effects() == ["a1", "b1", "a2"]
        receipts = await shop.rows("select * from outrider.event_handled order by seq")
        assert [row["handler_name"] for row in receipts] == ["shop.effect"] * 3
        assert receipts[0]["idempotency_key"] == str(receipts[0]["event_id"])
        assert (await shop.app.drain()).handled == 0
        assert not await shop.parked()


async def test_a_batch_is_two_round_trips(database: str) -> None:
    """One takes, one commits; the handlers' own statements come on top."""

    async def trips(events: int, limit: int) -> int:
        with Proxy(database) as proxy:
            app = Outrider(context="shop", dsn=proxy.dsn)

            @app.handler(Placed, name="shop.counted", limit=limit)
            async def counted(event: Placed) -> None:
                pass

            async with app:
                await app.migrate()
                async with await psycopg.AsyncConnection.connect(database) as conn:
                    await app.publish_many(conn, [Placed(customer="a", n=n) for n in range(events)])
                before = proxy.round_trips
                assert (await app.drain()).handled == events
                return proxy.round_trips - before

    assert await trips(10, limit=10) == await trips(5, limit=10), "the size of the batch does not matter"
    one, three = await trips(5, limit=5), await trips(15, limit=5)
    assert three - one == 2 * 2, "two more batches, two round trips each"


async def test_every_handler_has_its_own_cursor(database: str) -> None:
    def declare(shop: Shop) -> None:
        for name in ("shop.one", "shop.two", "shop.three"):
            shop.app.handler(Placed, name=name)(shop.effect)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "a2")
        assert (await shop.app.drain(handlers=["shop.two"])).by_handler == {"shop.two": 2}
        await shop.publish("a3")
        assert (await shop.app.drain()).by_handler == {"shop.one": 3, "shop.two": 1, "shop.three": 3}


async def test_a_target_is_for_one_context_only(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", target="elsewhere")
        await shop.publish("a2", target="shop")
        await shop.publish("a3")
        await shop.app.drain()
        assert await shop.effects() == ["a2", "a3"]


async def test_late_subscribers_start_where_they_say(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
        await shop.app.drain()

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect")(shop.effect)
        shop.app.handler(Placed, name="shop.all", start="beginning")(shop.effect)
        shop.app.handler(Placed, name="shop.fresh")(shop.effect)

    async with opened(database, declare) as shop:
        await shop.publish("a3")
        assert (await shop.app.drain()).by_handler == {"shop.effect": 1, "shop.all": 3, "shop.fresh": 1}


async def test_a_key_given_by_the_producer_is_handled_once_per_event_type(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, Cancelled, name="shop.both")(shop.effect)

    async with opened(database, declare) as shop:
        await shop.publish("a1", idempotency_key="order-7")
        await shop.publish("a2", idempotency_key="order-7")
        async with shop.app.connect() as conn:
            await shop.app.publish(conn, Cancelled(customer="a", n=3), idempotency_key="order-7")
        drained = await shop.app.drain()
        assert (drained.handled, drained.duplicates) == (2, 1)
        assert await shop.effects() == ["a1", "a3"]


async def test_the_loser_of_a_race_concedes(database: str) -> None:
    """Sixteen sessions, the same (handler, key), sixteen distinct events in as many partitions."""

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.raced", partitions=16)(shop.effect)

    async with opened(database, declare, pool_size=16) as shop:
        settled: list[Settled] = []
        all_done = asyncio.Event()

        def note(signal: Signal) -> None:
            if isinstance(signal, Settled):
                settled.append(signal)
                if sum(each.events + each.duplicates for each in settled) == 16:
                    all_done.set()

        shop.app.signals.listen(note)
        async with shop.app.connect() as conn:
            for n in range(16):
                await shop.app.publish(conn, Placed(customer=f"c{n}", n=n), idempotency_key="the same")
        async with shop.app.worker():
            await all_done.wait()
        assert sum(each.events for each in settled) == 1
        assert sum(each.duplicates for each in settled) == 15
        assert len(shop.calls) == len(await shop.effects()) == 1


async def test_a_blocking_handler_runs_in_a_thread_on_the_same_transaction(database: str) -> None:
    threads: list[bool] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.blocking")
        def blocking(event: Placed, ctx: SyncHandlerContext) -> None:
            threads.append(threading.current_thread() is threading.main_thread())
            ctx.tx.execute("insert into effect (name) values (%s)", [f"{event.customer}{event.n}"])
            if event.n == 1:
                shop.app.publish_sync(ctx.tx, Placed(customer=event.customer, n=2))

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        assert (await shop.app.drain()).handled == 2
        assert threads == [False, False]
        assert await shop.effects() == ["a1", "a2"]


async def test_a_handler_may_take_the_whole_batch(database: str) -> None:
    sizes: list[int] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.together")
        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            sizes.append(len(events))
            assert [e.payload["n"] for e in ctx.envelopes] == [event.n for event in events]
            async with ctx.tx.cursor() as cursor:
                names = [[f"{event.customer}{event.n}"] for event in events]
                await cursor.executemany("insert into effect (name) values (%s)", names)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b1", "a2")
        assert (await shop.app.drain()).handled == 3
        assert sizes == [3]
        assert await shop.effects() == ["a1", "b1", "a2"]


async def test_a_factory_gets_the_transaction(database: str) -> None:
    class Indexer:
        def __init__(self, tx: Any) -> None:
            self.tx = tx

        async def __call__(self, event: Placed) -> None:
            await self.tx.execute("insert into effect (name) values (%s)", [event.customer])

    async with opened(database, lambda shop: shop.app.subscribe(Placed, Indexer, name="shop.indexer")) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
        assert await shop.effects() == ["a", "b"]


async def test_what_a_handler_publishes_joins_its_transaction_and_its_trace(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.chain")
        async def chain(event: Placed, ctx: HandlerContext) -> None:
            await shop.app.publish(ctx.tx, Cancelled(customer=event.customer))
            if event.n == 2:
                raise ValueError("undone")

    async with opened(database, declare) as shop:
        trace = '{"traceparent": "00-11111111111111111111111111111111-2222222222222222-01"}'
        await shop.rows(
            f"""insert into outrider.outbox (event_type, source, payload, trace_context)
                values ('dispatch.placed', 'test', '{{"customer": "a", "n": 1}}', '{trace}'),
                       ('dispatch.placed', 'test', '{{"customer": "a", "n": 2}}', '{trace}'),
                       ('dispatch.placed', 'test', '{{"customer": "b", "n": 3}}', null)"""
        )
        await shop.app.drain()
        query = """select payload->>'customer' as customer, trace_context from outrider.outbox
                   where event_type = 'dispatch.cancelled'"""
        found = {row["customer"]: row["trace_context"] for row in await shop.rows(query)}
        assert found["a"]["traceparent"].startswith("00-1111")
        assert found["b"] is None
        assert len(await shop.rows(query)) == 2


async def test_the_transaction_is_dead_when_the_handler_has_returned(database: str) -> None:
    kept: list[Any] = []

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.keeper")
        async def keeper(event: Placed, ctx: HandlerContext) -> None:
            for tx in kept:
                with pytest.raises(psycopg.InterfaceError, match="after its handler had returned"):
                    await tx.execute("select 1")
            kept.append(ctx.tx)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "a2", "a3")
        assert (await shop.app.drain(raise_on_failure=True)).handled == 3


async def test_handlers_use_prepared_statements_without_clashes(database: str) -> None:
    """The names of prepared statements belong to the session, which many handlers use in turn."""

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.prepared")
        async def prepared(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("insert into effect (name) values (%s)", [str(event.n)], prepare=True)
            await ctx.tx.execute("select %s::int", [event.n], prepare=True)

    async with opened(database, declare) as shop:
        await shop.publish(*(f"a{n}" for n in range(40)))
        assert (await shop.app.drain(raise_on_failure=True)).handled == 40


async def test_old_code_leaves_alone_what_only_new_code_knows(database: str) -> None:
    def declare_new(shop: Shop) -> None:
        shop.app.handler(Placed, Cancelled, name="shop.effect")(shop.effect)

    async with opened(database) as old, opened(database, declare_new) as new:
        async with new.app.connect() as conn:
            await new.app.publish(conn, Cancelled(customer="a", n=1))
        assert (await old.app.drain()).handled == 0
        assert (await new.app.drain()).handled == 1


async def test_a_paused_handler_does_nothing(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1")
        await shop.rows("update outrider.subscription set paused_at = now()")
        assert (await shop.app.drain()).handled == 0
        await shop.rows("update outrider.subscription set paused_at = null")
        assert (await shop.app.drain()).handled == 1


async def test_batches_grow_while_they_are_quick(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_take, "Size", partial(Size, budget=60.0))  # quick enough on any machine
    async with opened(database, lambda shop: shop.app.handler(Placed, name="shop.quick")(noop)) as shop:
        sizes: list[int] = []

        def note(signal: Signal) -> None:
            if isinstance(signal, Settled):
                sizes.append(signal.events)

        shop.app.signals.listen(note)
        async with shop.app.connect() as conn:
            await shop.app.publish_many(conn, [Placed(customer="a", n=n) for n in range(3000)])
        await shop.app.drain()
        assert sizes[:3] == [16, 32, 64]
        assert max(sizes) > 500


async def noop(event: Event) -> None:
    pass


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda app: app.handler(name="a.b")(noop), "needs the event classes"),
        (lambda app: app.handler(Placed, name="a.b", partitions=3)(noop), "power of two"),
        (lambda app: app.handler(Placed, name="a.b", order="total", partitions=2)(noop), "needs partitions=1"),
        (lambda app: app.handler(Placed, name="a.b", order="fifo")(noop), "none of key, none, total"),
        (lambda app: app.handler(Placed, name="a.b", limit=0)(noop), "limit=0"),
        (lambda app: app.handler(Placed, name="a.b")(lambda: None), r"takes \(event, ctx\) or \(event\)"),
        (lambda app: [app.handler(Placed, name="a.b")(noop) for _ in range(2)], "declared twice"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(declare: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare(Outrider(context="shop"))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"no option retries; it has breaker, .*, retry, .*did you mean retry\?"):
        Outrider(context="shop").handler(Placed, name="a.b", retries=3)(noop)  # type: ignore[call-arg]


async def test_unknown_handlers_are_refused(database: str) -> None:
    async with opened(database) as shop:
        says = r"no handler, job, relay, inbox or rollup is called 'shop\.invoice'; the app declares: shop\.effect"
        with pytest.raises(ConfigError, match=says):
            await shop.app.drain(handlers=["shop.invoice"])


def test_what_has_no_signature_is_still_declared_or_refused() -> None:
    with pytest.raises(DeclarationError, match="needs the event classes"):
        Outrider(context="shop").handler(name="a.b")(dict)
    Outrider(context="shop").handler(Placed, name="a.b")(dict)


async def test_a_cursor_that_was_moved_back_handles_nothing_twice(database: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "a2")
        await shop.app.drain()
        await shop.rows("update outrider.cursor set seq = 0")
        await shop.publish("a3")
        drained = await shop.app.drain(raise_on_failure=True)
        assert (drained.handled, drained.duplicates) == (1, 2)
        assert await shop.effects() == ["a1", "a2", "a3"]
