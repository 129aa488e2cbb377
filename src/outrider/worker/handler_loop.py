"""The loop of a handler: take → handle → settle while there is work, then sleep until there may be more.

handler_reader.py does one batch. This module gives it a session and decides when to do the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic as clock
from typing import ClassVar

from outrider.error_text import code_of, describe
from outrider.errors import CursorError, DatabaseUnavailable, SchemaMismatch
from outrider.postgres.connection import DatabaseError
from outrider.postgres.handler_batches import Connection
from outrider.postgres.worker_sessions import WorkerSessions, usable
from outrider.signals import Troubled
from outrider.worker.deadline import at_work
from outrider.worker.generations import NO_CURSOR, Generations
from outrider.worker.handler import Handler
from outrider.worker.handler_reader import BatchResult, HandlerReader
from outrider.worker.isolation import Isolation
from outrider.worker.loop import BUSY_PAUSE, Loop, pause
from outrider.worker.loops import Loops
from outrider.worker.polls import Polls
from outrider.worker.site import Site
from outrider.worker.wakeups import Wakeups

REPORT_SECONDS = 2.0
"""Seconds to report failures and rollbacks at shutdown."""
ARMED_PAUSE = 0.02
"""Seconds until the partition of an armed suspect is tried again."""
TURN = 0.5
"""Seconds that a loop may keep a session while others wait for one."""
LOOK_SHARED = 0.1
"""The part of a poll's interval for which the loops share one look (polls.py)."""
MIXED_UP = {"26000", "42P05"}
"""SQLSTATEs of a pooler that mixes up prepared statements."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the handler loops of a worker share."""

    site: Site
    worker: str
    sessions: WorkerSessions
    generations: Generations
    wakeups: Wakeups
    polls: Polls
    look_again: Callable[[], None]
    """Look for generations to serve now, not only with the next heartbeat."""
    isolation: Isolation = field(default_factory=Isolation)


