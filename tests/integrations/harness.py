"""One connection of each kind for the publish exercise, with its library's own verbs for a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

import asyncpg
import psycopg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outrider import Envelope, Event, Outrider, Reader
from outrider.publish import PublishOptions
from outrider.testing.exercise import CONTEXT, PublishHarness


class Common:
    app: Outrider
    reader: Reader
    conn: Any

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return await self.app.publish(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return await self.app.publish_many(self.conn, events)


class Blocking(Common):
    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return self.app.publish_sync(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return self.app.publish_many_sync(self.conn, events)


class Asyncpg(Common):
    def __init__(self, conn: asyncpg.Connection[Any] | PoolConnectionProxy[Any]) -> None:
        self.conn = conn
        self.open: list[Transaction] = []

    async def begin(self) -> None:
        self.open.append(self.conn.transaction())
        await self.open[-1].start()

    async def commit(self) -> None:
        await self.open.pop().commit()

    async def rollback(self) -> None:
        await self.open.pop().rollback()

    savepoint = begin
    rollback_to_savepoint = rollback

    async def answer(self) -> object:
        return await self.conn.fetchval("select 42")


class Alchemy(Blocking):
    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self.nested: Any = None

    async def begin(self) -> None:
        self.conn.begin()

    async def commit(self) -> None:
        self.conn.commit()

    async def rollback(self) -> None:
        self.conn.rollback()

    async def savepoint(self) -> None:
        self.nested = self.conn.begin_nested()

    async def rollback_to_savepoint(self) -> None:
        self.nested.rollback()

    async def answer(self) -> object:
        return self.conn.execute(text("select 42")).scalar()


class AsyncAlchemy(Common):
    def __init__(self, conn: AsyncSession | AsyncConnection) -> None:
        self.conn = conn
        self.nested: Any = None

    async def begin(self) -> None:
        await self.conn.begin()

    async def commit(self) -> None:
        await self.conn.commit()

    async def rollback(self) -> None:
        await self.conn.rollback()

    async def savepoint(self) -> None:
        self.nested = await self.conn.begin_nested()

    async def rollback_to_savepoint(self) -> None:
        await self.nested.rollback()

    async def answer(self) -> object:
        return (await self.conn.execute(text("select 42"))).scalar()


def url(driver: str, dsn: str) -> URL:
    """A libpq string as SQLAlchemy writes it; the test servers are reached through a socket's folder or a port."""
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}",
        username=parts.get("user"),
        password=parts.get("password"),
        database=parts.get("dbname"),
        query={name: str(parts[name]) for name in ("host", "port") if name in parts},
    )


def asyncpg_options(dsn: str) -> dict[str, Any]:
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    return {
        "host": parts.get("host"),
        "port": int(parts.get("port") or 5432),
        "user": parts.get("user"),
        "password": parts.get("password"),
        "database": parts.get("dbname"),
    }


@asynccontextmanager
async def with_asyncpg(dsn: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(**asyncpg_options(dsn))
    try:
        yield Asyncpg(conn)
    finally:
        await conn.close()


@asynccontextmanager
async def with_asyncpg_pool(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(**asyncpg_options(dsn), min_size=1, max_size=1) as pool, pool.acquire() as conn:
        yield Asyncpg(conn)


def with_alchemy(driver: str, kind: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        engine = create_engine(url(driver, dsn))
        try:
            with Session(engine) if kind == "session" else engine.connect() as conn:
                yield Alchemy(conn)
        finally:
            engine.dispose()

    return opened


def with_async_alchemy(driver: str, kind: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        engine = create_async_engine(url(driver, dsn))
        try:
            async with AsyncSession(engine) if kind == "session" else engine.connect() as conn:
                yield AsyncAlchemy(conn)
        finally:
            await engine.dispose()

    return opened


KINDS: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "asyncpg": with_asyncpg,
    "asyncpg_pool": with_asyncpg_pool,
    **{
        f"sqlalchemy_{driver}_{kind}": with_alchemy(driver, kind)
        for driver in ("psycopg", "psycopg2")
        for kind in ("session", "connection")
    },
    **{
        f"sqlalchemy_{driver}_async_{kind}": with_async_alchemy(driver, kind)
        for driver in ("psycopg", "asyncpg")
        for kind in ("session", "connection")
    },
}


@asynccontextmanager
async def open_harness(kind: str, dsn: str) -> AsyncIterator[PublishHarness]:
    app = Outrider(context=CONTEXT, dsn=dsn)
    reader = app.reader(name="exercise.everything")
    async with app, KINDS[kind](dsn) as harness:
        await app.migrate()
        harness.app, harness.reader = app, reader
        yield harness


def count(dsn: str, table: str = "outrider.outbox") -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(f"select count(*) from {table}".encode()).fetchone()
        assert row is not None
        return int(row[0])
