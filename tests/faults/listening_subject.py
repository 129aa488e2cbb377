"""A listener whose handler writes in its transaction, and outside of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from outrider import Envelope, Outrider

NAME = "garden.ledger"
CHANNEL = "outbox_default"


class Listener:
    def __init__(self, app: Outrider, outside: Path) -> None:
        self._app = app
        self._outside = outside

    async def run(self) -> None:
        await self._app.listener().listen(channel=CHANNEL, handler_name=NAME, handler=self.write)

    async def write(self, envelope: Envelope, tx: AsyncConnection[Any]) -> None:
        await tx.execute("insert into ledger (event) values (%s)", [envelope.id])
        with self._outside.open("a") as file:
            file.write(f"{envelope.id}\n")

    def stop(self) -> None: ...


listeners: dict[Outrider, Listener] = {}


@asynccontextmanager
async def make(dsn: str, outside: Path) -> AsyncIterator[Outrider]:
    app = Outrider(dsn=dsn)
    listeners[app] = Listener(app, outside)
    async with app:
        yield app


def worker_of(app: Outrider) -> Listener:
    return listeners[app]
