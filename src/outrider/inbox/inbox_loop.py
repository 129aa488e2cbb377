"""The inboxes of a worker: read → ingest, until told to stop; a broker that is down is asked again, ever more slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from outrider.config import Settings
from outrider.inbox.inbox import Inbox
from outrider.inbox.receiver import IntoLog, IntoTable, Landing, Receiver
from outrider.outcome import code_of, describe
from outrider.postgres.inboxes import Stamp
from outrider.postgres.worker_sessions import Lanes
from outrider.signals import BrokerDown, BrokerUp, Recovered, Signals, Skipped, Troubled
from outrider.streams.stream import BrokerUnavailable, StreamMissing
from outrider.worker.channels import channels
from outrider.worker.loop import TROUBLES, pause, within

IDLE = 30.0
STANDBY = 1.0
"""Another session reads: look again soon, in case it dies."""
HEARS = 1.0
"""The longest that it waits at the broker at a time: only then it hears a stop."""


class _Line:
    """One inbox at work."""

    def __init__(self, inbox: Inbox, dsn: str, settings: Settings, signals: Signals) -> None:
        self.inbox = inbox
        self.lanes = Lanes(dsn, 1, IDLE, settings.notify)
        self.receiver = Receiver(inbox, landing_of(inbox, settings), self.lanes, signals, settings.schema)
        self.down = 0
        self.trouble = 0
        self._skipped = ""
        self._signals = signals

    async def work(self, wait: float) -> float:
        """One batch. Back: how long to sleep."""
        name = self.inbox.name
        try:
            await self.inbox.source.open()
            outcome = await self.receiver.step(wait)
        except (BrokerUnavailable, StreamMissing) as error:
            self.down += 1
            self._signals.emit(BrokerDown(name, code_of(error), describe(error), self.down))
            return pause(self.down + 2)
        except Exception as error:  # whatever a source or the database does, the rest of the worker goes on
            self.trouble += 1
            self._signals.emit(Troubled(name, code_of(error), describe(error), self.trouble))
            return pause(self.trouble)
        if self.down:
            self._signals.emit(BrokerUp(name))
        if self.trouble:
            self._signals.emit(Recovered(name, self.trouble))
        self.down = self.trouble = 0
        if outcome == "paused" != self._skipped:
            self._signals.emit(Skipped(name, outcome))
        self._skipped = outcome
        return STANDBY if outcome in ("paused", "moved") else 0.0

    async def close(self) -> None:
        await self.lanes.close()
        await self.inbox.source.close()


class Inboxes:
    """A part of a worker."""

    def __init__(self, declared: Sequence[Inbox], *, dsn: str, settings: Settings, signals: Signals) -> None:
        self._lines = [_Line(each, dsn, settings, signals) for each in declared]
        self.names = [each.name for each in declared]
        self._stopping = asyncio.Event()

    def start(self, looked: Callable[[str], None]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._run(line, looked), name=line.inbox.name) for line in self._lines]

    def poke(self, kind: str) -> None:
        """Nothing in this database concerns it."""

    def wake_all(self, reason: str) -> None: ...

    def stop(self) -> None:
        self._stopping.set()

    async def _run(self, line: _Line, looked: Callable[[str], None]) -> None:
        wait = 0.0
        try:
            while not self._stopping.is_set():
                sleep = await line.work(wait)
                looked(line.inbox.name)
                wait = min(line.inbox.poll, HEARS)
                if sleep:
                    await within(sleep, self._stopping.wait())
        finally:
            await line.close()

    async def drain(self) -> int:
        """Bring in all that is there now, then return how many events. What is wrong with a broker is raised."""
        before = sum(line.receiver.events for line in self._lines)
        for line in self._lines:
            try:
                await line.inbox.source.open()
                while await line.receiver.step(0) == "ingested":
                    pass
            finally:
                with suppress(*TROUBLES):
                    await line.close()
        return sum(line.receiver.events for line in self._lines) - before


def landing_of(inbox: Inbox, settings: Settings) -> Landing:
    if inbox.table is not None:
        return IntoTable(inbox.table, settings.schema)
    generation = settings.generation
    stamp = Stamp(channels(generation, ())[0], generation, settings.notify)
    return IntoLog(inbox.source.codec.decode, stamp, settings.payload_limit, settings.schema)
