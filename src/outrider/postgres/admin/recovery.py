"""Many dead letters at once, replayed or discarded: chunk after chunk, each a short transaction of its own.

A run may end anywhere and be begun again: what was done stays done, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any, Unpack
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from outrider.errors import ConfigError, Interrupted, OutriderError
from outrider.postgres.admin import dead_letters
from outrider.postgres.admin.dead_letters import Count, Filter, Filtered, Group, Letter, clock
from outrider.postgres.admin.replay import HELD
from outrider.postgres.pool import Pool
from outrider.postgres.statement import Params, fetch
from outrider.redaction import mask, sanitise

BATCH = 500
"""The lines of a chunk stand still while it is replayed, so it must not be long."""
PATIENCE = 12
"""How often in a row a chunk may wait 10 s for keys that running batches hold, before the replay gives up."""
SMOOTH = 0.1
"""With a rate, a chunk is what may go in so many seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """What has become of the dead letters of a run."""

    replayed: int = 0
    skipped_handled: int = 0
    """Their idempotency key has been handled."""
    superseded: int = 0
    """Jobs whose unique key another pending job has."""
    discarded: int = 0
    not_found: int = 0
    """Somebody else had replayed or discarded them before their turn came."""
    stopped: bool = False
    """It was told to end before the last of them."""

    @property
    def letters(self) -> int:
        return self.replayed + self.skipped_handled + self.superseded + self.discarded + self.not_found

    def __add__(self, counts: Sequence[int]) -> Done:
        replayed, skipped, superseded, discarded, not_found = counts
        return Done(
            self.replayed + replayed,
            self.skipped_handled + skipped,
            self.superseded + superseded,
            self.discarded + discarded,
            self.not_found + not_found,
        )


class Pace:
    """At most so many letters a second, without bursts: time that was lost is not made up for."""

    def __init__(self, rate: float | None, batch: int = BATCH, clock: Callable[[], float] = monotonic) -> None:
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise ConfigError(f"rate: {rate} is not a number of letters per second above zero")
        if batch < 1:
            raise ConfigError(f"batch: {batch} is not at least 1")
        self._rate = rate
        self._clock = clock
        self._next = -math.inf
        self.chunk = batch if rate is None else max(1, min(batch, int(rate * SMOOTH)))

    def begin(self) -> None:
        """Called before each chunk."""
        self._next = max(self._next, self._clock())

    def wait(self, letters: int) -> float:
        """Seconds to wait after a chunk of this size."""
        if self._rate is None:
            return 0.0
        self._next += letters / self._rate
        return max(0.0, self._next - self._clock())


Progress = Callable[[Done], object]


async def replay(
    conn: AsyncConnection[Any],
    which: Filter,
    schema: str,
    *,
    by: str | None = None,
    reason: str | None = None,
    generation: int | None = None,
    force: bool = False,
    batch: int = BATCH,
    rate: float | None = None,
    on_progress: Progress | None = None,
    stop: asyncio.Event | None = None,
) -> Done:
    """The dead letters that were buried before now become pending again, in the order of their ids.

    What fails again meanwhile is not replayed again. `rate`: at most so many letters a second. `stop`: set it, and
    the run ends after the chunk that is on its way. Interrupted, an error, says what was done when it could not go on.
    """
    how = {"by": by, "reason": reason, "to_generation": generation, "force": force}
    return await _run(conn, "admin/replay_dead_letters", which, schema, how, Pace(rate, batch), on_progress, stop)


async def discard(
    conn: AsyncConnection[Any],
    which: Filter,
    schema: str,
    *,
    by: str | None = None,
    reason: str | None = None,
    batch: int = BATCH,
    on_progress: Progress | None = None,
    stop: asyncio.Event | None = None,
) -> Done:
    """Nobody shall handle them any more. They stay, marked; a forced replay brings one back."""
    how = {"by": by, "reason": reason}
    return await _run(conn, "admin/discard_dead_letters", which, schema, how, Pace(None, batch), on_progress, stop)


async def discard_one(
    conn: AsyncConnection[Any],
    event_id: UUID,
    subscription: str | None,
    schema: str,
    *,
    by: str | None,
    reason: str | None,
) -> int:
    """The dead letters of one event; how many there were."""
    params = {"event_id": event_id, "subscription": subscription, "by": by, "reason": reason}
    [(discarded,)] = await fetch(conn, "admin/discard_event", schema, params)
    return int(discarded)


