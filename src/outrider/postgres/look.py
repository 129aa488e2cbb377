"""Looking at many tables at one moment: a read-only transaction with one snapshot, and errors in our own words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from outrider.postgres.fetch import Rows, in_our_words
from outrider.postgres.log import Params
from outrider.postgres.statement import statement

# Only ordered indexes, so that a LIMIT bounds what is read of the log, whatever the planner believes. Without JIT: the price
# of the small tables would start it.
ONE_MOMENT = """
set transaction isolation level repeatable read, read only;
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_sort = off;
set local jit = off
"""


class Look:
    def __init__(self, cursor: AsyncCursor[Any], schema: str) -> None:
        self._cursor = cursor
        self._schema = schema

    async def rows(self, name: str, params: Params | None = None) -> Rows:
        """Of the statement of that name."""
        await self._cursor.execute(statement(name, self._schema), params)
        return await self._cursor.fetchall()


@asynccontextmanager
async def looking(conn: AsyncConnection[Any], schema: str) -> AsyncIterator[Look]:
    with in_our_words(schema):
        async with conn.transaction(), AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(ONE_MOMENT)
            yield Look(cursor, schema)
