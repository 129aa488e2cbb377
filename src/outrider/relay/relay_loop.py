"""The relays of a worker: wake → send, until told to stop; a broker that is down is asked again, ever more slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from outrider.outcome import code_of, describe
from outrider.postgres import relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.worker_sessions import Lanes
from outrider.relay.recovery import holds
from outrider.relay.relay import Relay
from outrider.relay.sender import Sender, Step
from outrider.signals import BrokerDown, BrokerUp, Recovered, Signals, Skipped, Troubled, Woken
from outrider.streams.stream import BrokerUnavailable, StreamMissing, bare
from outrider.worker.deadline import Deadline
from outrider.worker.loop import pause, within
from outrider.worker.wakeups import Wakes

CHECK = 2.0
"""So often, without anything to send, it looks whether its streams are still there."""
CHECKED = 50
"""So many of them each time."""
MARGIN = 5.0
"""So long after the deadline of an append the server ends the session of a relay that does not move."""
BROKER = (BrokerUnavailable, StreamMissing)
BUSY_PAUSE = 1.0


class _Line:
    """One relay at work."""

    def __init__(self, relay: Relay, dsn: str, signals: Signals, schema: str, worker: str) -> None:
        self.relay = relay
        self.sender = Sender(relay, signals, schema=schema, worker=worker)
        self.lanes = Lanes(dsn, 1, relay.deadline + MARGIN)
        self.down = 0
        """How often in a row the broker has not answered."""
        self.trouble = 0
        self.skipped = ""
        self.stopping = False
        self._signals = signals
        self._schema = schema
        self._checked = float("-inf")
        self._turn = 0
        self._renewed: float | None = None
        """When the lease was renewed; None = it is not ours."""

    async def work(self) -> float | None:
        """Send what there is. Back: how long to sleep; None = not at all."""
        name = self.relay.name
        try:
            await self.relay.sink.open()
            if not await self.leased():
                self._answered()
                return self._skip("lease", min(self.relay.poll * 4, BUSY_PAUSE))
            async with self.lanes.lane(name) as conn:
                if self.down:
                    await self._probe(conn)
                step = await self._send(conn)
        except BROKER as error:
            self.down += 1
            self._signals.emit(BrokerDown(name, code_of(error), describe(error), self.down))
            return pause(self.down + 2)
        except Exception as error:  # whatever a sink or the database does, the rest of the worker goes on
            self.trouble += 1
            self._signals.emit(Troubled(name, code_of(error), describe(error), self.trouble))
            return pause(self.trouble)
        self._answered()
        if step.again:
            return None
        if step.outcome in ("paused", "unknown"):
            return self._skip(step.outcome, self.relay.poll)
        self.skipped = ""
        wait = BUSY_PAUSE if step.outcome == "busy" else self.relay.poll
        return wait if step.due_in is None else max(0.0, min(wait, step.due_in))

    def _answered(self) -> None:
        if self.down:
            self._signals.emit(BrokerUp(self.relay.name))
        if self.trouble:
            self._signals.emit(Recovered(self.relay.name, self.trouble))
        self.down = self.trouble = 0

    async def _send(self, conn: AsyncSession) -> Step:
        try:
            while True:
                step = await self.sender.step(conn)
                if not step.again or self.stopping or not await self.leased():
                    break
        finally:
            await self.sender.let_go(conn)
        if not step.again and time.monotonic() >= self._checked + CHECK:
            self._checked = time.monotonic()
            if await self._moved(conn):
                return await self.sender.recover(conn)
        return step

    async def _moved(self, conn: AsyncSession) -> bool:
        """Whether a stream does not end where it should, with the event that should be there: some each time, in turn."""
        known = await relays.positions(conn, self.relay.name, self._schema)
        names = list(known)
        some = [names[(self._turn + n) % len(names)] for n in range(min(CHECKED, len(names)))]
        self._turn += len(some)
        return not all(await asyncio.gather(*(self._ends_at(stream, known[stream]) for stream in some)))

    async def _ends_at(self, stream: str, position: str) -> bool:
        sink = self.relay.sink
        return await sink.end(stream) == bare(position) and await holds(sink, stream, position)

    async def _probe(self, conn: AsyncSession) -> None:
        """Ask the broker before anything is taken for it."""
        known = await relays.positions(conn, self.relay.name, self._schema)
        for stream in list(known)[:1]:
            await self.relay.sink.end(stream)

    async def leased(self) -> bool:
        if (lease := self.relay.lease) is None:
            return True
        now = time.monotonic()
        if self._renewed is None:
            self._renewed = now if await lease.acquire() else None
        elif now >= self._renewed + lease.ttl / 2:
            self._renewed = now if await lease.renew() else None
        return self._renewed is not None

    def _skip(self, reason: str, wait: float) -> float:
        if reason != self.skipped:
            self._signals.emit(Skipped(self.relay.name, reason))
        self.skipped = reason
        return wait

    async def close(self) -> None:
        await self.lanes.close()
        if self.relay.lease is not None:
            with suppress(Exception):  # it runs out by itself
                await self.relay.lease.release()
        with suppress(Exception):
            await self.relay.sink.close()


class Relays:
    """A part of a worker."""

    def __init__(self, declared: Sequence[Relay], *, dsn: str, schema: str, signals: Signals, worker: str) -> None:
        self._lines = [_Line(each, dsn, signals, schema, worker) for each in declared]
        self.names = [each.name for each in declared]
        wants = {
            each.name: None if each.subscription.event_types is None else frozenset(each.subscription.event_types)
            for each in declared
        }
        self._stopped = asyncio.Event()
        self._wakes = Wakes(wants, lambda name, reason: signals.emit(Woken(name, reason)), route=lambda *_: 0)

    def start(self, looked: Callable[[str], None]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._run(line, looked), name=line.relay.name) for line in self._lines]

    def poke(self, kind: str) -> None:
        self._wakes.poke(kind)

    def wake_all(self, reason: str) -> None:
        self._wakes.wake_all(reason)

    def stop(self) -> None:
        for line in self._lines:
            line.stopping = True
        self._wakes.stop()
        self._stopped.set()

    async def _run(self, line: _Line, looked: Callable[[str], None]) -> None:
        try:
            while not line.stopping:
                with Deadline(line.relay.name, None):  # it is seen at work
                    wait = await line.work()
                looked(line.relay.name)
                if wait is None or line.stopping:
                    continue
                if line.down or line.trouble:  # every publish would be another attempt
                    await within(wait, self._stopped.wait())
                else:
                    await self._wakes.wait(line.relay.name, wait)
        finally:
            await line.close()

    async def drain(self) -> int:
        """Send all that is there now, then return how many events. What is wrong with a broker is raised."""
        sent = 0
        for line in self._lines:
            try:
                await line.relay.sink.open()
                if await line.leased():
                    async with line.lanes.lane(line.relay.name) as conn:
                        while (step := await line.sender.step(conn)).again:
                            sent += step.sent
            finally:
                await line.close()
        return sent
