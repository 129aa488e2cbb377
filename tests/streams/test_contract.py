"""The stream exercise over both brokers."""

from __future__ import annotations

from collections.abc import Sequence

import nats
import pytest
from redis.asyncio import Redis
from tests.brokers import Broker, NatsServer, RedisServer

from outrider.envelope import Envelope
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.stream import AppendOutcome, Codec, Sink, Source
from outrider.streams.url import broker
from outrider.testing import streams
from outrider.testing.streams import StreamCheck


class Harness:
    def __init__(self, server: Broker) -> None:
        self.server = server

    def sink(self, stream: str, codec: Codec) -> Sink:
        return broker(self.server.url, stream=stream, codec=codec)

    def source(self, stream: str, codec: Codec) -> Source:
        return broker(self.server.url, stream=stream, codec=codec)

    async def make(self, stream: str) -> None:
        if isinstance(self.server, NatsServer):
            maker = JetStream(self.server.url, stream=stream, create=True)
            await maker.open()
            await maker.close()

    async def restart(self, *, empty: bool = False) -> None:
        self.server.restart(empty=empty)

    async def trim(self, stream: str, keep: int) -> None:
        if isinstance(self.server, NatsServer):
            client = await nats.connect(self.server.url)
            await client.jetstream().purge_stream(stream, keep=keep)
            await client.close()
        else:
            async with Redis.from_url(self.server.url) as redis:
                await redis.xtrim(stream, maxlen=keep, approximate=False)


@pytest.mark.parametrize("check", streams.CHECKS.values(), ids=streams.CHECKS)
async def test_redis(check: StreamCheck, redis_server: RedisServer) -> None:
    await check(Harness(redis_server))


@pytest.mark.parametrize("check", streams.CHECKS.values(), ids=streams.CHECKS)
async def test_nats(check: StreamCheck, nats_server: NatsServer) -> None:
    await check(Harness(nats_server))


async def test_all_of_it_at_once_names_the_check_that_fails(redis_server: RedisServer) -> None:
    class Unfenced(RedisStreams):
        async def append(self, stream: str, events: Sequence[Envelope], after: str) -> AppendOutcome:
            del after
            return await super().append(stream, events, await self.end(stream))

    class Forgetful(Harness):
        def sink(self, stream: str, codec: Codec) -> Sink:
            return Unfenced(self.server.url, stream=stream, codec=codec)

    with pytest.raises(AssertionError) as caught:
        await streams.run(Forgetful(redis_server))
    assert caught.value.__notes__ == ["in the check appends_only_to_the_end of the stream exercise"]
