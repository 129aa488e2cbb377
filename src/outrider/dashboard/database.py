"""The dashboard's sessions: a small read-only pool, and a session per action for an operator.

Every statement of a page ends after 3 s, so that no page can burden the database. One session of the pool is the look's
alone: it says whether the database answers, so slow pages must not delay it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.app import EMBEDDED_DATABASE, Outrider
from outrider.errors import ConfigError, DatabaseUnavailable, OutriderError
from outrider.postgres.connection import AsyncSession, NearestTime, connect
from outrider.postgres.pool import Pool
from outrider.postgres.worker_sessions import disconnect

CONNECTIONS = 3
"""Sessions for the pages and the doctor."""
PATIENCE = 5
"""Seconds that a page waits for a session."""
LONGEST = 30.0
"""Seconds that a page reads at most. When the network is lost, no statement ends by itself."""
GRACE = 2.0
"""Seconds for a statement to end, after it was cancelled because of LONGEST."""
READING = {"statement_timeout": "3000", "default_transaction_read_only": "on"}
NAME = "outrider dashboard"


class Busy(OutriderError):
    """All sessions for pages are in use."""


class Database:
    def __init__(self, app: Outrider, dsn: str | None = None, operator_dsn: str | None = None) -> None:
        """By default both are the app's own DSN."""
        self._app = app
        self._given = dsn
        self._operator = operator_dsn
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._places = asyncio.Semaphore(CONNECTIONS)

    @property
    def schema(self) -> str:
        return self._app.settings.schema

    @asynccontextmanager
    async def reading(self, longest: float | None = None) -> AsyncIterator[AsyncSession]:
        """A session in autocommit mode that can only read, for so many seconds: by default LONGEST."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._places.acquire()
        except TimeoutError:
            raise Busy(
                f"Other pages have used all {CONNECTIONS} sessions of the dashboard for {PATIENCE} s. Try again; narrow "
                "the filters of pages that take long."
            ) from None
        try:
            async with self.looking(LONGEST if longest is None else longest) as conn:
                yield conn
        finally:
            self._places.release()

    @asynccontextmanager
    async def looking(self, longest: float) -> AsyncIterator[AsyncSession]:
        """Like `reading`, but does not wait for pages."""
        pool: Pool | None = None
        try:
            async with asyncio.timeout(longest) as limit:
                pool = await self._opened()
                async with pool.autocommit() as conn:
                    conn.adapters.register_loader("timestamptz", NearestTime)
                    # psycopg waits for the end of a statement that it has cancelled, some releases of it for ever.
                    cut = asyncio.get_running_loop().call_later(longest + GRACE, disconnect, conn)
                    try:
                        yield conn
                    finally:
                        cut.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            if pool is not None and pool is self._pool:
                await self.close()  # its other sessions may be lost too
            raise DatabaseUnavailable(f"the database has not answered within {longest:g} s") from error

    @asynccontextmanager
    async def acting(self) -> AsyncIterator[AsyncSession]:
        """A session in autocommit mode for one action. It has no statement timeout: actions wait for running batches."""
        dsn = self._operator or self._dsn()
        async with await connect(dsn, autocommit=True, name=NAME, notify=self._app.settings.notify) as conn:
            yield conn

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.__aexit__()

    async def _opened(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                pool = Pool(self._dsn(), CONNECTIONS + 1, settings=READING, name=NAME, patience=PATIENCE)
                await pool.__aenter__()
                self._pool = pool
        return self._pool

    def _dsn(self) -> str:
        server = self._app.server
        dsn = self._given or (server.dsn(EMBEDDED_DATABASE) if server else self._app.settings.dsn)
        if dsn is None:
            raise ConfigError("no database: give the app a dsn, or open the app first if it is embedded")
        return dsn
