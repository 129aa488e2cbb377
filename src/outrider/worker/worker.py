"""The worker: a few tails per handler, woken by pokes, polls and due times; a listener; a heartbeat, with which it also
looks for what there is to serve; an orderly end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from types import TracebackType
from typing import Self

from outrider.config import Settings
from outrider.errors import ConfigError, CursorError, DatabaseUnavailable, SchemaMismatch
from outrider.outcome import code_of, describe, mask, sqlstate
from outrider.postgres import heartbeat as workers
from outrider.postgres.connection import DatabaseError
from outrider.postgres.handler_batches import Connection
from outrider.postgres.heartbeat import Identity
from outrider.postgres.listener import Listener
from outrider.postgres.pool import Pool
from outrider.postgres.tenant_context import check_roles
from outrider.postgres.worker_sessions import Lanes, usable
from outrider.signals import (
    ListenerDown,
    ListenerUp,
    LoopHeld,
    Notified,
    Recovered,
    Signals,
    Skipped,
    Troubled,
    Woken,
    WorkerDown,
    WorkerStopping,
    WorkerUp,
)
from outrider.worker.channels import channels, counterpart, polling
from outrider.worker.deadline import at_work
from outrider.worker.generations import FOLD_AFTER, NO_CURSOR, Generations
from outrider.worker.handler import Handler, idles, roles_of
from outrider.worker.handler_loop import Step, Tail
from outrider.worker.isolation import Quarantine
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_loop import SLOTS
from outrider.worker.job_routing import Labour, Place
from outrider.worker.job_signals import CREW
from outrider.worker.loop import ended, pause
from outrider.worker.part import Part
from outrider.worker.schedule_loop import CLOCK, Clock, Scheduled
from outrider.worker.troubles import HEARTBEAT as BEATING
from outrider.worker.troubles import Troubles
from outrider.worker.wakeups import Wakes
from outrider.worker.watchdog import watching

GRACE = 30.0
HEARTBEAT = 10.0
STUCK = 10.0
"""So long after the grace time, what does not end although it was cancelled is left behind."""
FAREWELL = 2.0
"""Seconds that it tries to report what it gives up, and to delete its row. A row that stays expires."""
BUSY_PAUSE = 1.0
"""Another session holds what there is to read: look again soon, in case it dies."""
URGENT_PAUSE = 0.02
TURN = 0.5
"""So long a tail may keep a session while others wait for one."""
MIXED_UP = {"26000", "42P05"}
"""A pooler has given the session of somebody else's prepared statements."""
WATCH = 0.05
HELD = 2.0
"""Seconds that the event loop may be held before the worker's row says so."""
REFUSED = ("25", "42")
"""Classes of SQLSTATE: the session is read-only; a right or a table is missing."""
LOOKS_AFTER_TICK = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""A number is drawn before its transaction commits: look again for a while after one was seen."""


class Worker:
    """Runs handlers, jobs, relays and inboxes until it is told to stop.

    `await worker.run()` in a process of its own; `async with app.worker():` inside a service.
    """

    def __init__(
        self,
        *,
        dsn: str,
        pool: Pool,
        settings: Settings,
        handlers: Sequence[Handler],
        jobs: Sequence[JobHandler] = (),
        scheduled: Sequence[Scheduled] = (),
        signals: Signals,
        register: Callable[[], Awaitable[object]],
        classes: Sequence[str] = (),
        channel: str | None = None,
        grace: float = GRACE,
        heartbeat: float = HEARTBEAT,
        fold_after: float = FOLD_AFTER,
        slots: int = SLOTS,
        queues: Sequence[str] = (),
        parts: Callable[[str], Sequence[Part]] = lambda _: (),
    ) -> None:
        self._settings = settings
        self._dsn = dsn
        self._pool = pool
        self._handlers = handlers
        self._signals = signals
        self._register = register
        self._grace = grace
        self._heartbeat = heartbeat
        self._news = asyncio.Event()
        """The next heartbeat does not wait for its time."""
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        """The grace time is over."""
        self._announced = False
        self._one_look = asyncio.Lock()
        self._task: asyncio.Task[bool] | None = None
        self.identity = Identity(settings.generation, [])
        self._parts = parts(str(self.identity))
        """What else runs here."""
        beside = [name for part in self._parts for name in part.names]
        names = [*(each.name for each in handlers), *(each.name for each in jobs), *beside]
        self.identity.subscriptions = sorted(names)
        self.identity.queues = list(queues) or None
        self.ready = asyncio.Event()
        """Registered, and every handler has looked once for what there is to do."""
        self.listening = False
        self.last_contact = float("-inf")
        """When the database last answered, by the loop's clock."""
        self.troubles = Troubles(self._loop_held)
        self._unseen = 0
        """Heartbeats in a row that the database refused."""
        self._telling: threading.Thread | None = None
        self._lanes = Lanes(dsn, settings.pool_size, notify=settings.notify, idles=idles(handlers))
        self._generations = Generations(
            settings.generation, handlers, settings.schema, fold_after=fold_after, clock=time.monotonic
        )
        wants = {each.name: frozenset(each.models) or None for each in handlers}
        self._wakes = Wakes(wants, self._woken, generation=settings.generation, route=self._generations.route)
        self._polling = polling(settings)
        place = Place(dsn, pool, settings, signals, self.identity, self._lanes)
        self._labour = Labour(jobs, place, slots=slots, queues=queues, poll=self._poll) if jobs else None
        self._clock = Clock(scheduled, settings, signals, self._fired) if scheduled else None
        self._quarantine = Quarantine()
        self._classes, self._channel = classes, channel
        self._channels = self._channels_of(settings.generation)
        """Where it listens, and whose publishers poke there."""
        self._listener = Listener(
            settings.listen_dsn or dsn,
            list(self._channels),
            on_poke=self._poked,
            on_up=self._listener_up,
            on_down=self._listener_down,
            on_tick=self._ticked,
            watch_sequence=WATCH if settings.notify == "after_commit" else None,
            schema=settings.schema,
            heartbeat=heartbeat,
            deadline=heartbeat / 2,
        )
        self._unlooked = {each.name for each in handlers} | ({CREW} if jobs else set())
        self._unlooked |= {CLOCK} if scheduled else set()
        self._unlooked |= set(beside)
        self._waited_for = frozenset({CREW, CLOCK, *beside})
        self._tails: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        """By handler, generation and place."""
        self._broken: BaseException | None = None

    # Start and stop

    async def run(self) -> bool:
        """Until `stop`; True when everything that was begun is finished, False when the grace time was not enough."""
        unheard = self._signals.listen(self.troubles.hear)
        try:
            with watching(self._signals):
                return await self._run()
        finally:
            unheard()

    async def _run(self) -> bool:
        await self._register()
        if roles := roles_of(self._handlers):
            async with self._pool.autocommit() as conn:
                await check_roles(conn, roles)
        self._signals.emit(WorkerUp(self.identity.id, tuple(self.identity.subscriptions)))
        stopping = asyncio.create_task(self._stopping.wait())
        beside: list[asyncio.Task[None]] = []
        clean = False
        try:
            await self._look()
            beside.append(asyncio.create_task(self._beat()))
            if self._labour is not None:
                beside += self._labour.start(lambda: self._looked(CREW))
            if self._clock is not None:
                ticking = self._clock.run(self._lanes, self._poll, lambda: self._looked(CLOCK))
                beside.append(asyncio.create_task(ticking, name="outrider schedules"))
            parts = [task for part in self._parts for task in part.start(self._looked)]
            beside += parts
            if not self._unlooked:
                self.ready.set()
            if self._settings.notify != "off":
                beside.append(asyncio.create_task(self._listener.run()))
            await asyncio.wait([stopping, *beside], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            self.announce()
            self._wakes.stop()
            if self._labour is not None:
                self._labour.stop()
            if self._clock is not None:
                self._clock.stop()
            for part in self._parts:
                part.stop()
            clean = await self._finish(parts)
        finally:
            self.stop()
            ending = [*self._tails.values(), *beside, stopping]
            for task in ending:
                task.cancel()
            gone, stuck = await asyncio.wait(ending, timeout=STUCK)
            clean = clean and not stuck
            await self._lanes.close()
            with suppress(DatabaseError, DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(FAREWELL), self._pool.autocommit() as conn:
                    await workers.leave(conn, self.identity, self._settings.schema)
            self._signals.emit(WorkerDown(self.identity.id, clean))
        errors = [error for task in gone if not task.cancelled() and (error := task.exception()) is not None]
        if self._broken is not None or errors:
            raise self._broken or errors[0]
        return clean

    def stop(self) -> None:
        """Take nothing more, finish what was begun within the grace time, end. Safe to call from a signal handler."""
        self.identity.stopping = True
        self.spare()
        self._stopping.set()
        self._news.set()

    def hurry(self) -> None:
        """Stop, and end the grace time now: what runs is cancelled, and rolled back or handed back."""
        self.stop()
        self._over.set()

    def spare(self) -> None:
        """Whatever ends this process from now on is no crash of its jobs. Works also while the event loop is blocked."""
        if self._labour is not None:
            self._labour.spare()

    def announce(self) -> None:
        """Say once what a stop waits for. Works also from a thread, while the event loop is blocked."""
        if not self._announced:
            self._announced = True
            handlers = [name for tail in list(self._tails.values()) if (name := at_work(tail)) is not None]
            jobs = [] if self._labour is None else self._labour.running()
            self._signals.emit(WorkerStopping(self.identity.id, tuple(handlers), tuple(jobs), self._grace))

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigError("this worker runs already: app.worker() makes another one")
        self._task = asyncio.create_task(self.run(), name="outrider worker")
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task
        self._task.add_done_callback(_report)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    async def _finish(self, parts: Sequence[asyncio.Task[None]]) -> bool:
        tails, labour = [*self._tails.values(), *parts], self._labour
        timer = asyncio.get_running_loop().call_later(self._grace, self._over.set)
        try:
            jobs = None if labour is None else asyncio.create_task(labour.finish(self._over))
            finished = await ended(tails, self._over)
            return (jobs is None or await jobs) and finished
        finally:
            timer.cancel()

    # wake → take → handle → settle

    async def _tend(self, handler: Handler, generation: int, place: int) -> None:
        """One tail: work while there is work, then sleep until there may be some."""
        name, skipped = handler.name, ""
        made = Tail(
            handler,
            self._signals,
            schema=self._settings.schema,
            generation=generation,
            worker=str(self.identity),
            place=place,
        )
        with closing(made) as tail:
            try:
                while self._wanted(tail):
                    step = await self._work(tail)
                    self._looked(name)
                    if step.outcome in ("paused", "open") and step.outcome != skipped:
                        self._signals.emit(Skipped(name, step.outcome))
                    skipped = step.outcome
                    if not step.again and self._wanted(tail):
                        await self._wakes.wait(name, self._pause(tail, step), place, generation)
            finally:
                if tail.unfinished:
                    with suppress(DatabaseError, DatabaseUnavailable, TimeoutError):
                        async with asyncio.timeout(FAREWELL), self._lanes.lane(name) as conn:
                            await tail.finish(conn)

    def _wanted(self, tail: Tail) -> bool:
        return not self.stopping and self._generations.serves(tail.handler.name, tail.generation)

    async def _work(self, tail: Tail) -> Step:
        """Batch after batch on one session, until there is nothing left or it is somebody else's turn."""
        clock = asyncio.get_running_loop().time
        try:
            async with self._lanes.lane(tail.handler.name) as conn:
                turn = clock() + TURN
                while True:
                    step = await self._step(tail, conn)
                    self.last_contact = clock()
                    if step.code in MIXED_UP:
                        self._lanes.stop_preparing()
                    if step.outcome == "unknown":
                        self._generations.cannot(tail.handler.name)
                        self._news.set()
                    waited_for = self._lanes.waiting and clock() > turn
                    if not step.again or waited_for or not usable(conn) or not self._wanted(tail):
                        return step
        except CursorError as error:
            if code_of(error) != NO_CURSOR:
                raise
            self._generations.forget(tail.handler.name, tail.generation)  # it was folded, or more than that is gone
            self._news.set()
            return Step("gone")
        except (DatabaseError, DatabaseUnavailable, SchemaMismatch, OSError) as error:
            if isinstance(error, SchemaMismatch) and not self.ready.is_set():
                raise
            if code_of(error) in MIXED_UP:
                self._lanes.stop_preparing()
            tail.trouble += 1
            self._signals.emit(Troubled(tail.handler.name, code_of(error), describe(error), tail.trouble, tail.loop))
            return Step("troubled", code=code_of(error))

    async def _step(self, tail: Tail, conn: Connection) -> Step:
        """A suspect is counted and run while nothing else runs here: whatever kills the process then is known."""
        tail.alone = tail.suspect or tail.armed
        if not tail.alone:
            async with self._quarantine.beside_others():
                return await tail.step(conn)
        try:
            async with self._quarantine.alone():
                step = await tail.step(conn)
                return await tail.step(conn) if tail.armed else step
        except TimeoutError:  # somebody does not come to an end: let the others go on for a while
            return Step("busy")

    def _pause(self, tail: Tail, step: Step) -> float:
        if step.outcome == "troubled":
            return pause(tail.trouble)
        skipped = step.outcome in ("busy", "paused")  # it may have been due for long
        addressed = self.listening and self._generations.addressed(tail.generation)
        sleep = self._polling.next(addressed, None if skipped else step.due_in)
        if step.outcome == "busy":
            return min(sleep, URGENT_PAUSE if tail.armed else BUSY_PAUSE)
        return sleep

    def _looked(self, name: str) -> None:
        self._unlooked.discard(name)
        if not self._unlooked:
            self.ready.set()

    # The heartbeat, and what there is to serve

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat):
                    await self._news.wait()
            self._news.clear()
            await self._look()

    async def _look(self) -> None:
        """Be seen first, then see who else is there: of two that start at once, one sees the other."""
        self._say_unable()
        try:
            async with self._one_look, self._pool.autocommit() as conn:
                self.identity.report = self.troubles.report()
                await workers.beat(conn, self.identity, self._settings.schema)
                if not self.stopping:
                    await self._generations.look(conn)
                if self._say_unable():
                    await workers.beat(conn, self.identity, self._settings.schema)
            self.last_contact = asyncio.get_running_loop().time()
            if self._unseen:
                self._signals.emit(Recovered(BEATING, self._unseen))
            self._unseen = 0
        except (DatabaseError, DatabaseUnavailable, SchemaMismatch) as error:
            if isinstance(error, SchemaMismatch) and not self.ready.is_set():
                raise
            if (sqlstate(error) or "").startswith(REFUSED):  # of anything else its takes will say so
                self._unseen += 1
                self._signals.emit(Troubled(BEATING, code_of(error), describe(error), self._unseen))
        if not self.stopping:
            self._follow()

    def _loop_held(self, held: LoopHeld) -> None:
        """On the thread of the watchdog: no heartbeat comes while the loop is held."""
        if held.seconds >= HELD and (self._telling is None or not self._telling.is_alive()):
            self._telling = threading.Thread(target=self._tell_held, name="outrider-report", daemon=True)
            self._telling.start()

    def _tell_held(self) -> None:
        if (report := self.troubles.report()) is not None:
            with suppress(DatabaseError, DatabaseUnavailable, OSError):
                workers.tell(self._dsn, self.identity, report, self._settings.schema)

    def _say_unable(self) -> bool:
        before, self.identity.unable = self.identity.unable, sorted(self._generations.unable)
        for name in self._generations.unable.difference(before):
            self._signals.emit(Skipped(name, "unknown"))
        return before != self.identity.unable

    def _follow(self) -> None:
        """A tail wherever there is something to serve; those of what there is not any more end when they are woken."""
        self._channels = {}
        for generation in sorted(self._generations.heard()):
            self._channels |= self._channels_of(generation)
        self._listener.follow(self._channels)
        handlers = {each.name: each for each in self._handlers}
        for name, generation in self._generations:
            self._wakes.expect(name, generation)
            for place in range(min(handlers[name].subscription.partitions, self._settings.pool_size)):
                if (key := (name, generation, place)) not in self._tails:
                    self._tails[key] = asyncio.create_task(self._tend(handlers[name], generation, place), name=f"{key}")
                    self._tails[key].add_done_callback(partial(self._ended, key))
        for name in self._unlooked - {name for name, _ in self._generations} - self._waited_for:
            self._looked(name)
        if any(not self._generations.serves(name, generation) for name, generation, _ in self._tails):
            self._wakes.wake_all("generations")

    def _ended(self, key: tuple[str, int, int], tail: asyncio.Task[None]) -> None:
        del self._tails[key]
        if tail.cancelled():
            return
        if (error := tail.exception()) is not None:
            self._broken = self._broken or error
            self.stop()
        elif not self.stopping and self._generations.serves(key[0], key[1]):
            self._follow()  # it was on its way out when it was wanted again

    # Wake-ups

    def _woken(self, name: str, reason: str) -> None:
        self._signals.emit(Woken(name, reason))

    def _poked(self, channel: str, event_type: str) -> None:
        if (generation := self._channels.get(channel)) is not None:
            self._signals.emit(Notified(channel, event_type))
            self._wakes.poke(event_type, generation)
            if self._labour is not None:
                self._labour.poke(event_type)
            for part in self._parts:
                part.poke(event_type)

    def _fired(self, job_type: str) -> None:
        if self._labour is not None:
            self._labour.poke(job_type)

    def _channels_of(self, generation: int) -> dict[str, int]:
        if self._channel is None:
            found = channels(generation, self._classes)
        else:
            found = [counterpart(self._channel, self._settings.generation, generation)]
        return dict.fromkeys(found, generation)

    def _listener_up(self) -> None:
        if not self.listening:
            self._hears(True)
            self._signals.emit(ListenerUp())
        self._wake_all("listener")

    def _listener_down(self, reason: str) -> None:
        self._hears(False)
        self._signals.emit(ListenerDown(reason))
        self._wake_all("listener")

    def _hears(self, listening: bool) -> None:
        """What its row says is true at once; beats come one after the other, however often that changes."""
        if listening != self.listening:
            self.listening = self.identity.listening = listening
            self._news.set()

    def _ticked(self) -> None:
        self._wake_all("sequence")
        loop = asyncio.get_running_loop()
        for delay in LOOKS_AFTER_TICK:
            loop.call_later(delay, self._wake_all, "sequence")

    def _wake_all(self, reason: str) -> None:
        self._wakes.wake_all(reason)
        if self._labour is not None:
            self._labour.wake_all(reason)
        for part in self._parts:
            part.wake_all(reason)

    def _poll(self) -> float:
        return self._polling.next(self.listening, None)


def _report(task: asyncio.Task[bool]) -> None:
    """A worker inside a service ends without anybody waiting for it: then it must be heard of at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        where = mask("".join(traceback.format_tb(error.__traceback__)))
        logging.getLogger("outrider").error("the worker has ended: %s\n%s", describe(error), where)
