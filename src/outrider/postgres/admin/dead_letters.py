"""What was given up on: dead letters by what went wrong, one by one, and in full. Nothing here changes anything."""

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
    """A Filter by its parts."""

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
    """The dead letters that fit all that is given; nothing given = all of them."""

    subscription: str | None = None
    event_type: str | type[Event] | None = None
    """A class is kept as its type."""
    code: str | None = None
    """The error's, as its last attempt had it."""
    fingerprint: str | None = None
    since: datetime | Duration | None = None
    """Buried then or later. A duration, like "2h", means so long ago, by the database's clock."""
    until: datetime | Duration | None = None
    """Buried before that."""
    workspace_id: str | None = None
    generation: int | None = None
    """Of the cursor that it belongs to."""

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
        """Whether it leaves anything out."""
        return self != Filter()

    def at(self, moment: datetime) -> Filter:
        """The same with times instead of durations."""
        since, until = (moment - each if isinstance(each, timedelta) else each for each in (self.since, self.until))
        return replace(self, since=since, until=until)

    def params(self) -> Params:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters that have one cause, as far as their texts say."""

    subscription: str
    event_type: str
    code: str | None
    fingerprint: str | None
    letters: int
    oldest: datetime
    newest: datetime
    sample: UUID
    """The event of the newest one."""
    message: str | None
    """Of the sample."""


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
    """All that is known of one event at one subscription; `status` says whether it is a dead letter still."""

    event_id: UUID
    subscription: str
    status: str
    """failed = a dead letter; discarded; pending = it waits for a retry."""
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
    """Its idempotency key has been handled: a replay would be skipped."""
    payload: str
    """As the log has it: JSON, one field a line."""
    edited: str | None
    """What its handler gets instead."""
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
    """Those whose idempotency key has been handled: a replay would skip them."""


async def groups(conn: AsyncConnection[Any], which: Filter, schema: str) -> list[Group]:
    """By subscription, event type and what went wrong; the largest first."""
    params = (await fixed(conn, which, schema)).params()
    return [Group(*row) for row in await fetch(conn, "admin/dead_letter_groups", schema, params)]


async def letters(
    conn: AsyncConnection[Any],
    which: Filter,
    schema: str,
    *,
    limit: int | None = PAGE,
    after: int = 0,
) -> list[Letter]:
    """In the order of their ids, after the one given."""
    params = (await fixed(conn, which, schema)).params() | {"limit": limit, "after": after}
    return [Letter(*row) for row in await fetch(conn, "admin/dead_letter_list", schema, params)]


async def each(conn: AsyncConnection[Any], which: Filter, schema: str) -> AsyncIterator[Letter]:
    """All of them, page after page."""
    which, after = await fixed(conn, which, schema), 0
    while page := await letters(conn, which, schema, after=after):
        for letter in page:
            yield letter
        after = page[-1].id


async def letter(
    conn: AsyncConnection[Any], event_id: UUID, subscription: str | None, schema: str
) -> list[WholeLetter]:
    """One for each subscription, or for the one that is named: in full, whatever has become of it."""
    rows = await fetch(conn, "admin/dead_letter", schema, {"event_id": event_id, "subscription": subscription})
    return [WholeLetter(*row) for row in rows]


async def count(conn: AsyncConnection[Any], which: Filter, schema: str) -> Count:
    [row] = await fetch(conn, "admin/count_dead_letters", schema, (await fixed(conn, which, schema)).params())
    return Count(*row)


async def fixed(conn: AsyncConnection[Any], which: Filter, schema: str) -> Filter:
    """Durations count from now, by the database's clock."""
    if isinstance(which.since, timedelta) or isinstance(which.until, timedelta):
        return which.at(await clock(conn, schema))
    return which


async def clock(conn: AsyncConnection[Any], schema: str) -> datetime:
    [(now,)] = await fetch(conn, "admin/clock", schema, {})
    assert isinstance(now, datetime)
    return now
