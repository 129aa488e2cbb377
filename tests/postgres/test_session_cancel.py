"""Who is cancelled while the database goes away ends as cancelled: no loop takes it for one more error to live with."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg_pool import PoolClosed

from outrider.postgres import connection
from outrider.postgres.pool import Pool

STATE = "select wait_event from pg_stat_activity where pid = %s"


async def asleep(conn: connection.AsyncSession, database: str) -> None:
    async with asyncio.timeout(30):
        with psycopg.connect(database, autocommit=True) as other:
            while other.execute(STATE, [conn.info.backend_pid]).fetchone() != ("PgSleep",):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def lose(conn: connection.AsyncSession, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server process ends just when the statement was to be cancelled."""

    async def end(*_: Any, **__: Any) -> None:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])

    monkeypatch.setattr(conn, "_try_cancel", end)


async def test_a_session_that_breaks_while_it_is_cancelled(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = await connection.connect(database, autocommit=True)
    await lose(conn, database, monkeypatch)
    sleeping = asyncio.create_task(conn.execute("select pg_sleep(60)"))
    await asleep(conn, database)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await conn.close()


async def test_a_timeout_stays_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = await connection.connect(database, autocommit=True)
    await lose(conn, database, monkeypatch)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await conn.execute("select pg_sleep(60)")
    await conn.close()


async def test_an_error_after_a_cancellation_is_still_an_error(database: str) -> None:
    """What somebody does on leaving fails by itself, and may say so."""
    said: list[str] = []
    ready = asyncio.Event()

    async def work() -> None:
        async with await connection.connect(database, autocommit=True) as conn:
            try:
                ready.set()
                await asyncio.Event().wait()
            finally:
                try:
                    await conn.execute("select 1 / 0")
                except psycopg.errors.DivisionByZero as error:
                    said.append(str(error))

    working = asyncio.create_task(work())
    await ready.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert said == ["division by zero"]


async def test_a_pool_that_is_closed_under_who_is_cancelled(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, asked = Pool(database, 1), asyncio.Event()

    async def closed() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise PoolClosed("closed just now")

    monkeypatch.setattr(pool._pool, "getconn", closed)
    waiting = asyncio.create_task(pool.connection().__aenter__())
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_session_of_the_pool_that_is_cancelled_in_a_transaction(database: str) -> None:
    """The cancelled statement leaves a failed transaction, in which the session cannot be given back as it was."""
    begun: list[connection.AsyncSession] = []
    ready = asyncio.Event()

    async def work(pool: Pool) -> None:
        async with pool.autocommit() as conn:
            await conn.execute("begin")
            begun.append(conn)
            ready.set()
            await conn.execute("select pg_sleep(60)")

    async with Pool(database, 1) as pool:
        working = asyncio.create_task(work(pool))
        await ready.wait()
        await asleep(begun[0], database)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
