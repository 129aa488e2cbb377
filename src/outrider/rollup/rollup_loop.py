"""The loop of the rollups: tick those that are due, unless pg_cron does it. Of several workers one ticks at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from outrider.config import Settings
from outrider.errors import RollupRefused
from outrider.postgres import rollups
from outrider.postgres.connection import AsyncSession
from outrider.postgres.rollups import LONGEST, Tick, signal_of
from outrider.postgres.worker_sessions import WorkerSessions, usable
from outrider.rollup.rollup import Rollup
from outrider.signals import Signals, Skipped
from outrider.worker.deadline import Deadline
from outrider.worker.loop import BUSY_PAUSE, DEADLINE, TROUBLES, Loop

NAME = "(rollups)"
LOOK = 10.0
"""The longest pause between two looks, in seconds: settings, and who ticks, may have changed."""
IDLE = 30.0


class RollupLoop(Loop):
    troubles: ClassVar = (*TROUBLES, RollupRefused)

    def __init__(self, declared: Sequence[Rollup], *, dsn: str, settings: Settings, signals: Signals) -> None:
        super().__init__(NAME, signals)
        self._specs = {each.name: each.spec() for each in declared}
        self._schema = settings.schema
        self._sessions = WorkerSessions(dsn, 1, IDLE, settings.notify)
        self._said: dict[str, str] = {}
        """Why a rollup does not tick, by name."""

    async def step(self) -> float:
        async with self._sessions.session(NAME) as conn:
            return await self.tick_due(conn)

    async def tick_due(self, conn: AsyncSession) -> float:
        """Tick what is due. Returns the seconds until the next look."""
        async with asyncio.timeout(DEADLINE):
            known = await rollups.states(conn, self._specs, self._schema)
        waits, trouble = [LOOK], None
        for name in self._specs:
            state = known.get(name)
            if state is None or not state.installed:
                self._skip(name, "not installed")
                continue
            if state.changed:
                self._skip(name, "changed")
            else:
                self._said.pop(name, None)
            if state.scheduler != "worker":
                continue
            if state.due_in > 0:
                waits.append(state.due_in)
                continue
            try:
                async with asyncio.timeout(LONGEST):
                    with Deadline(name, None):
                        ticked = await rollups.tick(conn, name, self._schema)
            except self.troubles as error:  # the others have their turn all the same
                trouble = error
                if not usable(conn):
                    break
                continue
            if ticked.result == "skipped":
                waits.append(BUSY_PAUSE)
            self._tell(name, ticked)
        if trouble is not None:
            raise trouble
        return min(waits)

    def _tell(self, name: str, ticked: Tick) -> None:
        if ticked.result in ("processed", "error") or ticked.error_count:
            self._signals.emit(signal_of(name, ticked))

    def _skip(self, name: str, reason: str) -> None:
        if self._said.get(name) != reason:
            self._signals.emit(Skipped(name, reason))
        self._said[name] = reason

    async def close(self) -> None:
        await self._sessions.close()
