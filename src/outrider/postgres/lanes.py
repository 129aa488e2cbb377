"""The few sessions on which a worker takes and handles: opened when first needed, reused, replaced when they break.

They are not the app's pool: a session that a stuck thread still uses must be cut off without being closed under it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from outrider.postgres import session, tenant

# A worker that is stopped or unreachable in the midst of a batch keeps its partition until the server notices.
_GUARDS = """
select set_config('idle_in_transaction_session_timeout', %(idle)s, false), set_config('tcp_user_timeout', '30s', false)
"""
# What a handler may have left in the session: settings, roles, listeners, temporary tables, locks.
_RESET = """reset session authorization; reset all; unlisten *; discard temp; close all; discard sequences;
            select pg_advisory_unlock_all()"""
_WATCH = "select set_config('client_connection_check_interval', '5s', false)"


class Lanes:
    def __init__(self, dsn: str, size: int, idle: float, notify: str = "commit") -> None:
        self._dsn = dsn
        self._notify = notify
        self._idle_ms = str(int(idle * 1000))
        self._free: list[AsyncConnection[Any]] = []
        self._places = asyncio.Semaphore(size)
        self._owners: WeakKeyDictionary[AsyncConnection[Any], str] = WeakKeyDictionary()
        self._prepares = True
        self.waiting = 0
        """How many would like a session and have none."""

    def stop_preparing(self) -> None:
        """A pooler in between mixes up prepared statements: do without them from now on."""
        self._prepares = False

    @asynccontextmanager
    async def lane(self, owner: str) -> AsyncIterator[AsyncConnection[Any]]:
        """A session in autocommit mode, outside a transaction. Given back in another state, it is closed.

        `owner` is the handler: what another one has set in the session is reset first.
        """
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        conn: AsyncConnection[Any] | None = None
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

    async def _open(self, owner: str) -> AsyncConnection[Any]:
        self._free.sort(key=lambda each: self._owners.get(each) == owner)
        while self._free:
            conn = self._free.pop()
            if conn.closed or (conn.prepare_threshold is not None and not self._prepares):
                await conn.close()
            elif self._owners.get(conn) == owner or await self._reset(conn):
                self._owners[conn] = owner
                return conn
        conn = await self._connect()
        self._owners[conn] = owner
        return conn

    async def _reset(self, conn: AsyncConnection[Any]) -> bool:
        if getattr(conn, "pooled", False):
            return True
        try:
            await conn.execute(_RESET)
            await conn.execute(_GUARDS, {"idle": self._idle_ms})
            if self._notify == "off":
                await conn.execute(session.QUIET)
        except psycopg.Error:
            await conn.close()
            return False
        except BaseException:  # whoever waited for it has gone
            conn.pgconn.finish()
            raise
        return True

    async def _connect(self) -> AsyncConnection[Any]:
        conn = await session.connect(self._dsn, autocommit=True, name="outrider worker", notify=self._notify)
        try:
            if not self._prepares:
                conn.prepare_threshold = None
            await tenant.capture(conn)
            if not conn.pooled:  # else they would be somebody else's settings
                await conn.execute(_GUARDS, {"idle": self._idle_ms})
                with suppress(psycopg.errors.InvalidParameterValue):  # not on every platform
                    await conn.execute(_WATCH)
        except BaseException:  # whoever waited for it has gone
            conn.pgconn.finish()
            raise
        return conn

    async def close(self) -> None:
        while self._free:
            await self._free.pop().close()


@asynccontextmanager
async def together(conn: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Several statements in one round trip.

    psycopg ends a pipeline by Sync and Flush. At a Flush, a server that waits in a transaction forgets that it was to end
    a session that stays idle there: a worker that is stopped would keep its partition. Sync alone does.
    """
    async with conn.pipeline() as pipeline:

        def end() -> PQGen[None]:
            try:
                pipeline._enqueue_sync()
                yield from pipeline._communicate_gen()
            finally:
                yield from pipeline._fetch_gen(flush=False)

        pipeline._exit_gen = end  # type: ignore[method-assign]
        yield


def _cancel(cancel: pq.abc.PGcancel) -> None:
    with suppress(psycopg.Error):
        cancel.cancel()


def usable(conn: AsyncConnection[Any]) -> bool:
    return not conn.closed and not hasattr(conn, "abandoned")


def abandon(conn: AsyncConnection[Any]) -> None:
    """Cut the wire of a session that a stuck thread may still use. Who has the thread closes it when the thread is done."""
    conn.abandoned = True  # type: ignore[attr-defined]
    conn._pool = None  # as for a connection of a pool, psycopg does not warn that it was not closed
    cancel = conn.pgconn.get_cancel()
    threading.Thread(target=_cancel, args=[cancel], daemon=True).start()  # it may be in a statement that takes for ever
    with suppress(OSError), socket.socket(fileno=os.dup(conn.pgconn.socket)) as wire:
        wire.shutdown(socket.SHUT_RDWR)
