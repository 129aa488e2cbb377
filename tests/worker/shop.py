"""A shop whose handlers fail on demand: the events, the table of effects, and what the database says afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outrider import Event, HandlerContext, Outrider, RetryPolicy

SOON = RetryPolicy(retries=3, base="1h", cap="2h", jitter="none")


class Placed(Event, type="dispatch.placed", key="customer"):
    customer: str
    n: int = 0


class Cancelled(Event, type="dispatch.cancelled", key="customer"):
    customer: str
    n: int = 0


class Shop:
    """An open app on one database. Effects go to a table without a unique constraint, so that doubles show."""

    def __init__(self, app: Outrider, dsn: str) -> None:
        self.app = app
        self.dsn = dsn
        self.calls: list[str] = []
        self.wrong: dict[str, Callable[[], None]] = {}
        """What to do instead of handling "customer n": usually to raise."""

    async def effect(self, event: Any, ctx: HandlerContext) -> None:
        """A handler that writes one row, after whatever is to go wrong with this event."""
        name = f"{event.customer}{event.n}"
        self.calls.append(name)
        await ctx.tx.execute("insert into effect (handler, name) values ('effect', %s)", [name])
        if name in self.wrong:
            self.wrong[name]()

    async def publish(self, *names: str, **options: Any) -> None:
        """`a1` is the first event of customer a."""
        async with self.app.connect() as conn, conn.transaction():
            for name in names:
                await self.app.publish(conn, Placed(customer=name[0], n=int(name[1:])), **options)

    async def effects(self) -> list[str]:
        return [row["name"] for row in await self.rows("select name from effect order by id")]

    async def parked(self) -> dict[str, dict[str, Any]]:
        """What is owed out of line, by event."""
        query = """select (o.payload->>'customer') || (o.payload->>'n') as name, d.*
                   from outrider.delivery as d join outrider.outbox as o using (seq) order by d.seq"""
        return {row["name"]: row for row in await self.rows(query)}

    async def make_due(self) -> None:
        """Time travel: whatever waits is due now."""
        await self.rows("update outrider.delivery set run_at = run_at - interval '1 day' where status = 'pending'")

    async def rows(self, query: str) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, row_factory=dict_row) as conn:
            cursor = await conn.execute(query.encode())
            return await cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def opened(dsn: str, declare: Callable[[Shop], object] | None = None, **options: Any) -> AsyncIterator[Shop]:
    """A shop with its handlers declared and registered; by default one, "shop.effect", that can fail on demand."""
    app = Outrider(context="shop", dsn=dsn, **options)
    shop = Shop(app, dsn)
    if declare is None:
        app.handler(Placed, name="shop.effect", retry=SOON)(shop.effect)
    else:
        declare(shop)
    async with app:
        await app.migrate()
        await shop.rows(
            "create table if not exists effect (id int generated always as identity, handler text, name text)"
        )
        yield shop
