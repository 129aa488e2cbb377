"""The jobs of a worker: a crew that claims and runs them, and one reader for each job of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.config import Settings
from outrider.outcome import code_of, describe
from outrider.postgres.heartbeat import Identity
from outrider.postgres.pool import Pool
from outrider.postgres.worker_sessions import Lanes
from outrider.signals import Signals, Skipped, Troubled, Woken
from outrider.worker.event_router import Route
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_loop import SLOTS, Crew
from outrider.worker.loop import TROUBLES, ended, pause
from outrider.worker.wakeups import Wakes

BUSY_PAUSE = 1.0
INTERRUPTED = 0.4
"""So long what was told to stop may take to do so; and again, to be handed back."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker works."""

    dsn: str
    pool: Pool
    settings: Settings
    signals: Signals
    identity: Identity
    lanes: Lanes


class Labour:
    def __init__(
        self,
        jobs: Sequence[JobHandler],
        place: Place,
        *,
        slots: int = SLOTS,
        queues: Sequence[str] = (),
        poll: Callable[[], float],
    ) -> None:
        self._signals = place.signals
        self._lanes = place.lanes
        self._poll = poll
        self._names = frozenset(each.name for each in jobs)
        self._routes = [Route(each, place.signals, place.settings.schema) for each in jobs if each.subscription.events]
        wants = {each.name: frozenset(each.models) for each in jobs if each.subscription.events}
        self._wakes = Wakes(wants, lambda name, reason: place.signals.emit(Woken(name, reason)), route=lambda *_: 0)
        self._crew = Crew(
            jobs,
            dsn=place.dsn,
            pool=place.pool,
            settings=place.settings,
            signals=place.signals,
            identity=place.identity,
            slots=slots,
            queues=queues,
            poll=poll,
        )
        self._working: asyncio.Task[None] | None = None
        self._reading: list[asyncio.Task[None]] = []

    def start(self, looked: Callable[[], None]) -> list[asyncio.Task[None]]:
        """The tasks: when one of them ends, something is wrong, or it was told to stop."""
        self._working = asyncio.create_task(self._crew.run(looked), name="outrider jobs")
        self._reading = [asyncio.create_task(self._read(each), name=each.name) for each in self._routes]
        return [self._working, *self._reading]

    @property
    def last_contact(self) -> float:
        return self._crew.last_contact

    def poke(self, kind: str) -> None:
        """`kind` is what a notification said: the type of an event or a job."""
        self._wakes.poke(kind)
        if kind in self._names:
            self._crew.wake()

    def wake_all(self, reason: str) -> None:
        self._wakes.wake_all(reason)
        self._crew.wake()

    def stop(self) -> None:
        self._wakes.stop()
        self._crew.stop()

    def spare(self) -> None:
        self._crew.spare()

    def running(self) -> list[str]:
        """The types of the jobs that run."""
        return self._crew.running()

    async def finish(self, over: asyncio.Event) -> bool:
        """What runs may end until the grace time is over; the rest is handed back. True when nothing was interrupted."""
        if self._working is None:
            return True
        tasks = [self._working, *self._reading]
        finished = await ended(tasks, over)
        for insist in (self._crew.interrupt, self._crew.abandon):
            if not self._working.done():
                insist()
                await asyncio.wait(tasks, timeout=INTERRUPTED)
        return finished

    async def _read(self, route: Route) -> None:
        """wake → route, until it is told to stop."""
        skipped, stopped = "", ""
        while stopped != "stop":
            outcome = await self._step(route)
            if outcome in ("paused", "unknown") and outcome != skipped:
                self._signals.emit(Skipped(route.name, outcome))
            skipped = outcome
            if outcome not in ("more", "done"):
                stopped = await self._wakes.wait(route.name, self._pause(route, outcome))

    async def _step(self, route: Route) -> str:
        try:
            async with self._lanes.lane(route.name) as conn:
                outcome, _ = await route.step(conn)
                return outcome
        except TROUBLES as error:
            route.trouble += 1
            self._signals.emit(Troubled(route.name, code_of(error), describe(error), route.trouble))
            return "troubled"

    def _pause(self, route: Route, outcome: str) -> float:
        if outcome == "troubled":
            return pause(route.trouble)
        return min(self._poll(), BUSY_PAUSE) if outcome == "busy" else self._poll()
