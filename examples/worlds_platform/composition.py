"""The third place: the only one that imports both contexts. It makes the apps, wires the handler, opens everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import AsyncConnection

from outrider import HandlerContext, Outrider

from .atlas import repository
from .atlas.events import ScanCompleted
from .atlas.indexer import ScanIndexer
from .atlas.repository import SnapshotRepository
from .worlds import survey
from .worlds.survey import Survey

CONTEXTS = {"worlds", "atlas"}
INDEXER = "atlas.scan_completed_indexer"
PARTITIONS = 16

Connection = AsyncConnection[Any]
Index = Callable[[ScanCompleted, HandlerContext], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Platform:
    worlds: Outrider
    atlas: Outrider
    survey: Survey


def index(tx: Connection) -> Index:
    return ScanIndexer(SnapshotRepository(tx))


def compose(
    dsn: str | None = None,
    *,
    make: Callable[[Connection], Index] = index,
    name: str = INDEXER,
    start: Literal["now", "beginning"] = "now",
) -> Platform:
    """Without a DSN on the embedded Postgres. In production each context's app lives in a process of its own."""
    worlds = Outrider(context="worlds", contexts=CONTEXTS, dsn=dsn, embedded=dsn is None)
    atlas = Outrider(context="atlas", contexts=CONTEXTS, dsn=dsn, embedded=dsn is None)
    atlas.subscribe(ScanCompleted, make, name=name, partitions=PARTITIONS, start=start)
    return Platform(worlds, atlas, Survey(worlds))


@asynccontextmanager
async def opened(platform: Platform) -> AsyncIterator[Platform]:
    async with platform.worlds, platform.atlas:
        for app, tables in ((platform.worlds, survey.TABLES), (platform.atlas, repository.TABLES)):
            await app.migrate()
            async with app.connect() as conn:
                await conn.execute(tables)
        yield platform
