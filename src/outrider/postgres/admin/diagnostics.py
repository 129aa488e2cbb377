"""What a doctor measures in the database: each look is one statement of sql/doctor/, in a transaction that cannot write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.conninfo import make_conninfo

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.admin import status
from outrider.postgres.admin.status import SCAN
from outrider.postgres.connection import AsyncSession
from outrider.postgres.listener import Listener
from outrider.postgres.statement import Params, Rows, looking, statement

MOST = 10_000
PATIENCE = timedelta(minutes=5)
LATE = status.LATE
WAITS = timedelta(seconds=5)
"""A session that waits longer than this for a lock is a finding."""
EXPIRING = timedelta(days=7)
"""How long before their removal dead letters become a finding."""
LATELY = timedelta(hours=1)
LIMITS = {"most": MOST, "lately": LATELY, "patience": PATIENCE, "expiring": EXPIRING}


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    version_number: int
    now: datetime
    queue: float
    """How full the queue of notifications is: 1 = no transaction that notifies can commit."""
    connections: int
    most_connections: int
    sees_all: bool
    """Whether this role sees the transactions of others."""


@dataclass(frozen=True, slots=True)
class Holder:
    kind: str
    """transaction, batch (that of a worker), prepared, standby or slot."""
    who: str
    writes: bool
    since: timedelta | None
    xids: int | None
    """How many transaction ids were drawn since."""
    ends: str
    """The statement that ends it."""
    idle: timedelta | None = None
    """For how long one that has published or enqueued has done nothing."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Whoever others wait for."""

    who: str
    idle: bool | None
    """Idle in a transaction; None: this role may not see it."""
    state_since: timedelta | None
    query: str | None
    """What it runs, or ran last."""
    waiting: int
    since: timedelta
    """How long the first has waited."""
    waiters: str | None
    ends: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker without a heartbeat whose session is still there."""

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
    """Of replication."""

    name: str
    active: bool
    state: str | None
    """reserved, extended, unreserved or lost."""
    bytes: int | None
    """Of WAL that it keeps."""
    size: str | None
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
    """How far it has come."""


@dataclass(frozen=True, slots=True)
class Segments:
    seq: int
    segments: int
    ahead: int
    last_begins: int | None
    in_last: int
    """Events in the last segment, up to MOST."""
    numbers: int | None
    """Of the log, from the oldest event that is there to the newest; None when it is empty."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Of upkeep."""

    ran_at: datetime | None
    there_since: datetime
    """The schema knows of upkeep since then."""
    days: int
    """How long the log is kept, in days."""
    segments: list[str]
    """Those that are kept longer, and why: in the same order."""
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Overdue:
    subscription: str
    kind: str
    rows: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Expiring:
    """Dead letters that are removed soon, unless somebody sees to them."""

    subscription: str
    letters: int
    """Up to MOST."""
    expires_at: datetime
    """The oldest of them."""


@dataclass(frozen=True, slots=True)
class Lately:
    """Dead letters of the last hour."""

    subscription: str
    letters: int
    """Up to MOST."""
    code: str | None
    message: str | None
    """Of the newest."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The newest failure of what a subscription has parked."""

    event_id: UUID
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Settled:
    page: int
    """0 = the newest."""
    seconds: float
    receipts: int
    ago: timedelta
    """The age of its oldest event."""
    lately: float | None = None
    """Seconds, as above, of what was handled within the last 5 minutes; None = nothing was."""


@dataclass(frozen=True, slots=True)
class Right:
    who: str
    may: str
    why: str
    """Why that is too much."""
    grave: bool
    """Else it is worth knowing."""


@dataclass(frozen=True, slots=True)
class Sharing:
    contexts: list[str]
    roles: list[str]
    """Those that may move the cursors of all of them."""


@dataclass(frozen=True, slots=True)
class Cron:
    state: str
    """INSTALLED, AVAILABLE, NEEDS_PRELOAD or NOT_AVAILABLE."""
    by_cron: int
    by_workers: int


@asynccontextmanager
async def reading(conn: AsyncSession) -> AsyncIterator[AsyncSession]:
    """The session, none of whose transactions can write until the end."""
    await conn.set_read_only(True)
    try:
        yield conn
    finally:
        if not conn.closed:
            await conn.set_read_only(None)


async def server(conn: AsyncSession, schema: str) -> Server:
    [row] = await look(conn, "server", schema)
    return Server(*row)


async def holders(conn: AsyncSession, schema: str) -> list[Holder]:
    return [Holder(*row) for row in await look(conn, "holders", schema)]


async def locks(conn: AsyncSession, schema: str) -> list[Lock]:
    return [Lock(*row) for row in await look(conn, "locks", schema, {"patience": WAITS})]


