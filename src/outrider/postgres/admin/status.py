"""The state of everything in one snapshot: schema, subscriptions, rollups, workers.

Counts are capped, and no query reads more than a bounded piece of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg import AsyncConnection

from outrider.postgres.admin.streams import Stream, Topic, topics_of
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.errors import missing_schema
from outrider.postgres.rollups import Rolling
from outrider.postgres.schema.migrate import applied, pending
from outrider.postgres.schema.phases import Phase
from outrider.postgres.statement import Look, looking

SCAN = 1000
MOST_COUNTED = 10**15
"""No worker has handled more. Sums of more would not fit a bigint."""

State = Literal[
    "paused", "breaker", "no_worker", "unable", "broker_down", "troubled", "unanswered", "failing", "running"
]
LATE = timedelta(seconds=15)
"""A worker that was last seen longer ago than this has missed a heartbeat, which comes every 10 s."""
IN_A_ROW = {"rolled_back": 3, "broker": 1, "failing": 5, "loop": 1}
"""Consecutive failures before they are shown, by kind: an occasional deadlock is normal."""
LOUD = {"25006", "42501", "57014"}
"""Shown after one failure: read-only transaction, missing privilege, statement_timeout."""
ORDER = ("rolled_back", "unanswered", "broker", "loop", "failing")
"""The kinds of troubles, those first that make a worker stand still."""


def is_lasting(kind: str, code: str, in_a_row: int) -> bool:
    return (kind == "rolled_back" and code in LOUD) or in_a_row >= IN_A_ROW.get(kind, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem that a worker reported with its last heartbeat."""

    kind: str
    """rolled_back: batches or claims fail for reasons outside the handler. broker: the broker does not answer. failing:
    every attempt of a handler or job fails. loop: the event loop is or was blocked. unanswered: a statement of a handler
    waits for the database."""
    name: str
    """The subscription, or "(jobs)", "(schedules)", "(rollups)", "(upkeep)", "(heartbeat)"."""
    code: str
    message: str
    in_a_row: int
    since: datetime
    seconds: float
    """How long it had lasted when it was reported."""

    @property
    def lasting(self) -> bool:
        return is_lasting(self.kind, self.code, self.in_a_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What has been running longest in a worker: a handler, a job, a relay, a rollup or upkeep."""

    name: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A worker by its heartbeat."""

    host: str
    pid: int
    version: str
    generation: int
    subscriptions: list[str]
    unable: list[str]
    """Subscriptions with event types that its code does not know. It takes nothing from them."""
    listening: bool
    """It is woken by notifications; otherwise, it polls."""
    stopping: bool
    started_at: datetime
    seen_at: datetime
    live: bool
    """Seen within the last 30 s. Otherwise, it has died or is cut off; after a day its row is deleted."""
    schema_version: int | None
    """The newest migration that its code knows; None = it has not said so."""
    strict: bool = False
    """It takes nothing of other generations, unless an operator moves it."""
    doing: Doing | None = None
    troubles: tuple[Trouble, ...] = ()
    """As of its last heartbeat, by ORDER, then the oldest first."""
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By subscription: event types that its code does not know: the first three."""
    handled: int = 0
    """Events and jobs since it started."""
    failed: int = 0
    """Attempts."""

    def serves(self, subscription: str) -> bool:
        return self.live and not self.stopping and subscription in self.subscriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far the events of one generation have been read. 0 stands for all generations without cursors of their own."""

    generation: int
    served_by: int
    """The generation whose workers serve it."""
    seq: int
    """The position of the slowest cursor."""
    lag: int
    failures: int
    """Consecutive failures, if the handler has a breaker."""
    open_until: datetime | None
    """Until when the breaker is open."""
    workers: tuple[str, ...]
    """The workers that serve it, as host:pid: those of `served_by`, or if there are none, those of other generations that
    are not strict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One subscription."""

    name: str
    kind: str
    context: str
    event_types: list[str] | None
    """None = every type."""
    partitions: int
    order: str
    states: tuple[State, ...]
    """paused, breaker (it is open), no_worker, unable (its workers do not know all its event types), broker_down, troubled
    (batches are rolled back repeatedly), failing (every attempt fails); or running."""
    paused_at: datetime | None
    lag: int
    """Log positions that its slowest cursor has not passed. Many of them may be events of other types."""
    oldest_owed_at: datetime | None
    """When the oldest event occurred that is unread or waits for a retry; for jobs, when the oldest became due."""
    oldest_is_certain: bool
    """False: there may be older ones beyond the part of the log that was searched."""
    waiting_since: datetime | None
    """The same, of what a worker could take now: unread events, and retries and jobs that are due. None for a reader, and
    while it is paused."""
    waiting: int
    """Events that wait for a retry; for jobs, those that are pending or running."""
    running: int
    """Jobs that are leased."""
    dead: int
    positions: tuple[Position, ...]
    streams: tuple[Stream, ...]
    """The streams of a relay or an inbox. A relay's stream appears with its first event."""
    topics: tuple[Topic, ...] = ()
    """What a relay owes, and its dead letters, by event type."""
    topics_are_complete: bool = True
    """False: the relay is more than MOST log positions behind, and only these were counted."""
    troubles: tuple[Trouble, ...] = ()
    """What its live workers reported."""

    @property
    def is_behind(self) -> bool:
        """Not all of the log positions in `lag` are known to be of other events."""
        return self.lag > 0 and (self.oldest_owed_at is not None or not self.oldest_is_certain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    schema: str
    version: int
    pending: tuple[str, ...]
    """Migrations that this code knows and that are not applied."""
    read_at: datetime
    """The time of the snapshot, by the database's clock."""
    seq: int
    """The newest position of the log."""
    paused_at: datetime | None
    """Since when everything is paused."""
    paused_schedules: dict[str, datetime]
    """Since when each is paused."""
    jobs: dict[str, int]
    """Jobs that are running, pending or failed, up to MOST each, including unregistered types. Empty if there is no type."""
    subscriptions: tuple[Standing, ...]
    rollups: tuple[Rolling, ...]
    workers: tuple[Seen, ...]

    @property
    def live(self) -> int:
        return sum(worker.live for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Unread:
    """What a subscription has not read, as far as the log was searched."""

    at: datetime | None
    certain: bool
    topics: tuple[Topic, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class RelayTopics:
    """What one relay owes."""

    name: str
    event_types: list[str] | None
    topics: tuple[Topic, ...]


async def status(conn: AsyncConnection[Any], schema: str) -> Status:
    have = await applied(conn, schema)
    if not have:
        raise missing_schema(schema)
    lacking = tuple(f"{step.version:04} {step.name}" for step in pending(have))
    current = not pending(have, Phase.pre)
    async with looking(conn, schema) as look:
        [(read_at, seq, paused_at)] = await look.rows("admin/moment")
        # The statements below need the tables of the newest migrations.
        seen = tuple(await workers_of(look)) if current else ()
        standings = await look.rows("admin/standings", {"most": MOST}) if current else []
        positions = await look.rows("admin/positions") if current else []
        unread = await _unread(look) if current else {}
        streams = await look.rows("streams/stream_standings", {"most": MOST}) if current else []
        rolling = await look.rows("rollups/rollup_standings", {"most": MOST}) if current else []
        schedules = await look.rows("jobs/paused_schedules") if current else []
        types = [name for (name,) in await look.rows("jobs/job_types")] if current else []
        jobs = await look.rows("jobs/job_counts", {"names": types, "queue": None, "most": MOST}) if types else []
    return Status(
        schema=schema,
        version=have[-1].version,
        pending=lacking,
        read_at=read_at,
        seq=seq,
        paused_at=paused_at,
        paused_schedules=dict(schedules),
        jobs=dict(jobs),
        subscriptions=tuple(
            _standing(row, _of(row[0], positions), unread[row[0]], seen, _of(row[0], streams), paused_at)
            for row in standings
        ),
        rollups=tuple(Rolling(**dict(zip(Rolling.__slots__, row, strict=True))) for row in rolling),
        workers=seen,
    )


async def relay_topics(conn: AsyncConnection[Any], schema: str) -> tuple[datetime, list[RelayTopics]]:
    """The time of the snapshot, and what each relay owes. The role of relays may read this, unlike the whole status."""
    async with looking(conn, schema) as look:
        [(read_at, *_)] = await look.rows("admin/moment")
        unread = await _unread(look)
        rows = await look.rows("streams/relays")
    return read_at, [RelayTopics(name, event_types, unread[name].topics) for name, event_types in rows]


async def _unread(look: Look) -> dict[str, Unread]:
    oldest = await look.rows("admin/oldest_unread", {"scan": SCAN, "relay_scan": MOST})
    letters = await look.rows("streams/relay_letters", {"most": MOST})
    return {
        name: Unread(at, certain, topics_of(types, _of(name, letters)), complete)
        for name, at, certain, types, complete in oldest
    }


async def workers(conn: AsyncConnection[Any], schema: str) -> list[Seen]:
    async with looking(conn, schema) as look:
        return await workers_of(look)


async def workers_of(look: Look) -> list[Seen]:
    return [_seen(row) for row in await look.rows("admin/workers_seen")]


def _seen(row: Sequence[Any]) -> Seen:
    *known, report, reported_at = row
    return Seen(**dict(zip(Seen.__slots__, known, strict=False)), **_reported(report, reported_at))


def _reported(report: Any, at: datetime | None) -> dict[str, Any]:
    """Any role that may run a worker can write anything into a report."""
    if at is None or not isinstance(report, dict):
        return {}
    found: dict[str, Any] = {}
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        doing = report["doing"]
        found["doing"] = Doing(name=str(doing["name"]), since=at - timedelta(seconds=float(doing["seconds"])))
    with suppress(KeyError, TypeError, AttributeError):
        found["unknown"] = {str(name): tuple(map(str, types)) for name, types in report["unknown"].items()}
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        counts = {name: int(report[name]) for name in ("handled", "failed")}
        found |= counts if all(0 <= each <= MOST_COUNTED for each in counts.values()) else {}
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        found["troubles"] = tuple(
            Trouble(
                **{name: str(each[name]) for name in ("kind", "name", "code", "message")},
                in_a_row=int(each["in_a_row"]),
                since=at - timedelta(seconds=float(each["seconds"])),
                seconds=float(each["seconds"]),
            )
            for each in report["troubles"]
        )
    return found


def _of(subscription: str, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return [row[1:] for row in rows if row[0] == subscription]


def _standing(
    row: Sequence[Any],
    positions: Sequence[Sequence[Any]],
    unread: Unread,
    workers: Sequence[Seen],
    streams: Sequence[Sequence[Any]],
    all_paused_at: datetime | None,
) -> Standing:
    name, kind, context, event_types, partitions, order, paused_at, waiting, running, waiting_at, due_at, dead = row
    read = tuple(_position(name, each, workers) for each in positions)
    serving = [each for each in workers if each.serves(name)]
    able = [each for each in serving if name not in each.unable]
    troubles = tuple(
        each for worker in workers if worker.live for each in worker.troubles if each.name == name and each.lasting
    )
    states: list[tuple[State, bool]] = [
        ("paused", paused_at is not None),
        ("breaker", any(each.open_until for each in read)),
        ("no_worker", kind != "reader" and not serving),
        ("unable", bool(serving) and not able),
        ("broker_down", any(each.kind == "broker" for each in troubles)),
        ("troubled", any(each.kind == "rolled_back" for each in troubles)),
        ("unanswered", any(each.kind == "unanswered" for each in troubles)),
        ("failing", any(each.kind == "failing" for each in troubles)),
    ]
    return Standing(
        name=name,
        kind=kind,
        context=context,
        event_types=event_types,
        partitions=partitions,
        order=order,
        states=tuple(state for state, holds in states if holds) or ("running",),
        paused_at=paused_at,
        lag=max((each.lag for each in read), default=0),
        oldest_owed_at=_oldest(unread.at, waiting_at),
        oldest_is_certain=unread.certain,
        waiting_since=waiting_since(kind, paused_at or all_paused_at, unread.at, due_at),
        waiting=waiting,
        running=running,
        dead=dead,
        positions=read,
        streams=tuple(Stream(**dict(zip(Stream.__slots__, each, strict=True))) for each in streams),
        topics=unread.topics,
        topics_are_complete=unread.complete,
        troubles=troubles,
    )


def waiting_since(
    kind: str, paused_at: datetime | None, unread_at: datetime | None, due_at: datetime | None
) -> datetime | None:
    """When the oldest occurred that a worker of a subscription could take."""
    return None if kind == "reader" or paused_at is not None else _oldest(unread_at, due_at)


def _oldest(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


def _position(name: str, row: Sequence[Any], workers: Sequence[Seen]) -> Position:
    """Finds the workers by the same rule as sql/handlers/serving.sql."""
    generation, served_by, seq, lag, failures, open_until = row
    able = [each for each in workers if each.serves(name) and name not in each.unable]
    serving = [each for each in able if each.generation == served_by] or [each for each in able if not each.strict]
    return Position(
        generation=generation,
        served_by=served_by,
        seq=seq,
        lag=lag,
        failures=failures,
        open_until=open_until,
        workers=tuple(f"{each.host}:{each.pid}" for each in serving),
    )
