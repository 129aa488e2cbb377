"""Registers declared subscriptions as rows and cursors, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

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
