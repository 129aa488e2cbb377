"""One statement of the catalogue, all its rows, and errors in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from outrider.postgres.log import Params, clear_error, missing_schema
from outrider.postgres.statement import statement
from outrider.postgres.worker_sessions import lacks_transaction

Rows = list[tuple[Any, ...]]


async def fetch(conn: AsyncConnection[Any], name: str, schema: str, params: Params | None = None) -> Rows:
    with in_our_words(schema):
        # Not in one round trip: how psycopg reads an interval depends on what the server has reported by then.
        own = conn.transaction() if lacks_transaction(conn) else nullcontext()
        async with own, conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement(name, schema), params)
            return await cursor.fetchall()


@contextmanager
def in_our_words(schema: str) -> Iterator[None]:
    """What an operator can do something about is said as such; everything else stays the database's error."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise missing_schema(schema) from error
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
