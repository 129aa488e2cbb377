"""Reads the events and jobs of an open transaction on its own session, and writes receipts: for tests that roll back.

A cursor returns only what is committed, so it cannot be used here. Commits nothing and opens no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outrider.errors import CursorError, SchemaMismatch
from outrider.postgres.errors import forbidden, missing_schema, wrong_connection
from outrider.postgres.lent_transaction import LentSession, lend
from outrider.postgres.log import SEQ
from outrider.postgres.statement import Params, statement
from outrider.subscription import Subscription

Row = tuple[Any, ...]


def checked(conn: object, verb: str) -> AsyncConnection[Any]:
    """The caller's connection, if it is an async one inside a transaction."""
    if not isinstance(conn, AsyncConnection):
        raise TypeError(wrong_connection(conn, "AsyncConnection", verb))
    _refuse_idle(conn, verb)
    return conn


def checked_sync(conn: object, verb: str) -> Connection[Any]:
    if not isinstance(conn, Connection):
        raise TypeError(wrong_connection(conn, "Connection", verb))
    _refuse_idle(conn, verb)
    return conn


def view(conn: Connection[Any]) -> LentSession:
    """An async connection on the session of a blocking one. It cannot end the transaction."""
    return lend(cast(AsyncConnection[Any], conn))


async def read(
    conn: AsyncConnection[Any], schema: str, *, after: int = 0, wanted_by: Subscription | None = None
) -> list[Row]:
    """The events after position `after`; with `wanted_by`, only those that its handler has not handled."""
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(statement("log/uncommitted", schema), _reading(after, wanted_by), binary=True)
            return await cursor.fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise _clear(error, schema) from error


def read_sync(conn: Connection[Any], schema: str) -> list[Row]:
    try:
        with Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(statement("log/uncommitted", schema), _reading(0, None), binary=True)
            return cursor.fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise _clear(error, schema) from error


async def read_jobs(conn: AsyncConnection[Any], schema: str) -> list[Row]:
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(statement("jobs/uncommitted_jobs", schema), binary=True)
            return await cursor.fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise _clear(error, schema) from error


def read_jobs_sync(conn: Connection[Any], schema: str) -> list[Row]:
    try:
        with Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(statement("jobs/uncommitted_jobs", schema), binary=True)
            return cursor.fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise _clear(error, schema) from error


async def write_receipts(conn: AsyncConnection[Any], handler: str, rows: Sequence[Row], schema: str) -> list[Row]:
    """Writes receipts; returns the events that had none."""
    async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(statement("log/receipt", schema), {"handler": handler, "seqs": [row[SEQ] for row in rows]})
        won = {seq for (seq,) in await cursor.fetchall()}
    return [row for row in rows if row[SEQ] in won]


def _reading(after: int, wanted_by: Subscription | None) -> Params:
    if wanted_by is None:
        return {"after": after, "handler": None, "event_types": None, "context": None}
    return {
        "after": after,
        "handler": wanted_by.name,
        "event_types": wanted_by.event_types,
        "context": wanted_by.context,
    }


def _refuse_idle(conn: AsyncConnection[Any] | Connection[Any], verb: str) -> None:
    if conn.info.transaction_status == TransactionStatus.IDLE:
        raise CursorError(
            f"{verb} reads an open transaction, and this connection has none: publish and call it inside one "
            "`with conn.transaction(force_rollback=True):`; for what is committed use app.drain()"
        )


def _clear(error: psycopg.Error, schema: str) -> SchemaMismatch:
    return (
        forbidden(schema, error.diag.message_primary)
        if isinstance(error, psycopg.errors.InsufficientPrivilege)
        else missing_schema(schema)
    )
