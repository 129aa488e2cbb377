"""A Session or AsyncSession of SQLAlchemy on the handler's own transaction.

It joins the transaction: its commit only flushes, its close does nothing, and the worker commits everything together with
the receipt. Its rollback cannot undo the handler's part alone, so after a rollback the event fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NoReturn

from sqlalchemy import URL, Dialect, Engine, NullPool, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outrider.errors import RolledBack

_lent: ContextVar[Any] = ContextVar("outrider_lent")
_JOINED: dict[str, Any] = {"join_transaction_mode": "rollback_only", "expire_on_commit": False}
_OPTIONS: dict[str, Any] = {
    "poolclass": NullPool,
    "pool_reset_on_return": None,
    "use_native_hstore": False,
    "hide_parameters": True,  # errors are stored with the event, and parameters may be personal
}


class _LentConnection:
    """The connection belongs to the worker: nothing here ends its transaction or closes it."""

    def do_rollback(self, conn: Any) -> None:
        """Marks the connection, because any task or thread may call this. SQLAlchemy may wrap it once or twice."""
        tx = getattr(conn, "driver_connection", None) or getattr(conn, "_connection", conn)
        tx.rolled_back = True

    def do_commit(self, _: Any) -> NoReturn:
        raise AssertionError("a session that has joined a transaction does not commit it")

    def do_close(self, _: Any) -> None:
        pass

    do_terminate = do_close


class LentAsyncDialect(_LentConnection, PGDialectAsync_psycopg):
    supports_statement_cache = True


class LentDialect(_LentConnection, PGDialect_psycopg):
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> type[Dialect]:  # noqa: ARG003
        return LentAsyncDialect


_URL = "postgresql+outrider://"
registry.register("postgresql.outrider", __name__, LentDialect.__name__)


@cache
def _engine() -> Engine:
    return create_engine(_URL, creator=_lent.get, **_OPTIONS)


@cache
def _async_engine() -> AsyncEngine:
    async def lent() -> Any:
        return _lent.get()

    return create_async_engine(_URL, async_creator=lent, **_OPTIONS)


def _finish(session: Session) -> None:
    """Flushes as the session's own commit would, nested transactions included."""
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()
    session.flush()


@contextmanager
def session_on(tx: Any, kind: type[Session] | None) -> Iterator[Session]:
    """`tx`: the blocking connection of the handler's context."""
    token = _lent.set(tx)
    try:
        with _engine().connect() as conn:
            conn.begin()
            tx.rolled_back = False
            with (kind or Session)(bind=conn, **_JOINED) as session:
                yield session
                _finish(session)
                if tx.rolled_back:
                    raise RolledBack
    finally:
        _lent.reset(token)


@asynccontextmanager
async def async_session_on(tx: Any, kind: type[AsyncSession] | None) -> AsyncIterator[AsyncSession]:
    """`tx`: the async connection of the handler's context."""
    token = _lent.set(tx)
    try:
        async with _async_engine().connect() as conn:
            await conn.begin()
            tx.rolled_back = False
            async with (kind or AsyncSession)(bind=conn, **_JOINED) as session:
                yield session
                await session.run_sync(_finish)
                if tx.rolled_back:
                    raise RolledBack
    finally:
        _lent.reset(token)
