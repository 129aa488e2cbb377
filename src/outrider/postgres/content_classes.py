"""Content classes that the database allows beside the four: the settings `content_class.NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from outrider.postgres.statement import fetch

_PREFIX = "content_class."


async def of_events(conn: AsyncConnection[Any], schema: str, seqs: Sequence[int]) -> dict[int, str]:
    """By log position. Events that are gone are not in it."""
    return dict(await fetch(conn, "log/content_classes", schema, {"seqs": list(seqs)})) if seqs else {}


async def allowed(conn: AsyncConnection[Any], schema: str) -> dict[str, int]:
    """By name: the place in names.CONTENT_CLASSES of the class like which it is treated."""
    rows = await fetch(conn, "admin/settings", schema)
    return {name.removeprefix(_PREFIX): value for name, value, *_ in rows if name.startswith(_PREFIX)}
