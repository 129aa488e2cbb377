"""The measurements of the doctor. Each is one statement of sql/doctor/, in a read-only transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from outrider.postgres.admin import status
from outrider.postgres.admin.status import SCAN
from outrider.postgres.connection import AsyncSession
from outrider.postgres.statement import Params, Rows, looking

MOST = 10_000
"""Counts stop at this number."""
PATIENCE = timedelta(minutes=5)
"""How late a retry or a job may be before it is a finding."""
LATE = status.LATE
WAITS = timedelta(seconds=5)
"""A session that waits longer than this for a lock is a finding."""
EXPIRING = timedelta(days=7)
"""How long before their removal dead letters become a finding."""
LATELY = timedelta(hours=1)
"""The age up to which a dead letter is recent."""
LIMITS = {"most": MOST, "lately": LATELY, "patience": PATIENCE, "expiring": EXPIRING}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    version_number: int
    now: datetime
    queue: float
    """The share of the notification queue that is in use. At 1, transactions that notify cannot commit."""
    connections: int
    most_connections: int
    sees_all: bool
    """This role sees the transactions of other roles."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction or slot that keeps readers or vacuum from advancing."""

    kind: str
    """transaction, batch (the transaction of a worker), prepared, standby or slot."""
    who: str
    writes: bool
    since: timedelta | None
    xids: int | None
    """Transaction ids that were assigned since then."""
    ends: str
    """The statement that ends it."""
    idle: timedelta | None = None
    """How long it has been idle, if it has published or enqueued."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A session that blocks others."""

    who: str
    idle: bool | None
    """Idle in a transaction. None: this role may not see it."""
    state_since: timedelta | None
    query: str | None
    """The current statement, or the last one."""
    waiting: int
    since: timedelta
    """The longest wait for it."""
    waiters: str | None
    ends: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that has stopped sending heartbeats and still has its session."""

    worker: str
    since: timedelta
    backend: int
    role: str
    may: bool
    """Its role may still write heartbeats."""
    subscriptions: list[str]


@dataclass(frozen=True, slots=True)
class ServerSetting:
    name: str
    value: str
    place: str
    """Where it is set."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot."""

    name: str
    active: bool
    state: str | None
    """reserved, extended, unreserved or lost."""
    bytes: int | None
    """WAL that it retains."""
    size: str | None
    """The same for people."""
    ends: str


