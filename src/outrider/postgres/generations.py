"""The generations of a log: opened and folded by workers, seen and moved by operators. See the SQL functions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider.errors import CursorError, SubscriptionRefused
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.statement import Params, fetch, fetch_call
from outrider.subscription import Subscription

PATIENCE = "10s"
TOO_MANY = "OR011"


@dataclass(frozen=True, slots=True)
class Cursors:
    """Those of one generation at one subscription, as a worker sees them."""

    event_types: frozenset[str] | None
    """What the subscription wants; None = every type."""
    served: bool
    """By this worker: its own, moved to its generation, or nobody else is there for them."""
    abandoned: bool
    """The generation has no live worker there."""


@dataclass(slots=True)
class Serving:
    """What a worker of a generation finds."""

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
    """Numbers of the log that its slowest partition has not passed; most of them may be none of its events."""
    parked: int
    dead: int
    workers: list[str]
    """The live workers of the owner, as host:pid, that know all types that the subscription wants."""
    adopted_by: dict[int, list[str]]
    """Who serves it instead, by generation, when the owner has none."""


async def open_generation(conn: AsyncConnection[Any], subscription: str, generation: int, schema: str) -> bool:
    """Cursors of its own from now on; False when it has them, when others were at work on it for too long, or when there are
    too many: then those of generation 0 read its events."""
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
    """For the step that registers: a worker that may not open it then finds it open."""
    for each in declared:
        if generation and each.kind == "handler":
            await open_generation(conn, each.name, generation, schema)


async def fold_generation(conn: AsyncConnection[Any], subscription: str, generation: int, schema: str) -> bool:
    """True when its cursors are gone; False when something was left to read, or when others were at work."""
    try:
        return await _alone(conn, "fold_generation", schema, {"subscription": subscription, "generation": generation})
    except psycopg.errors.LockNotAvailable:
        return False


async def serving(conn: AsyncConnection[Any], subscriptions: Sequence[str], generation: int, schema: str) -> Serving:
    found = Serving({name: {} for name in subscriptions})
    params = {"subscriptions": list(subscriptions), "generation": generation}
    for name, of, event_types, served, abandoned in await fetch(conn, "handlers/serving", schema, params):
        if name is None:
            found.traces.add(of)
        else:
            wanted = None if event_types is None else frozenset(event_types)
            found.cursors[name][of] = Cursors(wanted, served, abandoned)
    return found


async def overview(conn: AsyncConnection[Any], schema: str) -> list[GenerationOverview]:
    """Every generation that has cursors, by number."""
    rows = await fetch(conn, "handlers/generations", schema, {"most": MOST})
    return [
        GenerationOverview(
            of, name, owner, lag, parked, dead, workers, {int(each): who for each, who in (instead or {}).items()}
        )
        for of, name, owner, lag, parked, dead, workers, instead in rows
    ]


async def move(
    conn: AsyncConnection[Any], subscription: str, origin: int, to: int, signed: Signed, schema: str
) -> None:
    """The workers of `to` serve this generation of the subscription from now on; of `origin` itself: as it was."""
    try:
        async with conn.transaction():
            await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
            params = {"from": origin, "to": to, "subscription": subscription}
            await fetch_call(conn, "move_generation", schema, params | signed.params())
    except psycopg.errors.LockNotAvailable:
        raise SubscriptionRefused(
            f"{subscription} was being read for {PATIENCE}: try again when its batch is finished, or end the worker that "
            "holds it"
        ) from None


async def _alone(conn: AsyncConnection[Any], name: str, schema: str, params: Params) -> bool:
    """Calls a function in a READ COMMITTED transaction: it must see what was committed while it waited for locks."""
    async with conn.transaction():
        await conn.execute("set transaction isolation level read committed")
        return bool((await fetch_call(conn, name, schema, params))[0][0])
