"""Workers and generations: who serves what, who is woken by what, and what becomes of a generation that is left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.postgres.roles.house import before
from tests.worker.shop import SOON, Cancelled, Placed, Shop, opened
from tests.worker.test_worker import WAIT, Heard

from outrider import Envelope, HandlerContext, Outrider
from outrider.errors import CursorError
from outrider.postgres import generations
from outrider.postgres import heartbeat as workers
from outrider.postgres.admin import status, subscriptions
from outrider.postgres.connection import AsyncSession
from outrider.postgres.statement import statement
from outrider.signals import ListenerUp, Settled, Skipped, Taken, Woken
from outrider.worker.channels import counterpart
from outrider.worker.duties import Duties
from outrider.worker.generations import Generations
from outrider.worker.site import WorkerTimes
from outrider.worker.wakeups import Polling
from outrider.worker.worker import Worker

NEVER = 3600.0


@asynccontextmanager
async def working(shop: Shop, *, heartbeat: float = NEVER, fold_after: float = NEVER) -> AsyncIterator[Worker]:
    """A worker that is ready. Tests look themselves: its own heartbeat does not come in their time."""
    chosen = shop.app.chosen().handlers
    times = WorkerTimes(heartbeat=heartbeat, fold_after=fold_after)
    duties = Duties(handlers=chosen)
    async with Worker(
        shop.app._site(), duties, lambda: shop.app._register([each.subscription for each in chosen]), times
    ) as worker:
        if shop.app.settings.notify != "off":  # it beats once more as soon as it listens
            await so(lambda: _is_known_to_listen(shop, worker))
            async with worker.presence.one_look:
                pass
        yield worker


async def _is_known_to_listen(shop: Shop, worker: Worker) -> bool:
    return await shop.rows(f"select id from outrider.worker where listening and id = '{worker.identity.id}'") != []


def serves(worker: Worker) -> set[int]:
    """The generations of shop.effect that it has tails for."""
    return {loop.generation for loop in worker._handler_loops if loop.name == "shop.effect"}


async def so(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Until it holds."""
    async with asyncio.timeout(WAIT):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


async def open_at(shop: Shop) -> list[int]:
    return [row["generation"] for row in await shop.rows("select distinct generation from outrider.cursor order by 1")]


async def handled(shop: Shop, *names: str) -> None:
    """Until these, and no others, have been handled by this app."""
    await so(lambda: len(shop.calls) >= len(names))
    assert sorted(shop.calls) == sorted(names)


def with_cancelled(shop: Shop) -> None:
    """Code that knows one type more."""
    shop.app.handler(Placed, Cancelled, name="shop.effect", retry=SOON)(shop.effect)


@asynccontextmanager
async def shops(dsn: str, *numbers: int, **options: Any) -> AsyncIterator[list[Shop]]:
    """An app per generation, on one database."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(dsn, generation=each, poll="1h", **options)) for each in numbers]


# Who serves what


async def test_each_generation_is_served_by_its_own(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(one) as first, working(two) as second:
        await first.presence.look()
        await so(lambda: (serves(first), serves(second)) == ({0, 1}, {0, 2}))
        await one.publish("a1", "a2")
        await two.publish("b1")
        await handled(one, "a1", "a2")
        await handled(two, "b1")


async def test_a_worker_opens_its_generation_and_is_seen_before(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise workers of another generation would find cursors that nobody serves."""
    seen: list[list[dict[str, Any]]] = []
    real = generations.open_generation

    async def opening(conn: AsyncSession, name: str, generation: int, schema: str) -> bool:
        seen.append(await shop.rows("select generation, subscriptions from outrider.worker"))
        return await real(conn, name, generation, schema)

    async with opened(database, generation=3) as shop:
        await shop.rows("delete from outrider.cursor where generation = 3")
        monkeypatch.setattr(generations, "open_generation", opening)
        async with working(shop):
            assert seen == [[{"generation": 3, "subscriptions": ["shop.effect"]}]]
            assert await open_at(shop) == [0, 3]