@dataclass(frozen=True, slots=True)
class Tuples:
    table: str
    live: int
    dead: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Timetable:
    name: str
    context: str | None
    job_type: str
    cron: str
    time_zone: str
    fired_at: datetime
    """The time up to which it has fired."""
    missed: str | None = None
    """As declared: once, skip or all. None: code that did not write it has registered it."""
    enqueued_at: datetime | None = None
    """When it last enqueued a job."""
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Segments:
    seq: int
    segments: int
    ahead: int
    last_begins: int | None
    in_last: int
    """Events in the last segment, up to MOST."""
    numbers: int | None
    """Log positions from the oldest event to the newest; None = the log is empty."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """The state of upkeep."""

    ran_at: datetime | None
    there_since: datetime
    """When the migration that brought upkeep was applied."""
    days: int
    """Retention of the log."""
    segments: list[str]
    """Segments that are kept longer than that."""
    reasons: list[str]
    """Why, one reason per segment."""


@dataclass(frozen=True, slots=True)
class Overdue:
    subscription: str
    kind: str
    """Of the subscription; unregistered = a job type that is not registered."""
    rows: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Expiring:
    """Dead letters that retention removes soon."""

    subscription: str
    letters: int
    """Up to MOST."""
    expires_at: datetime
    """When the oldest is removed."""


@dataclass(frozen=True, slots=True)
class Lately:
    """Dead letters of the last hour."""

    subscription: str
    letters: int
    """Up to MOST."""
    code: str | None
    """Of the newest."""
    message: str | None


@dataclass(frozen=True, slots=True)
class Unserved:
    """Events or jobs of one generation that no worker takes, because those of their subscription are strict."""

    kind: str
    """event or job."""
    subscription: str
    generation: int
    waiting: int
    """Up to MOST."""
    to: int
    """The newest generation with a live worker there."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The newest failure among the events that wait for a retry."""

    event_id: UUID
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from publish to receipt, for 1,000 log positions."""

    page: int
    """0 = the newest positions, 1 = those before."""
    seconds: float
    """The 99th percentile."""
    receipts: int
    ago: timedelta
    """The age of the oldest event."""
    lately: float | None = None
    """The 99th percentile of the last 5 minutes, in seconds; None = nothing was handled."""


@dataclass(frozen=True, slots=True)
class Right:
    """A privilege that a role should not have."""

    who: str
    may: str
    why: str
    """Why that is too much."""
    grave: bool
    """A warning, not only a note."""


@dataclass(frozen=True, slots=True)
class Sharing:
    contexts: list[str]
    roles: list[str]
    """Roles that may move the cursors of all these contexts."""


@dataclass(frozen=True, slots=True)
class Cron:
    state: str
    """INSTALLED, AVAILABLE, NEEDS_PRELOAD or NOT_AVAILABLE."""
    by_cron: int
    by_workers: int


@asynccontextmanager
async def reading(conn: AsyncSession) -> AsyncIterator[AsyncSession]:
    """Makes all transactions of the session read-only until the end of the block."""
    await conn.set_read_only(True)
    try:
        yield conn
    finally:
        if not conn.closed:
            await conn.set_read_only(None)


async def look(conn: AsyncSession, name: str, schema: str, params: Params | None = None) -> Rows:
    async with looking(conn, schema) as looked:
        return await looked.rows(f"doctor/{name}", params)


Measure = Callable[[AsyncSession, str], Awaitable[T]]


def _all(name: str, kind: Callable[..., T], params: Params | None = None) -> Measure[list[T]]:
    """A measurement that returns every row of its statement."""

    async def measure(conn: AsyncSession, schema: str) -> list[T]:
        return [kind(*row) for row in await look(conn, name, schema, params)]

    return measure


def _one(name: str, kind: Callable[..., T], params: Params | None = None) -> Measure[T]:
    """A measurement whose statement returns one row."""

    async def measure(conn: AsyncSession, schema: str) -> T:
        [row] = await look(conn, name, schema, params)
        return kind(*row)

    return measure


server = _one("server", Server)
segments = _one("segments", Segments, LIMITS)
upkeep = _one("upkeep", Keeping)
sharing = _one("sharing", Sharing)
cron = _one("cron", Cron)
holders = _all("holders", Holder)
settings = _all("settings", ServerSetting)
wal = _all("wal", Slot)
tuples = _all("tuples", Tuples)
expiring = _all("expiring", Expiring, LIMITS)
buried = _all("buried", Lately, LIMITS)
latencies = _all("settled", Latency)
unserved = _all("unserved", Unserved, {"most": MOST, "scan": MOST})
rights = _all("privileges", Right)


async def foreign_writers(
    conn: AsyncSession, schema: str, *, context: str, contexts: Iterable[str], owns: Iterable[str], roles: Iterable[str]
) -> list[Right]:
    """Who can write in the schemas that a context owns, and is none of its roles."""
    asked = {"context": context, "contexts": sorted(contexts), "owns": sorted(owns), "roles": sorted(roles)}
    return [Right(*row) for row in await look(conn, "foreign_writers", schema, asked)]


async def overdue(conn: AsyncSession, schema: str) -> list[Overdue]:
    async with looking(conn, schema) as looked:
        types = [name for (name,) in await looked.rows("jobs/job_types")]
        return [Overdue(*row) for row in await looked.rows("doctor/overdue", LIMITS | {"job_types": types})]


async def locks(conn: AsyncSession, schema: str) -> list[Lock]:
    return [Lock(*row) for row in await look(conn, "locks", schema, {"patience": WAITS})]


async def silent(conn: AsyncSession, schema: str) -> list[Silent]:
    return [Silent(*row) for row in await look(conn, "silent", schema, {"late": LATE})]


async def failing(conn: AsyncSession, schema: str, names: Sequence[str]) -> dict[str, Failing]:
    return {name: Failing(*row) for name, *row in await look(conn, "failing", schema, {"names": list(names)})}


async def schedules(conn: AsyncSession, schema: str) -> tuple[datetime, list[Timetable]]:
    """The database's time, and the schedules, the one that has fired furthest first."""
    rows = await look(conn, "schedules", schema)
    return rows[0][0], [Timetable(*row[1:]) for row in rows if row[1] is not None]


async def unread(conn: AsyncSession, schema: str) -> dict[str, datetime]:
    """When the oldest unread event of each subscription occurred, if it is among the next SCAN positions."""
    async with looking(conn, schema) as looked:
        rows = await looked.rows("admin/oldest_unread", {"scan": SCAN, "relay_scan": SCAN})
    return {name: at for name, at, *_ in rows if at is not None}
