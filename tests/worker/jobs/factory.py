"""A small factory whose jobs do what a test tells them, and what the database says afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from outrider import Event, Job, Outrider, RetryPolicy

T = TypeVar("T")
SOON = RetryPolicy(retries=2, base="1h", cap="2h", jitter="none")


class Make(Job, type="factory.make"):
    n: int = 0


class Paint(Job, type="factory.paint", key="part"):
    part: str
    n: int = 0


class Ordered(Event, type="factory.ordered", key="n"):
    n: int


class Factory:
    """An open app on one database."""

    def __init__(self, app: Outrider, dsn: str) -> None:
        self.app = app
        self.dsn = dsn

    async def enqueue(self, *jobs: Job, **options: Any) -> list[UUID]:
        async with self.app.connect() as conn, conn.transaction():
            return [(await self.app.enqueue(conn, job, **options)).id for job in jobs]

    async def publish(self, *events: Event, **options: Any) -> list[UUID]:
        async with self.app.connect() as conn, conn.transaction():
            return [(await self.app.publish(conn, event, **options)).id for event in events]

    async def owed(self) -> list[dict[str, Any]]:
        return await self.rows("select * from outrider.job order by id")

    async def one(self) -> dict[str, Any]:
        [row] = await self.owed()
        return row

    async def receipts(self) -> list[dict[str, Any]]:
        return await self.rows("select * from outrider.event_handled order by handled_at, event_id")

    async def make_due(self) -> None:
        """Time travel: whatever waits is due now."""
        await self.rows("update outrider.job set run_at = run_at - interval '1 day' where status = 'pending'")

    async def rows(self, query: str, *params: object) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, row_factory=dict_row) as conn:
            cursor = await conn.execute(query.encode(), params or None)
            return await cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def opened(dsn: str, declare: Callable[[Outrider], object], **options: Any) -> AsyncIterator[Factory]:
    """A factory with its jobs declared and registered."""
    app = Outrider(context="factory", dsn=dsn, **options)
    declare(app)
    async with app:
        await app.migrate()
        yield Factory(app, dsn)


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    """What it finds at last. For what the database or another process does, which gives no signal."""
    async with asyncio.timeout(30):
        while not (found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def idle(job: Any) -> None:
    pass
