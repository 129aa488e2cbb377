"""Publish on an asyncpg connection, its own or one of a pool, inside `async with conn.transaction():`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import NoTransaction
from outrider.postgres.inserts import Driver, Insert, Rows

if TYPE_CHECKING:
    from asyncpg import Connection


async def _run(conn: Connection[Any], insert: Insert) -> Rows:
    if not conn.is_in_transaction():
        raise NoTransaction("wrap both in `async with conn.transaction():`")
    query, params = insert.numbered()
    with insert.explaining():
        return await conn.fetch(query, *params)


DRIVER = Driver(run=_run)
