"""What Prometheus is told of relays and inboxes: with real ones, and a registry of the test's own."""

from __future__ import annotations

import sys

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import Lost, Sent, depot
from tests.relay.test_relay import Refusing

from outrider import Outrider
from outrider.errors import ConfigError
from outrider.observe import exposed
from outrider.observe import vocabulary as of
from outrider.observe.metrics import Metrics
from outrider.postgres.admin import status
from outrider.postgres.admin.streams import OTHER, TOPICS
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
    sent, lost = ({"relay": "depot.out", "topic": f"depot.{each}"} for each in ("sent", "lost"))
    assert value("outrider_relayed_total", sent) == 2
    assert value("outrider_relayed_total", lost) == 1
    assert value("outrider_publish_failures_total", sent | {"reason": "unencodable"}) == 1
    assert value("outrider_publish_retries_total", sent) == 0
    assert mark_of(registry, name) == position
    assert value("outrider_broker_up", {"subscription": "depot.out"}) == 1
    assert "Severity: page" in generate_latest(registry).decode()


def mark_of(registry: CollectorRegistry, stream: str) -> str:
    milliseconds, number = (
        registry.get_sample_value(each.name, {"stream": stream}) for each in (of.hwm, of.hwm_number)
    )
    assert milliseconds is not None
    assert number is not None
    return f"{milliseconds:.0f}-{number:.0f}"


async def test_the_mark_of_redis_is_exact(database: str, redis_server: RedisServer, name: str) -> None:
    """Events of one append share their milliseconds."""
    registry = CollectorRegistry()
    async with depot(database) as house:
        Metrics(house.app.signals, registry)
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await house.app.migrate()
        await house.publish_many(40)
        await house.app.drain()
        position = await house.app.current_hwm(name)
    assert not position.endswith("-0")
    assert mark_of(registry, name) == position


class Owed:
    """What is told of the topics of a relay."""

    def __init__(self, app: Outrider) -> None:
        self.app = app
        self.registry = CollectorRegistry()
        self.to = Metrics(app.signals, self.registry).instruments

    async def __call__(self, relay: str = "depot.out") -> dict[str, float]:
        await exposed.sample(self.app, "outrider", self.to)
        return self.values(of.relay_depth, relay)

    def values(self, metric: of.Metric, relay: str = "depot.out") -> dict[str, float]:
        found = [each for family in self.registry.collect() for each in family.samples if each.name == metric.exposed]
        return {each.labels["topic"]: each.value for each in found if each.labels["relay"] == relay}


async def topics(app: Outrider, relay: str = "depot.out") -> dict[str, tuple[int, int, int]]:
    """Depth, rejected and dead, as `status` has them."""
    [found] = [each for each in (await app.status()).subscriptions if each.name == relay]
    return {each.name: (each.depth, each.rejected, each.dead) for each in found.topics}


async def test_what_it_owes_by_topic(database: str, redis_server: RedisServer, name: str) -> None:
    """Only what it would send: the filter of each relay, without what is in the stream already."""
    codec = Refusing()
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name, codec=codec), publish_max_attempts=2)
        lost = RedisStreams(redis_server.url, stream=f"{name}-lost")
        house.app.relay("depot.lost", lost, events=[Lost], workspace_id="acme")
        await house.app.migrate()
        owed = Owed(house.app)
        assert (await owed(), await owed("depot.lost")) == ({}, {"depot.lost": 0})
        await house.publish("a1", "a2")
        await house.publish("b1", model=Lost)
        await house.publish("b2", model=Lost, workspace_id="acme")
        await house.execute("update outrider.outbox set occurred_at = occurred_at - interval '1 hour' where seq = 1")
        assert await owed() == {"depot.sent": 2, "depot.lost": 2}
        assert await owed("depot.lost") == {"depot.lost": 1}
        lags = owed.values(of.relay_lag)
        assert 3600 <= lags["depot.sent"] < 7200
        assert lags["depot.lost"] < 3600
        await house.execute(
            "insert into outrider.stream_ahead (subscription, event_id) select 'depot.out', id from outrider.outbox "
            "where seq = 1"
        )
        assert await owed() == {"depot.sent": 1, "depot.lost": 2}
        await house.execute("delete from outrider.stream_ahead")
        await house.app.drain()
        assert (await owed(), await owed("depot.lost")) == ({}, {"depot.lost": 0})
        codec.refused = {7}
        await house.publish("a7", "a8")
        await house.app.drain()
        await house.execute("update outrider.delivery set run_at = now() + interval '1 hour'")
        assert await owed() == {"depot.sent": 2}
        assert await topics(house.app) == {"depot.sent": (2, 1, 0)}
        assert owed.values(of.publish_retries) == {"depot.sent": 1}
        await house.execute("update outrider.delivery set run_at = now()")
        await house.app.drain()
        assert await owed() == {"depot.sent": 0}
        assert await topics(house.app) == {"depot.sent": (0, 0, 1)}
        assert owed.values(of.publish_retries) == {"depot.sent": 1}
        codec.refused = set()
        await house.app.dead_letters.replay()
        assert await topics(house.app) == {"depot.sent": (1, 1, 0)}
        await house.app.drain()
        assert await topics(house.app) == {}


async def test_a_late_commit_is_owed_too(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database) as house, await psycopg.AsyncConnection.connect(database) as slow:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await house.app.migrate()
        await house.app.publish(slow, Sent(parcel="a"))
        await house.publish("b1")
        await house.app.drain()
        assert await topics(house.app) == {}
        await slow.commit()
        assert await topics(house.app) == {"depot.sent": (1, 0, 0)}


async def test_the_number_of_topics_is_bounded(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await house.app.migrate()
        await house.execute(
            "insert into outrider.outbox (event_type, source, payload) "
            "select 'depot.t' || n, 'depot', '{}' from generate_series(1, 250) as n, generate_series(1, 1 + mod(n, 2))"
        )
        owed = await Owed(house.app)()
    assert len(owed) == TOPICS + 1
    assert owed[OTHER] == 50
    assert sum(owed.values()) == 375


async def test_a_long_backlog_is_counted_in_part(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MOST", 3)
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name), events=[Sent])
        await house.app.migrate()
        await house.publish("a1", model=Lost)
        await house.publish("a1")
        [found] = (await house.app.status()).subscriptions
        assert [(each.name, each.depth) for each in found.topics] == [("depot.sent", 1)]
        assert found.topics_are_complete
        await house.publish("a2", "a3", "a4")
        [found] = (await house.app.status()).subscriptions
        assert [(each.name, each.depth) for each in found.topics] == [("depot.sent", 2)]
        assert not found.topics_are_complete


async def test_the_mark_of_jetstream_is_its_sequence(database: str, nats_server: NatsServer, name: str) -> None:
    registry = CollectorRegistry()
    async with depot(database) as house:
        Metrics(house.app.signals, registry)
        house.app.relay("depot.out", JetStream(nats_server.url, stream=name, create=True))
        await house.app.migrate()
        await house.publish("a1", "a2", "a3")
        await house.app.drain()
    assert mark_of(registry, name) == "3-0"


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
    out = (of.relayed, of.publish_failures, of.publish_retries, of.relay_depth, of.relay_lag, of.relay_leases)
    own = (*out, of.hwm, of.hwm_number, of.ingested, of.ingest_refused, of.broker_up)
    return {(each.name, each.kind, each.labels) for each in own}
