"""The dashboard's sessions: a small read-only pool for the pages, and a session per action for an operator.

Every statement of a page ends after 3 s, so that no page can burden the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.app import EMBEDDED_DATABASE, Outrider
from outrider.errors import ConfigError
from outrider.postgres.connection import AsyncSession, NearestTime, connect
from outrider.postgres.pool import Pool

CONNECTIONS = 3
PATIENCE = 5
"""Seconds that a page waits for a session."""
READING = {"statement_timeout": "3000", "default_transaction_read_only": "on"}
NAME = "outrider dashboard"


class Database:
    def __init__(self, app: Outrider, dsn: str | None = None, operator_dsn: str | None = None) -> None:
        """By default both are the app's own DSN."""
        self._app = app
        self._given = dsn
        self._operator = operator_dsn
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    @property
    def schema(self) -> str:
        return self._app.settings.schema

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A session in autocommit mode that can only read."""
        async with (await self._opened()).autocommit() as conn:
            conn.adapters.register_loader("timestamptz", NearestTime)
            yield conn

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
                pool = Pool(self._dsn(), CONNECTIONS, settings=READING, name=NAME, patience=PATIENCE)
                await pool.__aenter__()
                self._pool = pool
        return self._pool

    def _dsn(self) -> str:
        server = self._app.server
        dsn = self._given or (server.dsn(EMBEDDED_DATABASE) if server else self._app.settings.dsn)
        if dsn is None:
            raise ConfigError("no database: give the app a dsn, or open the app first if it is embedded")
        return dsn
