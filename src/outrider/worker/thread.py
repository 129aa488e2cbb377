"""One thread for blocking handlers. If a call does not return, its thread is left behind, and the next call starts another.

It is a daemon thread, not one of an executor, so that a handler that hangs cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

Task = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class HandlerThread:
    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | Callable[[], object]] | None = None

    def call(self, context: Context, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=work, args=[self._tasks], name="outrider-handler", daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._tasks.put((lambda: context.run(function, *args), future, loop))
        return future

    def leave(self, last: Callable[[], object] = lambda: None) -> None:
        """Let the thread end after its current call. It calls `last` before it ends."""
        if self._tasks is not None:
            self._tasks.put(last)
            self._tasks = None


class HandlerThreads:
    """As many threads as there are blocking calls at the same time. They are reused."""

    def __init__(self) -> None:
        self._free: list[HandlerThread] = []

    async def call(self, context: Context, function: Callable[..., Any], *args: Any) -> Any:
        """A thread cannot be cancelled: if the caller is, the thread is left behind."""
        thread = self._free.pop() if self._free else HandlerThread()
        calling = thread.call(context, function, *args)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            calling.cancel()
            thread.leave()
            raise
        finally:
            self._free.append(thread)

    def close(self) -> None:
        for thread in self._free:
            thread.leave()


def work(tasks: queue.SimpleQueue[Task | Callable[[], object]]) -> None:
    while isinstance(task := tasks.get(), tuple):
        run, future, loop = task
        try:
            outcome, error = run(), None
        except BaseException as raised:
            outcome, error = None, raised
        with suppress(RuntimeError):  # the loop may have closed without us
            loop.call_soon_threadsafe(_tell, future, outcome, error)
        del run, future, loop, outcome, error
    task()


def _tell(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    elif isinstance(error, StopIteration | GeneratorExit):  # a future must not raise these
        future.set_exception(RuntimeError(f"{type(error).__name__} was raised"))
    else:
        future.set_exception(error)
