"""Imports a document of 40 rows through several sessions. A rollup announces it in one event.

The sessions only insert rows. A trigger stages the rows, and Postgres groups them by document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from outrider import Event, HandlerContext, Outrider
from outrider.postgres import rollups
from outrider.postgres.connection import AsyncSession

NAME = "shop.catalogue"
DOCUMENT = "spring catalogue"
PIECES = 40
HANDS = 4

TABLES = """
create table article (
    id          bigint generated always as identity primary key,
    document    text,
    name        text not null,
    description text not null
);
create table announcement (id bigint generated always as identity primary key, about text not null, pieces integer not null);
"""
ADD = "insert into article (document, name, description) values (%s, %s, 'a long text')"
ANNOUNCE = "insert into announcement (about, pieces) values (%s, %s)"


class ArticleAdded(Event, type="shop.article_added"):
    id: int
    name: str


class CatalogueImported(Event, type="shop.catalogue_imported"):
    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime
    name: str | None = None
    id: int | None = None


def declare_catalogue(app: Outrider) -> None:
    app.rollup(
        NAME,
        table="article",
        key=["document"],
        carry=["id", "name"],
        single=ArticleAdded,
        rollup=CatalogueImported,
    )

    @app.handler(ArticleAdded, CatalogueImported, name="shop.announce")
    async def announce(news: ArticleAdded | CatalogueImported, ctx: HandlerContext) -> None:
        about = (news.key, news.piece_count) if isinstance(news, CatalogueImported) else (news.name, 1)
        await ctx.tx.execute(ANNOUNCE, about)


async def furnish(conn: AsyncSession, app: Outrider) -> None:
    await conn.execute(TABLES)
    for each in app.rollups:
        await rollups.install(conn, each.spec(), app.settings.schema)


async def import_document(app: Outrider, tell: Callable[[str], None]) -> None:
    """Imports one document through several sessions, a transaction for each row, and one article without a document."""

    async def carry_in(hand: int) -> None:
        async with app.connect() as conn:
            await conn.set_autocommit(True)
            for piece in range(hand, PIECES, HANDS):
                await conn.execute(ADD, [DOCUMENT, f"article {piece}"])

    await asyncio.gather(*(carry_in(hand) for hand in range(HANDS)))
    async with app.connect() as conn:
        await conn.execute(ADD, [None, "a single lamp"])
    # Without the flush, the rollup would wait until no row has come for 90 s.
    while (ticked := await app.tick(NAME, flush=True)).result == "skipped":
        pass  # a worker ticks the rollup at this moment
    events = ticked.groups_emitted + ticked.pieces_emitted
    tell(f"imported {PIECES} articles of one document, and a lone one: {events} events")
