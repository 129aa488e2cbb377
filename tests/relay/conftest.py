"""One redis-server and one nats-server for all tests of a worker that do not harm them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import nats
import pytest
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.streams.conftest import name, nats_server, redis_server

from outrider.streams import Sink
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams

__all__ = ["name", "nats_server", "redis_server", "remove", "sink"]


@pytest.fixture(params=("redis", "nats"))
def sink(request: pytest.FixtureRequest, name: str) -> Sink:
    """A stream of its own."""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return RedisStreams(redis.url, stream=name)
    server: NatsServer = request.getfixturevalue("nats_server")
    return JetStream(server.url, stream=name, create=True)


@pytest.fixture
def remove(request: pytest.FixtureRequest, sink: Sink, name: str) -> Callable[[], Awaitable[None]]:
    """Lets the broker forget the stream of `sink`."""

    async def remove() -> None:
        if isinstance(sink, RedisStreams):
            async with Redis.from_url(request.getfixturevalue("redis_server").url) as redis:
                await redis.delete(name)
        else:
            client = await nats.connect(request.getfixturevalue("nats_server").url)
            await client.jetstream().delete_stream(name)
            await client.close()

    return remove
