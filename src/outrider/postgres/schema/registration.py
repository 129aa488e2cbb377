"""Registers declared subscriptions as rows and cursors, each in a transaction of its own.

A new subscription that probably is a forgotten one under a new name is refused: both would handle every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from outrider.errors import DeclarationError
from outrider.postgres.admin.subscriptions import Backlog, Overview, backlog, overview, unregistered
from outrider.postgres.errors import clear_error
from outrider.postgres.statement import Params, call, fetch, fetch_call, statement
from outrider.subscription import Limits, Scope, Subscription


@dataclass(frozen=True, slots=True)
class Registered:
    name: str
    outcome: str
    """created, extended or unchanged"""
    partitions: int
    """The number in force, which may be more than declared."""
    surplus: tuple[str, ...] = ()
    """Registered event types that are not declared. Code that does not know them takes nothing from the subscription."""


async def register(conn: AsyncConnection[Any], subscription: Subscription, schema: str) -> Registered:
    """Calls nothing if nothing changed: then a worker's role needs no right to register."""
    registered = await _register(conn, subscription, schema)
    if subscription.limits is not None:
        [known] = await fetch(conn, "jobs/registered_job", schema, {"name": subscription.name})
        params = _limits(subscription.limits)
        if known != tuple(params.values()):
            await fetch_call(conn, "register_job", schema, {"name": subscription.name} | params)
    if subscription.scope is not None:
        [known] = await fetch(conn, "streams/registered_relay", schema, {"name": subscription.name})
        params = _scope(subscription.scope)
        if known != tuple(params.values()):
            await fetch_call(conn, "register_relay", schema, {"name": subscription.name} | params)
    return registered


async def _register(conn: AsyncConnection[Any], subscription: Subscription, schema: str) -> Registered:
    if (known := await _known(conn, subscription, schema)) is not None:
        return known
    params = {
        "name": subscription.name,
        "kind": subscription.kind,
        "context": subscription.context,
        "event_types": subscription.event_types,
        "partitions": subscription.partitions,
        "start": subscription.start_text,
        "ordering": subscription.order,
    }
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(call("register", schema, tuple(params)), params)
            row = await cursor.fetchone()
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
    assert row is not None
    known = await _known(conn, subscription, schema)
    return Registered(subscription.name, row[0], row[1], known.surplus if known is not None else ())


async def _known(conn: AsyncConnection[Any], declared: Subscription, schema: str) -> Registered | None:
    """The registered subscription, if it covers what is declared."""
    try:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement("handlers/registered", schema), {"name": declared.name})
            row = await cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return None
    if row is None:
        return None
    kind, context, event_types, partitions, ordering = row
    wanted = declared.event_types
    covered = event_types is None or (wanted is not None and set(wanted) <= set(event_types))
    same = (kind, context, ordering) == (declared.kind, declared.context, declared.order)
    surplus = () if wanted is None else tuple(sorted(set(event_types or ()) - set(wanted)))
    return (
        Registered(declared.name, "unchanged", partitions, surplus)
        if same and covered and partitions >= declared.partitions
        else None
    )


def script(subscription: Subscription, schema: str) -> str:
    """The registration as SQL for psql, to be run after the migrations, in a transaction of its own."""
    each = subscription
    values = [each.name, each.kind, each.context, each.event_types, each.partitions, each.start_text, each.order]
    types: tuple[str, ...] = ("text", "text", "text", "text[]", "integer", "text", "text")
    text = f'select * from "{schema}".register({_arguments(values, types)});\n'
    if each.limits is not None:
        values = [each.name, *_limits(each.limits).values()]
        types = ("text", "interval", "interval", "integer", "integer", "interval")
        text += f'select "{schema}".register_job({_arguments(values, types)});\n'
    if each.scope is not None:
        values = [each.name, *_scope(each.scope).values()]
        text += f'select "{schema}".register_relay({_arguments(values, ("text", "text", "boolean"))});\n'
    return text


def row(subscription: Subscription) -> str:
    """Name, kind, context and event types as a row of a VALUES list."""
    each = subscription
    types = ("text", "text", "text", "text[]")
    return f"({_arguments([each.name, each.kind, each.context, each.event_types], types)})"


def _limits(limits: Limits) -> Params:
    return {field: getattr(limits, field) for field in limits.__slots__}


def _scope(scope: Scope) -> Params:
    return {field: getattr(scope, field) for field in scope.__slots__}


def _arguments(values: Sequence[Any], types: Sequence[str]) -> str:
    return ", ".join(f"{sql.Literal(value).as_string()}::{type_}" for value, type_ in zip(values, types, strict=True))


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
    return alike and not old.workers and (await backlog(conn, old.name, schema)).unhandled


def overlap(kind: str, event_types: Sequence[str] | None, new: Subscription) -> bool:
    """Whether a subscription and a declared one would act on the same events. event_types: None = all; [] = none, as of a
    job that is only enqueued. Handlers of all types are listeners, and each process knows only its own."""
    if event_types is not None and new.event_types is not None:
        both_act = {kind, new.kind} <= {"handler", "job"}
        return (kind == new.kind or both_act) and not set(event_types).isdisjoint(new.event_types)
    listed = new.event_types if event_types is None else event_types
    return kind == new.kind != "handler" and (listed is None or len(listed) > 0)


def _explained(old: Overview, new: Subscription, left: Backlog) -> str:
    workers = {0: "no worker serves it", 1: "1 worker serves it"}.get(old.workers, f"{old.workers} workers serve it")
    renamed = f"Renamed: `outrider subscription rename {old.name} {new.name}`. " if old.kind == new.kind else ""
    return (
        f"{new.name} is new and wants the same events as {old.name}, which is registered in the context {old.context!r} and "
        f"which this app does not declare: both would handle them. {old.name} has {left}, and {workers}. {renamed}"
        f"Given up: `outrider subscription retire {old.name}`. Either needs its workers to be stopped, or to run with "
        f"`--exclude {old.name}`. Both wanted: set OUTRIDER_ALLOW_ORPHANS=1"
    )
