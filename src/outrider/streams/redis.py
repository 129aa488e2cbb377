"""Redis Streams: a conditional append in one script, and reads that notice when the stream is another one.

Ids are the writer's choice, `<ms>-<n>`. They alone are no fence, since a later clock always gives higher ones: the script
compares the stream's last id with the one that the writer knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable, ConfigError, StreamMissing
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.stream import (
    Appended,
    Codec,
    Entry,
    Moved,
    Outcome,
    Page,
    Rejected,
    Weakness,
    bare,
    id_in,
    is_named,
)
from outrider.streams.url import REDIS, Address

if TYPE_CHECKING:
    from redis.asyncio import Redis

START = "0-0"
FIELD = b"event"
PAGE = 250
CHUNK_BYTES = 2**20
CHUNK_EVENTS = 10_000
AT_ONCE = 16
"""Commands, and so connections: a relay may have something for hundreds of streams."""
LARGEST = 512 * 2**20
"""Bytes of one message: at more, Redis would end the connection."""
REFUSAL = "string exceeds maximum allowed size"
"""What Redis says of a message. All its other errors are about its own state: nothing is wrong with the message then."""

# XADDs before a failed one stay, so the script says how far it came.
APPEND = """
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


class RedisStreams:
    """Sink and source. `stream_for` spreads the events over several streams; a source needs `stream`."""

    start = START

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
        """`timeout`: seconds for one answer. `max_len`: about so many entries are kept; None = all."""
        self._address = Address.of(url)
        if self._address.scheme not in REDIS:
            raise ConfigError(f"{self._address} is no Redis: its URL begins with {' or '.join(REDIS)}://")
        need_client()
        if (stream is None) == (stream_for is None):
            raise ConfigError("RedisStreams needs one of stream= and stream_for=")
        if max_len is not None and max_len < 1:
            raise ConfigError(f"max_len is {max_len}: keep at least one entry, or None for all")
        self.codec: Codec = codec or EnvelopeCodec()
        self._url, self._stream, self._stream_for = url, stream, stream_for
        self._timeout, self.max_len = timeout, max_len
        self._clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self._client: Redis | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._caught_up = ("", 0)
        """An end of the stream that was read, and how many entries the stream had ever had then."""
        self._script = ""

    def __repr__(self) -> str:
        return f"<RedisStreams {self._address} {self._stream or 'several streams'}>"

    @property
    def stream(self) -> str:
        if self._stream is None:
            raise ConfigError("RedisStreams with stream_for= writes only: a source needs stream=")
        return self._stream

    def stream_of(self, envelope: Envelope) -> str:
        return self._stream if self._stream_for is None else self._stream_for(envelope)  # type: ignore[return-value]

    def place(self, position: str) -> tuple[int, ...]:
        ms, dash, n = bare(position).partition("-")
        if not (dash and ms.isdecimal() and n.isdecimal()):
            raise ValueError(f"{position!r} is no position in a Redis stream, which is like 1700000000000-0")
        return int(ms), int(n)

    async def open(self) -> None:
        async with self._speaking() as redis:
            await redis.ping()

    async def close(self) -> None:
        client, self._client = self._client, None
        self._turns = asyncio.Semaphore(AT_ONCE)
        if client is not None:
            await client.aclose()

    async def end(self, stream: str) -> str:
        async with self._speaking() as redis:
            pipe = redis.pipeline(transaction=False)
            pipe.xinfo_stream(stream)
            [info] = await pipe.execute(raise_on_error=False)
        return self._last(stream, info)

    async def complete(self, stream: str, after: str) -> bool:
        """Trimming removes the oldest: it has not come here as long as anything older than `after`, or that, is there."""
        async with self._speaking() as redis:
            pipe = redis.pipeline(transaction=False)
            pipe.xinfo_stream(stream)
            [info] = await pipe.execute(raise_on_error=False)
        place = self.place(after)
        if self.place(self._last(stream, info)) <= place:
            return True
        return self._deleted(info) <= place and (self._starts_by(info, place) or not _removed(info))

    async def holds(self, stream: str, position: str) -> bool:
        """What is not there was removed if it is the last that was ever written, or if Redis counts removals there."""
        at = bare(position)
        if at == START:
            return True
        async with self._speaking() as redis:
            pipe = redis.pipeline(transaction=True)
            pipe.xinfo_stream(stream)
            pipe.xrange(stream, at, at)
            info, here = await pipe.execute(raise_on_error=False)
        last, place = self._last(stream, info), self.place(at)
        if self.place(last) < place:
            return False
        if here:
            return is_named(position, self._entries(here)[0].id)
        return last == at or self._deleted(info) >= place or (_removed(info) > 0 and not self._starts_by(info, place))

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> Outcome:
        """Chunk by chunk, each when the one before is there.

        Sent ahead, a chunk could follow another writer's: two that start at the same place in the same millisecond
        choose the same ids.
        """
        at, sent = bare(after), 0
        while sent < len(events):
            arguments, last, refusal = self._chunk(events, sent, at)
            if arguments:
                kind, done, text = await self._run(stream, at, arguments)
                if kind == b"moved":
                    return Moved(text.decode())
                if kind == b"refused":
                    at = arguments[2 * done - 2].decode() if done else at
                    return self._refused(stream, text.decode(errors="replace"), sent + done, at)
                at, sent = last, sent + len(arguments) // 2
            if refusal is not None:
                return Rejected(sent, at, *refusal)
        return Appended(at)

    def _chunk(
        self, events: Sequence[Envelope], first: int, after: str
    ) -> tuple[list[bytes], str, tuple[str, str] | None]:
        """Ids and data for the script, the last id, and why the one after it cannot be sent."""
        ms, n = self.place(after)
        now = self._clock()
        if now > ms:
            ms, n = now, -1
        arguments: list[bytes] = []
        last, size = after, 0
        encode = self.codec.encode
        for index in range(first, min(first + CHUNK_EVENTS, len(events))):
            n += 1
            position = f"{ms}-{n}"
            try:
                data = encode(events[index], position)
            except Exception as error:  # the codec may be anybody's
                return arguments, last, ("unencodable", str(error) or type(error).__name__)
            if len(data) > LARGEST:
                return arguments, last, ("too_large", f"the message has {len(data):,} bytes, Redis takes {LARGEST:,}")
            if arguments and size + len(data) > CHUNK_BYTES:
                break
            size += len(data)
            arguments += (position.encode(), data)
            last = position
        return arguments, last, None

    async def _run(self, stream: str, after: str, arguments: list[bytes]) -> tuple[bytes, int, bytes]:
        from redis.exceptions import NoScriptError

        given = (stream, after, self.max_len or 0, *arguments)
        async with self._speaking() as redis:
            if not self._script:
                self._script = await redis.script_load(APPEND)
            try:
                kind, done, text = await redis.evalsha(self._script, 1, *given)
            except NoScriptError:
                # Redis was restarted, or its scripts were flushed.
                self._script = await redis.script_load(APPEND)
                kind, done, text = await redis.evalsha(self._script, 1, *given)
        return kind, int(done), text

    def _refused(self, stream: str, text: str, index: int, position: str) -> Rejected:
        if text.startswith("WRONGTYPE"):
            self._wrong_type(stream)
        if REFUSAL in text:
            return Rejected(index, position, "refused", self._address.masked(text))
        raise BrokerUnavailable(f"{self._address} does not take anything now: {self._address.masked(text)}")

    async def weaknesses(self) -> list[Weakness]:
        """What INFO tells of it, and of its configuration what the user may read."""
        from redis.exceptions import ResponseError

        config: dict[Any, Any] = {}
        async with self._speaking() as redis:
            try:
                info = await redis.info()
            except ResponseError:
                told = f"{self._address} does not tell this user how it keeps what it has"
                return [Weakness(told, "let the user of the DSN run INFO, or ask its operator", grave=False)]
            with contextlib.suppress(ResponseError):
                config = await redis.config_get("appendfsync")
        found = []
        if not info.get("aof_enabled"):
            found.append(
                Weakness(
                    f"{self._address} has no append-only file: a restart loses what came after the last snapshot",
                    "set appendonly yes; until then a relay sends again what is missing, and readers see it anew",
                )
            )
        elif info.get("aof_last_write_status", "ok") != "ok":
            found.append(
                Weakness(f"{self._address} could not write its append-only file", "look at its disk and its log")
            )
        elif (sync := _text(next(iter(config.values()), "always"))) != "always":
            span = "a second" if sync == "everysec" else "half a minute"
            found.append(
                Weakness(
                    f"{self._address} writes its append-only file behind ({sync}): a power cut may lose {span}",
                    "appendfsync always, if that is too much; a relay sends again what is missing",
                    grave=False,
                )
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            found.append(
                Weakness(
                    f"{self._address} evicts keys when its memory is full ({policy}): whole streams would go",
                    "set maxmemory-policy noeviction: then it refuses, and the relay waits",
                    grave=bool(info.get("maxmemory")),
                )
            )
        return found

    async def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[Entry], None]:
        end, after = await self.end(stream), bare(after)
        while self.place(after) < self.place(end):
            async with self._speaking() as redis:
                found = await redis.xrange(stream, f"({after}", end, count=PAGE)
            if not found:
                return
            entries = self._entries(found)
            after = entries[-1].position
            yield entries

    async def read(self, after: str, limit: int, wait: float) -> Page:
        deadline, here = time.monotonic() + wait, bare(after)
        while True:
            page = await self._next(after, limit)
            left = deadline - time.monotonic()
            if page.entries or page.rewound or page.trimmed or left <= 0:
                return page
            async with self._speaking(left + self._timeout) as redis:
                # Only to wake up: whether this is still the same stream shows in the reading that follows.
                woken = await redis.xread({self.stream: here}, count=1, block=max(1, int(left * 1000)))
            if not woken:
                return page

    async def _next(self, after: str, limit: int) -> Page:
        stream, (at, _, which) = self.stream, after.partition("@")
        async with self._speaking() as redis:
            pipe = redis.pipeline(transaction=True)
            pipe.xinfo_stream(stream)
            pipe.xrange(stream, at, at)
            pipe.xrange(stream, f"({at}", "+", count=limit)
            info, here, found = await pipe.execute(raise_on_error=False)
            last = self._last(stream, info)
            if self._is_other(info, last, here, at, which):
                found = await redis.xrange(stream, "-", "+", count=limit)
                entries = self._entries(found, marked=True)
                return Page(entries, entries[-1].position if entries else START, rewound=True)
        for answer in (here, found):
            if isinstance(answer, Exception):
                self._fail(answer)
        entries = self._entries(found, marked=True)
        trimmed = self._is_trimmed(info, last, at, entries)
        position = entries[-1].position if entries else after
        if not entries and trimmed:
            position = last  # there is nothing left to go on from
        elif not entries and here and not which:
            position = self._entries(here, marked=True)[0].position
        if bare(position) == last and not isinstance(info, Exception):
            self._caught_up = (last, info.get("entries-added", 0))
        return Page(entries, position, trimmed=trimmed)

    def _is_trimmed(self, info: Any, last: str, after: str, entries: Sequence[Entry]) -> bool:
        """Whether something between `after` and the end of the page is gone.

        Redis counts entries that were ever added, and knows the last one that was deleted, but not where trimming stopped:
        when also `after` is gone, only the count can say that nothing came in between.
        """
        place = self.place(after)
        if isinstance(info, Exception) or self.place(last) <= place:
            return False
        if entries and place < self._deleted(info) <= self.place(entries[-1].position):
            return True
        if self._starts_by(info, place):
            return False
        known, added = (START, 0) if after == START else self._caught_up
        return known != after or _removed(info, added) > 0

    def _starts_by(self, info: Any, place: tuple[int, ...]) -> bool:
        """Whether an entry at this place, or before it, is still there."""
        first = info["first-entry"]
        return first is not None and self.place(first[0].decode()) <= place

    def _deleted(self, info: Any) -> tuple[int, ...]:
        """The last one of those that were deleted one by one, not trimmed."""
        return self.place(info.get("max-deleted-entry-id", START.encode()).decode())

    def _is_other(self, info: Any, last: str, here: Any, after: str, which: str) -> bool:
        """Whether the stream is not the one that has held `after`. A stream that was trimmed beyond it may be."""
        if after == START or isinstance(here, Exception):
            return False
        if self.place(last) < self.place(after):
            return True
        if here and which:
            return which != self._entries(here, marked=True)[0].position.partition("@")[2]
        first = None if isinstance(info, Exception) else info["first-entry"]
        return not here and first is not None and self.place(first[0].decode()) < self.place(after)

    def _last(self, stream: str, info: Any) -> str:
        """The last id that was ever written, of the answer to XINFO STREAM."""
        if isinstance(info, Exception):
            if "no such key" in str(info):
                return START
            if "WRONGTYPE" in str(info):
                self._wrong_type(stream)
            self._fail(info)
        return str(info["last-generated-id"].decode())

    def _entries(self, found: Any, *, marked: bool = False) -> list[Entry]:
        """`marked`: with which entry it is, in the position."""
        entries = []
        for place, fields in found:
            data, known = (fields or {}).get(FIELD), None
            if data is None:
                data = _fields(fields or {})
            else:
                known = id_in(self.codec, data)
            position = place.decode()
            if marked:
                position += f"@{_which(data, known)}"
            entries.append(Entry(position, data, known))
        return entries

    def _wrong_type(self, stream: str) -> NoReturn:
        raise StreamMissing(
            f"the key {stream!r} of {self._address} holds something else than a stream: give the stream another name, or "
            f"remove the key (redis-cli DEL {stream})"
        )

    def _fail(self, error: Exception) -> NoReturn:
        text = self._address.masked(error) or f"no answer within {self._timeout:g} s"
        raise BrokerUnavailable(f"{self._address} cannot be used: {text}") from error

    @contextlib.asynccontextmanager
    async def _speaking(self, seconds: float | None = None) -> AsyncIterator[Any]:
        """The client. What goes wrong with it is BrokerUnavailable.

        A connection whose answer was not awaited is closed by the client itself: no late answer is read. Those that
        others use stay.
        """
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(self._timeout if seconds is None else seconds), self._turns:
                if self._client is None:
                    self._client = connect(self._url)
                yield self._client
        except (RedisError, OSError) as error:
            if self._client is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            self._fail(error)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _which(data: bytes, known: UUID | None) -> str:
    """What tells an entry from another one at the same place."""
    return hashlib.blake2b(data, digest_size=16).hexdigest() if known is None else known.hex


def _fields(fields: dict[bytes, bytes]) -> bytes:
    """Of an entry that is not ours: no codec takes it for an event, and who looks at it sees all there is."""
    texts = {
        name.decode(errors="backslashreplace"): text.decode(errors="backslashreplace") for name, text in fields.items()
    }
    return json.dumps({"fields": texts}, ensure_ascii=False).encode()


def _removed(info: Any, before: int = 0) -> int:
    """How many are gone of those that were added, after the first so many."""
    return int(info.get("entries-added", info["length"])) - before - int(info["length"])


def need_client() -> None:
    """It is imported with the first connection only: who declares a relay need not pay for it."""
    if find_spec("redis") is None:
        raise ConfigError("Redis needs its client: install outrider[redis]")


def connect(url: str) -> Redis:
    """No time limit of the client's own: `asyncio.timeout` ends every wait, also those that shall be long."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=None,
        socket_connect_timeout=None,
        retry=Retry(NoBackoff(), 0),
    )
