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


def index(tx: Connection, release: int = 0) -> Index:
    return ScanIndexer(SnapshotRepository(tx, release))


def compose(
    dsn: str | None = None,
    *,
    make: Callable[[Connection], Index] | None = None,
    name: str = INDEXER,
    start: Literal["now", "beginning"] = "now",
    generation: int = 0,
) -> Platform:
    """Without a DSN on the embedded Postgres. In production each context's app lives in a process of its own.

    `generation`: the number of the release. Its workers are strict: they take nothing of other releases.
    """
    worlds = Outrider(
        context="worlds", contexts=CONTEXTS, owns=["worlds"], dsn=dsn, embedded=dsn is None, generation=generation
    )
    atlas = Outrider(
        context="atlas",
        contexts=CONTEXTS,
        owns=["atlas"],
        dsn=dsn,
        embedded=dsn is None,
        generation=generation,
        generations="strict" if generation else "adopt",
    )
    make = make or (lambda tx: index(tx, generation))
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
