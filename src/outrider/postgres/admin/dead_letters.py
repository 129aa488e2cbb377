"""Reads dead letters: grouped by error, listed, or one in full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from psycopg import AsyncConnection

from outrider.envelope import Envelope
from outrider.errors import ConfigError
from outrider.event import Event, spec_of
from outrider.postgres.statement import Params, fetch
from outrider.retry import Duration, parse_duration

PAGE = 500


class Filtered(TypedDict, total=False):
    """The fields of a Filter."""

    subscription: str | None
    event_type: str | type[Event] | None
    code: str | None
    fingerprint: str | None
    since: datetime | Duration | None
    until: datetime | Duration | None
    workspace_id: str | None
    generation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Dead letters that match everything that is given. Without any field: all dead letters."""

    subscription: str | None = None
    event_type: str | type[Event] | None = None
    """A class is stored as its type."""
    code: str | None = None
    """The error code of the last attempt."""
    fingerprint: str | None = None
    since: datetime | Duration | None = None
    """Dead since then. A duration like "2h" counts back from now, by the database's clock."""
    until: datetime | Duration | None = None
    """Dead before then."""
    workspace_id: str | None = None
    generation: int | None = None
    """The generation of its cursor."""

    def __post_init__(self) -> None:
        if isinstance(self.event_type, type):
            object.__setattr__(self, "event_type", spec_of(self.event_type).type)
        for name in ("since", "until"):
            given = getattr(self, name)
            if isinstance(given, datetime):
                if given.utcoffset() is None:
                    raise ConfigError(
                        f"{name}: {given.isoformat()} has no time zone: give it one, or write it like '2h'"
                    )
            elif given is not None:
                try:
                    object.__setattr__(self, name, parse_duration(given))
                except ConfigError as wrong:
                    raise ConfigError(f"{name}: {wrong}") from None

    def __bool__(self) -> bool:
        """Whether any field is given."""
        return self != Filter()

    def at(self, moment: datetime) -> Filter:
        """The same with times instead of durations."""
        since, until = (moment - each if isinstance(each, timedelta) else each for each in (self.since, self.until))
        return replace(self, since=since, until=until)

    def params(self) -> Params:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters with the same error, judged by its text."""

    subscription: str
    event_type: str
    code: str | None
    fingerprint: str | None
    letters: int
    oldest: datetime
    newest: datetime
    sample: UUID
    """The newest event."""
    message: str | None
    """The error message of the sample."""


@dataclass(frozen=True, slots=True)
class Letter:
    id: int
    event_id: UUID
    subscription: str
    event_type: str
    key: str | None
    attempts: int
    cycle: int
    """1 until its first replay."""
    code: str | None
    message: str | None
    fingerprint: str | None
    buried_at: datetime
    workspace_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class WholeLetter:
    """One event at one subscription in full. It may no longer be a dead letter: see `status`."""

    event_id: UUID
    subscription: str
    status: str
    """failed (a dead letter), discarded, or pending (it waits for a retry)."""
    seq: int
    event_type: str
    event_version: int
    source: str
    key: str | None
    workspace_id: str | None
    idempotency_key: str
    occurred_at: datetime
    generation: int
    attempts: int
    cycle: int
    code: str | None
    message: str | None
    fingerprint: str | None
    first_failed_at: datetime | None
    buried_at: datetime | None
    handled_at: datetime | None
    """When its idempotency key was handled. If it was, a replay is skipped."""
    payload: str
    """The payload in the log, as indented JSON."""
    edited: str | None
    """The payload that the handler gets instead."""
    failure_history: list[dict[str, Any]]
    traceback: str | None = None
    """The last frames of its last error."""

    def envelope(self, payload: str) -> Envelope:
        """The event with another payload."""
        return Envelope(
            id=self.event_id,
            event_type=self.event_type,
            event_version=self.event_version,
            payload_json=payload,
            source=self.source,
            idempotency_key=self.idempotency_key,
            seq=self.seq,
        )


@dataclass(frozen=True, slots=True)
class Count:
    letters: int
    handled: int
    """How many of them a replay would skip, because their idempotency key has been handled."""


async def groups(conn: AsyncConnection[Any], which: Filter, schema: str, *, most: int | None = None) -> list[Group]:
    """Grouped by subscription, event type and error, the largest group first. With `most`: only that many are read."""
    params = (await fixed(conn, which, schema)).params() | {"most": most}
    return [Group(*row) for row in await fetch(conn, "admin/dead_letter_groups", schema, params)]


async def letters(
    conn: AsyncConnection[Any],
    which: Filter,
    schema: str,
    *,
    limit: int | None = PAGE,
    after: int = 0,
) -> list[Letter]:
    """Sorted by id, starting after the id `after`."""
    params = (await fixed(conn, which, schema)).params() | {"limit": limit, "after": after}
    return [Letter(*row) for row in await fetch(conn, "admin/dead_letter_list", schema, params)]


async def each(conn: AsyncConnection[Any], which: Filter, schema: str) -> AsyncIterator[Letter]:
    """All matching dead letters, read page by page."""
    which, after = await fixed(conn, which, schema), 0
    while page := await letters(conn, which, schema, after=after):
        for letter in page:
            yield letter
        after = page[-1].id


async def letter(
    conn: AsyncConnection[Any], event_id: UUID, subscription: str | None, schema: str
) -> list[WholeLetter]:
    """One for each subscription that has it, or for the one that is named."""
    rows = await fetch(conn, "admin/dead_letter", schema, {"event_id": event_id, "subscription": subscription})
    return [WholeLetter(*row) for row in rows]


async def count(conn: AsyncConnection[Any], which: Filter, schema: str, *, most: int | None = None) -> Count:
    params = (await fixed(conn, which, schema)).params() | {"most": most}
    [row] = await fetch(conn, "admin/count_dead_letters", schema, params)
    return Count(*row)


async def fixed(conn: AsyncConnection[Any], which: Filter, schema: str) -> Filter:
    """Replaces durations by times, counted from the database's clock."""
    if isinstance(which.since, timedelta) or isinstance(which.until, timedelta):
        return which.at(await clock(conn, schema))
    return which


async def clock(conn: AsyncConnection[Any], schema: str) -> datetime:
    [(now,)] = await fetch(conn, "admin/clock", schema, {})
    assert isinstance(now, datetime)
    return now
