"""Drain: handle everything that is due now, then return. For tests and scripts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from outrider.error_text import code_of
from outrider.errors import CursorError
from outrider.postgres.tenant_context import check_roles
from outrider.postgres.worker_sessions import WorkerSessions, usable
from outrider.signals import Signals
from outrider.worker.event_router import EventRouter
from outrider.worker.generations import NO_CURSOR, Generations
from outrider.worker.handler import Handler, roles_of
from outrider.worker.handler_reader import BatchResult, HandlerReader
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_loop import JobLoop
from outrider.worker.schedule_loop import ScheduleLoop

PAUSE = 0.02
"""Seconds before a busy or failed partition is tried again."""


@dataclass(slots=True)
class Drained:
    """What a drain did, in numbers of events and jobs."""

    handled: int = 0
    duplicates: int = 0
    """Duplicates: they already had a receipt."""
    to_retry: int = 0
    """They failed and wait for a retry."""
    buried: int = 0
    """They became dead letters."""
    by_handler: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Handled, by handler."""
    jobs: int = 0
    """Completed jobs."""
    jobs_failed: int = 0
    """Failed attempts at jobs, including last attempts."""
    jobs_buried: int = 0
    """Jobs that became dead letters."""
    ingested: int = 0
    """Events that inboxes brought in, and changes that replicas took."""
    relayed: int = 0
    """Events that relays sent."""

    def add(self, name: str, step: BatchResult) -> None:
        self.handled += step.handled
        self.duplicates += step.duplicates
        self.to_retry += step.to_retry
        self.buried += step.buried
        if step.handled:
            self.by_handler[name] += step.handled

    def __str__(self) -> str:
        events = (
            f"{self.handled} handled, {self.to_retry} to retry, {_count(self.buried, 'dead letter')}, "
            f"{_count(self.duplicates, 'duplicate')} skipped"
        )
        if self.jobs or self.jobs_failed:
            done, buried = _count(self.jobs, "job"), _count(self.jobs_buried, "dead letter")
            events += f"; {done} done, {_count(self.jobs_failed, 'attempt')} failed, {buried}"
        if self.ingested or self.relayed:
            events += f"; {self.ingested} ingested, {self.relayed} relayed"
        return events


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


async def drain(
    handlers: Sequence[Handler],
    sessions: WorkerSessions,
    signals: Signals,
    *,
    schema: str,
    generation: int,
    strict: bool = False,
    jobs: Sequence[JobHandler] = (),
    job_loop: Callable[[], JobLoop] | None = None,
    schedules: ScheduleLoop | None = None,
    raise_on_failure: bool = False,
) -> Drained:
    """Repeat rounds over all handlers and jobs until a round finds nothing. Events that handlers publish are handled too.

    It serves its own generation and, unless `strict`, those that have no live worker.
    """
    total = Drained()
    if schedules is not None:
        async with sessions.session(schedules.name) as conn:
            await schedules.catch_up(conn)
    if not handlers and not jobs:
        return total
    served = Generations(generation, handlers, schema, strict=strict, clock=monotonic)
    async with sessions.session([*(each.name for each in handlers), *(each.name for each in jobs)][0]) as conn:
        await check_roles(conn, roles_of(handlers))
        await served.look(conn)
    readers = [
        HandlerReader(each, signals, schema=schema, generation=of, worker="drain")
        for each in handlers
        for name, of in served
        if name == each.name
    ]
    routers = [EventRouter(each, signals, schema, sessions=sessions) for each in jobs if each.subscription.events]
    try:
        found = True
        while found:
            found = False
            for reader in readers:
                found |= await _drain_one(reader, sessions, total, generation, raise_on_failure=raise_on_failure)
            for router in routers:
                found |= await _drain_router(router, sessions)
            if jobs and job_loop is not None:
                found |= await _drain_jobs(job_loop(), total, raise_on_failure=raise_on_failure)
    finally:
        for reader in readers:
            reader.close()
    return total


async def _drain_router(router: EventRouter, sessions: WorkerSessions) -> bool:
    found = False
    async with sessions.session(router.name) as conn:
        while True:
            outcome, routed, _ = await router.route(conn)
            found |= routed > 0
            if outcome == "busy":
                await asyncio.sleep(PAUSE)
            elif outcome not in ("more", "done"):
                return found


async def _drain_jobs(loop: JobLoop, total: Drained, *, raise_on_failure: bool) -> bool:
    counts = await loop.drain()
    total.jobs += counts.completed
    total.jobs_failed += counts.failed
    total.jobs_buried += counts.buried
    if raise_on_failure and counts.error is not None:
        raise counts.error
    return bool(counts.completed or counts.failed)


async def _drain_one(
    reader: HandlerReader, sessions: WorkerSessions, total: Drained, own: int, *, raise_on_failure: bool
) -> bool:
    found = False
    while True:
        async with sessions.session(reader.handler.name) as conn:
            while usable(conn):
                try:
                    step = await reader.step(conn)
                except CursorError as error:
                    if reader.generation == own or code_of(error) != NO_CURSOR:
                        raise
                    return found  # it was folded: generation 0 reads its events
                total.add(reader.handler.name, step)
                if raise_on_failure and step.errors:
                    raise step.errors[0]
                if step.outcome in ("busy", "troubled"):
                    await asyncio.sleep(PAUSE * (1 + reader.failures))
                elif not step.again:
                    return found
                found = True
