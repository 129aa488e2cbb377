"""What the stream exercise needs from a broker and its adapter, and steps that its checks share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.stream import Appended, AppendOutcome, Codec, Sink, Source, StreamEntry

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds within which a broker that was restarted must be reached again."""


class StreamHarness(Protocol):
    """A broker that runs, and the adapter for it."""

    def sink(self, stream: str, codec: Codec) -> Sink:
        """A sink that is not open yet and writes to this stream only."""
        ...

    def source(self, stream: str, codec: Codec) -> Source: ...

    async def make(self, stream: str) -> None:
        """Make the stream, empty. Nothing to do where the first append makes it."""
        ...

    async def restart(self, *, empty: bool = False) -> None:
        """Kill the broker and start it again. It has all acknowledged entries, or with `empty` none."""
        ...

    async def trim(self, stream: str, keep: int) -> None:
        """Remove the oldest entries until `keep` are left, as the broker does for a limit."""
        ...


class Picky(EnvelopeCodec):
    """Refuses events with the key "refused"."""

    def encode(self, envelope: Envelope, position: str) -> bytes:
        if envelope.key == "refused":
            raise ValueError("this one cannot be written")
        return super().encode(envelope, position)


def events(number: int, *, text: str = "", key: str | None = "7") -> list[Envelope]:
    at = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    drawn = [uuid4() for _ in range(number)]
    return [
        Envelope(
            id=own,
            event_type="exercise.placed",
            event_version=3,
            payload_json=json.dumps({"n": n, "text": text}, ensure_ascii=False),
            source="exercise",
            key=key,
            idempotency_key=str(own),
            occurred_at=at,
            trace_context={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        )
        for n, own in enumerate(drawn)
    ]


@asynccontextmanager
async def sink_of(harness: StreamHarness, codec: Codec | None = None) -> AsyncIterator[tuple[Sink, str]]:
    """An open sink and its stream, which is new."""
    stream = f"exercise_{uuid4().hex[:12]}"
    await harness.make(stream)
    sink = harness.sink(stream, codec or EnvelopeCodec())
    await sink.open()
    try:
        yield sink, stream
    finally:
        await sink.close()


@asynccontextmanager
async def source_of(harness: StreamHarness, stream: str) -> AsyncIterator[Source]:
    source = harness.source(stream, EnvelopeCodec())
    await source.open()
    try:
        yield source
    finally:
        await source.close()


def appended(outcome: AppendOutcome) -> str:
    assert isinstance(outcome, Appended), f"not appended: {outcome}"
    return outcome.position


async def tail_of(sink: Sink, stream: str, after: str) -> list[StreamEntry]:
    return [entry async for page in sink.tail(stream, after) for entry in page]


async def reads(harness: StreamHarness, sink: Sink, stream: str, given: Sequence[Envelope]) -> None:
    """The tail and a source both show the given events."""
    same(await tail_of(sink, stream, sink.start), given)
    async with source_of(harness, stream) as source:
        entries, position = list[StreamEntry](), source.start
        while (page := await source.read(position, 10, 0)).entries:
            entries, position = [*entries, *page.entries], page.position
        same_events(source, entries, given)


def same(entries: Sequence[StreamEntry], given: Sequence[Envelope]) -> None:
    found: list[UUID | None] = [entry.id for entry in entries]
    wanted = [event.id for event in given]
    assert found == wanted, f"{len(found)} entries, wanted {len(wanted)}; {len(set(found) & set(wanted))} of them known"


def same_events(source: Source, entries: Sequence[StreamEntry], given: Sequence[Envelope]) -> None:
    same(entries, given)
    for entry, wanted in zip(entries, given, strict=True):
        found = source.codec.decode(entry.data)
        for name in ("payload_json", "key", "event_type", "event_version", "occurred_at", "trace_context"):
            a, b = getattr(found, name), getattr(wanted, name)
            assert a == b, f"{name} is {a!r:.300}, wanted {b!r:.300}"


async def again(asking: Callable[[], Awaitable[T]]) -> T:
    """A broker that was restarted may be unavailable for a moment."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await asking()
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
