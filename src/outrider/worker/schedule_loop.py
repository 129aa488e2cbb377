"""The clock of a worker: look what time it is in the database, fire the schedules that are due, sleep until the next.

Any number of workers do it. A schedule is moved on and its job enqueued in one statement, by the one that is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from outrider.config import Settings
from outrider.enqueue import Enqueuer
from outrider.errors import DeclarationError, EnqueueRefused, SubscriptionRefused
from outrider.outcome import code_of, describe
from outrider.postgres import schedules
from outrider.postgres.connection import AsyncSession
from outrider.postgres.job_inserts import Request
from outrider.postgres.schedules import Seen
from outrider.postgres.worker_sessions import Lanes
from outrider.schedule import AHEAD, Schedule
from outrider.signals import Fired, Recovered, Signals, Troubled
from outrider.worker.loop import DEADLINE, TROUBLES, pause

CLOCK = "(schedules)"
"""Where a subscription's name would stand."""
BUSY_PAUSE = 1.0
"""Somebody else is firing it: look again soon, in case they die."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    schedule: Schedule
    request: Request
    """Its job, as it is enqueued each time."""

    @classmethod
    def by(cls, enqueuer: Enqueuer, schedule: Schedule) -> Scheduled:
        try:
            request = enqueuer.request(
                schedule.job,
                queue=schedule.queue,
                priority=schedule.priority,
                key=schedule.key,
                workspace_id=schedule.workspace_id,
            )
        except EnqueueRefused as refused:
            raise DeclarationError(f"{schedule.name}: {refused.field}: {refused.rule}") from refused
        return cls(schedule, request)


class Clock:
    def __init__(
        self,
        scheduled: Sequence[Scheduled],
        settings: Settings,
        signals: Signals,
        on_fired: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._scheduled = scheduled
        self._names = [each.schedule.name for each in scheduled]
        self._schema = settings.schema
        self._context = settings.context
        self._poke = settings.notify != "off"
        self._signals = signals
        self._on_fired = on_fired
        self._trouble = 0
        self._stopping = asyncio.Event()

    async def run(self, lanes: Lanes, poll: Callable[[], float], looked: Callable[[], None]) -> None:
        """Until it is told to stop."""
        while not self._stopping.is_set():
            pause = await self._look(lanes)
            looked()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, poll())):
                    await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()

    async def catch_up(self, conn: AsyncSession) -> None:
        """Fire all that is due now, then return."""
        while await self.step(conn) == 0:
            pass

    async def step(self, conn: AsyncSession) -> float:
        """Fire what is due. In how many seconds to look again; 0 = something has happened, look at once."""
        now, seen = await schedules.seen(conn, self._names, self._schema, self._context)
        pauses, refused = [], None
        for each in self._scheduled:
            if (last := seen.get(each.schedule.name)) is not None:
                pauses.append(await self._fire(conn, each, last, now))
                continue
            try:
                await schedules.register(conn, each.schedule, self._schema, self._context)
                pauses.append(0.0)
            except SubscriptionRefused as error:
                refused = error
        if refused is not None:  # after the others were fired
            raise refused
        if self._trouble:
            self._signals.emit(Recovered(CLOCK, self._trouble))
        self._trouble = 0
        return min(pauses)

    async def _fire(self, conn: AsyncSession, each: Scheduled, seen: Seen, now: datetime) -> float:
        schedule, last = each.schedule, seen.fired_at
        # Of "all" times up to `last` each has its job already, to run at its time.
        if last - now > AHEAD and schedule.missed != "all":
            if await schedules.rewind(conn, schedule.name, last, self._schema):
                self._signals.emit(Troubled(CLOCK, "clock_went_back", _went_back(schedule.name, last, now)))
            return 0
        if (due := schedule.due(last, now, changed=seen.changed_at, ahead=seen.ahead)) is None:
            following = schedule.next(last)
            return float("inf") if following is None else (following - now).total_seconds()
        if not await schedules.fire(conn, schedule.name, last, due, each.request, self._schema, poke=self._poke):
            return BUSY_PAUSE
        if due.times:
            self._signals.emit(Fired(schedule.name, len(due.times)))
            self._on_fired(schedule.job_type)
        return 0

    async def _look(self, lanes: Lanes) -> float:
        try:
            async with asyncio.timeout(DEADLINE), lanes.lane(CLOCK) as conn:
                return await self.step(conn)
        except (*TROUBLES, SubscriptionRefused) as error:
            self._trouble += 1
            self._signals.emit(Troubled(CLOCK, code_of(error), describe(error), self._trouble))
            return pause(self._trouble)


def _went_back(name: str, last: datetime, now: datetime) -> str:
    return (
        f"the schedule {name!r} was fired up to {last:%Y-%m-%d %H:%M:%S%z}, and it is {now:%Y-%m-%d %H:%M:%S%z}: "
        "the clock of the database went back; it goes on from now"
    )
