"""The row of a worker: written with each heartbeat, deleted at a clean shutdown. It also says what the worker is doing and
which problems it has."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from uuid import UUID

from psycopg.rows import tuple_row

from outrider.ids import uuid7
from outrider.postgres.connection import AsyncSession, connect_sync
from outrider.postgres.schema.migrate import APPLIED_BY, known
from outrider.postgres.statement import statement


@dataclass(slots=True)
class Identity:
    generation: int
    subscriptions: list[str]
    id: UUID = field(default_factory=uuid7)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    version: str = APPLIED_BY
    schema_version: int = field(default_factory=lambda: known()[-1].version)
    listening: bool = False
    stopping: bool = False
    strict: bool = False
    """It takes nothing of other generations."""
    queues: list[str] | None = None
    """The job queues that it serves; None = all."""
    unable: list[str] = field(default_factory=list)
    """Subscriptions with event types that its code does not know."""
    report: str | None = None
    """What it is doing and which problems it has, as JSON: see worker/troubles."""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.id.hex[-8:]}"


async def beat(conn: AsyncSession, worker: Identity, schema: str) -> bool:
    """Writes the worker's row. Returns whether a sample is due (activity)."""
    params = {name: getattr(worker, name) for name in worker.__slots__}
    params["pooled"] = getattr(conn, "pooled", False)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement("handlers/heartbeat", schema), params)
        row = await cursor.fetchone()
    return row is not None and bool(row[1])


def tell(dsn: str, worker: Identity, report: str, schema: str) -> None:
    """Sends a report from a thread, on a session of its own, while the event loop is blocked and sends no heartbeat."""
    with connect_sync(dsn, autocommit=True) as conn:
        conn.execute(statement("handlers/report", schema), {"id": worker.id, "report": report})


async def leave(conn: AsyncSession, worker: Identity, schema: str) -> None:
    await conn.execute(statement("handlers/farewell", schema), {"id": worker.id})
