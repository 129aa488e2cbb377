"""One batch of a relay: take → append → settle. What went wrong between the last two is found out by looking at the tail.

The cursor's lock, held from take to COMMIT, keeps other relays away; conditional append keeps away those that have lost it
and do not know.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, StreamOccupied
from outrider.failpoint import hit
from outrider.postgres import handler_batches, relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.relays import Batch, Item, Settling, Take
from outrider.redaction import mask, sanitise
from outrider.relay.recovery import readable, recover
from outrider.relay.relay import Relay
from outrider.signals import Buried, Rejection, Relayed, Signals, Taken
from outrider.streams.stream import Appended, AppendOutcome, Moved, Rejected, bare_position, named_position

SCAN = 10_000
MARK = 60.0
"""Seconds between two marks of where the relay stands."""
SHORTEST, LONGEST = 0.5, 30.0
"""Between two attempts at an event that the broker has rejected."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What one batch came to."""

    outcome: str
    sent: int = 0
    due_in: float | None = None
    read: int = 0
    """How many events it was about."""

    @property
    def again(self) -> bool:
        """There may be more at once."""
        return self.outcome in ("more", "recovered", "rejected") or (self.outcome == "done" and self.read > 0)


@dataclass(slots=True)
class _Parcel:
    """What of a batch goes where."""

    settling: Settling
    streams: dict[str, list[Item]] = field(default_factory=dict)
    found: list[Item] = field(default_factory=list)
    """They are in their streams already, and nobody has counted them."""
    unsendable: tuple[Item, str, str] | None = None
    """No stream can be found for it."""


