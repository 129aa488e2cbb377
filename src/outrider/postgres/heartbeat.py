"""The rows by which workers are seen: a heartbeat while they live, gone when they end in good order. With it comes what they
are doing and what troubles them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from uuid import UUID

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
    queues: list[str] | None = None
    """Of the jobs that it runs; None = all."""
    unable: list[str] = field(default_factory=list)
    """Of its subscriptions, those that want event types which its code does not know."""
    report: str | None = None
    """What it is doing and what troubles it, as JSON: see dispatch.troubles."""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.id.hex[-8:]}"


async def beat(conn: AsyncSession, worker: Identity, schema: str) -> None:
    params = {name: getattr(worker, name) for name in worker.__slots__}
    params["pooled"] = getattr(conn, "pooled", False)
    await conn.execute(statement("handlers/heartbeat", schema), params)


def tell(dsn: str, worker: Identity, report: str, schema: str) -> None:
    """Called from a thread, on its own session, while the event loop is blocked and sends no heartbeat."""
    with connect_sync(dsn, autocommit=True) as conn:
        conn.execute(statement("handlers/report", schema), {"id": worker.id, "report": report})


async def leave(conn: AsyncSession, worker: Identity, schema: str) -> None:
    await conn.execute(statement("handlers/farewell", schema), {"id": worker.id})