async def silent(conn: AsyncSession, schema: str) -> list[Silent]:
    return [Silent(*row) for row in await look(conn, "silent", schema, {"late": LATE})]


async def settings(conn: AsyncSession, schema: str) -> list[ServerSetting]:
    return [ServerSetting(*row) for row in await look(conn, "settings", schema)]


async def wal(conn: AsyncSession, schema: str) -> list[Slot]:
    return [Slot(*row) for row in await look(conn, "wal", schema)]


async def tuples(conn: AsyncSession, schema: str) -> list[Tuples]:
    return [Tuples(*row) for row in await look(conn, "tuples", schema)]


async def segments(conn: AsyncSession, schema: str) -> Segments:
    [row] = await look(conn, "segments", schema, LIMITS)
    return Segments(*row)


async def upkeep(conn: AsyncSession, schema: str) -> Keeping:
    [row] = await look(conn, "upkeep", schema)
    return Keeping(*row)


async def overdue(conn: AsyncSession, schema: str) -> list[Overdue]:
    return [Overdue(*row) for row in await look(conn, "overdue", schema, LIMITS)]


async def expiring(conn: AsyncSession, schema: str) -> list[Expiring]:
    return [Expiring(*row) for row in await look(conn, "expiring", schema, LIMITS)]


async def buried(conn: AsyncSession, schema: str) -> list[Lately]:
    return [Lately(*row) for row in await look(conn, "buried", schema, LIMITS)]


async def unread(conn: AsyncSession, schema: str) -> dict[str, datetime]:
    """When the oldest event occurred that a subscription has not read, as far as one looks."""
    async with looking(conn, schema) as looked:
        rows = await looked.rows("admin/oldest_unread", {"scan": SCAN})
    return {name: at for name, at, _ in rows if at is not None}


async def failing(conn: AsyncSession, schema: str, names: Sequence[str]) -> dict[str, Failing]:
    return {name: Failing(*row) for name, *row in await look(conn, "failing", schema, {"names": list(names)})}


async def settled(conn: AsyncSession, schema: str) -> list[Settled]:
    return [Settled(*row) for row in await look(conn, "settled", schema)]


async def rights(conn: AsyncSession, schema: str) -> list[Right]:
    return [Right(*row) for row in await look(conn, "privileges", schema)]


async def sharing(conn: AsyncSession, schema: str) -> Sharing:
    [row] = await look(conn, "sharing", schema)
    return Sharing(*row)


async def blockers(dsn: str, pid: int) -> list[str]:
    """Who holds the lock that this process waits for, each with the statement that ends it. From another session."""
    conn = await connection.connect(dsn, autocommit=True, name="outrider doctor")
    async with conn:
        cursor = await conn.execute(statement("doctor/blockers", "outrider"), {"pid": pid})
        return [who for (who,) in await cursor.fetchall()]


async def cron(conn: AsyncSession, schema: str) -> Cron:
    [row] = await look(conn, "cron", schema)
    return Cron(*row)


async def schedules(conn: AsyncSession, schema: str) -> tuple[datetime, list[Timetable]]:
    """What time it is, and all of them, the furthest first."""
    rows = await look(conn, "schedules", schema)
    return rows[0][0], [Timetable(*row[1:]) for row in rows if row[1] is not None]


async def look(conn: AsyncSession, name: str, schema: str, params: Params | None = None) -> Rows:
    """By one statement of sql/doctor/."""
    async with looking(conn, schema) as looked:
        return await looked.rows(f"doctor/{name}", params)


def same_server(conn: AsyncSession) -> str:
    """A DSN for another session like this one, with its password: it must not be shown."""
    given: dict[str, Any] = {"password": conn.info.password} if conn.info.password else {}
    return make_conninfo(conn.info.dsn, **given)


async def pooled(dsn: str) -> bool:
    """Whether somebody stands between us and the server."""
    conn = await connection.connect(dsn, autocommit=True, name="outrider doctor")
    async with conn:
        return conn.pooled


async def hears(dsn: str, schema: str, deadline: float) -> str | None:
    """Whether a poke arrives, as a worker's listener tries it; else what it says."""
    told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def tell(reason: str | None) -> None:
        if not told.done():
            told.set_result(reason)

    listener = Listener(
        dsn,
        ["outbox_default"],
        on_poke=lambda *_: None,
        on_up=lambda: tell(None),
        on_down=tell,
        schema=schema,
        deadline=deadline,
    )
    running = asyncio.create_task(listener.run())
    try:
        both: list[asyncio.Future[Any]] = [running, told]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return told.result() if told.done() else await running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, DatabaseUnavailable, connection.DatabaseError):
            await running
