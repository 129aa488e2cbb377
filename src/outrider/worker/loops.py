"""The list of a worker's loops: starts, wakes, and finishes them."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator

from outrider.error_text import describe
from outrider.redaction import mask
from outrider.worker.loop import Loop


class Loops:
    """`on_end` is called when a loop has ended, with its error or None."""

    def __init__(
        self, loops: Iterable[Loop], expected: Iterable[str], on_end: Callable[[BaseException | None], None]
    ) -> None:
        self._loops = list(loops)
        self._on_end = on_end
        self._not_ready = {*expected, *(loop.name for loop in self._loops if loop.awaited)}
        self.ready = asyncio.Event()
        """Every loop has taken its first step."""

    def __iter__(self) -> Iterator[Loop]:
        return iter(list(self._loops))

    def start_all(self) -> None:
        for loop in self:
            if loop.task is None:
                self._start(loop)

    def add(self, loop: Loop) -> None:
        self._loops.append(loop)
        self._start(loop)

    def expect_no_more(self, names: Iterable[str]) -> None:
        """No loop will run under these names: the worker is ready without them."""
        self._not_ready.difference_update(names)
        self._check_ready()

    def wake(self, kind: str, generation: int) -> None:
        for loop in self:
            if loop.wants(kind, generation):
                loop.wake("notification")

    def wake_for_class(self, kind: str) -> None:
        """An event with a channel class was published, of any class and generation."""
        for loop in self:
            if loop.every_class and loop.wants(kind, 0):
                loop.wake("notification")

    def wake_all(self, reason: str) -> None:
        for loop in self:
            loop.wake(reason)

    async def finish(self, grace: float, over: asyncio.Event) -> bool:
        """Stop all loops. Returns whether all of them have finished within the grace time."""
        timer = asyncio.get_running_loop().call_later(grace, over.set)
        try:
            for loop in self:
                loop.stop()
            return all(await asyncio.gather(*(loop.finish(over) for loop in self)))
        finally:
            timer.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        return [loop.task for loop in self if loop.task is not None]

    def _start(self, loop: Loop) -> None:
        loop.start(self._looked).add_done_callback(lambda task: self._ended(loop, task))

    def _looked(self, loop: Loop) -> None:
        self._not_ready.discard(loop.name)
        self._check_ready()

    def _check_ready(self) -> None:
        if not self._not_ready:
            self.ready.set()

    def _ended(self, loop: Loop, task: asyncio.Task[None]) -> None:
        self._loops.remove(loop)
        self._on_end(None if task.cancelled() else task.exception())


def log_failure(task: asyncio.Task[bool]) -> None:
    """Nobody awaits a worker inside a service: log its failure at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        where = mask("".join(traceback.format_tb(error.__traceback__)))
        logging.getLogger("outrider").error("the worker has failed: %s\n%s", describe(error), where)
