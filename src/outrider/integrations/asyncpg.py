"""Publish on an asyncpg connection, its own or one of a pool, inside `async with conn.transaction():`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import NoTransaction
from outrider.postgres.append import Append, Driver, Rows

if TYPE_CHECKING:
    from asyncpg import Connection


async def _run(conn: Connection[Any], append: Append) -> Rows:
    if not conn.is_in_transaction():
        raise NoTransaction("wrap both in `async with conn.transaction():`")
    query, params = append.numbered()
    with append.explaining():
        return await conn.fetch(query, *params)


DRIVER = Driver(run=_run)