async def test_migrating_opens_the_generation_for_handlers_only(database: str) -> None:
    app = Outrider(context="shop", dsn=database, generation=2)
    reader = app.reader(Placed, name="shop.reader")
    app.handler(Placed, name="shop.effect")(Shop(app, database).effect)
    async with app, shops(database, 0) as (none,):
        await app.migrate()
        rows = await none.rows("select subscription, generation from outrider.cursor order by 1, 2")
        assert [tuple(row.values()) for row in rows] == [("shop.effect", 0), ("shop.effect", 2), ("shop.reader", 0)]
        async with app.connect() as conn:
            await app.publish(conn, Placed(customer="b"))
        await none.publish("a1")
        async with app.connect() as conn, conn.transaction():
            assert len((await reader.take(conn)).events) == 2, "readers have no generations"


@pytest.mark.parametrize(("gone", "stays"), [(1, 2), (2, 1), (0, 1), (5, 0)])
async def test_what_nobody_is_there_for_is_adopted(database: str, gone: int, stays: int) -> None:
    """Older and newer ones, and the catch-all: the worker that left, and nobody rewrites anything."""
    async with shops(database, gone, stays) as (left, other):
        before = await left.rows("select generation, seq, served_by from outrider.cursor order by 1")
        await left.publish("a1")
        async with working(other) as worker:
            assert serves(worker) == {0, gone, stays}
            await handled(other, "a1")
        after = await left.rows("select generation, served_by from outrider.cursor order by 1")
        assert after == [{"generation": row["generation"], "served_by": row["served_by"]} for row in before]


