"""The conditional append to a Redis stream: one script per chunk of events.

The writer chooses the ids, `<milliseconds>-<number>`. They do not keep other writers out, because a later clock always gives
higher ones. So the script first compares the last id of the stream with the one that the writer expects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable
from outrider.streams.redis_connection import RedisConnection
from outrider.streams.redis_positions import RedisId
from outrider.streams.stream import Appended, AppendOutcome, Codec, Moved, Rejected, bare_position

CHUNK_BYTES = 2**20
CHUNK_EVENTS = 10_000
MAX_BYTES = 512 * 2**20
"""Bytes of one entry. Redis closes the connection if there are more."""
REFUSAL = "string exceeds maximum allowed size"
"""The one error of Redis that is about the entry. All others are about the state of the server."""

# XADDs before a failed one stay, so the script returns how many it did.
SCRIPT = """
local last = '0-0'
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if not string.find(info.err, 'no such key', 1, true) then return {'refused', 0, info.err} end
else
  for n = 1, #info, 2 do
    if info[n] == 'last-generated-id' then last = info[n + 1] end
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
return {'appended', (#ARGV - 2) / 2, ''}
"""


@dataclass(slots=True)
class _RedisChunk:
    ids: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    refusal: tuple[str, str] | None = None
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
        position, sent = bare_position(after), 0
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
            if chunk.refusal is not None:
                return Rejected(sent, position, *chunk.refusal)
        return Appended(position)

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
                chunk.refusal = ("unencodable", str(error) or type(error).__name__)
                break
            if len(data) > MAX_BYTES:
                chunk.refusal = ("too_large", f"the message has {len(data):,} bytes, Redis accepts {MAX_BYTES:,}")
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
