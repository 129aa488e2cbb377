"""Checks of the doctor that open sessions of their own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from psycopg.conninfo import make_conninfo

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.connection import AsyncSession
from outrider.postgres.listener import Listener
from outrider.postgres.statement import statement


async def blockers(dsn: str, pid: int) -> list[str]:
    """The sessions that block this server process, each with the statement that ends it. Opens a session of its own."""
    conn = await connection.connect(dsn, autocommit=True, name="outrider doctor")
    async with conn:
        cursor = await conn.execute(statement("doctor/blockers", "outrider"), {"pid": pid})
        return [who for (who,) in await cursor.fetchall()]


def same_server(conn: AsyncSession) -> str:
    """A DSN for another session like this one. It contains the password, so it must not be shown."""
    given: dict[str, Any] = {"password": conn.info.password} if conn.info.password else {}
    return make_conninfo(conn.info.dsn, **given)


async def pooled(dsn: str) -> bool:
    """Whether the DSN leads to a transaction pooler."""
    conn = await connection.connect(dsn, autocommit=True, name="outrider doctor")
    async with conn:
        return conn.pooled


async def hears(dsn: str, schema: str, deadline: float) -> str | None:
    """Runs a worker's listener until its test notification arrives: None. Otherwise, returns the reason that it reports."""
    outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def finish(reason: str | None) -> None:
        if not outcome.done():
            outcome.set_result(reason)

    listener = Listener(
        dsn,
        ["outbox_default"],
        on_notification=lambda *_: None,
        on_up=lambda: finish(None),
        on_down=finish,
        schema=schema,
        deadline=deadline,
    )
    running = asyncio.create_task(listener.run())
    try:
        both: list[asyncio.Future[Any]] = [running, outcome]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return outcome.result() if outcome.done() else await running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, DatabaseUnavailable, connection.DatabaseError):
            await running
