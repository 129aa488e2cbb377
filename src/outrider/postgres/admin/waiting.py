"""Events that wait for a retry, and those that wait behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from outrider.postgres.admin import subscriptions
from outrider.postgres.statement import fetch_call

MOST_BEHIND = 1000


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """An event that a handler or a relay will try again."""

    subscription: str
    event_id: UUID
    seq: int
    event_type: str
    key: str | None
    """Of the event. None: it has none, or its subscription is in total order."""
    attempts: int
    run_at: datetime
    """When it is tried again."""
    code: str | None
    error: str | None
    behind: int
    """Events of the same key that wait until it is handled or dead. Up to MOST_BEHIND."""
    order: str
    """In total order all later events wait, and most of them are not counted, because they are not read yet."""
    generation: int
    place: str
    """For `after`: the next page begins behind it."""
    workspace_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventBehind:
    """An event that waits until an earlier one of its key is handled or dead."""

    subscription: str
    event_id: UUID
    seq: int
    """For `after`."""
    event_type: str
    attempts: int
    since: datetime


async def events(
    conn: AsyncConnection[Any],
    schema: str,
    *,
    subscription: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> list[WaitingEvent]:
    """Sorted by subscription, generation, partition, and when they are tried again."""
    if subscription is not None:
        await subscriptions.find(conn, subscription, schema)
    params = {"subscription": subscription, "after": after, "limit": limit, "most": MOST_BEHIND}
    found = [WaitingEvent(*row) for row in await fetch_call(conn, "waiting_events", schema, params)]
    return [_with_key(each) for each in found]


async def behind(
    conn: AsyncConnection[Any],
    event_id: UUID,
    schema: str,
    *,
    subscription: str | None = None,
    after: int = 0,
    limit: int = 50,
) -> list[EventBehind]:
    """Sorted by subscription and log position; at most `limit` of each subscription."""
    params = {"event_id": event_id, "subscription": subscription, "after": after, "limit": limit}
    return [EventBehind(*row) for row in await fetch_call(conn, "waiting_behind", schema, params)]


def _with_key(each: WaitingEvent) -> WaitingEvent:
    """The function returns the ordering key: behind its workspace, as in_workspace makes it, and empty in total order."""
    length, colon, rest = (each.key or "").partition(":")
    if colon and length.isascii() and length.isdigit() and len(length) < 7 and rest[int(length) :][:1] == ":":
        return replace(each, workspace_id=rest[: int(length)], key=rest[int(length) + 1 :])
    return replace(each, key=each.key or None)
