"""The few sessions on which a worker takes and handles: opened when first needed, reused, replaced when they break.

They are not the app's pool: a session that a stuck thread still uses must be cut off without being closed under it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from outrider.postgres import session

# A worker that is stopped or unreachable in the midst of a batch keeps its partition until the server notices.
_GUARDS = """
select set_config('idle_in_transaction_session_timeout', %(idle)s, false), set_config('tcp_user_timeout', '30s', false)
"""
_WATCH = "select set_config('client_connection_check_interval', '5s', false)"


class Lanes:
    def __init__(self, dsn: str, size: int, idle: float) -> None:
        self._dsn = dsn
        self._idle_ms = str(int(idle * 1000))
        self._free: list[AsyncConnection[Any]] = []
        self._places = asyncio.Semaphore(size)
        self.waiting = 0
        """How many would like a session and have none."""

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A session in autocommit mode, outside a transaction. Given back in another state, it is closed."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        conn: AsyncConnection[Any] | None = None
        try:
            conn = await self._open()
            yield conn
        finally:
            if conn is not None and usable(conn):
                if conn.pgconn.transaction_status == TransactionStatus.IDLE:
                    self._free.append(conn)
                else:
                    conn.pgconn.finish()
            self._places.release()

    async def _open(self) -> AsyncConnection[Any]:
        while self._free:
            conn = self._free.pop()
            if not conn.closed:
                return conn
        conn = await session.connect(self._dsn, autocommit=True, name="outrider worker")
        await conn.execute(_GUARDS, {"idle": self._idle_ms})
        with suppress(psycopg.errors.InvalidParameterValue):  # not on every platform
            await conn.execute(_WATCH)
        return conn

    async def close(self) -> None:
        while self._free:
            await self._free.pop().close()


def usable(conn: AsyncConnection[Any]) -> bool:
    return not conn.closed and not hasattr(conn, "abandoned")


def abandon(conn: AsyncConnection[Any]) -> None:
    """Cut the wire of a session that a stuck thread may still use. Who has the thread closes it when the thread is done."""
    conn.abandoned = True  # type: ignore[attr-defined]
    conn._pool = None  # as for a connection of a pool, psycopg does not warn that it was not closed
    with suppress(OSError), socket.socket(fileno=os.dup(conn.pgconn.socket)) as wire:
        wire.shutdown(socket.SHUT_RDWR)
