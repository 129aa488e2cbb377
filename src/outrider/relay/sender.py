"""One batch of a relay: take → append → settle. If it dies before it has settled, the tail of the stream tells what arrived.

The cursor's lock, held from take to COMMIT, keeps other relays out. The conditional append keeps out a relay that has lost
the lock and does not know it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, Undecodable
from outrider.failpoint import hit
from outrider.postgres import handler_batches, relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.relays import Item, RelayBatch, Settling, Take
from outrider.redaction import mask, sanitise
from outrider.relay.recovery import is_position, open_streams, recover
from outrider.relay.relay import Relay
from outrider.signals import Buried, Rejection, Relayed, Signals, Taken
from outrider.streams.stream import Appended, AppendOutcome, Moved, Rejected, bare_position, named_position

SCAN = 10_000
"""Rows of the log per take, including those that the relay does not want."""
MARK = 60.0
"""Seconds between two marks."""
SHORTEST, LONGEST = 0.5, 30.0
"""Seconds between two attempts to send an event that the broker rejects: the first pause, and the longest."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of one batch."""

    outcome: str
    sent: int = 0
    due_in: float | None = None
    read: int = 0
    """Events of the batch, including those that needed no sending."""

    @property
    def again(self) -> bool:
        """Whether to take the next batch at once."""
        return self.outcome in ("more", "recovered", "rejected") or (self.outcome == "done" and self.read > 0)


@dataclass(slots=True)
class _Plan:
    """What to do with each event of a batch."""

    settling: Settling
    to_send: dict[str, list[Item]] = field(default_factory=dict)
    ahead: list[Item] = field(default_factory=list)
    """Events that are in their streams already but were not counted yet."""
    unsendable: tuple[Item, str, str, bool] | None = None
    """Event, code, message and whether that lasts, if no stream can be determined for it. Nothing after it is sent."""


