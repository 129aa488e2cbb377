"""The audit of what operators did, and the settings that they may change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from outrider.postgres.statement import fetch, fetch_call
from outrider.signed import UNSIGNED, Signed


@dataclass(frozen=True, slots=True)
class Entry:
    id: int
    at: datetime
    by: str
    """The name that the operator gave."""
    role: str
    """The database role of the session."""
    action: str
    subscription: str | None
    event_id: UUID | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Which:
    """An entry must match all of these; None matches every entry."""

    subscription: str | None = None
    by: str | None = None
    """The name that the operator gave, or the database role."""
    since: timedelta | None = None
    before: int | None = None
    """Only entries with a smaller id."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: int
    entered: str | None
    """For a rollup: the value that an operator has set instead."""
    least: int
    greatest: int
    updated_at: datetime


async def entries(conn: AsyncConnection[Any], which: Which, schema: str, *, limit: int) -> list[Entry]:
    """The newest first."""
    return [Entry(*row) for row in await fetch(conn, "admin/audit", schema, asdict(which) | {"limit": limit})]


async def settings(conn: AsyncConnection[Any], schema: str) -> list[Setting]:
    return [Setting(*row) for row in await fetch(conn, "admin/settings", schema)]


async def allow_content_class(
    conn: AsyncConnection[Any], name: str, like: str, schema: str, signed: Signed = UNSIGNED
) -> bool:
    """False: it was allowed before."""
    [(new,)] = await fetch_call(conn, "allow_content_class", schema, {"name": name, "like": like} | signed.params())
    return bool(new)


async def set_setting(
    conn: AsyncConnection[Any], name: str, value: str, schema: str, signed: Signed = UNSIGNED
) -> None:
    await fetch_call(conn, "set_setting", schema, {"name": name, "value": value} | signed.params())