async def until_now(conn: AsyncConnection[Any], which: Filter, schema: str) -> Filter:
    """Those of them that are dead letters already. What is buried later is another failure, and none of a run's concern."""
    now = await clock(conn, schema)
    which = which.at(now)
    assert which.until is None or isinstance(which.until, datetime)
    return replace(which, until=now if which.until is None else min(which.until, now))


async def _run(
    conn: AsyncConnection[Any],
    name: str,
    which: Filter,
    schema: str,
    how: Params,
    pace: Pace,
    on_progress: Progress | None,
    stop: asyncio.Event | None,
) -> Done:
    assert conn.autocommit, "each chunk must be a transaction of its own"
    stop, which = stop or asyncio.Event(), await until_now(conn, which, schema)
    params = which.params() | how | {"limit": pace.chunk}
    done, after, patience = Done(), 0, PATIENCE
    while not stop.is_set():
        pace.begin()
        try:
            [(last, *counts)] = await fetch(conn, name, schema, params | {"after": after})
        except psycopg.errors.LockNotAvailable as error:
            patience -= 1
            if patience:
                continue
            raise Interrupted(done, 0, HELD) from error
        except (psycopg.Error, OutriderError) as error:
            if not done.letters and isinstance(error, OutriderError):
                raise
            reason = (sanitise(mask(str(error))).splitlines() or [type(error).__name__])[0]
            raise Interrupted(done, pace.chunk, reason) from error
        patience = PATIENCE
        if last is None:
            return done
        done, before, after = done + counts, done, last
        if on_progress is not None:
            on_progress(done)
        with suppress(TimeoutError):
            async with asyncio.timeout(pace.wait(done.replayed - before.replayed)):
                await stop.wait()
    return replace(done, stopped=True)


class DeadLetters:
    """`app.dead_letters`: which ones is said by name, and all that is said must fit; nothing said = all of them.

    for group in await app.dead_letters.groups(since="2h"):
        print(group.letters, group.subscription, group.code, group.message)
    done = await app.dead_letters.replay(event_type=OrderPlaced, code="payment_down", rate=100)
    """

    def __init__(self, pool: Callable[[], Pool], schema: str) -> None:
        self._pool = pool
        self._schema = schema

    async def groups(self, **which: Unpack[Filtered]) -> list[Group]:
        """By subscription, event type and what went wrong; the largest first, each with a sample."""
        async with self._pool().autocommit() as conn:
            return await dead_letters.groups(conn, Filter(**which), self._schema)

    async def each(self, **which: Unpack[Filtered]) -> AsyncIterator[Letter]:
        """One by one, in the order in which they first failed."""
        async with self._pool().autocommit() as conn:
            async for letter in dead_letters.each(conn, Filter(**which), self._schema):
                yield letter

    async def count(self, **which: Unpack[Filtered]) -> Count:
        """How many there are, and how many of them a replay would skip."""
        async with self._pool().autocommit() as conn:
            return await dead_letters.count(conn, Filter(**which), self._schema)

    async def replay(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        to_generation: int | None = None,
        force: bool = False,
        rate: float | None = None,
        on_progress: Progress | None = None,
        stop: asyncio.Event | None = None,
        **which: Unpack[Filtered],
    ) -> Done:
        """Let them be handled again: those that are dead letters now, however often they fail again meanwhile.

        `rate`: at most so many a second. `on_progress` is called with what was done so far; `stop` ends the run early.
        """
        async with self._pool().autocommit() as conn:
            return await replay(
                conn,
                Filter(**which),
                self._schema,
                by=by,
                reason=reason,
                generation=to_generation,
                force=force,
                rate=rate,
                on_progress=on_progress,
                stop=stop,
            )

    async def discard(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        on_progress: Progress | None = None,
        stop: asyncio.Event | None = None,
        **which: Unpack[Filtered],
    ) -> Done:
        """Give them up for good; they stay, marked, with their history."""
        async with self._pool().autocommit() as conn:
            return await discard(
                conn, Filter(**which), self._schema, by=by, reason=reason, on_progress=on_progress, stop=stop
            )
