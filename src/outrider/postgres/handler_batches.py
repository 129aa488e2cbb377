"""Take and settle for handlers: what the worker's own session sends, two round trips a batch.

The session is in autocommit mode, so that psycopg sends no BEGIN of its own: ours travels with the take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from outrider.postgres.errors import clear_error
from outrider.postgres.log import ATTEMPT, TakeRequest
from outrider.postgres.statement import Params, call, statement
from outrider.postgres.tenant_context import home_of
from outrider.postgres.worker_sessions import abandon, begin, together, usable

Row = tuple[Any, ...]
Connection = AsyncConnection[Any]


class Lost(psycopg.OperationalError):
    """The session is gone, or not in the state in which it must be."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a take for a handler returned: see the SQL function."""

    outcome: str
    partition: int | None
    batch: int | None
    """The number of the take; None when nothing was claimed."""
    due_in: float | None
    cursor: int | None
    delivery: int | None
    """The suspect that may run now."""
    conceded: int | None
    rows: list[Row]


async def take(conn: Connection, asked: TakeRequest, schema: str) -> Claim:
    """Begin, lock, read, write the receipts, advance: one round trip."""
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    # Few handlers look at ids and times: left as they are, they cost a third of what loading a row costs otherwise.
    for kind in ("uuid", "timestamptz"):
        cursor.adapters.register_loader(kind, ByteaBinaryLoader)
    try:
        async with together(conn):
            await begin(conn)
            await cursor.execute(call("take", schema, TakeRequest.__slots__), asked.params(), binary=True)
        rows = await cursor.fetchall()
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
    outcome, partition, batch, due_in, cursor_id, delivery, conceded = rows[0][:ATTEMPT]
    return Claim(outcome, partition, batch, due_in, cursor_id, delivery, conceded, rows[1:])


async def settle(conn: Connection, batch: int, schema: str) -> None:
    """Every handler has returned: commit, and see that it was a commit. What handlers may have set does not outlive it."""
    home, settling = home_of(conn), _settling(batch, schema)
    cursor = await conn.execute(home.back + b";" + settling if home.away else settling)
    while cursor.nextset():
        pass
    if cursor.statusmessage != "COMMIT":
        raise Lost(f"the batch was not committed: the server answered {cursor.statusmessage}")
    home.away = False


def _settling(batch: int, schema: str) -> bytes:
    return statement("handlers/settle", schema).replace(b"{batch}", str(batch).encode())


async def end_idle(conn: Connection) -> None:
    """End the transaction of a take that read nothing. After a ROLLBACK, psycopg would forget its prepared statements."""
    await conn.execute("commit")


async def roll_back(conn: Connection) -> None:
    """Never raises: a session that cannot roll back is closed, and the server does it."""
    try:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            await conn.execute("rollback")
    except psycopg.Error:
        await conn.close()


async def park(conn: Connection, asked: Params, schema: str) -> list[int]:
    """Roll back the batch and park what failed in it, in one round trip: hardly anybody gets in between."""
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    unfinished, home = in_use(conn), home_of(conn)
    try:
        async with together(conn):
            if unfinished:
                await conn.execute("rollback")
            if home.away:  # it may have ended our transaction, and have set something between that one and this
                await conn.execute(home.back)
            await cursor.execute(call("park", schema, tuple(asked)), asked)
    except psycopg.Error:
        end(conn)
        raise
    home.away = False
    row = await cursor.fetchone()
    return row[0] if row else []


def end(conn: Connection) -> None:
    """Close it without another word; the server rolls back."""
    if active(conn):
        abandon(conn)  # a task waits for the answer, on a socket whose number would soon be another's
    elif usable(conn):
        conn.pgconn.finish()


def in_use(conn: Connection) -> bool:
    """Whether a transaction is open on it, in whatever state."""
    return usable(conn) and conn.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def in_transaction(conn: Connection) -> bool:
    pgconn = conn.pgconn
    return pgconn.transaction_status == TransactionStatus.INTRANS and pgconn.pipeline_status == PipelineStatus.OFF


def in_pipeline(conn: Connection) -> bool:
    return usable(conn) and conn.pgconn.pipeline_status != PipelineStatus.OFF


def broken(conn: Connection) -> bool:
    return conn.closed or conn.pgconn.transaction_status in (TransactionStatus.UNKNOWN, TransactionStatus.INERROR)


def active(conn: Connection) -> bool:
    """A statement is running on it."""
    return usable(conn) and conn.pgconn.transaction_status == TransactionStatus.ACTIVE


def in_error(conn: Connection) -> bool:
    return conn.pgconn.transaction_status == TransactionStatus.INERROR
