"""python -m examples.litevault [DSN]: a rollout in three phases, then a failure. Without a DSN on the embedded Postgres."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

from outrider import Outrider
from outrider.config import Settings

from .vault import TABLES, app, backfill, create


async def put(*bodies: str) -> list[UUID]:
    async with app.connect() as conn, conn.transaction():
        return [await create(conn, body) for body in bodies]


async def show() -> None:
    async with app.connect() as conn:
        items = await conn.execute("select state, body, summary from item order by body")
        for state, body, summary in await items.fetchall():
            print(f"   {state:9} {body!r}" + (f" -> {summary!r}" if summary else ""))


async def phases() -> None:
    for number, phase in enumerate(("off", "shadow", "on"), start=1):
        os.environ["LITEVAULT_ENRICH"] = phase
        await put(f"Item {number}. It came while enrichment was {phase}.")
        print(f"{number}. {phase}: {(await app.drain()).jobs} jobs done")
        await show()


async def fill() -> None:
    async with app.connect() as conn, conn.transaction():
        enqueued = await backfill(conn)
    print(f"4. Backfill: {enqueued} jobs enqueued, {(await app.drain()).jobs} done")
    await show()


async def failure() -> None:
    print("5. An item without text")
    [item_id] = await put("")
    for _ in range(3):
        await app.drain()
        for job in await app.jobs.find():
            print(f"   attempt {job.attempts}: {job.error}; the job is {job.state}")
            await app.jobs.run_now(job.id)  # instead of waiting for 30 s, then for 5 min
    await show()
    async for letter in app.dead_letters.each():
        print(f"   dead letter: {letter.event_type}, {letter.code}")
    async with app.connect() as conn:
        await conn.execute("update item set body = 'It has text now.' where id = %s", [item_id])
    print(f"   replayed: {(await app.dead_letters.replay()).replayed}; {(await app.drain()).jobs} jobs done")
    await show()


@asynccontextmanager
async def opened(dsn: str | None) -> AsyncIterator[None]:
    """Empty at every run."""
    async with AsyncExitStack() as stack:
        if dsn is None:
            server = (await stack.enter_async_context(Outrider(embedded=True))).server
            assert server is not None
            await asyncio.to_thread(server.ensure_database, "litevault")
            dsn = server.dsn("litevault")
        app.relocate(Settings.load(context="vault", dsn=dsn))
        await stack.enter_async_context(app)
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            await conn.execute("drop table if exists shadow_summary, item")
            await conn.execute(TABLES.encode())
        yield


async def main(dsn: str | None = None) -> None:
    logging.getLogger("outrider").setLevel(logging.CRITICAL)  # what fails here does so on purpose
    async with opened(dsn):
        await phases()
        await fill()
        await failure()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
