"""Replays or discards many dead letters, in chunks. Each chunk is a short transaction.

A run can be interrupted and repeated: what was done stays done, and nothing is done twice.
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
"""Dead letters in a chunk. Small, because a replay holds up the keys of its chunk."""
PATIENCE = 12
"""How many times in a row a chunk may wait 10 s for running batches before the run gives up."""
SMOOTH = 0.1
"""With a rate, a chunk is what the rate allows in this many seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """The outcomes of a run."""

    replayed: int = 0
    skipped_handled: int = 0
    """Their idempotency key has been handled."""
    superseded: int = 0
    """Jobs whose unique key another job has, or an open transaction is enqueuing."""
    discarded: int = 0
    not_found: int = 0
    """They were replayed or discarded by someone else during the run."""
    stopped: bool = False
    """The run was stopped before the last of them."""

    @property
    def letters(self) -> int:
        return self.replayed + self.skipped_handled + self.superseded + self.discarded + self.not_found

    def __str__(self) -> str:
        found = f"{self.replayed:,} replayed, {self.skipped_handled:,} skipped because handled"
        told = f"{self.discarded:,} discarded" if self.discarded else found
        return f"{self.letters:,} dead letter{'s' * (self.letters != 1)} ({told})"

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
    """Limits a run to `rate` letters per second. Lost time is not made up for by bursts."""

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
    """Makes the dead letters that match now pending again, in the order of their ids.

    One that fails again during the run is not replayed again. `rate` is in letters per second. Setting `stop` ends the
    run after the current chunk. If the run cannot continue, it raises Interrupted, which says what was done.
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
    """Marks them as discarded: they are not handled any more. A forced replay can bring one back."""
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
    """Discards the dead letters of one event; returns how many."""
    params = {"event_id": event_id, "subscription": subscription, "by": by, "reason": reason}
    [(discarded,)] = await fetch(conn, "admin/discard_event", schema, params)
    return int(discarded)


async def until_now(conn: AsyncConnection[Any], which: Filter, schema: str) -> Filter:
    """Limits the filter to current dead letters, so that a run ignores those that fail during it."""
    return as_of(which, await clock(conn, schema))


def as_of(which: Filter, moment: datetime) -> Filter:
    """Limits the filter to what was a dead letter at that moment. Durations count back from it."""
    which = which.at(moment)
    assert which.until is None or isinstance(which.until, datetime)
    return replace(which, until=moment if which.until is None else min(which.until, moment))


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
    """`app.dead_letters`. Keyword arguments select dead letters as the fields of a Filter; without any, all are meant.

    for group in await app.dead_letters.groups(since="2h"):
        print(group.letters, group.subscription, group.code, group.message)
    done = await app.dead_letters.replay(event_type=OrderPlaced, code="payment_down", rate=100)
    """

    def __init__(self, pool: Callable[[], Pool], schema: str) -> None:
        self._pool = pool
        self._schema = schema

    async def groups(self, **which: Unpack[Filtered]) -> list[Group]:
        """Grouped by subscription, event type and error, the largest group first, each with a sample."""
        async with self._pool().autocommit() as conn:
            return await dead_letters.groups(conn, Filter(**which), self._schema)

    async def each(self, **which: Unpack[Filtered]) -> AsyncIterator[Letter]:
        """Sorted by id: the order in which they first failed."""
        async with self._pool().autocommit() as conn:
            async for letter in dead_letters.each(conn, Filter(**which), self._schema):
                yield letter

    async def count(self, **which: Unpack[Filtered]) -> Count:
        """The number of dead letters, and how many of them a replay would skip."""
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
        """Replays those that are dead letters now, each once, even if it fails again during the run.

        `rate` is in letters per second. `on_progress` is called with the counts so far. `stop` ends the run early.
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
        """Marks them as discarded. They stay in the database, with their history."""
        async with self._pool().autocommit() as conn:
            return await discard(
                conn, Filter(**which), self._schema, by=by, reason=reason, on_progress=on_progress, stop=stop
            )
