"""The harnesses that drive the publish exercise over psycopg, async and blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

import psycopg
from psycopg import AsyncConnection, Connection

from outrider import Envelope, Event, Outrider, Reader
from outrider.publish import PublishOptions
from outrider.testing.exercise import CONTEXT, PublishHarness


class AsyncHarness:
    def __init__(self, app: Outrider, reader: Reader, conn: AsyncConnection[Any]) -> None:
        self.app, self.reader, self.conn = app, reader, conn

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return await self.app.publish(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return await self.app.publish_many(self.conn, events)

    async def begin(self) -> None:
        await self.conn.execute("begin")

    async def commit(self) -> None:
        await self.conn.execute("commit")

    async def rollback(self) -> None:
        await self.conn.execute("rollback")

    async def savepoint(self) -> None:
        await self.conn.execute("savepoint here")

    async def rollback_to_savepoint(self) -> None:
        await self.conn.execute("rollback to savepoint here")

    async def answer(self) -> object:
        row = await (await self.conn.execute("select 42")).fetchone()
        return row and row[0]


class SyncHarness:
    def __init__(self, app: Outrider, reader: Reader, conn: Connection[Any]) -> None:
        self.app, self.reader, self.conn = app, reader, conn

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return self.app.publish_sync(self.conn, event, **options)

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return self.app.publish_many_sync(self.conn, events)

    async def begin(self) -> None:
        self.conn.execute("begin")

    async def commit(self) -> None:
        self.conn.execute("commit")

    async def rollback(self) -> None:
        self.conn.execute("rollback")

    async def savepoint(self) -> None:
        self.conn.execute("savepoint here")

    async def rollback_to_savepoint(self) -> None:
        self.conn.execute("rollback to savepoint here")

    async def answer(self) -> object:
        row = self.conn.execute("select 42").fetchone()
        return row and row[0]


@asynccontextmanager
async def open_harness(kind: str, dsn: str) -> AsyncIterator[PublishHarness]:
    app = Outrider(context=CONTEXT, dsn=dsn)
    reader = app.reader(name="exercise.everything", start="beginning")
    async with app:
        await app.migrate()
        if kind == "async":
            async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
                yield AsyncHarness(app, reader, conn)
        else:
            with psycopg.connect(dsn, autocommit=True) as blocking:
                yield SyncHarness(app, reader, blocking)
