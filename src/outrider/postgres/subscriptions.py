"""What an operator does with subscriptions: look, pause, resume, rename, retire. Nothing here reads events for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider import names
from outrider.errors import SubscriptionRefused
from outrider.postgres.fetch import fetch
from outrider.postgres.statement import statement

MOST = 10_000
"""Counts end here: this number means "so many, or more"."""
PATIENCE = "10s"
LIVE = "the last 30 s"


@dataclass(frozen=True, slots=True)
class Overview:
    name: str
    kind: str
    context: str
    event_types: list[str] | None
    """None = every type; none = a job that is only enqueued."""
    partitions: int
    order: str
    paused_at: datetime | None
    lag: int
    """Numbers of the log that its slowest partition has not passed; most of them may be events of other types."""
    parked: int
    """Of jobs: those that wait or run."""
    dead: int
    workers: int
    """Seen within the last 30 s."""
    running: int = 0
    """Jobs that are leased."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a subscription still owes: what is lost with it."""

    unread: int
    more: bool
    """There may be more unread events behind those that were counted."""
    parked: int
    dead: int

    @property
    def waiting(self) -> bool:
        return bool(self.unread or self.more or self.parked)

    def __str__(self) -> str:
        unread = f"{'at least ' if self.more else ''}{self.unread} unread"
        return f"{unread}, {_count(self.parked)} parked and {_count(self.dead)} dead events"


async def overview(conn: AsyncConnection[Any], schema: str, name: str | None = None) -> list[Overview]:
    """All subscriptions, or the one of that name."""
    rows = await fetch(conn, "subscriptions", schema, {"name": name, "most": MOST})
    return [Overview(*row) for row in rows]


async def backlog(conn: AsyncConnection[Any], name: str, schema: str) -> Backlog:
    """Counted exactly while there are few, and never by reading more than a bounded piece of the log."""
    seen = await find(conn, name, schema)
    [(unread, more)] = await fetch(conn, "unread", schema, {"name": name, "scan": MOST})
    return Backlog(unread, more, seen.parked, seen.dead)


async def find(conn: AsyncConnection[Any], name: str, schema: str) -> Overview:
    for found in await overview(conn, schema, name):
        return found
    others = ", ".join(each.name for each in await overview(conn, schema)) or "none"
    raise SubscriptionRefused(f'there is no subscription {name!r} in the schema "{schema}"; there are: {others}')


async def unregistered(conn: AsyncConnection[Any], wanted: Iterable[str], schema: str) -> set[str]:
    return {name for (name,) in await fetch(conn, "unregistered", schema, {"names": list(wanted)})}


async def pause(conn: AsyncConnection[Any], name: str | None, schema: str) -> None:
    """Nothing is taken from now on; what was taken before is finished. No name: of all, those to come included."""
    if name is None:
        await fetch(conn, "pause_all", schema, {})
    else:
        await find(conn, name, schema)
        await fetch(conn, "pause", schema, {"name": name})


async def resume(conn: AsyncConnection[Any], name: str | None, schema: str) -> None:
    """No name: the pause of all is over; those that were paused by their name stay so."""
    if name is None:
        await fetch(conn, "resume_all", schema, {})
    else:
        await find(conn, name, schema)
        await fetch(conn, "resume", schema, {"name": name})


async def all_paused(conn: AsyncConnection[Any], schema: str) -> bool:
    return any(paused for (paused,) in await fetch(conn, "paused", schema, {}))


async def rename(conn: AsyncConnection[Any], old: str, new: str, schema: str, *, force: bool = False) -> int:
    """Position, parked events, dead letters and receipts move to the new name; returns how many receipts."""
    if wrong := names.wrong_dotted(new, names.IDENTIFIER_BYTES):
        raise SubscriptionRefused(f"the new name {wrong}")
    async with _holding(conn, old, schema):
        _refuse_live(await find(conn, old, schema), force=force)
        if await overview(conn, schema, new):
            raise SubscriptionRefused(
                f"there is a subscription {new!r} already: if it was made by mistake and has handled nothing, "
                f"`outrider subscription retire {new}` first; else choose another name"
            )
        [(handled,)] = await fetch(conn, "has_receipts", schema, {"name": new})
        if handled:
            raise SubscriptionRefused(
                f"an earlier subscription was called {new!r}, and what it handled would be skipped: choose another name"
            )
        await conn.execute(statement("rename", schema), {"old": old, "new": new})
        moved = await conn.execute(statement("move_receipts", schema), {"old": old, "new": new})
        return moved.rowcount


async def narrow(
    conn: AsyncConnection[Any], name: str, types: Sequence[str], schema: str, *, force: bool = False
) -> int:
    """It no longer wants these event types; returns how many unread events of them are lost."""
    async with _holding(conn, name, schema):
        await find(conn, name, schema)
        [(_, _, registered, _, _)] = await fetch(conn, "registered", schema, {"name": name})
        wanted = set(registered or ())
        if unknown := [each for each in types if each not in wanted]:
            has = ", ".join(sorted(wanted)) or "every type"
            raise SubscriptionRefused(f"{name} does not want {', '.join(unknown)}; it wants {has}")
        if wanted == set(types):
            raise SubscriptionRefused(f"{name} would want nothing any more: `outrider subscription retire {name}`")
        [(parked,)] = await fetch(conn, "parked_of", schema, {"name": name, "types": list(types)})
        if parked:
            raise SubscriptionRefused(
                f"{parked} events of {', '.join(types)} wait for their retry in {name}: let code that knows them finish"
            )
        before = await backlog(conn, name, schema)
        await conn.execute(statement("narrow", schema), {"name": name, "types": list(types)})
        lost = before.unread - (await backlog(conn, name, schema)).unread
        if lost and not force:
            raise SubscriptionRefused(
                f"{name} has {_count(lost)} unread events of {', '.join(types)}: let code that knows them read these first, "
                "or use --force --yes to lose them"
            )
        return lost


async def retire(conn: AsyncConnection[Any], name: str, schema: str, *, force: bool = False) -> Backlog:
    """Delete the subscription with all that it owes; returns what that was. Its receipts stay."""
    async with _holding(conn, name, schema):
        _refuse_live(await find(conn, name, schema), force=force)
        lost = await backlog(conn, name, schema)
        if (lost.waiting or lost.dead) and not force:
            raise SubscriptionRefused(
                f"{name} would take {lost} with it: let a worker handle them, rename it "
                f"(`outrider subscription rename {name} NEW`), or use --force to lose them"
            )
        await conn.execute(statement("retire", schema), {"name": name})
        return lost


def _refuse_live(seen: Overview, *, force: bool) -> None:
    if seen.workers and not force:
        raise SubscriptionRefused(
            f"{_workers(seen.workers)} served {seen.name} within {LIVE}: stop it first, or use --force; "
            "then it ends with an error at its next take"
        )


@asynccontextmanager
async def _holding(conn: AsyncConnection[Any], name: str, schema: str) -> AsyncIterator[None]:
    try:
        async with conn.transaction():
            await conn.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
            await conn.execute(statement("hold", schema), {"name": name})
            await conn.execute(statement("hold_cursors", schema), {"name": name})
            yield
    except psycopg.errors.LockNotAvailable:
        raise SubscriptionRefused(
            f"{name} was being read for {PATIENCE}: stop its workers, or try again when its batch is finished"
        ) from None


def _workers(count: int) -> str:
    return "a worker" if count == 1 else f"{count} workers"


def _count(number: int) -> str:
    return f"{number} or more" if number == MOST else str(number)
