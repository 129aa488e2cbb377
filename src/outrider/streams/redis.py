"""Redis Streams, as the sink of a relay and the source of an inbox."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from outrider.envelope import Envelope
from outrider.errors import ConfigError
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.durability import redis_weaknesses
from outrider.streams.redis_append import START, RedisAppender, RedisId, RedisPositions, RedisStreamState, entry_name
from outrider.streams.redis_connection import RedisConnection
from outrider.streams.stream import AppendOutcome, Codec, Page, StreamEntry, Weakness, bare_position


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
        self._use(RedisConnection(url, timeout))

    def _use(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._positions = RedisPositions(connection, self.codec)
        self._appender = RedisAppender(connection, self.codec, self.max_len)
        self._reader = RedisReader(connection, self._positions)

    def copy(self) -> Self:
        """The same streams, with connections of its own."""
        other = copy.copy(self)
        other._use(self._connection.copy())
        return other

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


class RedisReader:
    def __init__(self, connection: RedisConnection, positions: RedisPositions) -> None:
        self._connection = connection
        self._positions = positions
        self._caught_up = (START, 0)
        """An end of the stream that was read, and the number of entries ever added up to it."""

    async def read(self, stream: str, after: str, limit: int, wait: float) -> Page:
        deadline = time.monotonic() + wait
        while True:
            page = await self._page(stream, after, limit)
            left = deadline - time.monotonic()
            if page.entries or page.rewound or page.trimmed or left <= 0:
                return page
            async with self._connection.client(left + self._connection.timeout) as redis:
                # This only waits. The next page shows whether it is still the same stream.
                found = await redis.xread({stream: bare_position(after)}, count=1, block=max(1, int(left * 1000)))
            if not found:
                return page

    async def _page(self, stream: str, after: str, limit: int) -> Page:
        known, name = RedisId.parse(after), after.partition("@")[2]
        at = (str(known), str(known), None)
        state, [here, entries] = await self._positions.look_up(stream, at, (f"({known}", "+", limit))
        if _is_replaced(state, here, known, name):
            _, [entries] = await self._positions.look_up(stream, ("-", "+", limit))
            entries = _named(entries)
            return Page(entries, entries[-1].position if entries else str(START), rewound=True)
        entries, here = _named(entries), _named(here)
        trimmed = self._is_trimmed(state, known, entries)
        if entries:
            position = entries[-1].position
        elif trimmed:
            position = str(state.last)  # nothing is left to read
        elif here and not name:
            position = here[0].position
        else:
            position = after
        if RedisId.parse(position) == state.last:
            self._caught_up = (state.last, state.added)
        return Page(entries, position, trimmed=trimmed)

    def _is_trimmed(self, state: RedisStreamState, after: RedisId, entries: Sequence[StreamEntry]) -> bool:
        """Whether an entry between `after` and the end of the page is gone.

        Redis tells the number of entries ever added and the last one deleted, but not where trimming stopped. If `after` is
        gone too, only the number tells that no entry came in between.
        """
        if state.last <= after:
            return False
        if entries and after < state.last_deleted <= RedisId.parse(entries[-1].position):
            return True
        if state.reaches_back_to(after):
            return False
        end, added = (START, 0) if after == START else self._caught_up
        return end != after or state.added - added > state.length


def _is_replaced(state: RedisStreamState, here: Sequence[StreamEntry], after: RedisId, name: str) -> bool:
    """Whether this is not the stream that had the entry `after`. A stream that was trimmed beyond it may be that stream."""
    if after == START:
        return False
    if state.last < after:
        return True
    if here:
        return bool(name) and name != entry_name(here[0])
    return state.first is not None and state.first < after


def _named(entries: Sequence[StreamEntry]) -> list[StreamEntry]:
    return [replace(entry, position=f"{entry.position}@{entry_name(entry)}") for entry in entries]
