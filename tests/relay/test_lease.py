"""A relay with a lease in Redis sends while it holds it, waits while another one does, and gives it up at its end."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.relay.depot import depot, ids_in

from outrider.signals import Relayed, Skipped
from outrider.streams.lease import RedisLease
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
        sent = await house.publish("a1")
        async with house.app.worker():
            async with expect(house.app, Relayed):
                while not skipped:
                    await redis.ping()
                assert await ids_in(RedisStreams(redis_server.url, stream=name), name) == []
                await redis.delete(key)
            assert await redis.get(key) not in (None, b"another one")
        assert skipped == ["lease"]
        assert await redis.get(key) is None
    assert await ids_in(sink, name) == sent
