"""Where a Redis stream ends, which entries it still has, and which were removed: what a relay asks for to recover."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outrider.streams.redis_connection import RedisConnection
from outrider.streams.stream import Codec, StreamEntry, bare_position, event_id_in, may_name

FIELD = b"event"
PAGE = 250
"""Entries per page of a tail."""


class RedisId(NamedTuple):
    """The id of an entry, `<milliseconds>-<number>`."""

    ms: int
    number: int

    @classmethod
    def parse(cls, position: str) -> RedisId:
        ms, dash, number = bare_position(position).partition("-")
        if not (dash and ms.isdecimal() and number.isdecimal()):
            raise ValueError(f"{position!r} is not a position in a Redis stream, such as 1700000000000-0")
        return cls(int(ms), int(number))

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


START = RedisId(0, 0)


@dataclass(frozen=True, slots=True)
class RedisStreamState:
    """What XINFO STREAM tells; the default is a stream that does not exist."""

    last: RedisId = START
    """The last id ever written, whether or not the entry is still there."""
    first: RedisId | None = None
    """The oldest entry that is still there."""
    last_deleted: RedisId = START
    """The highest id deleted by XDEL. Trimming does not change it."""
    added: int = 0
    """Entries ever added."""
    length: int = 0

    @classmethod
    def of(cls, info: Any) -> RedisStreamState:
        first = info["first-entry"]
        return cls(
            last=RedisId.parse(info["last-generated-id"].decode()),
            first=None if first is None else RedisId.parse(first[0].decode()),
            last_deleted=RedisId.parse(info.get("max-deleted-entry-id", b"0-0").decode()),
            added=int(info.get("entries-added", info["length"])),
            length=int(info["length"]),
        )

    @property
    def removed(self) -> int:
        """Entries that were trimmed or deleted."""
        return self.added - self.length

    def reaches_back_to(self, entry: RedisId) -> bool:
        """Whether this entry or an older one is still there. Trimming removes the oldest, so it has not passed `entry`."""
        return self.first is not None and self.first <= entry


class RedisPositions:
    def __init__(self, connection: RedisConnection, codec: Codec) -> None:
        self._connection = connection
        self._codec = codec

    async def look_up(
        self, stream: str, *ranges: tuple[str, str, int | None]
    ) -> tuple[RedisStreamState, list[list[StreamEntry]]]:
        """The state of the stream, and the entries of each range (first, last, limit), all as of the same moment."""
        async with self._connection.client() as redis:
            pipe = redis.pipeline(transaction=bool(ranges))  # without memory Redis refuses MULTI, but not XINFO alone
            pipe.xinfo_stream(stream)
            for first, last, limit in ranges:
                pipe.xrange(stream, first, last, count=limit)
            info, *found = await pipe.execute(raise_on_error=False)
        state = RedisStreamState()
        if not isinstance(info, Exception):
            state = RedisStreamState.of(info)
        elif "WRONGTYPE" in str(info):
            self._connection.fail_wrong_type(stream)
        elif "no such key" not in str(info):
            self._connection.fail(info)
        for answer in found:
            if isinstance(answer, Exception):
                self._connection.fail(answer)
        return state, [self._entries(entries) for entries in found]

    async def end(self, stream: str) -> str:
        state, _ = await self.look_up(stream)
        return str(state.last)

    async def holds(self, stream: str, position: str) -> bool:
        """An entry that is missing was removed, if it is the last ever written or Redis counts removals around it."""
        wanted = RedisId.parse(position)
        if wanted == START:
            return True
        state, [here] = await self.look_up(stream, (str(wanted), str(wanted), None))
        if state.last < wanted:
            return False
        if here:
            return may_name(position, here[0].id)
        trimmed = state.removed > 0 and not state.reaches_back_to(wanted)
        return state.last == wanted or state.last_deleted >= wanted or trimmed

    async def complete(self, stream: str, after: str) -> bool:
        known = RedisId.parse(after)
        state, _ = await self.look_up(stream)
        if state.last <= known:
            return True
        return state.last_deleted <= known and (state.reaches_back_to(known) or not state.removed)

    async def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[StreamEntry], None]:
        end, known = await self.end(stream), RedisId.parse(after)
        while known < RedisId.parse(end):
            async with self._connection.client() as redis:
                entries = self._entries(await redis.xrange(stream, f"({known}", end, count=PAGE))
            if not entries:
                return
            known = RedisId.parse(entries[-1].position)
            yield entries

    def _entries(self, found: Any) -> list[StreamEntry]:
        entries = []
        for entry_id, fields in found:
            data = (fields or {}).get(FIELD)
            if data is None:
                entries.append(StreamEntry(entry_id.decode(), _foreign(fields or {})))
            else:
                entries.append(StreamEntry(entry_id.decode(), data, event_id_in(self._codec, data)))
        return entries


def entry_name(entry: StreamEntry) -> str:
    """Tells an entry from another one with the same id: the event's id, or a hash of the data."""
    return hashlib.blake2b(entry.data, digest_size=16).hexdigest() if entry.id is None else entry.id.hex


def _foreign(fields: dict[bytes, bytes]) -> bytes:
    """The fields of an entry that is not ours, as JSON for people to read. No codec takes it for an event."""
    texts = {
        name.decode(errors="backslashreplace"): text.decode(errors="backslashreplace") for name, text in fields.items()
    }
    return json.dumps({"fields": texts}, ensure_ascii=False).encode()
