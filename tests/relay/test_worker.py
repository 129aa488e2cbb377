"""Relays inside a worker: woken by publishes, one at a time, paused and stopped in good order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.brokers import RedisServer
from tests.relay.depot import Depot, Lost, Sent, depot, ids_in

from outrider import Outrider
from outrider.errors import ConfigError, DeclarationError
from outrider.signals import BrokerDown, BrokerUp, ListenerUp, Relayed, Signal, Skipped, Taken, Woken
from outrider.streams import RedisLease, RedisStreams
from outrider.testing import expect
from outrider.worker.wakeups import Wakeups


def sink_of(server: RedisServer, name: str) -> RedisStreams:
    return RedisStreams(server.url, stream=name)


async def sent(house: Depot, number: int) -> bool:
    rows = await house.rows("select coalesce(sum(events), 0)::int as events from outrider.stream")
    return bool(rows[0]["events"] >= number)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def relaying(database: str, server: RedisServer, name: str, **options: Any) -> AsyncIterator[Depot]:
    async with depot(database) as house:
        house.app.relay("depot.out", sink_of(server, name), **options)
        await house.app.migrate()
        yield house


async def test_a_publish_wakes_it(database: str, redis_server: RedisServer, name: str) -> None:
    """Polling is for an hour: only the notification brings it."""
    async with relaying(database, redis_server, name, poll="1h") as house, AsyncExitStack() as ending:
        async with expect(house.app, ListenerUp):
            await ending.enter_async_context(house.app.worker())
        async with expect(house.app, Relayed, lambda each: each.events == 2) as relayed:
            ids = await house.publish("a1", "a2")
        assert relayed[0].topics == {"depot.sent": 2}
        assert await ids_in(sink_of(redis_server, name), name) == ids


@pytest.mark.parametrize("heard", [True, False])
async def test_after_a_take_that_has_read_everything_it_takes_no_more(
    database: str, redis_server: RedisServer, name: str, heard: bool
) -> None:
    """If the notification of the next event is sure to wake it."""
    wakeups = cast(Wakeups, SimpleNamespace(hears_at_once=lambda _: heard, pause=lambda: 3600.0))
    outcomes: list[str] = []
    async with relaying(database, redis_server, name) as house:
        house.app.signals.listen(lambda each: outcomes.append(each.outcome) if isinstance(each, Taken) else None)
        [loop] = house.app._relay_loops(house.app.relays, "here", wakeups)
        try:
            await house.publish("a1")
            while outcomes[-1:] != ["idle"]:
                await loop.step()
            outcomes.clear()
            await house.publish("b1")
            await loop.step()
        finally:
            await loop.close()
    assert outcomes == (["done"] if heard else ["done", "idle"])


@pytest.mark.parametrize("how", ["publish", "publish_many", "sql", "generation"])
async def test_an_event_of_any_class_wakes_it(database: str, redis_server: RedisServer, name: str, how: str) -> None:
    """Its worker names no class: the relay is woken nevertheless, the handler is not."""
    other: dict[str, Any] = {"generation": 7} if how == "generation" else {}
    async with (
        depot(database, poll="1h") as house,
        depot(database, **other) as publisher,
        AsyncExitStack() as ending,
    ):
        house.app.relay("depot.out", sink_of(redis_server, name), events=[Sent])
        house.app.handler(Sent, name="depot.handled")(lambda _: None)
        await house.app.migrate()
        async with expect(house.app, ListenerUp):
            await ending.enter_async_context(house.app.worker())
        woken: list[tuple[str, str]] = []
        house.app.signals.listen(
            lambda each: woken.append((each.subscription, each.reason)) if isinstance(each, Woken) else None
        )
        while ("depot.out", "notification") not in woken:  # the first may come while the relay looks anyway
            async with expect(house.app, Relayed, lambda each: each.events == 1):
                if how == "publish_many":
                    await publisher.publish_classes("heavy")
                elif how == "sql":
                    await publisher.execute(
                        "select outrider.publish('depot.sent', '{\"parcel\": \"a\"}', channel_class => 'heavy')"
                    )
                else:
                    await publisher.publish("a1", channel_class="heavy")
        assert ("depot.handled", "notification") not in woken


async def test_polling_covers_what_notifications_miss(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database, notify="off", poll="1h") as house:
        house.app.relay("depot.out", sink_of(redis_server, name), poll=0.1)
        await house.app.migrate()
        async with house.app.worker(), expect(house.app, Relayed, lambda each: each.events == 1):
            await house.publish("a1")


@pytest.mark.verify
async def test_of_two_workers_one_sends(database: str, redis_server: RedisServer, name: str) -> None:
    async with (
        relaying(database, redis_server, name, batch=7) as house,
        relaying(database, redis_server, name, batch=7) as other,
        house.app.worker(),
        other.app.worker(),
    ):
        ids = []
        for start in range(0, 300, 50):
            ids += await house.publish_many(50, start=start)
        await until(lambda: sent(house, 300))
        assert await ids_in(sink_of(redis_server, name), name) == ids


async def test_a_paused_relay_sends_nothing(database: str, redis_server: RedisServer, name: str) -> None:
    async with relaying(database, redis_server, name, poll=0.05) as house:
        await house.app.pause("depot.out")
        async with house.app.worker():
            async with expect(house.app, Skipped, lambda each: each.reason == "paused"):
                ids = await house.publish("a1")
            async with expect(house.app, Relayed, lambda each: each.events == 1):
                await house.app.resume("depot.out")
        assert await ids_in(sink_of(redis_server, name), name) == ids


async def test_a_lease_lets_one_of_them_work(database: str, redis_server: RedisServer, name: str) -> None:
    """Who has it keeps it while it lives, and gives it back at its end."""

    def lease() -> RedisLease:
        return RedisLease(redis_server.url, key=f"lock:{name}", ttl=30)

    async with (
        relaying(database, redis_server, name, lease=lease(), poll=0.05) as house,
        relaying(database, redis_server, name, lease=lease(), poll=0.05) as other,
    ):
        async with house.app.worker():
            async with expect(other.app, Skipped, lambda each: each.reason == "lease"), other.app.worker():
                pass
            async with other.app.worker(), expect(house.app, Relayed, lambda each: each.events == 1):
                await house.publish("a1")
        async with other.app.worker(), expect(other.app, Relayed, lambda each: each.events == 1):
            await house.publish("a2")


async def test_a_broker_that_is_down_is_not_asked_at_every_publish(database: str, name: str) -> None:
    with RedisServer() as server:
        async with relaying(database, server, name, poll=0.05) as house, house.app.worker():
            await house.publish("a1")
            await until(lambda: sent(house, 1))
            asked: list[Signal] = []
            house.app.signals.listen(lambda each: asked.append(each) if isinstance(each, BrokerDown) else None)
            server.kill()
            async with expect(house.app, BrokerDown, lambda each: each.in_a_row == 3):
                ids = [(await house.publish(f"b{n}"))[0] for n in range(100)]
            assert len(asked) <= 10
            async with expect(house.app, BrokerUp, lambda _: True):
                server.start()
            await until(lambda: sent(house, 101))
            assert (await ids_in(sink_of(server, name), name))[1:] == ids


async def test_a_worker_ends_well_while_the_brokers_are_down(database: str, name: str) -> None:
    with RedisServer() as server:
        async with depot(database) as house:
            lease = RedisLease(server.url, key=f"lock:{name}", ttl=30)
            house.app.relay("depot.out", RedisStreams(server.url, stream=name), lease=lease, poll=0.05)
            await house.app.migrate()
            async with house.app.worker():
                server.kill()


@pytest.mark.verify
async def test_it_finishes_its_batch_when_it_is_told_to_stop(
    database: str, redis_server: RedisServer, name: str
) -> None:
    async with relaying(database, redis_server, name, batch=50) as house:
        ids = await house.publish_many(2000)
        async with expect(house.app, Relayed, lambda each: each.events == 50):
            worker = house.app.worker()
            running = asyncio.create_task(worker.run())
        worker.stop()
        assert await running is True, "clean"
        first = await ids_in(sink_of(redis_server, name), name)
        assert first == ids[: len(first)]
        assert await house.rows("select * from outrider.stream_ahead") == []
        await house.app.drain()
        assert await ids_in(sink_of(redis_server, name), name) == ids


async def test_only_some_of_what_is_declared(database: str, redis_server: RedisServer, name: str) -> None:
    async with relaying(database, redis_server, name) as house:
        house.app.relay("depot.lost", sink_of(redis_server, f"{name}.lost"), events=[Lost])
        woken: list[str] = []
        house.app.signals.listen(lambda each: woken.append(each.subscription) if isinstance(each, Woken) else None)
        async with house.app.worker(handlers=["depot.l*"]) as worker:
            assert worker.identity.subscriptions == ["depot.lost"]
        with pytest.raises(ConfigError, match=r"no handler, job, relay, inbox or rollup is called 'depot\.x'"):
            house.app.worker(handlers=["depot.x"])


async def test_code_that_does_not_know_all_types_sends_nothing(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """The relay was registered with more types than this code declares: what it would leave out must not be passed over."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink_of(redis_server, name), events=[Sent, Lost])
        await house.app.migrate()
    async with depot(database) as house:
        house.app.relay("depot.out", sink_of(redis_server, name), events=[Sent])
        await house.publish("a1")
        async with expect(house.app, Skipped, lambda each: each.reason == "unknown"), house.app.worker():
            pass
        assert await ids_in(sink_of(redis_server, name), name) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch=0 is not a whole number"),
        ({"publish_max_attempts": 0}, "publish_max_attempts=0 is not a whole number"),
        ({"on_rejected": "ignore"}, "on_rejected='ignore' is none of bury, halt"),
        ({"poll": 0}, "poll=0 is not longer than zero"),
        ({"workspace_id": ""}, "workspace_id is empty"),
    ],
)
def test_wrong_options_are_refused_where_they_are_declared(options: Any, said: str) -> None:
    app = Outrider(context="depot", dsn="postgresql://nowhere")
    with pytest.raises(DeclarationError, match=said):
        app.relay("depot.out", RedisStreams("redis://127.0.0.1:1", stream="s"), **options)


def test_less_than_two_batches_are_too_few_to_keep() -> None:
    app = Outrider(context="depot", dsn="postgresql://nowhere")
    with pytest.raises(DeclarationError, match="keeps less than two batches of 500"):
        app.relay("depot.out", RedisStreams("redis://127.0.0.1:1", stream="s", max_len=999), events=[Sent])


def test_what_is_no_sink_or_source_is_refused() -> None:
    app = Outrider(context="depot", dsn="postgresql://nowhere")
    with pytest.raises(DeclarationError, match="RedisStreams and JetStream are sinks"):
        app.relay("depot.out", "redis://127.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="RedisStreams and JetStream are sources"):
        app.inbox("depot.in", "redis://127.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="neither 'beginning' nor a position"):
        app.inbox("depot.in", RedisStreams("redis://127.0.0.1:1", stream="s"), start="now")
    with pytest.raises(DeclarationError, match="is not the name of a table"):
        app.replica("depot.r", RedisStreams("redis://127.0.0.1:1", stream="s"), table="a; drop table b")
