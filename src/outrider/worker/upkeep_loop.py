"""One round of upkeep, and the loop that does a round every five minutes, in one worker at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import ClassVar

from outrider.config import Settings
from outrider.errors import RollupRefused, SchemaMismatch, UpkeepRefused
from outrider.postgres import rollups, upkeep
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.postgres.rollups import LONGEST, Tick, signal_of
from outrider.postgres.upkeep import STEPS, Did, Step
from outrider.postgres.worker_sessions import WorkerSessions, usable
from outrider.signals import Signals, Upkept
from outrider.worker.deadline import Deadline
from outrider.worker.loop import BUSY_PAUSE, DEADLINE, TROUBLES, Loop, within

NAME = "(upkeep)"
FIRST = 20.0
"""Seconds from the start of a worker to its first round."""
EVERY = 300.0
"""Seconds between two rounds."""
IDLE = 30.0
"""Seconds that its session may be idle."""
TRIES = 3
"""How often a round tries to get a lock that another session holds."""
BUDGET = 20.0
"""Seconds for a step that works in pages. The next round continues it."""
AT_ONCE = {"more", "detached"}
"""Actions after which the step is repeated at once."""

LEFT = {"kept", "busy"}
"""Actions that mean: not done."""

Rest = Callable[[float], Awaitable[bool]]


async def rest(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return True


async def keep(
    conn: AsyncSession,
    schema: str,
    *,
    dry: bool = False,
    rest: Rest = rest,
    on_tick: Callable[[str, Tick], None] = lambda *_: None,
) -> AsyncIterator[Did]:
    """One round. Yields what was done, or with `dry` would be done. `rest` waits that many seconds; False = stop.

    If a step fails, the others are still done, and its error is raised at the end.
    """
    failed: Exception | None = None
    for step in STEPS:
        if not await rest(0):
            return
        try:
            async for did in _step(conn, step, schema, dry, rest):
                if (did.action, did.subject) == ("busy", "upkeep"):
                    yield did
                    return
                yield did
        except (DatabaseError, TimeoutError) as error:
            if not usable(conn):
                raise
            failed = failed or error
    for name in await upkeep.overdue_rollups(conn, schema):
        if dry:
            yield Did("ticked", name, 0, None)
            continue
        async with asyncio.timeout(LONGEST):
            ticked = await rollups.tick(conn, name, schema)
        on_tick(name, ticked)
        if ticked.result != "skipped":
            yield Did("ticked", name, ticked.groups_emitted + ticked.pieces_emitted, ticked.error_text)
    if failed is not None:
        raise failed


async def _step(conn: AsyncSession, name: Step, schema: str, dry: bool, rest: Rest) -> AsyncIterator[Did]:
    """One step. Its pages are reported together; of what could not be done, the last attempt counts."""
    tries, until, paged = TRIES, time.monotonic() + BUDGET, 0
    while True:
        async with asyncio.timeout(DEADLINE):
            found = await upkeep.step(conn, name, schema, dry=dry)
        for did in found:
            if did.action == "more" or (name == "receipts" and did.action == "expired"):
                paged += did.number
            elif did.action not in LEFT:
                yield did
        if any(did.action == "busy" for did in found):
            tries -= 1
            again = tries > 0 and await rest(BUSY_PAUSE * random.uniform(0.5, 1))  # noqa: S311
        else:
            again = not dry and any(did.action in AT_ONCE for did in found) and time.monotonic() < until
        if not (again and await rest(0)):
            break
    if paged:
        yield Did("expired", name, paged, None)
    for did in found:
        if did.action in LEFT:
            yield did


class UpkeepLoop(Loop):
    troubles: ClassVar = (*TROUBLES, RollupRefused, UpkeepRefused)
    awaited: ClassVar = False

    def __init__(self, *, dsn: str, settings: Settings, signals: Signals) -> None:
        super().__init__(NAME, signals)
        self._schema = settings.schema
        self._sessions = WorkerSessions(dsn, 1, IDLE, settings.notify)
        self._reported: dict[str, str | None] = {}
        self._refused = ""
        self._begun = False

    async def step(self) -> float:
        if self._begun:
            try:
                async with self._sessions.session(NAME) as conn:
                    with Deadline(NAME, None):  # so that heartbeats report it
                        await self.round(conn)
            finally:
                await self._sessions.close()  # do not hold a session for the five minutes until the next round
        wait, self._begun, self._refused = EVERY if self._begun else FIRST, True, ""
        return wait * random.uniform(0.8, 1.2)  # noqa: S311

    def troubled(self, error: BaseException) -> float:
        if not isinstance(error, SchemaMismatch | UpkeepRefused):
            return max(1.0, super().troubled(error))
        # The role lacks a right, or the schema is too old. That does not change soon, so it is reported once.
        if str(error) != self._refused:
            super().troubled(error)
        self._refused = str(error)
        return EVERY

    async def round(self, conn: AsyncSession) -> None:
        if not await upkeep.begin(conn, timedelta(seconds=0.8 * EVERY), self._schema):
            return
        kept: dict[str, str | None] = {}
        async for did in keep(conn, self._schema, rest=self._rest, on_tick=self._tell_tick):
            if did.action == "kept":
                kept[did.subject] = did.detail
                if self._reported.get(did.subject) == did.detail:
                    continue
            self._signals.emit(Upkept(did.action, did.subject, did.number, did.detail))
        self._reported = kept

    async def _rest(self, seconds: float) -> bool:
        return not await within(seconds, self._stopped.wait())

    def _tell_tick(self, name: str, ticked: Tick) -> None:
        if ticked.result in ("processed", "error") or ticked.error_count:
            self._signals.emit(signal_of(name, ticked))
