"""Redis Streams, as the sink of a relay and the source of an inbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from outrider.envelope import Envelope
from outrider.errors import ConfigError
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.durability import redis_weaknesses
from outrider.streams.redis_append import RedisAppender
from outrider.streams.redis_connection import RedisConnection
from outrider.streams.redis_positions import START, RedisId, RedisPositions
from outrider.streams.redis_read import RedisReader
from outrider.streams.stream import AppendOutcome, Codec, Page, StreamEntry, Weakness


class RedisStreams:
    """Sink and source. `stream_for` spreads the events over several streams; a source needs `stream`."""

    start = str(START)

    def __init__(
        self,
        url: str,
        *,
        stream: str | None = None,
        stream_for: Callable[[Envelope], str] | None = None,
        codec: Codec | None = None,
        timeout: float = 5,
        max_len: int | None = None,
    ) -> None:
        """`timeout`: seconds to wait for an answer. `max_len`: about how many entries a stream keeps; None = all."""
        if (stream is None) == (stream_for is None):
            raise ConfigError("RedisStreams needs one of stream= and stream_for=")
        if max_len is not None and max_len < 1:
            raise ConfigError(f"max_len is {max_len}: keep at least one entry, or None for all")
        self.codec: Codec = codec or EnvelopeCodec()
        self.max_len = max_len
        self._stream, self._stream_for = stream, stream_for
        self._connection = RedisConnection(url, timeout)
        self._positions = RedisPositions(self._connection, self.codec)
        self._appender = RedisAppender(self._connection, self.codec, max_len)
        self._reader = RedisReader(self._connection, self._positions)

    def __repr__(self) -> str:
        return f"<RedisStreams {self._connection.address} {self._stream or 'several streams'}>"

    @property
    def stream(self) -> str:
        if self._stream is None:
            raise ConfigError("RedisStreams with stream_for= writes only: a source needs stream=")
        return self._stream

    def stream_of(self, envelope: Envelope) -> str:
        return self.stream if self._stream_for is None else self._stream_for(envelope)

    def sort_key(self, position: str) -> tuple[int, ...]:
        return RedisId.parse(position)

    async def open(self) -> None:
        async with self._connection.client() as redis:
            await redis.ping()

    async def close(self) -> None:
        await self._connection.close()

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> AppendOutcome:
        return await self._appender.append(stream, events, after)

    async def end(self, stream: str) -> str:
        return await self._positions.end(stream)

    async def holds(self, stream: str, position: str) -> bool:
        return await self._positions.holds(stream, position)

    def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[StreamEntry], None]:
        return self._positions.tail(stream, after)

    async def complete(self, stream: str, after: str) -> bool:
        return await self._positions.complete(stream, after)

    async def read(self, after: str, limit: int, wait: float) -> Page:
        return await self._reader.read(self.stream, after, limit, wait)

    async def weaknesses(self) -> list[Weakness]:
        """As far as the user of the URL may run INFO and CONFIG."""
        from redis.exceptions import ResponseError

        info: dict[str, Any] | None = None
        config: dict[Any, Any] = {}
        async with self._connection.client() as redis:
            with contextlib.suppress(ResponseError):
                info = await redis.info()
                config = await redis.config_get("appendfsync")
        return redis_weaknesses(self._connection.address, info, config)
