"""Small parts of the loops of a worker: a session that is opened again when it broke, work beside other work, pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from outrider.errors import DatabaseUnavailable, SchemaMismatch
from outrider.postgres import connection
from outrider.postgres.connection import AsyncSession, DatabaseError

DEADLINE = 30.0
"""So long a round trip may take."""
LONGEST_TROUBLE = 5.0
TROUBLES = (DatabaseError, DatabaseUnavailable, SchemaMismatch, OSError, TimeoutError)


class Session:
    """Opened when it is needed, and again when it broke."""

    def __init__(self, dsn: str, notify: str = "commit") -> None:
        self._dsn, self._notify = dsn, notify
        self._conn: AsyncSession | None = None

    async def open(self) -> AsyncSession:
        if self._conn is None or self._conn.closed:
            self._conn = await connection.connect(self._dsn, autocommit=True, name="outrider jobs", notify=self._notify)
        return self._conn

    def drop(self) -> None:
        """Without a word: nobody knows what state it is in."""
        if self._conn is not None:
            self._conn.pgconn.finish()
            self._conn = None


@asynccontextmanager
async def beside(running: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(running)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, *TROUBLES):
            await task


async def within(seconds: float | None, waited: Awaitable[object]) -> bool:
    """False when the time is up."""
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await waited
    except TimeoutError:
        return False
    return True


async def ended(tasks: Sequence[asyncio.Task[None]], over: asyncio.Event) -> bool:
    """Wait until all of them have ended, or it is over; whether they have ended."""
    if tasks:
        waiting = [asyncio.create_task(over.wait()), asyncio.create_task(_all(tasks))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
    return all(task.done() for task in tasks)


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def pause(trouble: int) -> float:
    longest: float = min(LONGEST_TROUBLE, 0.02 * 2.0 ** min(trouble, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311