class Sender:
    """Sends what one relay has to send."""

    def __init__(self, relay: Relay, signals: Signals, *, schema: str, worker: str) -> None:
        self.relay = relay
        self._signals = signals
        self._schema = schema
        self._worker = worker
        self._knows = relay.subscription.event_types
        self._limit = relay.batch
        self._next: Batch | None = None
        """Taken with the last commit, in a transaction that is open."""
        self._marked = float("-inf")

    async def step(self, conn: AsyncSession) -> Sent:
        """One batch, committed; or rolled back, with what is known about why."""
        hit("relay.sent")
        batch, self._next = self._next, None
        if batch is None:
            batch = await relays.take(conn, self._asked(self._limit), self._schema)
        hit("relay.taken")
        self._signals.emit(Taken(self.relay.name, 0 if batch.taken else None, len(batch.items), batch.outcome))
        self._limit = self.relay.batch
        if not batch.taken:
            await handler_batches.roll_back(conn)
            return Sent(batch.outcome, due_in=batch.due_in)
        try:
            return await self._send(conn, batch)
        except BaseException:
            await handler_batches.roll_back(conn)
            raise

    async def let_go(self, conn: AsyncSession) -> None:
        """Do not send what is taken already: somebody else may."""
        if self._next is not None:
            self._next = None
            await handler_batches.roll_back(conn)

    def _asked(self, limit: int) -> Take:
        return Take(self.relay.name, limit, SCAN, self._knows, self.relay.workspace_id)

    async def _send(self, conn: AsyncSession, batch: Batch) -> Sent:
        if (held := self._held(batch)) is not None:
            return await self._wait(conn, held)
        parcel = self._packed(batch)
        if new := parcel.streams.keys() - batch.positions.keys():
            await handler_batches.roll_back(conn)
            await self.open(conn, sorted(new))
            return Sent("more")
        if not all(readable(self.relay.sink, batch.positions[stream]) for stream in parcel.streams):
            await handler_batches.roll_back(conn)
            return await self.recover(conn)
        outcomes = await self._append(parcel, batch.positions)
        hit("relay.appended")
        for stream, outcome in outcomes.items():
            match outcome:
                case Appended(position, duplicates):
                    appended = [item for n, item in enumerate(parcel.streams[stream]) if n not in duplicates]
                    if appended:
                        parcel.settling.positions[stream] = named_position(position, appended[-1].envelope.id)
                case Rejected(index, _, code, message):
                    return await self._rejected(conn, parcel.streams[stream][index], code, message)
                case Moved():
                    await handler_batches.roll_back(conn)
                    if (step := await self.recover(conn)).outcome == "idle":
                        raise BrokerUnavailable(
                            f"the stream {stream!r} ends where it should, and nothing can be appended"
                        )
                    return step
        if parcel.unsendable is not None:
            return await self._rejected(conn, *parcel.unsendable)
        return await self._settle(conn, batch, parcel)

    def _held(self, batch: Batch) -> tuple[int, float] | None:
        """The first event that was rejected and is not due yet: how many come before it, and in how long it is due."""
        before = 0
        for item in batch.items:
            if item.state == "pending" and item.due_in > 0:
                return before, item.due_in
            before += not item.replayed
        return None

    async def _wait(self, conn: AsyncSession, held: tuple[int, float]) -> Sent:
        await handler_batches.roll_back(conn)
        before, due_in = held
        if before:
            self._limit = before
            return Sent("more")
        return Sent("waiting", due_in=due_in)

    def _packed(self, batch: Batch) -> _Parcel:
        now = time.monotonic()
        parcel = _Parcel(Settling(self.relay.name, done=batch.outcome == "done", mark=now >= self._marked + MARK))
        settling = parcel.settling
        for item in batch.items:
            if item.state == "ahead":
                parcel.found.append(item)
                settling.found.append(item.envelope.id)
            elif item.state in ("failed", "discarded"):
                assert item.delivery is not None
                settling.passed.append(item.delivery)
                continue
            elif parcel.unsendable is None:
                try:
                    item.envelope.refuse_unreadable()
                    stream = _checked(self.relay.sink.stream_of(item.envelope))
                except Exception as error:
                    parcel.unsendable = (item, code_of(error), describe(error))
                    continue
                parcel.streams.setdefault(stream, []).append(item)
            if item.delivery is not None:
                settling.sent.append(item.delivery)
        return parcel

    async def _append(self, parcel: _Parcel, positions: Mapping[str, str]) -> dict[str, AppendOutcome]:
        """To all streams at the same time. When one fails the others come to their end: nothing is sent behind our back."""
        sending = [
            self.relay.sink.append(stream, [item.envelope for item in items], positions[stream])
            for stream, items in parcel.streams.items()
        ]
        try:
            async with asyncio.timeout(self.relay.deadline):
                outcomes = await asyncio.gather(*sending, return_exceptions=True)
        except TimeoutError:
            raise BrokerUnavailable(f"the broker did not answer within {self.relay.deadline:g} s") from None
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return dict(zip(parcel.streams, outcomes, strict=True))  # type: ignore[arg-type]

    async def _settle(self, conn: AsyncSession, batch: Batch, parcel: _Parcel) -> Sent:
        settling, topics = parcel.settling, self._topics(batch, parcel)
        more = self._asked(self.relay.batch) if batch.outcome == "more" else None
        self._next = await relays.settle(conn, settling, more, self._schema)
        hit("relay.settled")
        if settling.mark:
            self._marked = time.monotonic()
        for stream, counts in topics.items():
            position = bare_position(settling.positions[stream])
            self._signals.emit(Relayed(self.relay.name, stream, counts.total(), position, dict(counts)))
        return Sent(batch.outcome, sum(map(len, parcel.streams.values())), read=len(batch.items))

    def _topics(self, batch: Batch, parcel: _Parcel) -> dict[str, Counter[str]]:
        """How many events of each type are in each stream now, and were not counted before."""
        topics = {
            stream: Counter(item.envelope.event_type for item in items) for stream, items in parcel.streams.items()
        }
        for item in parcel.found:
            with suppress(Exception):  # it is counted, or it is not
                stream = self.relay.sink.stream_of(item.envelope)
                if stream in batch.positions:
                    topics.setdefault(stream, Counter())[item.envelope.event_type] += 1
        for stream, counts in topics.items():
            parcel.settling.positions.setdefault(stream, batch.positions[stream])
            parcel.settling.events[stream] = counts.total()
        return topics

    async def _rejected(self, conn: AsyncSession, item: Item, code: str, message: str) -> Sent:
        """The broker refuses one event for what it is. Those before it are in the stream, which the next look will find."""
        await handler_batches.roll_back(conn)
        envelope, relay = item.envelope, self.relay
        assert envelope.seq is not None
        longest = min(LONGEST, SHORTEST * 2.0 ** min(item.attempt - 1, 16))
        delay = timedelta(seconds=longest * random.uniform(0.5, 1))  # noqa: S311 (spreads the attempts, keeps no secret)
        attempts, buried = await relays.reject(
            conn,
            relay.name,
            envelope.seq,
            (sanitise(code), sanitise(mask(message))),
            delay,
            relay.publish_max_attempts,
            relay.on_rejected == "bury",
            self._worker,
            self._schema,
        )
        if attempts:  # else somebody else has sent it meanwhile
            self._signals.emit(Rejection(relay.name, envelope, attempts, code, message, buried))
        if buried:
            self._signals.emit(Buried(relay.name, envelope, attempts, code, message))
        return Sent("rejected")

    async def open(self, conn: AsyncSession, streams: Sequence[str], *, adopt: bool = False) -> None:
        """Begin to write to streams: they must be empty, or this relay would not be the only one.

        One that has events of this log was begun before, in a commit that is lost: what is there is found as after a crash.
        """
        sink, ends = self.relay.sink, {}
        for stream in streams:
            ends[stream] = await sink.end(stream)
            if ends[stream] == sink.start or adopt:
                continue
            if not await self._wrote(conn, stream):
                raise StreamOccupied(
                    f"the stream {stream!r} is not empty, and {self.relay.name} has not written to it: a relay needs "
                    f"streams of its own. Give it another one, delete this one, or let the relay go on after what is "
                    f"there: outrider relay adopt {self.relay.name} {stream}"
                )
            ends[stream] = sink.start
        await relays.open_streams(conn, self.relay.name, ends, self._schema, adopt=adopt)
        hit("relay.opened")

    async def _wrote(self, conn: AsyncSession, stream: str) -> bool:
        """By the first page: somebody else's stream may be long."""
        relay = self.relay
        async with aclosing(relay.sink.tail(stream, relay.sink.start)) as pages:
            async for page in pages:
                ids = [entry.id for entry in page if entry.id is not None]
                return await relays.wrote(conn, relay.name, relay.workspace_id, stream, ids, self._schema)
        return False

    async def recover(self, conn: AsyncSession) -> Sent:
        """The streams do not end where they should: find out what is in them."""
        found = await recover(conn, self.relay, self._signals, self._schema)
        hit("relay.recovered")
        return Sent("busy" if found is None else "recovered" if found else "idle")


def _checked(stream: object) -> str:
    if not isinstance(stream, str) or not stream or len(stream.encode()) > 255:
        raise ValueError(f"{stream!r:.60} is not the name of a stream: it must be a text of 1 to 255 bytes")
    return stream