async def test_what_somebody_is_there_for_is_left_to_them(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(one), working(two) as second:
        assert serves(second) == {0, 2}
        await one.rows("update outrider.worker set seen_at = now() - interval '31 seconds' where generation = 1")
        await second.presence.look()
        assert serves(second) == {0, 1, 2}, "not seen for half a minute"
        await one.rows("update outrider.worker set seen_at = now() where generation = 1")
        await second.presence.look()
        await so(lambda: serves(second) == {0, 2})


async def test_what_died_while_the_clock_was_ahead_is_adopted(database: str) -> None:
    """The server's clock was two hours ahead, a worker died meanwhile, and the clock went back."""
    async with shops(database, 1, 2) as (one, two), working(one), working(two) as second:
        await one.rows("update outrider.worker set seen_at = now() + interval '2 hours' where generation = 1")
        await second.presence.look()
        assert serves(second) == {0, 1, 2}


async def test_it_is_given_back_when_its_workers_return(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(two) as second:
        assert serves(second) == {0, 1, 2}
        async with working(one) as first:
            assert serves(first) == {0, 1}
            await second.presence.look()
            await so(lambda: serves(second) == {0, 2})
            await one.publish("a1")
            await handled(one, "a1")
        await second.presence.look()
        assert serves(second) == {0, 1, 2}, "it left in good order"
        assert two.calls == []


async def test_a_worker_that_stops_says_so_at_once(database: str) -> None:
    """While it finishes what it has begun, others take over."""
    reached, release = asyncio.Event(), asyncio.Event()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect")
        async def slow(event: Placed, ctx: HandlerContext) -> None:
            shop.calls.append(f"{event.customer}{event.n}")
            if event.n == 1:
                reached.set()
                await release.wait()

    async with shops(database, 1, 2, declare=declare) as (one, two), working(two) as second:
        async with working(one) as first:
            await second.presence.look()
            await one.publish("a1")
            await reached.wait()
            first.stop()
            await so(lambda: _true(one, "select stopping from outrider.worker where generation = 1"))
            await second.presence.look()
            assert serves(second) == {0, 1, 2}
            release.set()
        await one.publish("a2")
        await handled(two, "a2")
        assert one.calls == ["a1"]


async def _true(shop: Shop, query: str) -> bool:
    return [list(row.values()) for row in await shop.rows(query)] == [[True]]


async def test_generations_that_nobody_opened_are_in_the_catch_all(database: str) -> None:
    async with shops(database, 0, 1) as (none, one), working(none) as other, working(one) as first:
        await other.presence.look()
        await so(lambda: (serves(other), serves(first)) == ({0}, {1}))
        web = Outrider(context="shop", dsn=database, generation=9)
        async with await AsyncConnection.connect(database) as conn:
            await web.publish(conn, Placed(customer="z", n=9))
        await none.publish("a1")
        await handled(none, "z9", "a1")
        assert one.calls == []


# What its code does not know


async def test_a_worker_that_does_not_know_all_types_leaves_it_to_others(database: str) -> None:
    async with (
        shops(database, 1) as (one,),
        working(one) as first,
        opened(database, with_cancelled, generation=2, poll="1h") as two,
        working(two) as second,
    ):
        heard = Heard(one.app)
        await one.publish("a1")
        skipped = await heard.first(Skipped)
        assert (skipped.subscription, skipped.reason) == ("shop.effect", "unknown")
        await so(lambda: _true(one, "select unable = '{shop.effect}' from outrider.worker where generation = 1"))
        await so(lambda: serves(first) == set())
        await second.presence.look()
        assert serves(second) == {0, 1, 2}
        await handled(two, "a1")
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            await subscriptions.narrow(conn, "shop.effect", ["dispatch.cancelled"], "outrider")
        await first.presence.look()
        assert serves(first) == {0, 1}, "it is able again"
        await second.presence.look()
        await so(lambda: serves(second) == {0, 2})
        await one.publish("a2")
        await handled(one, "a2")


async def test_a_worker_that_is_unable_from_the_start_is_ready_and_says_so_once(database: str) -> None:
    async with opened(database, with_cancelled) as newer, shops(database, 1) as (one,):
        await newer.publish("a1")
        heard = Heard(one.app)
        async with working(one) as worker:
            assert serves(worker) == set()
            await worker.presence.look()
            assert [each.reason for each in heard.signals if isinstance(each, Skipped)] == ["unknown"]
            assert await _true(one, "select unable = '{shop.effect}' from outrider.worker")
            async with one.app._opened().autocommit() as conn:
                [seen] = await status.workers(conn, "outrider")
            assert seen.unknown == {"shop.effect": ("dispatch.cancelled",)}
        assert not [each for each in heard.signals if isinstance(each, Taken)]


# What is left is folded


@pytest.mark.verify
async def test_a_generation_that_was_left_is_folded(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(two, fold_after=0) as worker:
        await one.publish("a1")
        await handled(two, "a1")
        await so(lambda: _look_until(worker, two, [0, 2]))
        await so(lambda: serves(worker) == {0, 2})
        await one.publish("a2")
        await one.rows("select pg_notify('outbox_default', 'dispatch.placed')")
        await handled(two, "a1", "a2")
        assert await open_at(two) == [0, 2]


async def _look_until(worker: Worker, shop: Shop, expected: list[int]) -> bool:
    """What it adopted must have been passed by the catch-all first: its tails are woken to look."""
    worker.loops.wake_all("test")
    await worker.presence.look()
    return await open_at(shop) == expected


async def test_it_is_not_folded_before_its_time_nor_beside_a_worker_of_its_own(database: str) -> None:
    now = 0.0
    async with shops(database, 1, 2) as (one, two):
        looking = Generations(2, two.app.handlers, "outrider", fold_after=60, clock=lambda: now)

        async def left_after(seconds: float) -> list[int]:
            nonlocal now
            now += seconds
            async with two.app._opened().autocommit() as conn:
                await looking.look(conn)
            return await open_at(two)

        assert await left_after(0) == [0, 1, 2]
        assert await left_after(59) == [0, 1, 2], "a restart takes less than a minute"
        async with working(one) as first:
            assert await left_after(100) == [0, 1, 2]
            first.generations.cannot("shop.effect")
            await one.rows("update outrider.worker set unable = '{shop.effect}'")
            assert await left_after(1) == [0, 1, 2]
            assert looking.serves("shop.effect", 1)
            await one.rows("update outrider.cursor set served_by = 2 where generation = 1")
            assert await left_after(100) == [0, 1, 2], "moved away, and its own worker is there"
        assert await left_after(0) == [0, 1, 2]
        assert await left_after(61) == [0, 2]


async def test_a_worker_whose_generation_was_folded_beneath_it_opens_it_again(database: str) -> None:
    """It was frozen for a minute. Its next take finds no cursor, and it does not wait for its heartbeat."""
    async with shops(database, 1) as (one,), working(one) as worker:
        heard = Heard(one.app)
        [row] = await one.rows("select outrider.fold_generation('shop.effect', 1) as folded")
        assert row["folded"]
        worker.loops.wake_all("test")
        await so(lambda: _open(one, [0, 1]))
        await so(lambda: serves(worker) == {0, 1})
        await one.publish("a1")
        await heard.first(Settled, lambda each: each.events == 1)
        assert one.calls == ["a1"]


async def _open(shop: Shop, expected: list[int]) -> bool:
    return await open_at(shop) == expected


async def test_a_tail_whose_adopted_cursor_is_gone_just_ends(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(two) as worker:
        assert serves(worker) == {0, 1, 2}
        [row] = await one.rows("select outrider.fold_generation('shop.effect', 1) as folded")
        assert row["folded"]
        worker.loops.wake_all("test")
        await so(lambda: serves(worker) == {0, 2})
        await two.publish("a1")
        await handled(two, "a1")
        assert not worker.stopping


@pytest.mark.parametrize("generation", [0, 1])
async def test_a_worker_whose_subscription_is_gone_ends_with_an_error(database: str, generation: int) -> None:
    async with shops(database, generation) as (shop,):
        with pytest.raises(CursorError, match=r'no cursor for subscription "shop\.effect" any more'):
            await retired_under(shop)


async def test_a_drain_of_an_app_that_was_never_registered(database: str) -> None:
    async with shops(database, 0) as (shop,):
        await shop.rows("delete from outrider.subscription")
        wanted = (
            r'subscription "shop\.effect" is not registered in this database: await app\.migrate\(\), or run outrider'
        )
        with pytest.raises(CursorError, match=wanted):
            await shop.app.drain()


async def retired_under(shop: Shop) -> None:
    async with working(shop) as worker:
        await shop.rows("delete from outrider.subscription")
        worker.loops.wake_all("test")
        await so(lambda: worker.stopping)


async def test_two_workers_that_start_at_once_open_it_once(database: str) -> None:
    async with shops(database, 1) as (one,):
        await one.rows("delete from outrider.cursor where generation = 1")
        async with working(one) as first, working(one) as second:
            assert serves(first) == serves(second) == {0, 1}
            assert await one.rows("select count(*) as n from outrider.cursor where generation = 1") == [{"n": 1}]


async def test_a_catch_all_that_is_held_does_not_keep_a_worker_from_its_work(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its generation is opened with a later heartbeat."""
    async with shops(database, 1) as (one,):
        await one.rows("delete from outrider.cursor where generation = 1")
        await one.rows("alter function outrider.open_generation set lock_timeout = '20ms'")
        async with await AsyncConnection.connect(database) as frozen:
            await frozen.execute("select from outrider.cursor for update")
            async with working(one) as worker:
                assert serves(worker) == {0}
                await frozen.rollback()

                async def opened_later() -> bool:
                    await worker.presence.look()
                    return serves(worker) == {0, 1}

                await so(opened_later)


# Moved by an operator


async def test_a_generation_can_be_moved_to_workers_of_another(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(one) as first, working(two) as second:
        await one.rows("select outrider.move_generation(1, 2)")
        await first.presence.look()
        await second.presence.look()
        await so(lambda: (serves(first), serves(second)) == ({0}, {0, 1, 2}))
        await one.publish("a1")
        await one.rows("select pg_notify('outbox_gen_1', 'dispatch.placed')")
        await handled(two, "a1")
        await one.rows("select outrider.move_generation(1, 1)")
        await first.presence.look()
        await second.presence.look()
        await so(lambda: (serves(first), serves(second)) == ({0, 1}, {0, 2}))


async def test_a_worker_whose_generation_was_moved_away_is_ready(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(two):
        await one.rows("select outrider.move_generation(1, 2), outrider.move_generation(0, 2)")
        async with working(one) as first:
            assert serves(first) == set()


# Wake-ups


def wakes(worker: Worker, generation: int) -> int:
    """How often the loops of that generation were woken."""
    return sum(each.wakes for each in worker._handler_loops if each.generation == generation)


async def test_a_poke_wakes_the_tails_of_its_own_generation_only(database: str) -> None:
    async with shops(database, 1, 2) as (one, two), working(two, heartbeat=0.2) as worker:
        heard = Heard(two.app)
        await so(lambda: worker.listening)
        await so(lambda: set(worker.wakeups.channels) == {"outbox_gen_1", "outbox_gen_2", "outbox_default"})
        await so(lambda: _listens(two, 4))
        for shop, generation in ((two, 2), (one, 1)):
            before = {each: wakes(worker, each) for each in (0, 1, 2)}
            await shop.publish(f"a{generation}")
            await heard.until(lambda n=2 - generation: heard.handled() == n + 1)  # type: ignore[misc]
            assert {each: wakes(worker, each) - before[each] for each in (0, 1, 2)} == {
                each: int(each == generation) for each in (0, 1, 2)
            }
        assert {each.reason for each in heard.signals if isinstance(each, Woken)} <= {"notification", "listener"}


async def _listens(shop: Shop, channels: int) -> bool:
    """The listener has sent its LISTEN for so many: the heartbeat that comes after it is its last statement."""
    return await _true(
        shop,
        """select count(*) > 0 from pg_stat_activity where application_name = 'outrider listener'
           and query like 'select pg_notification%' and datname = current_database()""",
    )


async def test_a_channel_that_is_followed_later_is_heard(database: str) -> None:
    """The worker of 1 leaves; from the next look on the other hears its publishers too, and looks once."""
    async with (
        shops(database, 0, 1, 2) as (none, one, two),
        working(none) as other,
        working(two, heartbeat=0.2) as worker,
    ):
        async with working(one):
            await other.presence.look()
            await so(lambda: serves(other) == {0} and serves(worker) == {2} and worker.listening)
            assert set(worker.wakeups.channels) == {"outbox_gen_2"}
            worker.wakeups.polling = Polling(listening=NEVER, blind=NEVER)
            heard = Heard(two.app)
        await so(lambda: serves(worker) == {1, 2})
        n = 0
        while (
            Woken("shop.effect", "notification") not in heard.signals
        ):  # the first are found by the looks at the beginning
            n += 1
            await one.publish(f"a{n}")
            await heard.until(lambda n=n: heard.handled() == n)  # type: ignore[misc]
        assert not [each for each in heard.signals if isinstance(each, ListenerUp)], "it was up all the while"


async def test_a_context_that_never_sets_a_generation_is_woken_by_the_others(database: str) -> None:
    """Other contexts deploy with generations: their publishers poke channels of their own."""
    other = Outrider(context="other", dsn=database, generation=4)
    async with opened(database, poll="1h") as shop, other, shop.app.worker():
        heard = Heard(shop.app)
        identity = workers.Identity(4, ["other.effect"])
        async with other._opened().autocommit() as conn:
            await workers.beat(conn, identity, "outrider")
        async with working(shop) as worker:
            await heard.first(Woken, lambda each: each.reason == "listener")
            assert worker.wakeups.channels == {"outbox_default": 0, "outbox_gen_4": 4}
            async with other.connect() as conn:
                await other.publish(conn, Placed(customer="a", n=1))
            await heard.until(lambda: heard.handled() == 1)
            before = wakes(worker, 0)
            await shop.rows("insert into outrider.subscription (name, kind, context) values ('x.y', 'handler', 'x')")
            assert wakes(worker, 0) == before


async def test_what_pokes_may_miss_is_polled_more_often(database: str) -> None:
    async with opened(database, generation=1) as one, working(one) as worker:
        await so(lambda: worker.listening)
        for generation, seconds in ((1, 30), (0, 5)):
            assert seconds * 0.9 <= worker.wakeups.pause(generation) <= seconds
    async with opened(database) as none, working(none) as worker:
        await so(lambda: worker.listening)
        assert worker.wakeups.pause(0) <= 5, "there is a generation somewhere: others may follow"
        await none.rows("delete from outrider.cursor where generation = 1")
        await worker.presence.look()
        assert worker.wakeups.pause(0) > 5, "without generations nothing changes"


# Drain, listeners, rights


async def test_drain_handles_its_own_and_what_nobody_is_there_for(database: str) -> None:
    async with shops(database, 0, 1, 2, 3) as (none, one, two, three):
        for shop, name in ((none, "a0"), (one, "b1"), (two, "c2")):
            await shop.publish(name)
        await three.rows("delete from outrider.cursor where generation = 3")
        identity = workers.Identity(1, ["shop.effect"])
        async with one.app._opened().autocommit() as conn:
            await workers.beat(conn, identity, "outrider")
        assert (await three.app.drain()).handled == 2
        assert sorted(three.calls) == ["a0", "c2"]
        assert await open_at(three) == [0, 1, 2, 3]
        assert (await one.app.drain()).handled == 1


async def test_a_listener_adopts_too(database: str) -> None:
    """Its channel is that of its generation, and what it adopts came through the other's."""
    heard: list[str] = []

    async def hear(envelope: Envelope) -> None:
        heard.append(f"{envelope.channel} {envelope.payload['n']}")

    old, new = (Outrider(context="shop", dsn=database, generation=each, poll="50ms") for each in (1, 2))

    @asynccontextmanager
    async def listening(app: Outrider, channel: str) -> AsyncIterator[Heard]:
        up = Heard(app)
        task = asyncio.create_task(app.listener().listen(channel=channel, handler_name="shop.hear", handler=hear))
        await up.first(Taken)
        yield up
        task.cancel()
        await asyncio.wait([task])

    async with old, new:
        async with listening(old, "outbox_gen_1") as said, old.connect() as conn:
            await old.publish(conn, Placed(customer="a", n=1))
            await conn.commit()
            await said.first(
                Settled, lambda each: each.events == 1
            )  # what was heard and not settled would be heard again
            assert heard == ["outbox_gen_1 1"]
        async with old.connect() as conn:
            await old.publish(conn, Placed(customer="a", n=2))
            await old.publish(conn, Placed(customer="a", n=3), channel_class="heavy")
        async with listening(new, "outbox_gen_2"), new.connect() as conn:
            await new.publish(conn, Placed(customer="b", n=4))
            await conn.commit()
            await so(lambda: len(heard) == 3)
    assert heard[0] == "outbox_gen_1 1"
    assert sorted(heard[1:]) == ["outbox_gen_1 2", "outbox_gen_2 4"]


@pytest.mark.parametrize(
    ("channel", "generation", "other", "expected"),
    [
        ("outbox_default", 0, 3, "outbox_gen_3"),
        ("outbox_gen_3", 3, 0, "outbox_default"),
        ("outbox_gen_3", 3, 14, "outbox_gen_14"),
        ("outbox_gen_0_heavy", 0, 3, "outbox_gen_3_heavy"),
        ("outbox_gen_3_heavy", 3, 0, "outbox_gen_0_heavy"),
    ],
)
def test_counterpart(channel: str, generation: int, other: int, expected: str) -> None:
    assert counterpart(channel, generation, other) == expected


@pytest.mark.parametrize("may_open", [True, False])
async def test_the_rights_of_a_worker(database: str, may_open: bool) -> None:
    """Those that an application had are enough; without the one to open, it must have been opened before."""
    async with shops(database, 1) as (owner,):
        [row] = await owner.rows("select current_database() as name")
        role = f"worker_{row['name']}"
        await owner.rows(f"create role {role} login")
        try:
            await owner.rows(re.sub(r"\bapp\b", role, before("app")))
            await owner.rows(statement("schema/inherit_grants", "outrider").decode())
            await owner.rows(f"grant insert on effect to {role}")
            if may_open:
                await owner.rows("delete from outrider.cursor where generation = 1")
            else:
                await owner.rows(
                    f"revoke execute on function outrider.open_generation, outrider.fold_generation from {role}"
                )
            dsn = psycopg.conninfo.make_conninfo(database, user=role)
            app = Outrider(context="shop", dsn=dsn, generation=1, poll="1h")
            shop = Shop(app, dsn)
            app.handler(Placed, name="shop.effect", retry=SOON)(shop.effect)
            async with app, working(shop, fold_after=0) as worker:
                assert serves(worker) == {0, 1}
                await owner.rows("select outrider.open_generation('shop.effect', 5)")
                await worker.presence.look()
                await owner.publish("a1")
                await handled(shop, "a1")
                assert await open_at(owner) == ([0, 1] if may_open else [0, 1, 5])
        finally:
            await owner.rows(f"drop owned by {role}; drop role {role}")


async def test_a_database_whose_default_is_another_isolation_level(database: str) -> None:
    async with shops(database, 1) as (one,):
        [row] = await one.rows("select current_database() as name")
        await one.rows("delete from outrider.cursor where generation = 1")
        await one.rows(f"alter database {row['name']} set default_transaction_isolation = 'repeatable read'")
        async with opened(database, generation=1, poll="1h") as again, working(again, fold_after=0) as worker:
            assert await open_at(again) == [0, 1]
            async with again.app._opened().autocommit() as conn:
                assert await generations.open_generation(conn, "shop.effect", 5, "outrider")
            await worker.presence.look()
            assert await open_at(again) == [0, 1]


async def test_rights_that_are_taken_away_for_a_while_do_not_end_it(database: str) -> None:
    """A migration replaces functions; its takes say that they fail, and go on when they can."""
    async with shops(database, 1) as (one,), working(one) as worker:
        await one.rows("alter table outrider.worker rename to worker_away")
        await worker.presence.look()
        await one.rows("alter table outrider.worker_away rename to worker")
        await one.publish("a1")
        await handled(one, "a1")
        assert serves(worker) == {0, 1}
