"""Actions that are under way or done. Each is a task with a session of its own; its page shows the progress.

The last ones are kept in memory. The audit keeps all.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from outrider.dashboard.database import Database
from outrider.dashboard.poller import Poller
from outrider.error_text import describe, sqlstate
from outrider.errors import ConfigError, OutriderError
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.redaction import mask

KEPT = 100
MOST = 10
"""Actions at a time, because each has a session of its own."""
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
    in_chunks: bool = False
    """It can be stopped between two chunks."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    done: int = 0
    lines: list[str] = field(default_factory=list)
    """The outcome."""
    acted: bool = True
    """False: there was nothing to do, or all was refused."""
    stopped: bool = False
    """It ended before the last chunk."""
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

    def under_way(self) -> list[Run]:
        return [each for each in self._runs.values() if not each.finished]

    async def start(self, run: Run, action: Action) -> Run:
        if len(self._tasks) >= MOST:
            raise ConfigError(f"{MOST} actions are under way: wait until one of them has ended, or stop one")
        done = [key for key, each in self._runs.items() if each.finished]
        for key in done[: max(0, len(self._runs) - KEPT + 1)]:
            del self._runs[key]
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
            lost = sqlstate(error) is None  # the server may have done it
            run.error = describe(error) + ". The audit has it if it was done all the same" * lost
        except asyncio.CancelledError:
            run.error = "the dashboard was ended. The audit has what was done before"
            raise
        except Exception as error:  # else its page would say that it is done
            logging.getLogger("outrider").exception("an action of the dashboard failed")
            run.error = describe(error)
        finally:
            run.finished = True
            self._poller.look_now()
