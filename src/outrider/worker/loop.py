"""`Loop`: one thing that a worker does again and again. It takes a step, then sleeps until it is woken or its pause is over.

A handler, the jobs, the schedules, a relay, an inbox, the rollups and upkeep are loops. The worker holds a list of them.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

from outrider.error_text import code_of, describe
from outrider.errors import DatabaseUnavailable, SchemaMismatch
from outrider.postgres.connection import DatabaseError
from outrider.signals import Recovered, Signals, Skipped, Troubled, Woken

DEADLINE = 30.0
"""The longest time that a round trip may take, in seconds."""
LONGEST_PAUSE = 5.0
"""The longest pause after an infrastructure failure, in seconds."""
BUSY_PAUSE = 1.0
"""Seconds until a loop looks again at what another session holds, in case that session dies."""
TROUBLES = (DatabaseError, DatabaseUnavailable, SchemaMismatch, OSError, TimeoutError)
"""Infrastructure failures."""


class Loop(ABC):
    """`name`: a subscription, or a word in parentheses. `types`: the types whose notifications wake it; None = all."""

    troubles: ClassVar[tuple[type[Exception], ...]] = TROUBLES
    """What a step may raise without ending the worker."""
    every_class: ClassVar[bool] = False
    """It is woken also by events of a channel class that its worker does not name."""
    awaited: ClassVar[bool] = True
    """The worker counts as ready only after the first step of this loop."""

    def __init__(self, name: str, signals: Signals, *, types: Collection[str] | None = (), id: str = "") -> None:  # noqa: A002
        self.name = name
        self.id = id
        """Which of several loops of that name."""
        self._signals = signals
        self._types = types
        self.trouble = 0
        """Infrastructure failures in a row."""
        self._skipped = ""
        self._woken = asyncio.Event()
        self._reason = ""
        self.polling = False
        """Nothing woke it before this step: its pause was over."""
        self.wakes = 0
        """How often it was woken."""
        self._stopped = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.last_contact = float("-inf")
        """When the database last answered, by time.monotonic."""

    # What a loop is

    @abstractmethod
    async def step(self) -> float:
        """Do what there is to do. Returns the pause until the next step in seconds; 0 = none."""

    async def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Release what it holds. Called once, when it has ended."""

    def at_work(self) -> list[str]:
        """The handlers and jobs that it runs now."""
        return []

    def unanswered_since(self) -> float | None:
        """When it sent the statement that it waits for without a time limit, by time.monotonic."""
        return None

    def ignore_crashes(self) -> None:  # noqa: B027 (only jobs count crashes)
        """From now on, the death of this process does not count as a crash of its jobs."""

    def excuse(self) -> None:  # noqa: B027 (only handlers count takes)
        """The same for its handlers. Waits for the database, so it is called from a thread."""

    # Wake and stop

    def wants(self, kind: str, generation: int) -> bool:  # noqa: ARG002
        """Whether a notification of this event or job type, on the channel of that generation, concerns it."""
        return self._types is None or kind in self._types

    def wake(self, reason: str) -> None:
        self.wakes += 1
        self._reason = reason
        self._woken.set()

    def stop(self) -> None:
        """Begin no further step."""
        self._stopped.set()
        self.wake("stop")

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    async def finish(self, over: asyncio.Event) -> bool:
        """Wait until it has ended or the grace time is over. Returns whether it has ended."""
        return self.task is None or await first(self.task, over)

    # Run

    def start(self, looked: Callable[[Loop], None]) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.run(lambda: looked(self)), name=f"outrider {self.name}")
        return self.task

    async def run(self, looked: Callable[[], None] = lambda: None) -> None:
        """Until it is told to stop."""
        try:
            while self.wanted:
                pause = await self._attempt()
                looked()
                if pause > 0 and self.wanted:
                    await self._sleep(pause)
        finally:
            await self.close()

    @property
    def wanted(self) -> bool:
        return not self.stopping

    async def _attempt(self) -> float:
        try:
            pause = await self.step()
        except self.troubles as error:
            return self.troubled(error)
        self.recovered()
        return pause

    async def _sleep(self, seconds: float) -> None:
        if self.patient or not self._hears:
            await within(seconds, self._stopped.wait())
            return
        self.polling = not await within(seconds, self._woken.wait())
        self._woken.clear()
        if not self.stopping:
            self._signals.emit(Woken(self.name, "poll" if self.polling else self._reason))

    @property
    def patient(self) -> bool:
        """It sleeps through wake-ups now."""
        return False

    @property
    def _hears(self) -> bool:
        return self._types is None or len(self._types) > 0

    # What it says

    def troubled(self, error: BaseException) -> float:
        """Count and report an infrastructure failure. Returns the pause before the next attempt, in seconds."""
        self.trouble += 1
        self._signals.emit(Troubled(self.name, code_of(error), describe(error), self.trouble, self.id))
        return pause(self.trouble)

    def recovered(self) -> None:
        if self.trouble:
            self._signals.emit(Recovered(self.name, self.trouble, self.id))
        self.trouble = 0

    def skips(self, reason: str) -> None:
        """Report that it does nothing, and why: once, until the reason changes. "" = it works."""
        if reason and reason != self._skipped:
            self._signals.emit(Skipped(self.name, reason))
        self._skipped = reason


async def within(seconds: float | None, waited: Awaitable[object]) -> bool:
    """Returns False when the time is up."""
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await waited
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def beside(running: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the coroutine in a task of its own until the block ends."""
    task = asyncio.create_task(running)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, *TROUBLES):
            await task


async def first(task: asyncio.Task[None], over: asyncio.Event) -> bool:
    """Wait for the task or the event. Returns whether the task has ended."""
    waiting = asyncio.create_task(over.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()


def pause(trouble: int) -> float:
    """Seconds to wait after that many infrastructure failures in a row: 20 ms, doubled each time, at most 5 s."""
    longest: float = min(LONGEST_PAUSE, 0.02 * 2.0 ** min(trouble, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311
