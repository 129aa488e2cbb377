"""The loop of one inbox: read a batch and ingest it. A broker that is down is asked again, ever more slowly."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from outrider.config import Settings
from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, StreamMissing
from outrider.inbox.inbox import Inbox
from outrider.inbox.receiver import IntoLog, IntoTable, Landing, Receiver
from outrider.postgres.inboxes import Stamp
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import BrokerDown, BrokerUp, Signals
from outrider.worker.channels import channels
from outrider.worker.loop import BUSY_PAUSE, TROUBLES, Loop, pause

IDLE = 30.0
LONGEST_READ = 1.0
"""The longest time that a read waits at the broker, in seconds. A stop is noticed afterwards."""


class InboxLoop(Loop):
    troubles: ClassVar = (Exception,)  # whatever a source or the database does, the rest of the worker goes on

    def __init__(self, inbox: Inbox, *, dsn: str, settings: Settings, signals: Signals) -> None:
        super().__init__(inbox.name, signals)
        self._inbox = inbox
        self._sessions = WorkerSessions(dsn, 1, IDLE, settings.notify)
        self._receiver = Receiver(inbox, landing_of(inbox, settings), self._sessions, signals, settings.schema)
        self._down = 0
        """How often in a row the broker has not answered."""
        self._wait = 0.0
        """Seconds that the next read waits at the broker. The first does not wait."""

    async def step(self) -> float:
        try:
            await self._inbox.source.open()
            outcome = await self._receiver.step(self._wait)
        except (BrokerUnavailable, StreamMissing) as error:
            self._down += 1
            self._signals.emit(BrokerDown(self.name, code_of(error), describe(error), self._down))
            return pause(self._down + 2)
        finally:
            self._wait = min(self._inbox.poll, LONGEST_READ)
        if self._down:
            self._signals.emit(BrokerUp(self.name))
        self._down = 0
        self.skips("paused" if outcome == "paused" else "")
        return BUSY_PAUSE if outcome in ("paused", "moved") else 0

    async def close(self) -> None:
        await self._sessions.close()
        await self._inbox.source.close()

    async def drain(self) -> int:
        """Ingest all that is there now. Returns the number of events. Errors of the broker are raised."""
        try:
            await self._inbox.source.open()
            while await self._receiver.step(0) == "ingested":
                pass
        finally:
            with suppress(*TROUBLES):
                await self.close()
        return self._receiver.events


def landing_of(inbox: Inbox, settings: Settings) -> Landing:
    if inbox.table is not None:
        return IntoTable(inbox.table, settings.schema)
    generation = settings.generation
    stamp = Stamp(channels(generation, ())[0], generation, settings.notify)
    return IntoLog(inbox.source.codec.decode, stamp, settings.payload_limit, settings.schema)
