"""The loop of one inbox: read a batch and ingest it. While the broker is down, the pauses grow longer."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from outrider.config import Settings
from outrider.error_text import code_of, describe
from outrider.errors import BrokerUnavailable, StreamMissing
from outrider.inbox.inbox import Inbox, destination_of
from outrider.inbox.receiver import Receiver
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import BrokerDown, BrokerUp, Signals
from outrider.worker.loop import BUSY_PAUSE, TROUBLES, Loop, pause

IDLE = 30.0
"""Seconds for which a transaction may be idle before the server ends it."""
LONGEST_READ = 1.0
"""Seconds that a read waits at the broker at most. The loop notices a stop after that."""


class InboxLoop(Loop):
    troubles: ClassVar = (Exception,)  # whatever a source or the database does, the rest of the worker goes on

    def __init__(self, inbox: Inbox, *, dsn: str, settings: Settings, signals: Signals) -> None:
        super().__init__(inbox.name, signals)
        self._inbox = inbox
        self._sessions = WorkerSessions(dsn, 1, IDLE, settings.notify)
        self._receiver = Receiver(inbox, destination_of(inbox, settings), self._sessions, signals, settings.schema)
        self._down = 0
        """Consecutive failures of the broker."""
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
        """Ingest everything that is there now and return the number of new events. Raises errors of the broker."""
        try:
            await self._inbox.source.open()
            while await self._receiver.step(0) == "ingested":
                pass
        finally:
            with suppress(*TROUBLES):
                await self.close()
        return self._receiver.events
