"""The loop of one relay: send batch after batch. While the broker is down, the pauses grow longer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import ClassVar

from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, StreamMissing
from outrider.postgres import relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.relay.recovery import holds
from outrider.relay.relay import Relay
from outrider.relay.sender import Sender, Sent
from outrider.signals import BrokerDown, BrokerUp, Signals
from outrider.streams.stream import bare_position
from outrider.worker.deadline import Deadline
from outrider.worker.loop import BUSY_PAUSE, Loop, pause

CHECK_INTERVAL = 2.0
"""Seconds between two checks that the streams are intact, while there is nothing to send."""
STREAMS_PER_CHECK = 50
MARGIN = 5.0
"""Seconds after the deadline of an append until the server ends the session of a frozen relay."""


class RelayLoop(Loop):
    troubles: ClassVar = (Exception,)  # whatever a sink or the database does, the rest of the worker goes on

    def __init__(self, relay: Relay, *, dsn: str, schema: str, signals: Signals, worker: str) -> None:
        super().__init__(relay.name, signals, types=relay.subscription.event_types)
        self._relay = relay
        self._schema = schema
        self._sender = Sender(relay, signals, schema=schema, worker=worker)
        self._sessions = WorkerSessions(dsn, 1, relay.deadline + MARGIN)
        self._down = 0
        """Consecutive failures of the broker."""
        self._checked = float("-inf")
        self._turn = 0
        self._renewed: float | None = None
        """Monotonic time of the last renewal of the lease; None = this relay does not hold it."""

    async def step(self) -> float:
        try:
            with Deadline(self.name, None):  # the heartbeat reports what runs longest
                sent = await self._send_all()
        except (BrokerUnavailable, StreamMissing) as error:
            self._down += 1
            self._signals.emit(BrokerDown(self.name, code_of(error), describe(error), self._down))
            return pause(self._down + 2)
        if self._down:
            self._signals.emit(BrokerUp(self.name))
        self._down = 0
        if sent is None:
            self.skips("lease")
            return min(self._relay.poll * 4, BUSY_PAUSE)
        if sent.again:
            return 0
        self.skips(sent.outcome if sent.outcome in ("paused", "unknown") else "")
        wait = BUSY_PAUSE if sent.outcome == "busy" else self._relay.poll
        return wait if sent.due_in is None else max(0.001, min(wait, sent.due_in))

    @property
    def patient(self) -> bool:
        return bool(self._down or self.trouble)  # else every publish would be another attempt

    async def _send_all(self) -> Sent | None:
        """None if another relay holds the lease."""
        await self._relay.sink.open()
        if not await self._leased():
            return None
        async with self._sessions.session(self.name) as conn:
            if self._down:
                await self._probe(conn)
            try:
                while True:
                    sent = await self._sender.step(conn)
                    if not sent.again or self.stopping or not await self._leased():
                        break
            finally:
                await self._sender.release(conn)
            if not sent.again and time.monotonic() >= self._checked + CHECK_INTERVAL:
                self._checked = time.monotonic()
                if await self._moved(conn):
                    return await self._sender.recover(conn)
            return sent

    async def _moved(self, conn: AsyncSession) -> bool:
        """Whether a stream does not end with the event that the relay wrote last. Checks some streams each time, in turn."""
        known = await relays.positions(conn, self.name, self._schema)
        names = list(known)
        some = [names[(self._turn + n) % len(names)] for n in range(min(STREAMS_PER_CHECK, len(names)))]
        self._turn += len(some)
        return not all(await asyncio.gather(*(self._ends_at(stream, known[stream]) for stream in some)))

    async def _ends_at(self, stream: str, position: str) -> bool:
        sink = self._relay.sink
        return await sink.end(stream) == bare_position(position) and await holds(sink, stream, position)

    async def _probe(self, conn: AsyncSession) -> None:
        """Ask the broker whether it is up again before anything is taken."""
        known = await relays.positions(conn, self.name, self._schema)
        for stream in list(known)[:1]:
            await self._relay.sink.end(stream)

    async def _leased(self) -> bool:
        if (lease := self._relay.lease) is None:
            return True
        now = time.monotonic()
        if self._renewed is None:
            self._renewed = now if await lease.acquire() else None
        elif now >= self._renewed + lease.ttl / 2:
            self._renewed = now if await lease.renew() else None
        return self._renewed is not None

    async def close(self) -> None:
        await self._sessions.close()
        if self._relay.lease is not None:
            with suppress(Exception):  # it expires by itself
                await self._relay.lease.release()
        with suppress(Exception):
            await self._relay.sink.close()

    async def drain(self) -> int:
        """Send everything that is there now and return the number of events. Raises errors of the broker."""
        sent = 0
        try:
            await self._relay.sink.open()
            if await self._leased():
                async with self._sessions.session(self.name) as conn:
                    while (step := await self._sender.step(conn)).again:
                        sent += step.sent
        finally:
            await self.close()
        return sent
