"""Publish on an asyncpg connection, its own or one of a pool, inside `async with conn.transaction():`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import NoTransaction
from outrider.postgres.inserts import Driver, Insert, Row

if TYPE_CHECKING:
    from asyncpg import Connection


async def _run(conn: Connection[Any], insert: Insert) -> Row:
    if not conn.is_in_transaction():
        raise NoTransaction("wrap both in `async with conn.transaction():`")
    query, params = insert.numbered()
    try:
        row = await conn.fetchrow(query, *params)
    except Exception as error:
        insert.explain(error)
        raise
    assert row is not None
    return tuple(row)


DRIVER = Driver(run=_run)
