"""python -m examples.knowledge_hub [DSN]: an imported document is told of once. Without a DSN on the embedded Postgres."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from outrider import Outrider
from outrider.config import Settings

from .hub import NAME, TABLES, app

PIECES, CONNECTIONS = 40, 3
ANEW = """drop table if exists information_unit, unit_version, unit_draft, unit_comment, iu_notification_event,
          iu_notification_read, imported_document"""


async def ask(query: str, *params: Any) -> list[Any]:
    """On a connection of its own, as somebody with psql would."""
    async with app.connect() as conn:
        return await (await conn.execute(query.encode(), params)).fetchall()


async def install() -> None:
    print("1. Preflight, then install")
    for each in (await app.install_rollup()).findings:
        print(f"   {'PASS' if each.passed else 'FAIL'}  {each.topic:14}  {each.value:13}  {each.detail}")


async def births() -> None:
    print(
        f"2. A document of {PIECES} pieces by ada and bob, over {CONNECTIONS} connections; a note; a comment on a piece"
    )

    async def save(piece: int) -> None:
        actor = "ada" if piece % 2 else "bob"
        await ask("select fn_iu_save(%s, 'Once upon a time.', %s, 'handbook.pdf')", f"handbook/{piece}", actor)

    async def share(first: int) -> None:
        for piece in range(first, PIECES + 1, CONNECTIONS):
            await save(piece)

    await save(1)
    await asyncio.gather(*(share(first) for first in range(2, CONNECTIONS + 2)))
    await ask("select fn_iu_save('notes/lamp', 'The lamp is broken.', 'bob')")
    await ask("select fn_iu_comment('handbook/7', 'Is this still true?', 'bob')")
    [(waiting,)] = await ask("select count(*) from outrider.rollup_pending where processed_at is null")
    print(f"   {waiting} births wait; the comment does not")


async def told(since: int) -> None:
    print("3. A tick; --flush, as nobody here wants to wait for 90 s of silence")
    done = await app.tick(NAME, flush=True)
    print(
        f"   {done.result}: {done.groups_emitted} rollup, {done.pieces_emitted} single, {done.rows_marked} rows marked"
    )
    query = """select event_type, aggregate_id, payload -> 'piece_count', payload ->> 'first_actor' from outrider.outbox
               where seq > %s order by seq"""
    for event_type, key, pieces, actor in await ask(query, since):
        more = (f", {key}" if key else "") + (f", {pieces} pieces, the first by {actor}" if pieces else "")
        print(f"   in the log: {event_type}{more}")
    handled = (await app.drain()).handled
    [(document, counted)] = await ask("select document_ref, pieces from imported_document")
    print(f"   {handled} event handled: {document} has {counted} pieces")


async def board() -> None:
    for number, actor in enumerate(("ada", "bob"), start=4):
        print(f"{number}. The board, as {actor} sees it")
        query = """select event_type, canonical_address, coalesce(payload ->> 'piece_count', '1'), read_as
                   from fn_iu_notification_board(%s)"""
        for event_type, address, pieces, read_as in await ask(query, actor):
            print(f"   {event_type:17}  {address:10}  {pieces:>2}  {read_as or 'unread'}")


async def plan() -> None:
    print("6. What uninstalling would do now, and what it would keep")
    for action, what, why in await ask("select action, what, why from outrider.rollup_plan(%s)", NAME):
        print(f"   {action:4}  {what}" + (f" ({why})" if why else ""))


@asynccontextmanager
async def opened(dsn: str | None) -> AsyncIterator[int]:
    """The tables are empty at every run; of the log, what is after the number that is yielded belongs to it."""
    async with AsyncExitStack() as stack:
        if dsn is None:
            server = (await stack.enter_async_context(Outrider(embedded=True))).server
            assert server is not None
            await asyncio.to_thread(server.ensure_database, "knowledge_hub")
            dsn = server.dsn("knowledge_hub")
        app.relocate(Settings.load(context="hub", dsn=dsn))
        await stack.enter_async_context(app)
        await app.migrate()
        await ask("select outrider.rollup_uninstall(name, true) from outrider.rollup where name = %s", NAME)
        async with app.connect() as conn, conn.transaction():
            await conn.execute(ANEW.encode())
            await conn.execute(TABLES.encode())
        [(newest,)] = await ask("select coalesce(max(seq), 0) from outrider.outbox")
        yield newest


async def main(dsn: str | None = None) -> None:
    async with opened(dsn) as since:
        await install()
        await births()
        await told(since)
        await board()
        await plan()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
