"""The loop of the schedules: read the time of the database, enqueue the jobs that are due, sleep until the next is.

Every worker runs it. One statement moves a schedule forward and enqueues its jobs, so only the first worker enqueues them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from outrider.config import Settings
from outrider.enqueue import Enqueuer
from outrider.errors import DeclarationError, EnqueueRefused, SubscriptionRefused
from outrider.postgres import schedules
from outrider.postgres.connection import AsyncSession
from outrider.postgres.job_inserts import Request
from outrider.postgres.schedules import ScheduleState
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.schedule import AHEAD, Schedule
from outrider.signals import Fired, Signals, Troubled
from outrider.worker.loop import BUSY_PAUSE, DEADLINE, TROUBLES, Loop

NAME = "(schedules)"


@dataclass(frozen=True, slots=True)
class Scheduled:
    schedule: Schedule
    request: Request
    """What to enqueue each time."""

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


class ScheduleLoop(Loop):
    troubles: ClassVar = (*TROUBLES, SubscriptionRefused)

    def __init__(
        self,
        scheduled: Sequence[Scheduled],
        settings: Settings,
        signals: Signals,
        *,
        sessions: WorkerSessions,
        poll: Callable[[], float] = lambda: 0,
        on_fired: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(NAME, signals)
        self._scheduled = scheduled
        self._names = [each.schedule.name for each in scheduled]
        self._schema = settings.schema
        self._context = settings.context
        self._notify = settings.notify != "off"
        self._sessions = sessions
        self._poll = poll
        self._on_fired = on_fired

    async def step(self) -> float:
        async with asyncio.timeout(DEADLINE), self._sessions.session(NAME) as conn:
            return min(await self.fire_due(conn), self._poll())

    async def catch_up(self, conn: AsyncSession) -> None:
        """Fire all schedules that are due now."""
        while await self.fire_due(conn) == 0:
            pass

    async def fire_due(self, conn: AsyncSession) -> float:
        """Fire the schedules that are due. Returns the seconds until the next look; 0 = there may be more to fire."""
        now, states = await schedules.seen(conn, self._names, self._schema, self._context)
        pauses, refused = [], None
        for each in self._scheduled:
            if (state := states.get(each.schedule.name)) is not None:
                pauses.append(await self._fire(conn, each, state, now))
                continue
            try:
                await schedules.register(conn, each.schedule, each.request, self._schema, self._context)
                pauses.append(0.0)
            except SubscriptionRefused as error:
                refused = error
        if refused is not None:  # raised last, so that the other schedules are fired
            raise refused
        return min(pauses)

    async def _fire(self, conn: AsyncSession, each: Scheduled, state: ScheduleState, now: datetime) -> float:
        """Fire one schedule, if it is due. Returns the seconds until the next look at it."""
        schedule, last = each.schedule, state.fired_at
        if state.paused:
            return _until(schedule.next(max(last, now)), now)
        # With missed="all" every time up to `last` has its job already, so the schedule is not rewound.
        if last - now > AHEAD and schedule.missed != "all":
            if not await schedules.rewind(conn, schedule.name, last, self._schema):
                return BUSY_PAUSE
            self._signals.emit(Troubled(NAME, "clock_went_back", _went_back(schedule.name, last, now)))
            return 0
        if (due := schedule.due(last, now, changed=state.changed_at, ahead=state.ahead)) is None:
            return _until(schedule.next(last), now)
        if not await schedules.fire(conn, schedule.name, last, due, each.request, self._schema, notify=self._notify):
            return BUSY_PAUSE
        if due.times:
            self._signals.emit(Fired(schedule.name, len(due.times)))
            self._on_fired(schedule.job_type)
        return 0


def _until(following: datetime | None, now: datetime) -> float:
    return float("inf") if following is None else (following - now).total_seconds()


def _went_back(name: str, last: datetime, now: datetime) -> str:
    return (
        f"the clock of the database went back: it is {now:%Y-%m-%d %H:%M:%S%z}, and the schedule {name!r} was fired up to "
        f"{last:%Y-%m-%d %H:%M:%S%z}. The schedule continues from now"
    )
