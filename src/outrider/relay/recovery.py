"""What is in the streams, compared with what the relay knows: at the start, after a crash, a takeover or a loss.

Events are compared by id, as a set, never by number: the next batch may differ from the one that was interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime

from outrider.errors import StreamOccupied
from outrider.failpoint import hit
from outrider.postgres import relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.relays import Settling
from outrider.relay.relay import Relay
from outrider.signals import Intruded, Rewound, Signals, Trimmed
from outrider.streams.stream import Sink, bare_position, named_position


async def recover(conn: AsyncSession, relay: Relay, signals: Signals, schema: str) -> bool | None:
    """Record what is in the streams but not settled. Where a stream has lost its end, go back to a mark.

    One transaction, under the cursor's lock. False if all was as it should be; None if another session holds the cursor.
    """
    sink, name = relay.sink, relay.name
    losses: list[Rewound] = []
    async with relays.holding(conn, name, schema) as held:
        if not held:
            return None
        known = await relays.positions(conn, name, schema)
        ends = dict(zip(known, await asyncio.gather(*(sink.end(stream) for stream in known)), strict=True))
        kept = await asyncio.gather(*(holds(sink, stream, position) for stream, position in known.items()))
        lost = [stream for stream, there in zip(known, kept, strict=True) if not there]
        since: Mapping[str, str] = known
        if lost:
            at, since, whole = await _find_mark(sink, relays.marks(conn, name, schema), lost)
            await relays.rewind(conn, name, at, schema)
            losses = [
                Rewound(name, stream, bare_position(known[stream]), ends[stream], at, whole) for stream in sorted(lost)
            ]
        elif all(ends[stream] == bare_position(known[stream]) for stream in known):
            return False
        settling = Settling(name)
        for stream in known:
            after = since.get(stream, sink.start)
            if lost and not await holds(sink, stream, after):
                after = sink.start
            settling.positions[stream] = await _put_ahead(conn, relay, stream, after, ends[stream], signals, schema)
        await relays.move(conn, settling, schema)
    for loss in losses:
        signals.emit(loss)
    return True


def is_position(sink: Sink, position: str) -> bool:
    """False for a position of another kind of broker, used before this one."""
    try:
        sink.sort_key(position)
    except ValueError:
        return False
    return True


async def holds(sink: Sink, stream: str, position: str) -> bool:
    """Whether the stream has what the relay wrote up to here. What it wrote to another broker is not in this one."""
    return is_position(sink, position) and await sink.holds(stream, position)


async def open_streams(
    conn: AsyncSession, relay: Relay, streams: Sequence[str], schema: str, *, adopt: bool = False
) -> None:
    """Begin to write to streams. They must be empty, or another writer may use them; `adopt` goes on after what is there.

    If a stream has events of this log, the relay began to write it in a commit that was lost. Then it recovers as after a
    crash.
    """
    sink, ends = relay.sink, {}
    for stream in streams:
        ends[stream] = await sink.end(stream)
        if ends[stream] == sink.start or adopt:
            continue
        if not await _has_written(conn, relay, stream, schema):
            raise StreamOccupied(
                f"the stream {stream!r} is not empty, and {relay.name} has not written to it: a relay needs streams of its "
                "own. Give it another one, delete this one, or let the relay go on after what is there: "
                f"outrider relay adopt {relay.name} {stream}"
            )
        ends[stream] = sink.start
    await relays.open_streams(conn, relay.name, ends, schema, adopt=adopt)
    hit("relay.opened")


async def _has_written(conn: AsyncSession, relay: Relay, stream: str, schema: str) -> bool:
    """Judged by the first page: a stream of another writer may be long."""
    async with aclosing(relay.sink.tail(stream, relay.sink.start)) as pages:
        async for page in pages:
            ids = [entry.id for entry in page if entry.id is not None]
            return await relays.wrote(conn, relay.name, relay.workspace_id, stream, ids, schema)
    return False


async def _find_mark(
    sink: Sink, marks: AsyncIterator[tuple[datetime, dict[str, str]]], lost: Sequence[str]
) -> tuple[datetime, Mapping[str, str], bool]:
    """The newest mark that all of these streams hold, and True. Else the oldest one, and False: a part is lost for good."""
    oldest: tuple[datetime, dict[str, str]] | None = None
    async for oldest in marks:
        at, positions = oldest
        held = [holds(sink, stream, positions.get(stream, sink.start)) for stream in lost]
        if all(await asyncio.gather(*held)):
            return at, positions, True
    assert oldest is not None, "the first mark is made before anything is sent"
    return *oldest, False


async def _put_ahead(
    conn: AsyncSession, relay: Relay, stream: str, after: str, end: str, signals: Signals, schema: str
) -> str:
    """Record all events in the stream after a position as ahead of the cursor. Returns where the stream ends."""
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
