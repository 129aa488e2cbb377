"""The connection pool of the app. It opens one connection first, so that a wrong DSN fails at once with a clear error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Self

from psycopg_pool import AsyncConnectionPool, PoolTimeout

from outrider.errors import DatabaseUnavailable
from outrider.postgres.connection import AsyncSession, Wire, cancellable, connect, quiet
from outrider.postgres.dsn import complete


class Pool:
    def __init__(
        self,
        dsn: str,
        size: int,
        notify: str = "commit",
        *,
        settings: Mapping[str, str] | None = None,
        name: str = "outrider",
        patience: int | None = None,
    ) -> None:
        """`settings`: further settings of each session. `name`: its application_name, unless the DSN has one.

        `patience`: seconds for a connection to be made, or to become free. By default it is 30 s, and during an outage the
        attempts to connect become rarer for up to 5 min.
        """
        hurry = {} if patience is None else {"connect_timeout": patience}
        self._hurries = patience is not None
        self._dsn = dsn
        self._settings = quiet(notify) | dict(settings or {})
        self._pool = AsyncConnectionPool[AsyncSession](
            complete(dsn, copies=patience is None),
            kwargs={"fallback_application_name": name, **hurry},
            connection_class=Wire,
            configure=self._configure,
            min_size=0,
            max_size=size,
            open=False,
            name="outrider",
            timeout=30.0 if patience is None else patience,
            reconnect_timeout=300.0 if patience is None else patience,
        )

    async def _configure(self, conn: AsyncSession) -> None:
        assert isinstance(conn, Wire)
        await conn.set_autocommit(True)
        await conn.settle_in(**self._settings)
        await conn.set_autocommit(False)

    async def __aenter__(self) -> Self:
        conn = await connect(self._dsn)
        await conn.close()
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncSession]:
        try:
            with cancellable():
                conn = await self._pool.getconn()
        except PoolTimeout as error:
            used = (
                f"is down, or all {self._pool.max_size} of the app's connections are in use: release them sooner, or raise "
                "pool_size (OUTRIDER_POOL_SIZE)"
            )
            told = "is down or cannot be reached" if self._hurries else used
            raise DatabaseUnavailable(f"no connection within {self._pool.timeout:.0f} s: the server {told}") from error
        try:
            async with conn:
                yield conn
        finally:
            await self._pool.putconn(conn)

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncSession]:
        async with self.connection() as conn:
            await conn.set_autocommit(True)
            try:
                yield conn
            finally:
                if not conn.closed:
                    await conn.rollback()  # else the next line hides the error, or a cancellation
                    await conn.set_autocommit(False)
