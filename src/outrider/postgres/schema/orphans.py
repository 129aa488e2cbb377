"""Finds subscriptions that were renamed in the code: the old row stays behind, with its backlog and maybe with workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection

from outrider.errors import DeclarationError
from outrider.postgres.admin.subscriptions import Backlog, Overview, backlog, overview, unregistered
from outrider.subscription import Subscription


def orphaned(seen: Overview, context: str, declared: Iterable[str]) -> bool:
    """The code of its context no longer declares it, and no worker serves it."""
    return seen.context == context and seen.name not in declared and not seen.workers


async def refuse_renamed(
    conn: AsyncConnection[Any],
    registering: Sequence[Subscription],
    declared: Iterable[str],
    schema: str,
) -> None:
    """Raises DeclarationError if a new subscription looks like one that the app no longer declares, in the same context.

    Otherwise, both would handle every event.
    """
    missing = await unregistered(conn, [each.name for each in registering], schema)
    new = [each for each in registering if each.name in missing]
    if not new:
        return
    names = set(declared)
    forgotten = [each for each in await overview(conn, schema) if each.name not in names]
    for each in new:
        for old in forgotten:
            if old.context == each.context and await _replaced(conn, old, each, schema):
                raise DeclarationError(_explained(old, each, await backlog(conn, old.name, schema)))


async def _replaced(conn: AsyncConnection[Any], old: Overview, new: Subscription, schema: str) -> bool:
    if overlap(old.kind, old.event_types, new):
        return True
    # Without a common event type, they are alike only if both read all events, or none.
    alike = (old.kind, old.event_types) == (new.kind, new.event_types)
    return alike and not old.workers and (await backlog(conn, old.name, schema)).waiting


def overlap(kind: str, event_types: Sequence[str] | None, new: Subscription) -> bool:
    """Whether a subscription and a declared one would act on the same events."""
    if event_types and new.event_types:
        both_act = {kind, new.kind} <= {"handler", "job"}
        return (kind == new.kind or both_act) and not set(event_types).isdisjoint(new.event_types)
    return event_types is None and new.event_types is None and kind == new.kind != "handler"


def _explained(old: Overview, new: Subscription, left: Backlog) -> str:
    workers = {0: "no worker serves it", 1: "1 worker serves it"}.get(old.workers, f"{old.workers} workers serve it")
    renamed = f"Renamed: `outrider subscription rename {old.name} {new.name}`. " if old.kind == new.kind else ""
    return (
        f"{new.name} is new and wants the same events as {old.name}, which is registered in the context {old.context!r} and "
        f"which this app does not declare: both would handle them. {old.name} has {left}, and {workers}. {renamed}"
        f"Given up: `outrider subscription retire {old.name}`. Either needs its workers to be stopped, or to run with "
        f"`--exclude {old.name}`. Both wanted: set OUTRIDER_ALLOW_ORPHANS=1"
    )
