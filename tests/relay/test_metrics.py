"""What Prometheus is told of relays and inboxes: with real ones, and a registry of the test's own."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import Lost, depot
from tests.relay.test_relay import Refusing

from outrider.errors import ConfigError
from outrider.observe import vocabulary as of
from outrider.observe.metrics import Metrics
from outrider.signals import BrokerDown, BrokerUp, Signals
from outrider.streams.lease import RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.testing import expect


async def test_what_is_sent_rejected_and_how_far(database: str, redis_server: RedisServer, name: str) -> None:
    codec, registry = Refusing(), CollectorRegistry()
    async with depot(database) as house:
        Metrics(house.app.signals, registry)
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name, codec=codec), publish_max_attempts=1)
        await house.app.migrate()
        await house.publish("a1", "a2")
        await house.app.drain()
        codec.refused = {7}
        await house.publish("a7")
        await house.publish("a3", model=Lost)
        await house.app.drain()
        position = await house.app.current_hwm(name)
    value = registry.get_sample_value
    assert value("outrider_relayed_total", {"topic": "depot.sent"}) == 2
    assert value("outrider_relayed_total", {"topic": "depot.lost"}) == 1
    failures = {"topic": "depot.sent", "reason": "unencodable"}
    assert value("outrider_publish_failures_total", failures) == 1
    assert value("outrider_relay_hwm", {"stream": name}) == int(position.split("-")[0])
    assert value("outrider_broker_up", {"subscription": "depot.out"}) == 1
    assert "Severity: page" in generate_latest(registry).decode()


async def test_the_mark_of_jetstream_is_its_sequence(database: str, nats_server: NatsServer, name: str) -> None:
    registry = CollectorRegistry()
    async with depot(database) as house:
        Metrics(house.app.signals, registry)
        house.app.relay("depot.out", JetStream(nats_server.url, stream=name, create=True))
        await house.app.migrate()
        await house.publish("a1", "a2", "a3")
        await house.app.drain()
    assert registry.get_sample_value("outrider_relay_hwm", {"stream": name}) == 3


async def test_what_comes_in_and_what_does_not(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    registry, stream = CollectorRegistry(), RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house, depot(other_database, context="shop") as shop:
        house.app.relay("depot.out", stream)
        await house.app.migrate()
        await house.publish("a1", "a2")
        await house.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.xadd(name, {"event": "nonsense"})
        Metrics(shop.app.signals, registry)
        shop.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        await shop.app.migrate()
        await shop.app.drain()
    assert registry.get_sample_value("outrider_ingested_total", {"inbox": "shop.in"}) == 2
    assert registry.get_sample_value("outrider_ingest_refused_total", {"inbox": "shop.in"}) == 1


async def test_a_broker_that_is_down_is_seen(database: str, name: str) -> None:
    registry = CollectorRegistry()

    def up() -> float | None:
        return registry.get_sample_value("outrider_broker_up", {"subscription": "depot.out"})

    with RedisServer() as broker:
        async with depot(database) as house:
            Metrics(house.app.signals, registry)
            house.app.relay("depot.out", RedisStreams(broker.url, stream=name))
            await house.app.migrate()
            async with house.app.worker():
                async with expect(house.app, BrokerDown):
                    broker.kill()
                assert up() == 0
                async with expect(house.app, BrokerUp, timeout=60):
                    broker.start()
                assert up() == 1


async def test_a_broker_answers_again_also_who_waits_for_the_lease(
    database: str, redis_server: RedisServer, name: str
) -> None:
    lease = RedisLease(redis_server.url, key=f"lock:{name}")
    with RedisServer() as broker:
        async with Redis.from_url(redis_server.url) as redis, depot(database) as house:
            await redis.set(lease.key, "somebody else")
            house.app.relay("depot.out", RedisStreams(broker.url, stream=name), lease=lease, poll=0.05)
            await house.app.migrate()
            async with house.app.worker():
                async with expect(house.app, BrokerDown, timeout=60):
                    broker.kill()
                async with expect(house.app, BrokerUp, timeout=60):
                    broker.start()
            await lease.release()


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.observe.metrics.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install outrider\[metrics\]"):
        Metrics(Signals())


def test_the_client_is_imported_only_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "outrider.observe.metrics")
    import outrider.observe.metrics  # noqa: F401

    assert "prometheus_client" not in sys.modules


def test_it_can_be_ended() -> None:
    registry, signals = CollectorRegistry(), Signals()
    metrics = Metrics(signals, registry)
    metrics.close()
    signals.emit(BrokerUp("depot.out"))
    assert registry.get_sample_value("outrider_broker_up", {"subscription": "depot.out"}) is None


def names_of() -> set[tuple[str, str, tuple[str, ...]]]:
    """Name, type and labels of those of relays and inboxes."""
    own = (of.relayed, of.publish_failures, of.hwm, of.ingested, of.ingest_refused, of.broker_up)
    return {(each.name, each.kind, each.labels) for each in own}
