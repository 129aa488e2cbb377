"""After a crash, a zombie or a loss: what is in the streams, compared with what the relay knows.

Events are told by their ids, as a set, never by count: the next batch may be another one than that which was cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime

from outrider.postgres import relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.relays import Settling
from outrider.relay.relay import Relay
from outrider.signals import Intruded, Rewound, Signals, Trimmed
from outrider.streams.stream import Sink, StreamAdapter, bare_position, named_position


async def recover(conn: AsyncSession, relay: Relay, signals: Signals, schema: str) -> bool | None:
    """Put ahead what is in the streams and not settled; go back to a mark where a stream has lost its end.

    One transaction, under the cursor's lock. Whether anything was not as it should be; None when another session holds it.
    """
    sink, name = relay.sink, relay.name
    lost: list[Rewound] = []
    async with relays.holding(conn, name, schema) as held:
        if not held:
            return None
        known = await relays.positions(conn, name, schema)
        ends = dict(zip(known, await asyncio.gather(*(sink.end(stream) for stream in known)), strict=True))
        there = await asyncio.gather(*(holds(sink, stream, position) for stream, position in known.items()))
        short = [stream for stream, kept in zip(known, there, strict=True) if not kept]
        since: Mapping[str, str] = known
        if short:
            at, since, whole = await _mark(sink, relays.marks(conn, name, schema), short)
            await relays.rewind(conn, name, at, schema)
            lost = [
                Rewound(name, stream, bare_position(known[stream]), ends[stream], at, whole) for stream in sorted(short)
            ]
        elif all(ends[stream] == bare_position(known[stream]) for stream in known):
            return False
        settling = Settling(name)
        for stream in known:
            after = since.get(stream, sink.start)
            if short and not await holds(sink, stream, after):
                after = sink.start
            settling.positions[stream] = await _put_ahead(conn, relay, stream, after, ends[stream], signals, schema)
        await relays.move(conn, settling, schema)
    for each in lost:
        signals.emit(each)
    return True


def readable(streams: StreamAdapter, position: str) -> bool:
    """False for a position of another kind of broker, which was there before this one."""
    try:
        streams.sort_key(position)
    except ValueError:
        return False
    return True


async def holds(sink: Sink, stream: str, position: str) -> bool:
    """Whether the stream has what the relay has written up to here. What it wrote to another broker is lost in this one."""
    return readable(sink, position) and await sink.holds(stream, position)


async def _mark(
    sink: Sink, marks: AsyncIterator[tuple[datetime, dict[str, str]]], short: Sequence[str]
) -> tuple[datetime, Mapping[str, str], bool]:
    """The newest that all of these streams hold; else the oldest, and then it is not the whole of what was lost."""
    oldest: tuple[datetime, dict[str, str]] | None = None
    async for oldest in marks:
        at, positions = oldest
        held = [holds(sink, stream, positions.get(stream, sink.start)) for stream in short]
        if all(await asyncio.gather(*held)):
            return at, positions, True
    assert oldest is not None, "the first is made before anything is sent"
    return *oldest, False


async def _put_ahead(
    conn: AsyncSession, relay: Relay, stream: str, after: str, end: str, signals: Signals, schema: str
) -> str:
    """Everything in the stream after a position. Back: where it ends."""
    sink = relay.sink
    if sink.sort_key(after) >= sink.sort_key(end):
        return after
    if not await sink.complete(stream, after):
        signals.emit(Trimmed(relay.name, stream, bare_position(after)))
    async for page in sink.tail(stream, after):
        ids = [entry.id for entry in page if entry.id is not None]
        strangers, stranger = await relays.put_ahead(conn, relay.name, ids, schema)
        if strangers := strangers + len(page) - len(ids):
            signals.emit(Intruded(relay.name, stream, strangers, stranger))
        if sink.sort_key(page[-1].position) >= sink.sort_key(end):
            end = named_position(page[-1].position, page[-1].id)
    return end
