"""A depot whose events go out: the app, its relay, and what is in the streams and in the database afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from outrider import Envelope, Event, Outrider
from outrider.streams import Sink


class Sent(Event, type="depot.sent", key="parcel"):
    parcel: str
    n: int = 0


class Lost(Event, type="depot.lost", key="parcel"):
    parcel: str
    n: int = 0


class Depot:
    """An open app on one database."""

    def __init__(self, app: Outrider, dsn: str) -> None:
        self.app = app
        self.dsn = dsn

    async def publish(self, *names: str, model: type[Sent | Lost] = Sent, **options: Any) -> list[UUID]:
        """`a1` is the first event of parcel a."""
        async with self.app.connect() as conn, conn.transaction():
            envelopes = [
                await self.app.publish(conn, model(parcel=each[0], n=int(each[1:])), **options) for each in names
            ]
        return [each.id for each in envelopes]

    async def publish_many(self, number: int, start: int = 0) -> list[UUID]:
        async with self.app.connect() as conn, conn.transaction():
            events = [Sent(parcel="abcdefgh"[n % 8], n=n) for n in range(start, start + number)]
            return [each.id for each in await self.app.publish_many(conn, events)]

    async def publish_classes(self, *classes: str) -> None:
        """One event of each channel class, together; and one of a type of its own, which makes them many."""
        async with self.app.connect() as conn, conn.transaction():
            events = [self.app.envelope(Sent(parcel="a"), channel_class=each) for each in classes]
            await self.app.publish_many(conn, [*events, Lost(parcel="a")])

    async def envelopes(self, ids: Sequence[UUID]) -> list[Envelope]:
        """As a relay reads them."""
        reader = self.app.reader(name=f"depot.r{uuid4().hex[:8]}", start="beginning")
        await self.app.migrate()
        async with self.app.connect() as conn, conn.transaction():
            found = {each.id: each for each in (await reader.take(conn)).events}
        return [found[each] for each in ids]

    async def rows(self, query: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, row_factory=dict_row) as conn:
            return await (await conn.execute(query, params)).fetchall()

    async def execute(self, query: str, params: Sequence[Any] = ()) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(query, params)


@asynccontextmanager
async def depot(dsn: str, **settings: Any) -> AsyncIterator[Depot]:
    given: dict[str, Any] = {"context": "depot", "dsn": dsn, "poll": 0.5} | settings
    app = Outrider(**given)
    async with app:
        yield Depot(app, dsn)


async def ids_in(sink: Sink, stream: str) -> list[UUID]:
    """What the stream holds, in its order."""
    await sink.open()
    try:
        return [
            entry.id for page in [page async for page in sink.tail(stream, sink.start)] for entry in page if entry.id
        ]
    finally:
        await sink.close()
