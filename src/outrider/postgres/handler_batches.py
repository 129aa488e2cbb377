"""Take and settle for handlers, on the worker's session: two round trips per batch.

The session is in autocommit mode, so psycopg sends no BEGIN: ours is sent with the take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from outrider.postgres.connection import connect_sync
from outrider.postgres.errors import clear_error
from outrider.postgres.log import ATTEMPT, TakeRequest
from outrider.postgres.psycopg_private import BeginningStatement, run
from outrider.postgres.statement import Params, call, numbered_call, statement
from outrider.postgres.tenant_context import home_of
from outrider.postgres.worker_sessions import abandon, beginning, together, usable

Row = tuple[Any, ...]
Connection = AsyncConnection[Any]


class Lost(psycopg.OperationalError):
    """The session is closed, or not in the expected state."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of the SQL function take for a handler."""

    outcome: str
    partition: int | None
    batch: int | None
    """The number of the take; None when nothing was claimed."""
    due_in: float | None
    cursor: int | None
    delivery: int | None
    """The suspect event that may run now."""
    duplicates: int | None
    """Duplicates that were skipped."""
    rows: list[Row]


async def take(conn: Connection, asked: TakeRequest, schema: str) -> Claim:
    """Begin, lock, read, write the receipts, advance: one round trip."""
    try:
        rows = await _taking(conn, schema).fetch(beginning(conn), asked.values())
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
    outcome, partition, batch, due_in, cursor_id, delivery, duplicates = rows[0][:ATTEMPT]
    return Claim(outcome, partition, batch, due_in, cursor_id, delivery, duplicates, rows[1:])


def _taking(conn: Connection, schema: str) -> BeginningStatement:
    """The take of a session: made once."""
    taking: BeginningStatement | None = conn.__dict__.get("taking")
    if taking is None:
        query = numbered_call("take", schema, TakeRequest.__slots__)
        # Few handlers read ids and times. Left as bytes, they make loading a row three times as fast.
        loaders = dict.fromkeys(("uuid", "timestamptz"), ByteaBinaryLoader)
        taking = conn.__dict__["taking"] = BeginningStatement(conn, query, loaders)
    return taking


async def settle(conn: Connection, batch: int, schema: str) -> None:
    """Commits the batch, checks that the server did commit, and undoes what handlers may have set in the session."""
    home, settling = home_of(conn), _settling(batch, schema)
    answer = await conn.wait(run(conn, home.back + b";" + settling if home.away else settling))
    if answer != b"COMMIT":
        raise Lost(f"the batch was not committed: the server answered {answer.decode()}")
    home.away = False


def _settling(batch: int, schema: str) -> bytes:
    return statement("handlers/settle", schema).replace(b"{batch}", str(batch).encode())


async def end_idle(conn: Connection) -> None:
    """Ends the transaction of a take that read nothing. Not by ROLLBACK, after which psycopg forgets prepared statements."""
    await conn.execute("commit")


async def roll_back(conn: Connection) -> None:
    """Never raises: if the rollback fails, the session is closed, and the server rolls back."""
    try:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            await conn.execute("rollback")
    except psycopg.Error:
        await conn.close()


def excuse(dsn: str, subscription: str, cursor: int | None, armed: int | None, schema: str) -> None:
    """Reports from a thread, on a session of its own, that the rollback of a running batch will be no death of its worker.

    An armed suspect is locked by its batch, so this waits for the batch to end. If the process dies, the server goes on.
    """
    asked = {"subscription": subscription, "cursor": cursor, "failed": None, "armed": armed}
    with connect_sync(dsn, autocommit=True) as conn:
        conn.execute(call("park", schema, tuple(asked)), asked)


async def park(conn: Connection, asked: Params, schema: str) -> list[int]:
    """Rolls back the batch and parks what failed, in one round trip, so that another worker rarely takes it in between."""
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    unfinished, home = in_use(conn), home_of(conn)
    try:
        async with together(conn):
            if unfinished:
                await conn.execute("rollback")
            if home.away:  # the handler may have ended our transaction and changed settings of the session
                await conn.execute(home.back)
            await cursor.execute(call("park", schema, tuple(asked)), asked)
    except psycopg.Error:
        end(conn)
        raise
    home.away = False
    row = await cursor.fetchone()
    return row[0] if row else []


def end(conn: Connection) -> None:
    """Closes the session at once; the server rolls back."""
    if active(conn):
        abandon(conn)  # a task still waits on the socket: closing would free its file descriptor for reuse
    elif usable(conn):
        conn.pgconn.finish()


def in_use(conn: Connection) -> bool:
    """Whether a transaction is open, even a failed one."""
    return usable(conn) and conn.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def in_transaction(conn: Connection) -> bool:
    pgconn = conn.pgconn
    return pgconn.transaction_status == TransactionStatus.INTRANS and pgconn.pipeline_status == PipelineStatus.OFF


def in_pipeline(conn: Connection) -> bool:
    return usable(conn) and conn.pgconn.pipeline_status != PipelineStatus.OFF


def broken(conn: Connection) -> bool:
    return conn.closed or conn.pgconn.transaction_status in (TransactionStatus.UNKNOWN, TransactionStatus.INERROR)


def active(conn: Connection) -> bool:
    """Whether a statement is running."""
    return usable(conn) and conn.pgconn.transaction_status == TransactionStatus.ACTIVE


def in_error(conn: Connection) -> bool:
    return conn.pgconn.transaction_status == TransactionStatus.INERROR
