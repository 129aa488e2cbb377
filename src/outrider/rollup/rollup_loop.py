"""The rollups of a worker: tick those that are due, unless pg_cron does it. Of several workers one ticks at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from outrider.config import Settings
from outrider.errors import RollupRefused
from outrider.outcome import code_of, describe
from outrider.postgres import rollups
from outrider.postgres.connection import AsyncSession
from outrider.postgres.rollups import LONGEST, Tick, told
from outrider.postgres.worker_sessions import Lanes, usable
from outrider.rollup.rollup import Rollup
from outrider.signals import Recovered, Signals, Skipped, Troubled
from outrider.worker.deadline import Deadline
from outrider.worker.loop import DEADLINE, TROUBLES, pause, within

TICKING = "(rollups)"
"""Where a subscription's name would stand."""
LOOK = 10.0
"""So often it looks at least whether it is its turn: settings, and who ticks, may have changed."""
BUSY_PAUSE = 1.0
IDLE = 30.0


class Rollups:
    """A part of a worker."""

    def __init__(self, declared: Sequence[Rollup], *, dsn: str, settings: Settings, signals: Signals) -> None:
        self._declared = {each.name: each for each in declared}
        self._specs = {each.name: each.spec() for each in declared}
        self._schema = settings.schema
        self._signals = signals
        self._lanes = Lanes(dsn, 1, IDLE, settings.notify)
        self._said: dict[str, str] = {}
        self._trouble = 0
        self._stopped = asyncio.Event()
        self.names = [TICKING] if declared else []

    def start(self, looked: Callable[[str], None]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._run(looked), name="outrider rollups")] if self._declared else []

    def poke(self, kind: str) -> None:
        """Nothing of a rollup is urgent."""

    def wake_all(self, reason: str) -> None:
        """Nothing of a rollup is urgent."""

    def stop(self) -> None:
        self._stopped.set()

    async def _run(self, looked: Callable[[str], None]) -> None:
        try:
            while not self._stopped.is_set():
                wait = await self._look()
                looked(TICKING)
                await within(wait, self._stopped.wait())
        finally:
            await self._lanes.close()

    async def _look(self) -> float:
        try:
            async with self._lanes.lane(TICKING) as conn:
                wait = await self.step(conn)
        except (*TROUBLES, RollupRefused) as error:
            self._trouble += 1
            self._signals.emit(Troubled(TICKING, code_of(error), describe(error), self._trouble))
            return pause(self._trouble)
        if self._trouble:
            self._signals.emit(Recovered(TICKING, self._trouble))
        self._trouble = 0
        return wait

    async def step(self, conn: AsyncSession) -> float:
        """Tick what is due. Back: in how many seconds to look again."""
        async with asyncio.timeout(DEADLINE):
            known = await rollups.states(conn, self._specs, self._schema)
        waits, trouble = [LOOK], None
        for name in self._declared:
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
                    with Deadline(name, None):  # it is seen at work
                        ticked = await rollups.tick(conn, name, self._schema)
            except (*TROUBLES, RollupRefused) as error:  # the others have their turn all the same
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
            self._signals.emit(told(name, ticked))

    def _skip(self, name: str, reason: str) -> None:
        if self._said.get(name) != reason:
            self._signals.emit(Skipped(name, reason))
        self._said[name] = reason
