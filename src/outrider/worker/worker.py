"""The worker: a list of loops, what wakes them, a heartbeat, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Self

from outrider.errors import ConfigError
from outrider.postgres.heartbeat import Identity
from outrider.postgres.tenant_context import check_roles
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import WorkerDown, WorkerStopping, WorkerUp
from outrider.worker.duties import Duties
from outrider.worker.generations import Generations
from outrider.worker.handler import idles, roles_of
from outrider.worker.handler_loop import HandlerLoops, Shared
from outrider.worker.loops import Loops, log_failure
from outrider.worker.polls import Polls
from outrider.worker.presence import Presence
from outrider.worker.site import Site, WorkerTimes
from outrider.worker.wakeups import Wakeups
from outrider.worker.watchdog import watching

STUCK_SECONDS = 10.0
"""Seconds after the grace time until tasks that ignore their cancellation are left behind."""


class Worker:
    """`await worker.run()` in a process of its own; `async with app.worker():` inside a service."""

    def __init__(
        self, site: Site, duties: Duties, register: Callable[[], Awaitable[object]], times: WorkerTimes | None = None
    ) -> None:
        self._site, self._duties, self._register, self._times = site, duties, register, times or WorkerTimes()
        strict = site.settings.generations == "strict"
        self.identity = Identity(site.settings.generation, [], queues=list(duties.queues) or None, strict=strict)
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        """The grace time is over."""
        self._announced = False
        self._error: BaseException | None = None
        self._task: asyncio.Task[bool] | None = None
        handlers, settings = duties.handlers, site.settings
        sessions = self._sessions = WorkerSessions(
            site.dsn, settings.pool_size, notify=settings.notify, idles=idles(handlers)
        )
        self.generations = Generations(
            settings.generation,
            handlers,
            settings.schema,
            strict=strict,
            fold_after=self._times.fold_after,
            clock=monotonic,
        )
        self.presence = Presence(
            site,
            self.identity,
            self.generations,
            self._times.heartbeat,
            self.follow,
            self._unanswered,
            samples=bool(duties.handlers or duties.jobs),
        )
        self.wakeups = Wakeups(site, duties, self.generations, lambda: self.loops, self._listens, self._times.heartbeat)
        polls = Polls([each.name for each in handlers], sessions, settings.schema)
        shared = Shared(
            site, str(self.identity), sessions, self.generations, self.wakeups, polls, self.presence.look_again
        )
        others = duties.loops(site, self.identity, sessions, self.wakeups)
        self.loops = Loops(others, [each.name for each in handlers], self._loop_ended)
        self._handler_loops = HandlerLoops(handlers, shared, self.loops)
        self.identity.subscriptions = duties.names(others)

    # Run

    async def run(self) -> bool:
        """Until `stop`. Returns whether all running handlers and jobs finished within the grace time."""
        stop_listening = self._site.signals.listen(self.presence.troubles.hear)
        try:
            with watching(self._site.signals):
                return await self._run()
        finally:
            stop_listening()

    async def _run(self) -> bool:
        await self._register()
        if roles := roles_of(self._duties.handlers):
            async with self._site.pool.autocommit() as conn:
                await check_roles(conn, roles)
        self._site.signals.emit(WorkerUp(self.identity.id, tuple(self.identity.subscriptions)))
        beside: list[asyncio.Task[Any]] = []
        clean = False
        try:
            await self.presence.look()
            self.loops.start_all()
            beside = [
                asyncio.create_task(each) for each in (self._stopping.wait(), self.presence.run(), self.wakeups.run())
            ]
            await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            self.announce()
            clean = await self.loops.finish(self._times.grace, self._over)
        finally:
            self.stop()
            ending = [*beside, *self.loops.tasks()]
            for task in ending:
                task.cancel()
            if ending:
                _, stuck = await asyncio.wait(ending, timeout=STUCK_SECONDS)
                clean = clean and not stuck
            await self._sessions.close()
            await self.presence.leave()
            self._site.signals.emit(WorkerDown(self.identity.id, clean))
        errors = [error for task in beside if not task.cancelled() and (error := task.exception()) is not None]
        if self._error is not None or errors:
            raise self._error or errors[0]
        return clean

    def _loop_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._error = self._error or error
            self.stop()
        elif not self.stopping:
            self.follow()  # its generation may be served again by now

    def _unanswered(self) -> Iterator[tuple[str, float]]:
        return ((loop.name, since) for loop in self.loops if (since := loop.unanswered_since()) is not None)

    # What there is to serve

    def follow(self) -> None:
        """Start a loop for each generation to serve. Loops of those no longer served end when they are woken."""
        self.wakeups.follow()
        self._handler_loops.follow()

    def _listens(self) -> None:
        """The listener went up or down: report it with a heartbeat at once."""
        self.identity.listening = self.wakeups.listening
        self.presence.look_again()

    # Stop

    def stop(self) -> None:
        """Take nothing more, finish what runs within the grace time, end. Safe to call from a signal handler."""
        self.identity.stopping = True
        self.ignore_crashes()
        self._stopping.set()
        self.presence.look_again()

    def hurry(self) -> None:
        """Stop, and end the grace time now: batches are rolled back, jobs are released."""
        self.stop()
        self._over.set()

    def ignore_crashes(self) -> None:
        """From now on, the death of this process is no crash of its jobs. Works while the event loop is blocked."""
        for loop in self.loops:
            loop.ignore_crashes()

    def announce(self) -> None:
        """Report once what a stop waits for. Works from a thread while the event loop is blocked."""
        if not self._announced:
            self._announced = True
            busy = [name for loop in self.loops for name in loop.at_work()]
            job_names = {each.name for each in self._duties.jobs}
            handlers = tuple(name for name in busy if name not in job_names)
            jobs = tuple(name for name in busy if name in job_names)
            self._site.signals.emit(WorkerStopping(self.identity.id, handlers, jobs, self._times.grace))

    def excuse_handlers(self) -> None:
        """From now on, the death of this process is no death in the batches of its handlers. Called from a thread."""
        for loop in self.loops:
            loop.excuse()

    # State

    @property
    def ready(self) -> asyncio.Event:
        """Set when the worker is registered and every loop has taken its first step."""
        return self.loops.ready

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def listening(self) -> bool:
        return self.wakeups.listening

    @property
    def last_contact(self) -> float:
        """When the database last answered, by time.monotonic."""
        return max(self.presence.last_contact, *(loop.last_contact for loop in self.loops), float("-inf"))

    # Inside a service

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigError("this worker is already running: app.worker() makes another one")
        self._task = asyncio.create_task(self.run(), name="outrider worker")
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task
        self._task.add_done_callback(log_failure)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task
