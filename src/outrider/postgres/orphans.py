"""A subscription that was renamed in the code leaves its old row behind, with its backlog: that must not go unseen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection

from outrider.errors import DeclarationError
from outrider.postgres.subscriptions import Overview, backlog, overview, unregistered
from outrider.subscription import Subscription


def orphaned(seen: Overview, context: str, declared: Iterable[str]) -> bool:
    """Its context's code does not declare it any more, and no worker serves it."""
    return seen.context == context and seen.name not in declared and not seen.workers


async def refuse_renamed(
    conn: AsyncConnection[Any], registering: Sequence[Subscription], declared: Iterable[str], schema: str
) -> None:
    """DeclarationError when a new subscription looks like an orphan that still has something to read."""
    missing = await unregistered(conn, [each.name for each in registering], schema)
    new = [each for each in registering if each.name in missing]
    if not new:
        return
    names = set(declared)
    for old in await overview(conn, schema):
        for each in new:
            if _alike(old, each) and orphaned(old, each.context, names):
                left = await backlog(conn, old.name, schema)
                if left.waiting:
                    raise DeclarationError(
                        f"{each.name} is new and wants the same events as {old.name}, which nobody declares or serves any "
                        f"more and which still has {left}. Renamed: `outrider subscription rename {old.name} {each.name}`. "
                        f"Given up: `outrider subscription retire {old.name}`. "
                        "Really a second one: set OUTRIDER_ALLOW_ORPHANS=1"
                    )


def _alike(old: Overview, new: Subscription) -> bool:
    types = None if old.event_types is None else sorted(old.event_types)
    return (old.kind, old.context, types) == (new.kind, new.context, new.event_types)
