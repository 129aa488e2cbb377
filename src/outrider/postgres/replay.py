"""Dead letters go back into their line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from outrider.postgres.log import clear_error
from outrider.postgres.statement import statement


@dataclass(frozen=True, slots=True)
class Replayed:
    subscription: str | None
    """None where the event is nobody's dead letter."""
    outcome: Literal["replayed", "skipped_handled", "not_found"]
    """skipped_handled: its idempotency key has been handled. not_found: it is neither a dead letter nor handled there."""


async def replay(
    conn: AsyncConnection[Any], event_id: UUID, subscription: str | None, by: str | None, schema: str
) -> list[Replayed]:
    try:
        async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(
                statement("replay", schema), {"event_id": event_id, "subscription": subscription, "by": by}
            )
            return [Replayed(*row) for row in await cursor.fetchall()]
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
