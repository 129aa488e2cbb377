"""One round of upkeep, and the part of a worker that does one every five minutes, of all workers one at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

from outrider.config import Settings
from outrider.errors import RollupRefused, SchemaMismatch, UpkeepRefused
from outrider.outcome import code_of, describe
from outrider.postgres import rollups, upkeep
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.postgres.rollups import LONGEST, Tick, told
from outrider.postgres.upkeep import STEPS, Did, Step
from outrider.postgres.worker_sessions import Lanes, usable
from outrider.signals import Recovered, Signals, Troubled, Upkept
from outrider.worker.deadline import Deadline
from outrider.worker.loop import DEADLINE, TROUBLES, pause, within

KEEPING = "(upkeep)"
"""Where a subscription's name would stand."""
FIRST = 20.0
EVERY = 300.0
IDLE = 30.0
TRIES = 3
"""So often a round asks for a lock that others hold; the next round asks again."""
BUSY_PAUSE = 1.0
BUDGET = 20.0
"""Seconds that a step which comes in pages may go on; the next round goes on from there."""
AT_ONCE = {"more", "detached"}
"""There may be more to do in this step."""

LEFT = {"kept", "busy"}
"""It was not done."""

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
    """One round: what was done, or with `dry` would be. `rest` waits so many seconds; False = stop.

    A step that fails does not keep the others from being done: what was wrong is raised at the end.
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
    """What comes in pages is told as one; what was left undone, as the last try found it."""
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


class Upkeep:
    """A part of a worker."""

    def __init__(self, *, dsn: str, settings: Settings, signals: Signals) -> None:
        self._schema = settings.schema
        self._wanted = settings.upkeep
        self._signals = signals
        self._lanes = Lanes(dsn, 1, IDLE, settings.notify)
        self._said: dict[str, str | None] = {}
        self._trouble = 0
        self._stopped = asyncio.Event()
        self.names: list[str] = []

    def start(self, looked: Callable[[str], None]) -> list[asyncio.Task[None]]:  # noqa: ARG002
        return [asyncio.create_task(self._run(), name="outrider upkeep")] if self._wanted else []

    def poke(self, kind: str) -> None:
        """Nothing of it is urgent."""

    def wake_all(self, reason: str) -> None:
        """Nothing of it is urgent."""

    def stop(self) -> None:
        self._stopped.set()

    async def _run(self) -> None:
        wait = FIRST
        while not await within(wait * random.uniform(0.8, 1.2), self._stopped.wait()):  # noqa: S311
            wait = await self._look()

    async def _look(self) -> float:
        try:
            try:
                async with self._lanes.lane(KEEPING) as conn:
                    with Deadline(KEEPING, None):  # it is seen at work
                        await self.round(conn)
            finally:
                await self._lanes.close()  # five minutes are too long to hold a session for nothing
        except (SchemaMismatch, UpkeepRefused) as error:
            # Its role may not, or the schema is too old: that does not change by asking again soon.
            if self._said.get(KEEPING) != str(error):
                self._signals.emit(Troubled(KEEPING, code_of(error), describe(error), 1))
            self._said[KEEPING] = str(error)
            return EVERY
        except (*TROUBLES, RollupRefused) as error:
            self._trouble += 1
            self._signals.emit(Troubled(KEEPING, code_of(error), describe(error), self._trouble))
            return max(1.0, pause(self._trouble))
        if self._trouble:
            self._signals.emit(Recovered(KEEPING, self._trouble))
        self._trouble = 0
        self._said.pop(KEEPING, None)
        return EVERY

    async def round(self, conn: AsyncSession) -> None:
        if not await upkeep.begin(conn, timedelta(seconds=0.8 * EVERY), self._schema):
            return
        kept: dict[str, str | None] = {}
        async for did in keep(conn, self._schema, rest=self._rest, on_tick=self._tell_tick):
            if did.action == "kept":
                kept[did.subject] = did.detail
                if self._said.get(did.subject) == did.detail:
                    continue
            self._signals.emit(Upkept(did.action, did.subject, did.number, did.detail))
        self._said = kept

    async def _rest(self, seconds: float) -> bool:
        return not await within(seconds, self._stopped.wait())

    def _tell_tick(self, name: str, ticked: Tick) -> None:
        if ticked.result in ("processed", "error") or ticked.error_count:
            self._signals.emit(told(name, ticked))