class HandlerLoop(Loop):
    """Serves one generation of a subscription. Where it has several partitions, several loops compete for them."""

    troubles: ClassVar = (DatabaseError, DatabaseUnavailable, SchemaMismatch, OSError)

    def __init__(self, handler: Handler, generation: int, number: int, shared: Shared) -> None:
        name, types = handler.name, frozenset(handler.models) or None
        super().__init__(name, shared.site.signals, types=types, id=f"{generation}/{number}")
        self.generation = generation
        self.number = number
        self.reader = HandlerReader(
            handler,
            shared.site.signals,
            schema=shared.site.settings.schema,
            generation=generation,
            worker=shared.worker,
            loop=self.id,
        )
        self._shared = shared
        self._caught_up = False
        """Its last take found nothing, and nothing waits for a retry."""

    def wants(self, kind: str, generation: int) -> bool:
        finds = self._shared.generations.route(self.name, generation)
        return finds == self.generation and super().wants(kind, generation)

    @property
    def wanted(self) -> bool:
        return not self.stopping and self._shared.generations.serves(self.name, self.generation)

    async def step(self) -> float:
        if self.polling and self._caught_up:
            interval = self._shared.wakeups.pause(self.generation)
            idle_for = await self._shared.polls.idle_for((self.name, self.generation), LOOK_SHARED * interval)
            if idle_for is not None:
                return max(0.0, interval - idle_for)
        try:
            result = await self._batches()
        except CursorError as error:
            if code_of(error) != NO_CURSOR:
                raise
            self._shared.generations.forget(self.name, self.generation)  # it was folded, renamed or retired
            self._shared.look_again()
            return 0
        finally:
            self.reader.asked_at = None
        self.skips(result.outcome if result.outcome in ("paused", "open") else "")
        self._caught_up = result.outcome in ("idle", "done") and result.due_in is None
        return self._pause(result)

    async def _batches(self) -> BatchResult:
        """Batch after batch on one session, until there is nothing left or another loop waits for the session."""
        shared = self._shared
        async with shared.sessions.session(self.name) as conn:
            turn = clock() + TURN
            while True:
                result = await self._batch(conn)
                self.last_contact = clock()
                if result.code in MIXED_UP:
                    shared.sessions.stop_preparing()
                if result.outcome == "unknown":
                    shared.generations.cannot(self.name)
                    shared.look_again()
                waited_for = shared.sessions.waiting and clock() > turn
                if not self._goes_on(result) or waited_for or not usable(conn) or not self.wanted:
                    return result

    async def _batch(self, conn: Connection) -> BatchResult:
        """Handle one batch. A suspect runs while nothing else runs in this process (see next_take)."""
        reader, next_take, isolation = self.reader, self.reader.next_take, self._shared.isolation
        next_take.isolated = next_take.needs_isolation
        if not next_take.isolated:
            async with isolation.beside_others():
                return await reader.step(conn)
        try:
            async with isolation.alone():
                result = await reader.step(conn)
                return await reader.step(conn) if next_take.armed is not None else result
        except TimeoutError:  # other handlers still run: try again later
            return BatchResult("busy")

    def _goes_on(self, result: BatchResult) -> bool:
        """False after a take that has read everything, if a notification is sure to follow the next event."""
        return result.again and not (result.caught_up and self._shared.wakeups.hears_at_once(self.generation))

    def _pause(self, result: BatchResult) -> float:
        if self._goes_on(result):
            return 0
        if result.outcome == "troubled":
            return pause(self.reader.failures)
        skipped = result.outcome in ("busy", "paused")  # then due_in may be long past
        sleep = self._shared.wakeups.pause(self.generation, None if skipped else result.due_in)
        if result.outcome == "busy":
            return min(sleep, ARMED_PAUSE if self.reader.next_take.armed is not None else BUSY_PAUSE)
        return sleep

    def troubled(self, error: BaseException) -> float:
        if isinstance(error, SchemaMismatch) and self.last_contact == float("-inf"):
            raise error
        if code_of(error) in MIXED_UP:
            self._shared.sessions.stop_preparing()
        self._caught_up = False
        self.reader.failures += 1
        self._signals.emit(Troubled(self.name, code_of(error), describe(error), self.reader.failures, self.id))
        return pause(self.reader.failures)

    def recovered(self) -> None:
        """The reader reports it, after a batch."""

    def unanswered_since(self) -> float | None:
        return self.reader.asked_at

    def at_work(self) -> list[str]:
        name = None if self.task is None else at_work(self.task)
        return [] if name is None else [name]

    def excuse(self) -> None:
        self.reader.excuse(self._shared.site.dsn)

    async def close(self) -> None:
        try:
            if self.reader.unfinished:
                with suppress(DatabaseError, DatabaseUnavailable, TimeoutError):
                    async with asyncio.timeout(REPORT_SECONDS), self._shared.sessions.session(self.name) as conn:
                        await self.reader.finish(conn)
        finally:
            self.reader.close()


class HandlerLoops:
    """Starts a loop wherever there is something to serve."""

    def __init__(self, handlers: Sequence[Handler], shared: Shared, loops: Loops) -> None:
        self._handlers = {each.name: each for each in handlers}
        self._shared = shared
        self._loops = loops

    def __iter__(self) -> Iterator[HandlerLoop]:
        return (loop for loop in self._loops if isinstance(loop, HandlerLoop))

    def follow(self) -> None:
        """Called after each look at the generations. Loops of those no longer served end when they are woken."""
        generations, most = self._shared.generations, self._shared.site.settings.pool_size
        have = {(loop.name, loop.generation, loop.number) for loop in self}
        for name, generation in generations:
            handler = self._handlers[name]
            for number in range(min(handler.subscription.partitions, most)):
                if (name, generation, number) not in have:
                    self._loops.add(HandlerLoop(handler, generation, number, self._shared))
        self._loops.expect_no_more(self._handlers.keys() - {name for name, _ in generations})
        if not all(loop.wanted for loop in self):
            self._loops.wake_all("generations")
