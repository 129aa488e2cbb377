"""Actions that are under way or done. Each is a task with a session of its own; its page shows the progress.

The last ones are kept in memory. The audit keeps all.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from outrider.dashboard.database import Database
from outrider.dashboard.poller import Poller
from outrider.error_text import describe
from outrider.errors import ConfigError, OutriderError
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.redaction import mask

KEPT = 100
PATIENCE = 1.0
"""Seconds that a form waits for its action, before its page shows the progress."""


@dataclass(slots=True)
class Run:
    action: str
    """The permission that it needs; so does stopping it."""
    title: str
    by: str
    reason: str
    back: str
    """The path of the page to return to."""
    total: int | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    done: int = 0
    lines: list[str] = field(default_factory=list)
    """The outcome."""
    link: tuple[str, str] | None = None
    """The path and the name of what came of it."""
    error: str | None = None
    finished: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)


Action = Callable[[AsyncSession, Run], Awaitable[None]]


class Runs:
    def __init__(self, database: Database, poller: Poller) -> None:
        self._database = database
        self._poller = poller
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __getitem__(self, key: str) -> Run:
        if (found := self._runs.get(key)) is None:
            raise ConfigError("this action is no longer known here: the audit has it")
        return found

    async def start(self, run: Run, action: Action) -> Run:
        while len(self._runs) >= KEPT:
            del self._runs[next(iter(self._runs))]
        self._runs[run.id] = run
        task = asyncio.create_task(self._do(run, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=PATIENCE)
        return run

    async def close(self) -> None:
        """A run ends after its current chunk: what was done stays done."""
        for run in self._runs.values():
            run.stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _do(self, run: Run, action: Action) -> None:
        try:
            async with self._database.acting() as conn:
                await action(conn, run)
        except OutriderError as error:
            run.error = mask(str(error))
        except (DatabaseError, OSError) as error:
            run.error = describe(error)
        finally:
            run.finished = True
            self._poller.look_now()
