"""The worker: woken by pokes, polls and due times; stops in good order; is seen by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from tests.proxy import Proxy
from tests.worker.shop import Placed, Shop, opened

from outrider import Backoff, HandlerContext, Outrider
from outrider.config import Settings
from outrider.signals import ListenerDown, ListenerUp, Settled, Signal, Skipped, Taken, Woken, WorkerDown
from outrider.worker.channels import channels
from outrider.worker.duties import Duties
from outrider.worker.site import WorkerTimes
from outrider.worker.wakeups import Polling
from outrider.worker.worker import Worker

WAIT = 25  # shorter than the default poll, which would hide a wake-up that was lost


class Heard:
    """The signals of an app; tests wait for them."""

    def __init__(self, app: Outrider) -> None:
        self.signals: list[Signal] = []
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        app.signals.listen(self._hear)

    def _hear(self, signal: Signal) -> None:
        self.signals.append(signal)
        self._loop.call_soon_threadsafe(self._more.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self._more.clear()
                await self._more.wait()

    async def first(self, kind: type[Any], fits: Callable[[Any], bool] = lambda _: True) -> Any:
        await self.until(lambda: any(isinstance(each, kind) and fits(each) for each in self.signals))
        return next(each for each in self.signals if isinstance(each, kind) and fits(each))

    def handled(self) -> int:
        return sum(each.events for each in self.signals if isinstance(each, Settled))


@asynccontextmanager
async def idle_worker(shop: Shop, **options: Any) -> AsyncIterator[tuple[Worker, Heard]]:
    """A worker that has looked at everything, hears pokes, and has gone to sleep."""
    heard = Heard(shop.app)
    async with shop.app.worker(**options) as worker:
        if shop.app.settings.notify != "off":
            for handler in shop.app.chosen().handlers:
                woken = Woken(handler.name, "listener")
                await heard.until(lambda woken=woken: woken in heard.signals)  # type: ignore[misc]
                place = heard.signals.index(woken)
                await heard.until(lambda place=place: any(isinstance(each, Taken) for each in heard.signals[place:]))  # type: ignore[misc]
        yield worker, heard


async def test_a_poke_wakes_it(database: str) -> None:
    """Nothing else could within the time of this test: the next poll is an hour away."""
    async with opened(database, poll="1h") as shop, idle_worker(shop) as (_, heard):
        await shop.publish("a1")
        await heard.until(lambda: heard.handled() == 1)
        assert "notification" in [each.reason for each in heard.signals if isinstance(each, Woken)]


async def test_one_event_is_one_take(database: str) -> None:
    """A take that has read everything is not repeated: the next event is sure to notify."""
    async with opened(database, poll="1h") as shop, idle_worker(shop) as (_, heard):
        del heard.signals[:]
        for n in (1, 2, 3):
            await shop.publish(f"a{n}")
            await heard.until(lambda n=n: heard.handled() == n)  # type: ignore[misc]
        assert [each.events for each in heard.signals if isinstance(each, Taken)] == [1, 1, 1]


async def test_a_poke_wakes_only_those_who_want_its_type(database: str) -> None:
    from tests.worker.shop import Cancelled

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect")(shop.effect)
        shop.app.handler(Cancelled, name="shop.other")(shop.effect)

    async with opened(database, declare, poll="1h") as shop, idle_worker(shop) as (_, heard):
        del heard.signals[:]
        await shop.publish("a1")
        await heard.until(lambda: heard.handled() == 1 and any(isinstance(each, Woken) for each in heard.signals))
        assert {each.subscription for each in heard.signals if isinstance(each, Woken)} == {"shop.effect"}


@pytest.mark.parametrize("how", ["publisher", "database"])
async def test_without_pokes_it_polls(database: str, how: str) -> None:
    async with opened(database, poll="50ms", notify="off" if how == "publisher" else "commit") as shop:
        if how == "database":
            [row] = await shop.rows("select current_database() as name")
            await shop.rows(f"alter database {row['name']} set outrider.notify = 'off'")
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as listening:
            await listening.execute("listen outbox_default")
            async with idle_worker(shop) as (_, heard):
                async with await psycopg.AsyncConnection.connect(database) as conn:
                    await shop.app.publish(conn, Placed(customer="a", n=1))
                await heard.until(lambda: heard.handled() == 1)
            assert [note async for note in listening.notifies(timeout=0.05)] == []


async def test_after_commit_it_watches_the_sequence(database: str) -> None:
    """The number is drawn long before the commit: it looks again until the transaction has ended."""
    async with opened(database, poll="1h", notify="after_commit") as shop, idle_worker(shop) as (_, heard):
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await shop.app.publish(conn, Placed(customer="a", n=1))
            place = len(heard.signals)
            await heard.until(lambda: any(isinstance(each, Taken) for each in heard.signals[place:]))
        await heard.until(lambda: heard.handled() == 1)


async def test_a_retry_is_taken_when_it_is_due(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.effect", retry=Backoff.table("300ms"))
        async def once_more(event: Placed, ctx: HandlerContext) -> None:
            shop.calls.append(event.customer)
            if len(shop.calls) == 1:
                raise ValueError("not yet")

    async with opened(database, declare, poll="1h") as shop, idle_worker(shop) as (_, heard):
        await shop.publish("a1")
        await heard.until(lambda: heard.handled() == 1)
        assert len(shop.calls) == 2


async def test_a_dead_listener_is_noticed_and_replaced(database: str) -> None:
    async with opened(database) as shop, idle_worker(shop) as (worker, heard):
        await shop.rows(
            """select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and application_name = 'outrider listener'"""
        )
        await heard.first(ListenerDown)
        assert not worker.listening
        await heard.until(lambda: sum(isinstance(each, ListenerUp) for each in heard.signals) == 2)
        await shop.publish("a1")
        await heard.until(lambda: heard.handled() == 1)


async def test_a_black_hole_is_noticed_by_the_heartbeat(database: str) -> None:
    with Proxy(database) as proxy:
        async with opened(database, listen_dsn=proxy.dsn, poll="100ms") as shop:
            heard = Heard(shop.app)
            made = shop.app.worker()
            duties = Duties(handlers=shop.app.chosen().handlers)
            worker = Worker(shop.app._site(), duties, made._register, WorkerTimes(heartbeat=0.2))
            async with worker:
                await heard.first(ListenerUp)
                await asyncio.to_thread(proxy.black_hole)
                await heard.first(ListenerDown)
                await shop.publish("a1")
                await heard.until(lambda: heard.handled() == 1)
                await asyncio.to_thread(proxy.heal)
                await heard.until(lambda: sum(isinstance(each, ListenerUp) for each in heard.signals) >= 2)


async def test_it_is_seen_while_it_lives(database: str) -> None:
    async with opened(database) as shop:
        async with idle_worker(shop) as (worker, _):
            async with asyncio.timeout(WAIT):
                while not (rows := await shop.rows("select * from outrider.worker")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            [row] = rows
            assert row["id"] == worker.identity.id
            assert row["subscriptions"] == ["shop.effect"]
        assert await shop.rows("select * from outrider.worker") == []


async def test_it_finishes_what_it_has_begun(database: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.slow")
        async def slow(event: Placed, ctx: HandlerContext) -> None:
            reached.set()
            await release.wait()
            await shop.effect(event, ctx)

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        async with idle_worker_for(shop) as (worker, heard):
            await reached.wait()
            await shop.publish("a2")
            worker.stop()
            release.set()
        assert await shop.effects() == ["a1"], "what it had begun, and nothing more"
        assert (await heard.first(WorkerDown)).clean


async def test_what_it_cannot_finish_in_time_is_rolled_back(database: str) -> None:
    reached = asyncio.Event()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.stuck")
        async def stuck(event: Placed, ctx: HandlerContext) -> None:
            await shop.effect(event, ctx)
            reached.set()
            await asyncio.Event().wait()

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        async with idle_worker_for(shop, grace="50ms") as (_, heard):
            await reached.wait()
        assert await shop.effects() == []
        assert await shop.parked() == {}
        assert not (await heard.first(WorkerDown)).clean


@asynccontextmanager
async def idle_worker_for(shop: Shop, **options: Any) -> AsyncIterator[tuple[Worker, Heard]]:
    """A worker that is at it already: its handler may not return, so it is not waited for."""
    heard = Heard(shop.app)
    worker = shop.app.worker(**options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker, heard
    finally:
        worker.stop()
        await task


async def test_several_workers_share_the_partitions(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", partitions=4)(shop.effect)

    async with opened(database, declare) as shop, shop.app.worker(), shop.app.worker():
        heard = Heard(shop.app)
        names = [f"{key}{n}" for n in range(20) for key in "abcdefgh"]
        await shop.publish(*names)
        await heard.until(lambda: heard.handled() == len(names))
        effects = await shop.effects()
        assert sorted(effects) == sorted(names)
        for key in "abcdefgh":
            assert [name for name in effects if name[0] == key] == [f"{key}{n}" for n in range(20)]


async def test_what_is_paused_is_said_once(database: str) -> None:
    async with opened(database, poll="20ms", notify="off") as shop:
        await shop.rows("update outrider.subscription set paused_at = now()")
        await shop.publish("a1")
        async with idle_worker(shop) as (_, heard):
            await heard.until(lambda: sum(isinstance(each, Taken) for each in heard.signals) > 4)
            assert [each.reason for each in heard.signals if isinstance(each, Skipped)] == ["paused"]
            await shop.rows("update outrider.subscription set paused_at = null")
            await heard.until(lambda: heard.handled() == 1)


@pytest.mark.verify
async def test_a_database_that_goes_away_is_waited_for(database: str) -> None:
    with Proxy(database) as proxy:
        async with opened(proxy.dsn, poll="100ms") as shop, idle_worker(shop) as (_, heard):
            await asyncio.to_thread(proxy.refuse)
            await asyncio.to_thread(proxy.cut)
            await heard.first(ListenerDown)
            async with await psycopg.AsyncConnection.connect(database) as conn:
                await shop.app.publish(conn, Placed(customer="a", n=1))
            await asyncio.to_thread(proxy.heal)
            await heard.until(lambda: heard.handled() == 1)


def test_channels() -> None:
    assert channels(0, []) == ["outbox_default"]
    assert channels(7, ["heavy"]) == ["outbox_gen_7", "outbox_gen_7_heavy"]


async def test_a_class_of_workers_is_woken_by_its_own_channel(database: str) -> None:
    async with opened(database, poll="1h") as shop, idle_worker(shop, classes=["heavy"]) as (_, heard):
        await shop.publish("a1", channel_class="heavy")
        await heard.until(lambda: heard.handled() == 1)


@pytest.mark.parametrize(
    ("environ", "listening", "blind"),
    [
        ({}, 30, 5),
        ({"OUTRIDER_POLL": "2s"}, 2, 2),
        ({"OUTRIDER_POLL": "30"}, 30, 5),
        ({"OUTRIDER_POLL": "30s", "OUTRIDER_NOTIFY": "off"}, 30, 30),
    ],
)
def test_phases_of_a_rollout(environ: dict[str, str], listening: float, blind: float) -> None:
    found = Polling.of(Settings.load(environ=environ))
    assert (found.listening, found.blind) == (listening, blind)