class Sender:
    def __init__(self, relay: Relay, signals: Signals, *, schema: str, worker: str) -> None:
        self.relay = relay
        self._signals = signals
        self._schema = schema
        self._worker = worker
        self._knows = relay.subscription.event_types
        self._limit = relay.batch
        self._next: RelayBatch | None = None
        """Taken together with the last commit; its transaction is open."""
        self._marked = float("-inf")

    async def step(self, conn: AsyncSession) -> Sent:
        """One batch: committed, or rolled back for the reason that the outcome gives."""
        hit("relay.sent")
        batch, self._next = self._next, None
        if batch is None:
            batch = await relays.take(conn, self._asked(self._limit), self._schema)
        hit("relay.taken")
        self._signals.emit(Taken(self.relay.name, 0 if batch.taken else None, len(batch.items), batch.outcome))
        self._limit = self.relay.batch
        if not batch.taken:
            await handler_batches.end_idle(conn)
            return Sent(batch.outcome, due_in=batch.due_in)
        try:
            return await self._send(conn, batch)
        except BaseException:
            await handler_batches.roll_back(conn)
            raise

    async def release(self, conn: AsyncSession) -> None:
        """Roll back the batch that was taken ahead, so that another worker can take it."""
        if self._next is not None:
            self._next = None
            await handler_batches.roll_back(conn)

    def _asked(self, limit: int) -> Take:
        return Take(self.relay.name, limit, SCAN, self._knows, self.relay.workspace_id)

    async def _send(self, conn: AsyncSession, batch: RelayBatch) -> Sent:
        if (held := self._held(batch)) is not None:
            return await self._wait(conn, held)
        plan = self._plan(batch)
        if new := plan.to_send.keys() - batch.positions.keys():
            await handler_batches.roll_back(conn)
            await open_streams(conn, self.relay, sorted(new), self._schema)
            return Sent("more")
        if not all(is_position(self.relay.sink, batch.positions[stream]) for stream in plan.to_send):
            await handler_batches.roll_back(conn)
            return await self.recover(conn)
        outcomes = await self._append(plan, batch.positions)
        hit("relay.appended")
        for stream, outcome in outcomes.items():
            match outcome:
                case Appended(position, duplicates, count):
                    appended = [item for n, item in enumerate(plan.to_send[stream]) if n not in duplicates]
                    if appended:
                        plan.settling.positions[stream] = named_position(position, appended[-1].envelope.id, count)
                case Rejected(index, _, code, message, lasting):
                    return await self._rejected(conn, plan.to_send[stream][index], code, message, lasting)
                case Moved():
                    await handler_batches.roll_back(conn)
                    if (step := await self.recover(conn)).outcome == "idle":
                        raise BrokerUnavailable(
                            f"the stream {stream!r} ends where it should, but the broker appends nothing"
                        )
                    return step
        if plan.unsendable is not None:
            return await self._rejected(conn, *plan.unsendable)
        return await self._settle(conn, batch, plan)

    def _held(self, batch: RelayBatch) -> tuple[int, float] | None:
        """The first rejected event that is not due yet: the number of events before it, and seconds until it is due."""
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

    def _plan(self, batch: RelayBatch) -> _Plan:
        now = time.monotonic()
        plan = _Plan(Settling(self.relay.name, done=batch.outcome == "done", mark=now >= self._marked + MARK))
        settling = plan.settling
        for item in batch.items:
            if item.state == "ahead":
                plan.ahead.append(item)
                settling.found.append(item.envelope.id)
            elif item.state in ("failed", "discarded"):
                assert item.delivery is not None
                settling.passed.append(item.delivery)
                continue
            elif plan.unsendable is None:
                try:
                    item.envelope.refuse_unreadable()
                    stream = _stream_name(self.relay.sink.stream_of(item.envelope))
                except Exception as error:
                    plan.unsendable = (item, code_of(error), describe(error), isinstance(error, Undecodable))
                    continue
                plan.to_send.setdefault(stream, []).append(item)
            if item.delivery is not None:
                settling.sent.append(item.delivery)
        return plan

    async def _append(self, plan: _Plan, positions: Mapping[str, str]) -> dict[str, AppendOutcome]:
        """To all streams at the same time. If one fails, the others are still awaited, so that nothing is sent later."""
        sending = [
            self.relay.sink.append(stream, [item.envelope for item in items], positions[stream])
            for stream, items in plan.to_send.items()
        ]
        try:
            async with asyncio.timeout(self.relay.deadline):
                outcomes = await asyncio.gather(*sending, return_exceptions=True)
        except TimeoutError:
            raise BrokerUnavailable(f"the broker did not answer within {self.relay.deadline:g} s") from None
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return dict(zip(plan.to_send, outcomes, strict=True))  # type: ignore[arg-type]

    async def _settle(self, conn: AsyncSession, batch: RelayBatch, plan: _Plan) -> Sent:
        settling, topics = plan.settling, self._topics(batch, plan)
        more = self._asked(self.relay.batch) if batch.outcome == "more" else None
        self._next = await relays.settle(conn, settling, more, self._schema)
        hit("relay.settled")
        if settling.mark:
            self._marked = time.monotonic()
        for stream, counts in topics.items():
            position = bare_position(settling.positions[stream])
            self._signals.emit(Relayed(self.relay.name, stream, counts.total(), position, dict(counts)))
        return Sent(batch.outcome, sum(map(len, plan.to_send.values())), read=len(batch.items))

    def _topics(self, batch: RelayBatch, plan: _Plan) -> dict[str, Counter[str]]:
        """The number of events by stream and event type that are in the streams now and were not counted before."""
        topics = {stream: Counter(item.envelope.event_type for item in items) for stream, items in plan.to_send.items()}
        for item in plan.ahead:
            with suppress(Exception):  # counted if possible: stream_of may be a user's
                stream = self.relay.sink.stream_of(item.envelope)
                if stream in batch.positions:
                    topics.setdefault(stream, Counter())[item.envelope.event_type] += 1
        for stream, counts in topics.items():
            plan.settling.positions.setdefault(stream, batch.positions[stream])
            plan.settling.events[stream] = counts.total()
        return topics

    async def _rejected(self, conn: AsyncSession, item: Item, code: str, message: str, lasting: bool) -> Sent:
        """The broker refuses one event for its content. Those before it are in the stream; the next step finds them.

        If it would be refused every time, it is buried at once: any number of such events would each hold up all others.
        """
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
            1 if lasting else relay.publish_max_attempts,
            relay.on_rejected == "bury",
            self._worker,
            self._schema,
        )
        if attempts:  # 0: another worker has sent it meanwhile
            self._signals.emit(Rejection(relay.name, envelope, attempts, code, message, buried))
        if buried:
            self._signals.emit(Buried(relay.name, envelope, attempts, code, message))
        return Sent("rejected")

    async def recover(self, conn: AsyncSession) -> Sent:
        """Find out what is in the streams, because they do not end where they should."""
        found = await recover(conn, self.relay, self._signals, self._schema)
        hit("relay.recovered")
        return Sent("busy" if found is None else "recovered" if found else "idle")


def _stream_name(stream: object) -> str:
    if not isinstance(stream, str) or not stream or len(stream.encode()) > 255:
        raise ValueError(f"{stream!r:.60} is not the name of a stream, which has 1 to 255 bytes")
    return stream
