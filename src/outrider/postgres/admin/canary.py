"""The canary's own statements: register it, publish its event, remove both. The SQL functions explain the rules."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from outrider.postgres.statement import fetch, fetch_call

PREFIX = "outrider.canary_"
"""The subscription of a canary and the type of its event have the same name."""
_NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{8}\Z")


def is_name(text: str) -> bool:
    """The same rule as in the SQL function canary_begin."""
    return _NAME.match(text) is not None


def answer_channel(name: str) -> str:
    """Where the doctor hears that its canary was settled."""
    return name.replace(".", "_")


async def begin(conn: AsyncConnection[Any], name: str, schema: str) -> None:
    async with conn.transaction():
        await conn.execute("set transaction isolation level read committed")
        await fetch_call(conn, "canary_begin", schema, {"name": name})


async def send(conn: AsyncConnection[Any], name: str, generation: int, schema: str) -> UUID:
    [(event,)] = await fetch_call(conn, "canary_send", schema, {"name": name, "generation": generation})
    return UUID(str(event))


async def end(conn: AsyncConnection[Any], name: str, event: UUID | None, schema: str) -> None:
    await fetch_call(conn, "canary_end", schema, {"name": name, "event": event})


async def answer(conn: AsyncConnection[Any], name: str, worker: str, take: float) -> None:
    """The notification of a worker to the doctor, which is sent when the worker's transaction commits."""
    said = """select pg_notify(%s, json_build_object('worker', %s::text, 'take', %s::float8,
                                                     'taken_at', extract(epoch from clock_timestamp()))::text)"""
    await conn.execute(said, [answer_channel(name), worker, take])


async def registered(conn: AsyncConnection[Any], names: list[str], schema: str) -> list[str]:
    """Which of these canaries exist."""
    return [name for (name,) in await fetch(conn, "handlers/canaries", schema, {"names": names})]


async def handled(conn: AsyncConnection[Any], name: str, schema: str) -> float | None:
    """The server's time in seconds, if a worker has settled it; else None."""
    return next((float(now) for (now,) in await fetch(conn, "doctor/canary_handled", schema, {"name": name})), None)
