"""A relay with a lease in Redis sends while it holds it, waits while another one does, and gives it up at its end."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import nats
import pytest
from nats.js.errors import NotFoundError
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import depot, ids_in
from tests.relay.test_worker import sent, until

from outrider import Outrider
from outrider.errors import BrokerUnavailable, ConfigError
from outrider.observe import vocabulary as of
from outrider.observe.metrics import Metrics
from outrider.relay.held_lease import HeldLease
from outrider.signals import Relayed, RelayLease, Signals, Skipped
from outrider.streams.lease import Lease, RedisLease
from outrider.streams.nats_lease import NatsLease
from outrider.streams.redis import RedisStreams
from outrider.testing import expect


async def test_who_has_no_lease_waits(database: str, redis_server: RedisServer, name: str) -> None:
    key, sink = f"lock:outbox:{name}", RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house, Redis.from_url(redis_server.url) as redis:
        house.app.relay("depot.out", sink, lease=RedisLease(redis_server.url, key))
        await house.app.migrate()
        await redis.set(key, "another one")
        skipped: list[str] = []
        house.app.signals.listen(lambda each: skipped.append(each.reason) if isinstance(each, Skipped) else None)
        ids = await house.publish("a1")
        async with house.app.worker():
            async with expect(house.app, Relayed):
                while not skipped:
                    await redis.ping()
                assert await ids_in(RedisStreams(redis_server.url, stream=name), name) == []
                await redis.delete(key)
            assert await redis.get(key) not in (None, b"another one")
        assert skipped == ["lease"]
        assert await redis.get(key) is None
    assert await ids_in(sink, name) == ids


class Leases:
    """Leases of one name at a broker, and how the broker loses them."""

    def __init__(self, broker: RedisServer | NatsServer, name: str) -> None:
        self._broker, self._name = broker, name

    def make(self, ttl: float) -> Lease:
        if isinstance(self._broker, RedisServer):
            return RedisLease(self._broker.url, f"lock:outbox:{self._name}", ttl=ttl)
        return NatsLease(self._broker.url, self._name, ttl=ttl)

    async def holder(self) -> bytes | None:
        if isinstance(self._broker, RedisServer):
            async with Redis.from_url(self._broker.url) as redis:
                found = await redis.get(f"lock:outbox:{self._name}")
                return found.encode() if isinstance(found, str) else found
        client = await nats.connect(self._broker.url)
        try:
            message = await client.jetstream().get_last_msg(f"lease_{self._name}", f"lease_{self._name}.holder")
            return message.data
        except NotFoundError:
            return None
        finally:
            await client.close()

    async def lose(self) -> None:
        if isinstance(self._broker, RedisServer):
            async with Redis.from_url(self._broker.url) as redis:
                await redis.delete(f"lock:outbox:{self._name}")
            return
        client = await nats.connect(self._broker.url)
        await client.jetstream().purge_stream(f"lease_{self._name}")
        await client.close()


@pytest.fixture(params=["redis", "nats"])
def leases(request: pytest.FixtureRequest, name: str) -> Leases:
    return Leases(request.getfixturevalue(f"{request.param}_server"), name)


async def test_one_has_it_until_it_expires_or_is_released(leases: Leases) -> None:
    one, other = leases.make(60), leases.make(60)
    assert await one.acquire()
    assert await one.acquire(), "it is ours already"
    assert not await other.acquire()
    assert await one.renew()
    await one.release()
    assert await leases.holder() is None
    assert await other.acquire()
    assert not await one.renew()
    await one.release()
    await other.release()
    brief = Leases(leases._broker, f"{leases._name}_brief")
    one, other = brief.make(1), brief.make(60)
    assert await one.acquire()
    async with asyncio.timeout(30):
        while await brief.holder() is not None:  # noqa: ASYNC110 (nobody renews it)
            await asyncio.sleep(0.05)
    assert await other.acquire()
    assert not await one.renew()
    await one.release()
    assert await brief.holder() is not None, "it is not the other's to release"
    await other.release()


async def test_its_time_may_change(leases: Leases) -> None:
    for ttl in (30, 60):
        lease = leases.make(ttl)
        assert await lease.acquire()
        assert await lease.renew()
        await lease.release()


@pytest.mark.parametrize(("name", "said"), [("a.b", "cannot be the name of a lease"), ("", "cannot be the name")])
def test_a_name_that_nats_does_not_take_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NatsLease("nats://localhost", name)
    with pytest.raises(ConfigError, match="use at least 1 s"):
        NatsLease("nats://localhost", "a", ttl=0.5)


def noted(app: Outrider) -> list[str]:
    """What becomes of its lease, and what it sends."""
    found: list[str] = []
    app.signals.listen(lambda each: found.append(each.result) if isinstance(each, RelayLease) else None)
    app.signals.listen(lambda each: found.append("relayed") if isinstance(each, Relayed) else None)
    return found


async def test_it_is_renewed_at_half_its_time(
    database: str, redis_server: RedisServer, leases: Leases, name: str
) -> None:
    """Also while there is nothing to do. Takes as long as the lease, which is not shorter because of busy machines."""
    ttl, registry, moments = 5.0, CollectorRegistry(), list[float]()
    async with depot(database) as house:
        Metrics(house.app.signals, registry)
        house.app.signals.listen(
            lambda each: moments.append(time.monotonic()) if isinstance(each, RelayLease) else None
        )
        sink = RedisStreams(redis_server.url, stream=name)
        house.app.relay("depot.out", sink, lease=leases.make(ttl), poll="1h")
        await house.app.migrate()
        async with house.app.worker(), expect(house.app, RelayLease, times=2) as renewed:
            token = await leases.holder()
        assert [each.result for each in renewed[:2]] == ["renewed"] * 2, "and not lost meanwhile"
        assert token is not None
    acquired, first, second, *_ = moments
    for before, after in ((acquired, first), (first, second)):
        assert after - before >= ttl / 2 - 1, "not earlier; on a busy machine it is noted late that it was acquired"
    value = registry.get_sample_value
    assert value(of.relay_leases.exposed, {"relay": "depot.out", "result": "acquired"}) == 1
    assert (value(of.relay_leases.exposed, {"relay": "depot.out", "result": "renewed"}) or 0) >= 2


async def test_lost_in_mid_run_nothing_is_doubled(
    database: str, redis_server: RedisServer, leases: Leases, name: str
) -> None:
    sink = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house, depot(database) as other, AsyncExitStack() as ending:
        for each in (house, other):
            own = RedisStreams(redis_server.url, stream=name)
            each.app.relay("depot.out", own, lease=leases.make(6), batch=5, poll=0.05)
        await house.app.migrate()
        async with expect(house.app, RelayLease, lambda each: each.result == "acquired"):
            await ending.enter_async_context(house.app.worker())
        async with expect(other.app, Skipped, lambda each: each.reason == "lease"):
            await ending.enter_async_context(other.app.worker())
        happened, registry = noted(house.app), CollectorRegistry()
        Metrics(house.app.signals, registry)
        async with (
            expect(other.app, RelayLease, lambda each: each.result == "acquired"),
            expect(house.app, Skipped, lambda each: each.reason == "lease"),
            expect(house.app, RelayLease, lambda each: each.result == "lost"),
        ):
            async with expect(house.app, Relayed):
                ids = await house.publish_many(300)
            await leases.lose()
        after = len(happened)
        ids += await house.publish_many(3, start=300)
        await until(lambda: sent(house, 303))
        assert "relayed" not in happened[after:], "one without the lease sends nothing"
        assert registry.get_sample_value(of.relay_leases.exposed, {"relay": "depot.out", "result": "lost"}) == 1
    assert await ids_in(sink, name) == ids, "each once, in order"


class Unrenewable:
    """A lease that can be acquired, and whose broker then does not answer."""

    ttl = 0.2

    async def acquire(self) -> bool:
        return True

    async def renew(self) -> bool:
        raise BrokerUnavailable("no answer")

    async def release(self) -> None:
        pass


async def test_who_gets_it_back_has_one_task_that_renews_it(name: str) -> None:
    signals, lost = Signals(), asyncio.Event()
    signals.listen(lambda each: lost.set() if isinstance(each, RelayLease) and each.result == "lost" else None)
    lease = HeldLease(name, Unrenewable(), signals)
    assert await lease.held()
    await asyncio.wait_for(lost.wait(), 30)
    assert await lease.held()
    await asyncio.sleep(0)
    assert len([each for each in asyncio.all_tasks() if each.get_name() == f"outrider lease of {name}"]) == 1
    await lease.release()


async def test_who_cannot_renew_it_has_lost_it(database: str, redis_server: RedisServer, name: str) -> None:
    """The stream is at another broker, which answers all the time."""
    with RedisServer() as leases:
        async with depot(database) as house, AsyncExitStack() as ending:
            lease = RedisLease(leases.url, f"lock:{name}", ttl=1, timeout=0.5)
            house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name), lease=lease, poll=0.05)
            await house.app.migrate()
            async with expect(house.app, RelayLease, lambda each: each.result == "acquired"):
                await ending.enter_async_context(house.app.worker())
            async with expect(house.app, RelayLease, lambda each: each.result == "lost"):
                leases.kill()
            async with expect(house.app, RelayLease, lambda each: each.result == "acquired", timeout=60):
                leases.start()
            async with expect(house.app, Relayed):
                await house.publish("a1")
