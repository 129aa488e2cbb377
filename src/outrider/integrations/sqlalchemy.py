"""Publish on a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy 2, whatever driver it uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outrider.errors import NoTransaction
from outrider.postgres.inserts import Driver, Insert, Row

_POKES = "outrider.pokes"

Blocking = Session | scoped_session[Any] | Connection
Async = AsyncSession | async_scoped_session[Any] | AsyncConnection


def _run_sync(conn: Blocking, insert: Insert) -> Row:
    return _execute(_connection(conn), insert)


async def _run(conn: Async, insert: Insert) -> Row:
    return await _target(conn).run_sync(_run_sync, insert)


def _under_sync(conn: Blocking) -> object:
    connection = _connection(conn)
    if (driver := connection.dialect.driver) != "psycopg":
        raise TypeError(
            f"handlers run on your session's own connection, which needs the driver psycopg, not {driver}: "
            "use an engine with postgresql+psycopg:// in tests like this one"
        )
    return connection.connection.driver_connection


async def _under(conn: Async) -> object:
    return await _target(conn).run_sync(_under_sync)


def _connection(conn: Blocking) -> Connection:
    if isinstance(conn, Connection):
        return conn
    # Pending changes may lock the row that serialises the publishers of one key, so they are sent first.
    if conn.autoflush:
        conn.flush()
    return conn.connection()


def _target(conn: Async) -> AsyncSession | AsyncConnection:
    return conn() if isinstance(conn, async_scoped_session) else conn


def _execute(conn: Connection, insert: Insert) -> Row:
    dialect = conn.dialect
    if dialect.name != "postgresql":
        raise TypeError(
            f"this connection is to {dialect.name}, but the log is in Postgres: publish on a session of that database"
        )
    if getattr(conn.connection.dbapi_connection, "autocommit", False):
        raise NoTransaction('use a connection without isolation_level="AUTOCOMMIT"')
    query: str
    params: dict[str, Any] | tuple[Any, ...]
    match dialect.paramstyle:
        case "pyformat":
            query, params = insert.named()
        case "numeric_dollar":
            query, params = insert.numbered()
        case _:
            raise TypeError(f"the driver {dialect.driver} is not supported: use psycopg, psycopg2 or asyncpg")
    try:
        return conn.exec_driver_sql(query, params, {"stream_results": False}).one()
    except Exception as error:
        insert.explain(error)
        raise


def _after_commit(conn: Blocking | Async, poke: Callable[[], None]) -> None:
    """Sessions have an event after the commit; connections only one before it."""
    if isinstance(conn, scoped_session | async_scoped_session):
        conn = conn()
    if isinstance(conn, AsyncSession):
        conn = conn.sync_session
    # A session that was bound to a connection does not commit by itself.
    if isinstance(conn, Session) and not isinstance(conn.bind, Connection):
        _hook()
        conn.info.setdefault(_POKES, []).append(poke)


@cache
def _hook() -> None:
    """One listener for all sessions of the process, on first need."""
    event.listen(Session, "after_commit", _committed)
    event.listen(Session, "after_rollback", _rolled_back)


def _committed(session: Session) -> None:
    if not session.in_nested_transaction():
        for poke in session.info.pop(_POKES, ()):
            poke()


def _rolled_back(session: Session) -> None:
    if not session.in_nested_transaction():
        session.info.pop(_POKES, None)


DRIVER = Driver(_run, _run_sync, _after_commit, _under, _under_sync)
