"""The conditional append to a Redis stream, one script per chunk of events, and the positions in it.

The writer chooses the ids, `<milliseconds>-<number>`. They do not keep other writers out, because a later clock always gives
higher ones. So the script first compares the last id of the stream with the one that the writer expects.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable, Undecodable
from outrider.streams.redis_connection import RedisConnection
from outrider.streams.stream import (
    Appended,
    AppendOutcome,
    Codec,
    Moved,
    Rejected,
    StreamEntry,
    bare_position,
    count_at,
    event_id_in,
    may_name,
)

CHUNK_BYTES = 2**20
CHUNK_EVENTS = 10_000
MAX_BYTES = 512 * 2**20
"""Bytes of one entry. Redis closes the connection if there are more."""
REFUSAL = "string exceeds maximum allowed size"
"""The one error of Redis that is about the entry. All others are about the state of the server."""

# XADDs before a failed one stay, so the script returns how many it did.
SCRIPT = """
local last, count = '0-0', 0
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if not string.find(info.err, 'no such key', 1, true) then return {'refused', 0, info.err} end
else
  count = nil
  for n = 1, #info, 2 do
    if info[n] == 'last-generated-id' then last = info[n + 1] end
    if info[n] == 'entries-added' then count = info[n + 1] end
  end
end
if last ~= ARGV[1] then return {'moved', 0, last} end
local keep = tonumber(ARGV[2])
for n = 3, #ARGV, 2 do
  local added
  if keep > 0 then
    added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', keep, ARGV[n], 'event', ARGV[n + 1])
  else
    added = redis.pcall('XADD', KEYS[1], ARGV[n], 'event', ARGV[n + 1])
  end
  if type(added) == 'table' and added.err then return {'refused', (n - 3) / 2, added.err} end
end
return {'appended', (#ARGV - 2) / 2, count and string.format('%d', count + (#ARGV - 2) / 2) or ''}
"""
FIELD = b"event"
PAGE = 250
"""Entries per page of a tail."""


@dataclass(slots=True)
class _RedisChunk:
    ids: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    refusal: tuple[str, str, bool] | None = None
    """Code and message, if the event after this chunk cannot be sent."""


class RedisAppender:
    def __init__(self, connection: RedisConnection, codec: Codec, max_len: int | None) -> None:
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self._connection = connection
        self._codec = codec
        self._max_len = max_len
        self._script = ""
        """The hash under which the server knows the script."""

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> AppendOutcome:
        """Chunk after chunk, each one sent when the one before has been appended.

        A chunk sent too early could follow one of another writer: two that start at the same position in the same
        millisecond choose the same ids.
        """
        position, sent, count = bare_position(after), 0, None
        while sent < len(events):
            chunk = self._encode(events, sent, position)
            if chunk.ids:
                outcome, done, text = await self._run(stream, position, chunk)
                if outcome == b"moved":
                    return Moved(text.decode())
                sent += done
                position = chunk.ids[done - 1] if done else position
                if outcome == b"refused":
                    return self._refused(stream, text.decode(errors="replace"), sent, position)
                count = int(text) if text else None
            if chunk.refusal is not None:
                return Rejected(sent, position, *chunk.refusal)
        return Appended(position, count=count)

    def _encode(self, events: Sequence[Envelope], first: int, after: str) -> _RedisChunk:
        ms, number = RedisId.parse(after)
        now = self.clock()
        if now > ms:
            ms, number = now, -1
        chunk, size = _RedisChunk(), 0
        for index in range(first, min(first + CHUNK_EVENTS, len(events))):
            number += 1
            entry_id = f"{ms}-{number}"
            try:
                data = self._codec.encode(events[index], entry_id)
            except Exception as error:  # the codec may be a user's
                chunk.refusal = ("unencodable", str(error) or type(error).__name__, isinstance(error, Undecodable))
                break
            if len(data) > MAX_BYTES:
                chunk.refusal = ("too_large", f"the message has {len(data):,} bytes, Redis accepts {MAX_BYTES:,}", True)
                break
            if chunk.ids and size + len(data) > CHUNK_BYTES:
                break
            size += len(data)
            chunk.ids.append(entry_id)
            chunk.data.append(data)
        return chunk

    async def _run(self, stream: str, after: str, chunk: _RedisChunk) -> tuple[bytes, int, bytes]:
        from redis.exceptions import NoScriptError

        arguments: list[object] = [after, self._max_len or 0]
        for entry_id, data in zip(chunk.ids, chunk.data, strict=True):
            arguments += (entry_id, data)
        async with self._connection.client() as redis:
            if not self._script:
                self._script = await redis.script_load(SCRIPT)
            try:
                outcome, done, text = await redis.evalsha(self._script, 1, stream, *arguments)
            except NoScriptError:
                # Redis was restarted, or its scripts were flushed.
                self._script = await redis.script_load(SCRIPT)
                outcome, done, text = await redis.evalsha(self._script, 1, stream, *arguments)
        return outcome, int(done), text

    def _refused(self, stream: str, text: str, index: int, position: str) -> Rejected:
        address = self._connection.address
        if text.startswith("WRONGTYPE"):
            self._connection.fail_wrong_type(stream)
        if REFUSAL in text:
            return Rejected(index, position, "refused", address.masked(text))
        raise BrokerUnavailable(f"{address} does not accept anything now: {address.masked(text)}")


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
        """An entry that is missing was removed, if it is the last ever written or Redis counts removals around it.

        If it was trimmed, all entries up to it were. A stream that has lost fewer is another one.
        """
        wanted = RedisId.parse(position)
        if wanted == START:
            return True
        state, [here] = await self.look_up(stream, (str(wanted), str(wanted), None))
        if state.last < wanted:
            return False
        if here:
            return may_name(position, here[0].id)
        trimmed = state.removed >= (count_at(position) or 1) and not state.reaches_back_to(wanted)
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
