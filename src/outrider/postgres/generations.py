"""Generations: workers open and fold them, operators list and move them. The SQL functions explain the rules."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider.errors import CursorError, SubscriptionRefused
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.statement import Params, fetch, fetch_call
from outrider.signed import Signed
from outrider.subscription import Subscription

PATIENCE = "10s"
SILENCE = "30s"
TOO_MANY = "OR011"


@dataclass(frozen=True, slots=True)
class Cursors:
    """The cursors of one generation at one subscription, as a worker sees them."""

    event_types: frozenset[str] | None
    """What the subscription wants; None = every type."""
    owned: bool
    """They are this worker's own generation's, or were moved to it."""
    unserved: bool
    """Their owner has no live worker."""
    abandoned: bool
    """The generation has no live worker there."""


@dataclass(slots=True)
class Serving:
    """The cursors that a worker finds."""

    cursors: dict[str, dict[int, Cursors]]
    """By subscription and generation."""
    traces: set[int] = field(default_factory=set)
    """Every generation that has a cursor or a live worker anywhere."""


@dataclass(frozen=True, slots=True)
class GenerationOverview:
    """One generation at one subscription."""

    generation: int
    subscription: str
    owner: int
    """The generation whose workers serve it: its own, unless it was moved."""
    lag: int
    """Log positions that its slowest partition has not passed. Many of them may be other events."""
    waiting: int
    dead: int
    workers: list[str]
    """The owner's live workers that know all event types of the subscription, as host:pid."""
    adopted_by: dict[int, list[str]]
    """If the owner has none: the workers that serve it instead, by generation."""


async def open_generation(conn: AsyncConnection[Any], subscription: str, generation: int, schema: str) -> bool:
    """Gives the generation cursors of its own. False if it has them, if other sessions held the locks for too long, or if
    there are too many generations: then the cursors of generation 0 read its events."""
    params = {"subscription": subscription, "generation": generation}
    if (await fetch(conn, "handlers/opened", schema, params))[0][0]:  # needs no right to open
        return False
    try:
        return await _alone(conn, "open_generation", schema, params)
    except psycopg.errors.LockNotAvailable:
        return False
    except CursorError as error:
        if not isinstance(cause := error.__cause__, psycopg.Error) or cause.sqlstate != TOO_MANY:
            raise
        logging.getLogger("outrider").warning("generation %d is not open at %s: %s", generation, subscription, error)
        return False


async def open_all(conn: AsyncConnection[Any], declared: Iterable[Subscription], generation: int, schema: str) -> None:
    """Called at registration, so that workers without the right to open a generation find it open."""
    for each in declared:
        if generation and each.kind == "handler":
            await open_generation(conn, each.name, generation, schema)


async def fold_generation(conn: AsyncConnection[Any], subscription: str, generation: int, schema: str) -> bool:
    """Deletes its cursors. False if something is left to read, or if other sessions held the locks for too long."""
    try:
        return await _alone(conn, "fold_generation", schema, {"subscription": subscription, "generation": generation})
    except psycopg.errors.LockNotAvailable:
        return False


async def idle(conn: AsyncConnection[Any], subscriptions: Sequence[str], schema: str) -> frozenset[tuple[str, int]]:
    """The generations of these subscriptions in which a take would find nothing."""
    rows = await fetch(conn, "handlers/idle", schema, {"subscriptions": list(subscriptions)})
    return frozenset((name, generation) for name, generation in rows)


async def pass_over(conn: AsyncConnection[Any], subscription: str, generation: int, schema: str) -> bool:
    """Advances cursors that nobody serves past the events of others. False if something waits there for a worker."""
    return await _alone(conn, "pass_over", schema, {"subscription": subscription, "generation": generation})


async def serving(conn: AsyncConnection[Any], subscriptions: Sequence[str], generation: int, schema: str) -> Serving:
    found = Serving({name: {} for name in subscriptions})
    params = {"subscriptions": list(subscriptions), "generation": generation}
    for name, of, event_types, *state in await fetch(conn, "handlers/serving", schema, params):
        if name is None:
            found.traces.add(of)
        else:
            wanted = None if event_types is None else frozenset(event_types)
            found.cursors[name][of] = Cursors(wanted, *state)
    return found


async def overview(conn: AsyncConnection[Any], schema: str) -> list[GenerationOverview]:
    """All generations that have cursors, sorted by number."""
    rows = await fetch(conn, "handlers/generations", schema, {"most": MOST})
    return [
        GenerationOverview(
            of, name, owner, lag, waiting, dead, workers, {int(each): who for each, who in (instead or {}).items()}
        )
        for of, name, owner, lag, waiting, dead, workers, instead in rows
    ]


async def move(
    conn: AsyncConnection[Any], subscription: str, origin: int, to: int, signed: Signed, schema: str
) -> bool:
    """Lets the workers of `to` serve generation `origin` of the subscription. `to` = `origin` undoes a move. False if the
    generation has neither cursors, events nor jobs there."""
    try:
        async with conn.transaction():
            await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
            params = {"from": origin, "to": to, "subscription": subscription}
            return bool(await fetch_call(conn, "move_generation", schema, params | signed.params()))
    except psycopg.errors.LockNotAvailable:
        raise SubscriptionRefused(
            f"{subscription} was being read, or a job of it enqueued, for {PATIENCE}: try again when that batch or "
            "transaction has ended, or end the session that holds it"
        ) from None


async def _alone(conn: AsyncConnection[Any], name: str, schema: str, params: Params) -> bool:
    """Calls a function in a READ COMMITTED transaction: it must see what was committed while it waited for locks.

    The server ends the session of a worker that is stopped between its answer and COMMIT, with the cursors locked.
    """
    async with conn.transaction():
        await conn.execute("set transaction isolation level read committed")
        await conn.execute("select set_config('idle_in_transaction_session_timeout', %s, true)", [SILENCE])
        return bool((await fetch_call(conn, name, schema, params))[0][0])
