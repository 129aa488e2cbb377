"""The sessions on which a worker takes and handles: opened on demand, reused, replaced when they break.

Not a psycopg pool: a session that a stuck thread still uses must be disconnected without being closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.pq import TransactionStatus

from outrider.postgres import connection, tenant_context
from outrider.postgres.psycopg_private import end_by_sync, in_pipeline_block, silence_unclosed

# Removes what a handler may have left in the session: settings, roles, listeners, temporary tables, locks.
_RESET = """reset session authorization; reset all; unlisten *; discard temp; close all; discard sequences;
            select pg_advisory_unlock_all()"""
_WATCH = {"client_connection_check_interval": "5s"}
_WIRE = {"tcp_user_timeout": "30s"}
IDLE = 30.0
"""Seconds."""


class WorkerSessions:
    def __init__(
        self,
        dsn: str,
        size: int,
        idle: float = IDLE,
        notify: str = "commit",
        idles: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`idle`: seconds that a session may be idle in a transaction. `idles`: other values, by owner."""
        self._dsn, self._notify = dsn, notify
        self._idle, self._idles = idle, idles
        self._watch: dict[str, str] = {}
        self._free: list[connection.Wire] = []
        self._places = asyncio.Semaphore(size)
        self._owners: WeakKeyDictionary[connection.Wire, str] = WeakKeyDictionary()
        self._prepares = True
        self.waiting = 0
        """How many callers wait for a session."""

    def stop_preparing(self) -> None:
        """Called if a pooler mixes up prepared statements."""
        self._prepares = False

    @asynccontextmanager
    async def session(self, owner: str) -> AsyncIterator[connection.Wire]:
        """A session in autocommit mode, outside a transaction. If it is not returned in this state, it is closed.

        `owner` is the name of the handler. A session that another handler has sent statements on is reset first.
        """
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        conn: connection.Wire | None = None
        try:
            conn = await self._open(owner)
            yield conn
        finally:
            if conn is not None and usable(conn):
                if conn.pgconn.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)
                else:
                    conn.pgconn.finish()
            self._places.release()

    async def _open(self, owner: str) -> connection.Wire:
        self._free.sort(key=lambda each: self._owners.get(each) == owner)
        while self._free:
            conn = self._free.pop()
            if conn.closed or (conn.prepare_threshold is not None and not self._prepares):
                await conn.close()
            elif self._suits(conn, owner) or await self._reset(conn, owner):
                self._owners[conn] = owner
                return conn
        conn = await self._connect(owner)
        self._owners[conn] = owner
        return conn

    def _suits(self, conn: connection.Wire, owner: str) -> bool:
        """Whether the session needs no reset for this owner."""
        before = self._owners[conn]
        return before == owner or (
            not tenant_context.home_of(conn).used and self._guards(before) == self._guards(owner)
        )

    def _guards(self, owner: str) -> dict[str, str]:
        """The timeout frees the partition of a worker that is stopped or disconnected during a batch."""
        idle = self._idles.get(owner, self._idle)
        return {
            "idle_in_transaction_session_timeout": str(int(idle * 1000)),
            "app.workspace_id": "",
            **connection.quiet(self._notify),
        }

    async def _reset(self, conn: connection.Wire, owner: str) -> bool:
        if conn.pooled:
            conn.more = self._guards(owner)
            return True
        try:
            tenant_context.home_of(conn).away = True  # the reset may change the role
            await conn.execute(_RESET)
            await conn.settle_in(**self._guards(owner), **_WIRE, **self._watch)
            tenant_context.home_of(conn).used = False
        except psycopg.Error:
            await conn.close()
            return False
        except BaseException:  # the caller was cancelled
            conn.pgconn.finish()
            raise
        return True

    async def _connect(self, owner: str) -> connection.Wire:
        conn = await connection.connect(self._dsn, autocommit=True, name="outrider worker", notify=self._notify)
        try:
            if not self._prepares:
                conn.prepare_threshold = None
            await tenant_context.capture(conn)
            conn.more = self._guards(owner)
            if not conn.pooled:  # behind a pooler, other clients would get these settings
                await conn.settle_in(**conn.more, **_WIRE)
                tenant_context.home_of(conn).clean = True
                with suppress(psycopg.errors.InvalidParameterValue):  # not on every platform
                    await conn.settle_in(**conn.more, **_WATCH)
                    self._watch = _WATCH
        except BaseException:  # the caller was cancelled
            conn.pgconn.finish()
            raise
        return conn

    async def close(self) -> None:
        while self._free:
            await self._free.pop().close()


@asynccontextmanager
async def together(conn: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Sends the statements of the block in one round trip."""
    async with conn.pipeline() as pipeline:
        end_by_sync(pipeline)
        yield


def beginning(conn: AsyncConnection[Any]) -> list[bytes]:
    """The statements that begin a transaction."""
    pinning = conn.pinning() if isinstance(conn, connection.Wire) else None
    return [connection.BEGIN] if pinning is None else [connection.BEGIN, pinning]


async def begin(conn: AsyncConnection[Any]) -> None:
    """Call it within `together`."""
    for each in beginning(conn):
        await conn.execute(each)


def lacks_transaction(conn: AsyncConnection[Any]) -> bool:
    """A statement now would run without our settings: a pooler is in between, and no transaction is open."""
    idle = conn.pgconn.transaction_status == TransactionStatus.IDLE and not in_pipeline_block(conn)
    return isinstance(conn, connection.Wire) and conn.pooled and conn.autocommit and idle


@asynccontextmanager
async def alone(conn: AsyncConnection[Any]) -> AsyncIterator[None]:
    """For one statement: begins and commits a transaction in the same round trip, if the statement needs one."""
    if not lacks_transaction(conn):
        yield
        return
    try:
        async with together(conn):
            await begin(conn)
            yield
            await conn.execute("commit")
    except psycopg.Error:
        if conn.pgconn.transaction_status == TransactionStatus.INERROR:
            await conn.execute("rollback")
        raise


def _cancel(cancel: pq.abc.PGcancel) -> None:
    with suppress(psycopg.Error):
        cancel.cancel()


def usable(conn: AsyncConnection[Any]) -> bool:
    return not conn.closed and not hasattr(conn, "abandoned")


def abandon(conn: AsyncConnection[Any]) -> None:
    """Shuts down the socket of a session that a stuck thread may still use. The owner of the thread closes it later."""
    conn.abandoned = True  # type: ignore[attr-defined]
    silence_unclosed(conn)
    cancel = conn.pgconn.get_cancel()
    threading.Thread(target=_cancel, args=[cancel], daemon=True).start()  # its statement may never end
    disconnect(conn)


def disconnect(conn: AsyncConnection[Any]) -> None:
    """Shuts down the socket of a session. Who waits for an answer gets an error at once."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.pgconn.socket)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class OwnSession:
    """One session for one purpose: opened on demand, and again after it broke."""

    def __init__(self, dsn: str, notify: str, name: str) -> None:
        self._dsn, self._notify, self._name = dsn, notify, name
        self._conn: connection.AsyncSession | None = None

    async def open(self) -> connection.AsyncSession:
        if self._conn is None or self._conn.closed:
            self._conn = await connection.connect(self._dsn, autocommit=True, name=self._name, notify=self._notify)
        return self._conn

    def drop(self) -> None:
        """Closes the session at once: its state is unknown."""
        if self._conn is not None:
            self._conn.pgconn.finish()
            self._conn = None
