"""The app's own few connections. The first is made alone, so that a wrong DSN gives its clear sentence at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from outrider.postgres import session


class Pool:
    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self._pool = AsyncConnectionPool[AsyncConnection[Any]](
            dsn, min_size=0, max_size=size, open=False, name="outrider"
        )

    async def __aenter__(self) -> Self:
        conn = await session.connect(self._dsn)
        await conn.close()
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    def connection(self) -> AbstractAsyncContextManager[session.AsyncSession]:
        return self._pool.connection()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[session.AsyncSession]:
        async with self._pool.connection() as conn:
            await conn.set_autocommit(True)
            try:
                yield conn
            finally:
                if not conn.closed:
                    await conn.set_autocommit(False)
