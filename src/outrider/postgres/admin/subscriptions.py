"""Operations on subscriptions: list, pause, resume, rename, narrow, retire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider import names
from outrider.errors import SubscriptionRefused
from outrider.postgres.statement import fetch, fetch_call, looking
from outrider.signed import UNSIGNED, Signed

MOST = 10_000
"""Counts stop at this number: it means "at least 10,000"."""
PATIENCE = "10s"
"""How long the SQL functions wait for running batches."""


@dataclass(frozen=True, slots=True)
class Overview:
    name: str
    kind: str
    context: str
    event_types: list[str] | None
    """None = every type; empty = a job type that is only enqueued."""
    partitions: int
    order: str
    paused_at: datetime | None
    lag: int
    """Log positions that its slowest partition has not passed. Many of them may be events of other types."""
    waiting: int
    """Events that wait for a retry; for jobs, those that are pending or running."""
    dead: int
    workers: int
    """Seen within the last 30 s."""
    running: int = 0
    """Jobs that are leased."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a subscription has not handled yet. Retiring it loses all of this."""

    unread: int
    more: bool
    """There may be more unread events than were counted."""
    waiting: int
    """Events that wait for a retry."""
    dead: int

    @property
    def unhandled(self) -> bool:
        return bool(self.unread or self.more or self.waiting)

    def __str__(self) -> str:
        unread = f"{'at least ' if self.more else ''}{self.unread} unread"
        return f"{unread}, {_count(self.waiting)} waiting for retry, {_count(self.dead)} dead letters"


async def overview(conn: AsyncConnection[Any], schema: str, name: str | None = None) -> list[Overview]:
    """All subscriptions, or the one of that name."""
    async with looking(conn, schema) as look:  # else it may read all of a table to count what is not there
        return [Overview(*row) for row in await look.rows("admin/subscriptions", {"name": name, "most": MOST})]


async def backlog(conn: AsyncConnection[Any], name: str, schema: str) -> Backlog:
    """Counts unread events in the next MOST positions of the log only."""
    seen = await find(conn, name, schema)
    [(unread, more)] = await fetch_call(conn, "unread", schema, {"name": name, "scan": MOST})
    return Backlog(unread, more, seen.waiting, seen.dead)


async def find(conn: AsyncConnection[Any], name: str, schema: str) -> Overview:
    for found in await overview(conn, schema, name):
        return found
    others = ", ".join(each.name for each in await overview(conn, schema)) or "none"
    raise SubscriptionRefused(f'there is no subscription {name!r} in the schema "{schema}"; there are: {others}')


async def unregistered(conn: AsyncConnection[Any], wanted: Iterable[str], schema: str) -> set[str]:
    return {name for (name,) in await fetch(conn, "admin/unregistered", schema, {"names": list(wanted)})}


async def pause(conn: AsyncConnection[Any], name: str | None, schema: str, signed: Signed = UNSIGNED) -> None:
    """Stops taking; what was taken is finished. Without a name: all subscriptions, including future ones."""
    if name is None:
        await fetch_call(conn, "pause_all", schema, signed.params())
    else:
        await find(conn, name, schema)
        await fetch_call(conn, "pause", schema, {"name": name} | signed.params())


async def resume(conn: AsyncConnection[Any], name: str | None, schema: str, signed: Signed = UNSIGNED) -> None:
    """Without a name: ends the pause of everything. Subscriptions that were paused by name stay paused."""
    if name is None:
        await fetch_call(conn, "resume_all", schema, signed.params())
    else:
        await find(conn, name, schema)
        await fetch_call(conn, "resume", schema, {"name": name} | signed.params())


async def all_paused(conn: AsyncConnection[Any], schema: str) -> bool:
    return any(paused for (paused,) in await fetch(conn, "admin/paused", schema, {}))


async def rename(
    conn: AsyncConnection[Any], old: str, new: str, schema: str, *, force: bool = False, signed: Signed = UNSIGNED
) -> int:
    """Moves the position, retries, dead letters and receipts to the new name; returns the number of receipts."""
    if wrong := names.wrong_dotted(new, names.IDENTIFIER_BYTES):
        raise SubscriptionRefused(f"the new name {wrong}")
    await find(conn, old, schema)
    with _waiting_for(old):
        [(moved,)] = await fetch_call(
            conn, "rename", schema, {"old": old, "new": new, "force": force} | signed.params()
        )
    return int(moved)


async def narrow(
    conn: AsyncConnection[Any],
    name: str,
    types: Sequence[str],
    schema: str,
    *,
    force: bool = False,
    signed: Signed = UNSIGNED,
) -> int:
    """Removes event types from the subscription; returns how many unread events of these types are lost."""
    await find(conn, name, schema)
    with _waiting_for(name):
        params = {"name": name, "types": list(types), "force": force}
        [(lost,)] = await fetch_call(conn, "narrow", schema, params | signed.params())
    return int(lost)


async def retire(
    conn: AsyncConnection[Any], name: str, schema: str, *, force: bool = False, signed: Signed = UNSIGNED
) -> Backlog:
    """Deletes the subscription and its backlog; returns the backlog. Its receipts stay."""
    await find(conn, name, schema)
    with _waiting_for(name):
        [row] = await fetch_call(conn, "retire", schema, {"name": name, "force": force} | signed.params())
    return Backlog(*row)


@contextmanager
def _waiting_for(name: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise SubscriptionRefused(
            f"{name} was being read for {PATIENCE}: stop its workers, or try again when its batch is finished"
        ) from None


def _count(number: int) -> str:
    return f"{number} or more" if number == MOST else str(number)
