"""The loop of one relay: send batch after batch. While the broker is down, the pauses grow longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, StreamMissing
from outrider.postgres import relays
from outrider.postgres.connection import AsyncSession
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.relay.held_lease import HeldLease
from outrider.relay.recovery import holds
from outrider.relay.relay import Relay
from outrider.relay.sender import Sender, Sent
from outrider.signals import BrokerDown, BrokerUp, Signals
from outrider.streams.stream import bare_position
from outrider.worker.deadline import Deadline
from outrider.worker.loop import BUSY_PAUSE, Loop, pause
from outrider.worker.wakeups import Wakeups

CHECK_INTERVAL = 2.0
"""Seconds between two checks that the streams are intact, while there is nothing to send."""
STREAMS_PER_CHECK = 50
MARGIN = 5.0
"""Seconds after the deadline of an append until the server ends the session of a frozen relay."""


class RelayLoop(Loop):
    every_class: ClassVar = True
    troubles: ClassVar = (Exception,)  # whatever a sink or the database does, the rest of the worker goes on

    def __init__(
        self, relay: Relay, *, dsn: str, schema: str, signals: Signals, worker: str, wakeups: Wakeups | None
    ) -> None:
        """`wakeups`: those of the worker; None = it is drained."""
        super().__init__(relay.name, signals, types=relay.subscription.event_types)
        self._relay = relay
        self._wakeups = wakeups
        self._schema = schema
        self._sender = Sender(relay, signals, schema=schema, worker=worker)
        self._sessions = WorkerSessions(dsn, 1, relay.deadline + MARGIN)
        self._down = 0
        """Consecutive failures of the broker."""
        self._take_at = float("-inf")
        """When to take again, if nothing wakes it. Times are by time.monotonic."""
        self._nothing_due = False
        """No replayed or rejected event waits for its time: the last idle take said so."""
        self._checked = float("-inf")
        self._known: dict[str, str] = {}
        """The positions of the streams at the last check."""
        self._turn = 0
        self._lease = None if relay.lease is None else HeldLease(relay.name, relay.lease, signals)

    async def step(self) -> float:
        try:
            with Deadline(self.name, None):  # the heartbeat reports what runs longest
                if not await self._rests():
                    self._take_at = time.monotonic() + await self._work()
        except (BrokerUnavailable, StreamMissing) as error:
            self._down += 1
            self._signals.emit(BrokerDown(self.name, code_of(error), describe(error), self._down))
            return pause(self._down + 2)
        return min(CHECK_INTERVAL, max(0.0, self._take_at - time.monotonic()))

    async def _rests(self) -> bool:
        """Nothing woke it, it need not take yet, and the streams are as they were. Asks the broker only."""
        if not self.polling or self.patient or time.monotonic() >= self._take_at:
            return False
        return await self._leased() and await self._all_end_at(self._known)

    async def _work(self) -> float:
        """Send what there is. Returns the seconds until the next take."""
        sent, goes_on = await self._send_all()
        if self._down:
            self._signals.emit(BrokerUp(self.name))
        self._down = 0
        if sent is None:
            self.skips("lease")
            return min(self._interval() * 4, BUSY_PAUSE)
        if goes_on:
            return 0
        self.skips(sent.outcome if sent.outcome in ("paused", "unknown") else "")
        wait = BUSY_PAUSE if sent.outcome == "busy" else self._interval()
        return wait if sent.due_in is None else max(0.001, min(wait, sent.due_in))

    def _goes_on(self, sent: Sent) -> bool:
        """Whether to take again at once. Not if everything was read, nothing is due and the next event is sure to notify."""
        if sent.outcome == "done":
            heard = self._wakeups is not None and self._wakeups.hears_at_once(None)
            return sent.again and not (heard and self._nothing_due)
        if sent.outcome != "more":
            self._nothing_due = sent.outcome == "idle" and sent.due_in is None
        return sent.again

    def _interval(self) -> float:
        """Seconds between two polls."""
        if self._relay.poll is not None:
            return self._relay.poll
        return 0 if self._wakeups is None else self._wakeups.pause()

    @property
    def patient(self) -> bool:
        return bool(self._down or self.trouble)  # else every publish would be another attempt

    async def _send_all(self) -> tuple[Sent | None, bool]:
        """The last batch, and whether to go on at once. None if another relay holds the lease."""
        await self._relay.sink.open()
        if not await self._leased():
            return None, False
        async with self._sessions.session(self.name) as conn:
            if self._down:
                await self._probe(conn)
            try:
                while True:
                    sent = await self._sender.step(conn)
                    goes_on = self._goes_on(sent)
                    if not goes_on or self.stopping or not await self._leased():
                        break
            finally:
                await self._sender.release(conn)
            if not goes_on and time.monotonic() >= self._checked + CHECK_INTERVAL:
                self._checked = time.monotonic()
                if await self._moved(conn):
                    sent = await self._sender.recover(conn)
                    goes_on = self._goes_on(sent)
            return sent, goes_on

    async def _moved(self, conn: AsyncSession) -> bool:
        """Whether a stream does not end with the event that the relay wrote last. Checks some streams each time, in turn."""
        self._known = await relays.positions(conn, self.name, self._schema)
        return not await self._all_end_at(self._known)

    async def _all_end_at(self, known: Mapping[str, str]) -> bool:
        names = list(known)
        some = [names[(self._turn + n) % len(names)] for n in range(min(STREAMS_PER_CHECK, len(names)))]
        self._turn += len(some)
        return all(await asyncio.gather(*(self._ends_at(stream, known[stream]) for stream in some)))

    async def _ends_at(self, stream: str, position: str) -> bool:
        sink = self._relay.sink
        return await sink.end(stream) == bare_position(position) and await holds(sink, stream, position)

    async def _probe(self, conn: AsyncSession) -> None:
        """Ask the broker whether it is up again before anything is taken."""
        known = await relays.positions(conn, self.name, self._schema)
        for stream in list(known)[:1]:
            await self._relay.sink.end(stream)

    async def _leased(self) -> bool:
        return self._lease is None or await self._lease.held()

    async def close(self) -> None:
        await self._sessions.close()
        if self._lease is not None:
            await self._lease.release()
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
