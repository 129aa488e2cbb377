"""The statements of jobs: claim, settle, renew, route."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncCursor
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from outrider.envelope import Envelope
from outrider.postgres.connection import AsyncSession
from outrider.postgres.errors import in_our_words
from outrider.postgres.log import time_of, trace_of
from outrider.postgres.statement import Params, call, fetch_call, statement
from outrider.postgres.worker_sessions import alone

Row = tuple[Any, ...]

# The columns of the SQL type `claimed`. The last row of a claim has only the first column; the other rows have the rest.
_HEAD, _DELIVERY, _TOKEN, _SUBSCRIPTION, LEASE, _ATTEMPT, _CRASHES, _QUEUE, _CLAIM_AT = range(9)
ID, TYPE, VERSION, _OCCURRED_AT, _SOURCE, _GENERATION, WORKSPACE, KEY, PAYLOAD, TRACE, _EVENT = range(9, 20)

_NOT_OF_JOBS: dict[str, Any] = {"content_class": "internal", "channel": "outbox_default"}


class Leased:
    """A job that this worker has leased. Columns are read on demand, because most are never needed."""

    __slots__ = ("delivery", "row", "since", "until")

    def __init__(self, row: Row, since: float, until: float) -> None:
        self.row = row
        self.delivery: int = row[_DELIVERY]
        self.since = since
        """When the worker received it, by time.monotonic."""
        self.until = until
        """When its lease expires."""

    @property
    def token(self) -> int:
        return self.row[_TOKEN]  # type: ignore[no-any-return]

    @property
    def subscription(self) -> str:
        return self.row[_SUBSCRIPTION]  # type: ignore[no-any-return]

    @property
    def lease(self) -> float:
        """Seconds."""
        return self.row[LEASE]  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        return self.row[_ATTEMPT]  # type: ignore[no-any-return]

    @property
    def suspect(self) -> bool:
        """A worker died while it held the job."""
        return self.row[_CRASHES] > 0  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        return self.row[_QUEUE]  # type: ignore[no-any-return]

    @property
    def id(self) -> UUID:
        return UUID(bytes=self.row[ID])

    @property
    def key(self) -> str | None:
        return self.row[KEY]  # type: ignore[no-any-return]

    def carrying(self, trace: dict[str, str] | None) -> Leased:
        """The same job with another trace context."""
        row = (*self.row[:TRACE], None if trace is None else json.dumps(trace), *self.row[TRACE + 1 :])
        return Leased(row, self.since, self.until)

    @property
    def envelope(self) -> Envelope:
        """The envelope of the event, or of the enqueued job."""
        row = self.row
        event = row[_EVENT] or {"idempotency_key": str(self.id), **_NOT_OF_JOBS}
        return Envelope(
            id=self.id,
            event_type=row[TYPE],
            event_version=row[VERSION],
            payload_json=row[PAYLOAD],
            source=row[_SOURCE],
            generation=row[_GENERATION],
            workspace_id=row[WORKSPACE],
            key=row[KEY],
            trace_context=None if row[TRACE] is None else trace_of(row[TRACE]),
            occurred_at=time_of(row[_OCCURRED_AT]),
            **event,
        )


@dataclass(frozen=True, slots=True)
class Other:
    """A job that is not done: the arguments of the SQL function release."""

    delivery: int
    token: int
    verdict: str
    delay: float = 0
    code: str | None = None
    message: str | None = None
    counted: bool = True
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The arguments of the SQL function claim."""

    worker: UUID
    names: list[str]
    limit: int
    generation: int
    queues: list[str] | None
    suspect: bool
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """The arguments of the SQL function claim_lane."""

    subscription: str
    generation: int
    queue: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Claimed:
    rows: list[Row]
    due_in: float | None = None
    """Seconds until there may be more; None = nothing is pending."""
    stop: Sequence[int] = ()
    """Jobs of this worker whose cancellation was requested."""
    lane: Lane | None = None
    """The lane of these jobs, if all come from one."""


async def claim(conn: AsyncSession, asked: ClaimRequest, schema: str) -> Claimed:
    params = {name: getattr(asked, name) for name in asked.__slots__}
    *rows, (head, *_) = await _claim(conn, "claim", params, schema)
    return Claimed(rows, head.get("due_in"), head["stop"], _lane(rows) if head.get("single") else None)


async def claim_lane(conn: AsyncSession, asked: ClaimRequest, lane: Lane, schema: str) -> Claimed:
    params = {name: getattr(lane, name) for name in lane.__slots__} | {"worker": asked.worker, "limit": asked.limit}
    rows = await _claim(conn, "claim_lane", params, schema)
    return Claimed(rows, 0, (), _lane(rows))


async def _claim(conn: AsyncSession, name: str, params: Params, schema: str) -> list[Row]:
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    for kind in ("uuid", "timestamp", "timestamptz"):  # loaded when asked for
        cursor.adapters.register_loader(kind, ByteaBinaryLoader)
    with in_our_words(schema):
        async with alone(conn):
            await cursor.execute(call(name, schema, tuple(params)), params, binary=True)
        rows = await cursor.fetchall()
        large = {row[_DELIVERY]: row[_TOKEN] for row in rows if row[_DELIVERY] is not None and row[PAYLOAD] is None}
        if not large:
            return rows
        asked = {"deliveries": list(large), "token": next(iter(large.values()))}
        async with alone(conn):
            await cursor.execute(statement("jobs/payloads", schema), asked)
        texts = {delivery: texts for delivery, *texts in await cursor.fetchall()}
    return [
        (*row[:PAYLOAD], *texts[row[_DELIVERY]], *row[TRACE + 1 :]) if row[_DELIVERY] in large else row
        for row in rows
        if row[_DELIVERY] in texts or row[_DELIVERY] not in large  # without texts: its lease is gone
    ]


def _lane(rows: Sequence[Row]) -> Lane | None:
    """The lane of the last job."""
    if not rows:
        return None
    last = rows[-1]
    return Lane(last[_SUBSCRIPTION], last[_GENERATION], last[_QUEUE], time_of(last[_CLAIM_AT]))


SETTLED = ("names", "done::bigint[]", "tokens::bigint[]", "results::jsonb[]", "others", "worker")
"""The parameters of the SQL function settle_jobs."""


async def settle(
    conn: AsyncSession,
    done: Sequence[Leased],
    results: Sequence[str | None],
    others: Sequence[Other],
    names: list[str],
    worker: str,
    schema: str,
) -> dict[int, str]:
    """`results`: of the jobs in `done`, as JSON. Returns the outcomes by delivery. A job without one was no longer leased to
    this worker."""
    deliveries = [each.delivery for each in done]
    params = {
        "names": names,
        "done": _array(deliveries),
        "tokens": _array([each.token for each in done]),
        "results": list(results) if any(results) else [],  # what is missing is null
        "others": json.dumps([{name: getattr(each, name) for name in each.__slots__} for each in others]),
        "worker": worker,
    }
    with in_our_words(schema):
        cursor = AsyncCursor(conn, row_factory=tuple_row)
        async with alone(conn):
            await cursor.execute(call("settle_jobs", schema, SETTLED), params, binary=True)
        rows = await cursor.fetchall()
    landed = {delivery: outcome for delivery, outcome in rows if delivery is not None}
    if len(landed) < len(rows):  # a row without a delivery stands for all jobs in `done`
        landed |= dict.fromkeys(deliveries, "done")
    return landed


def _array(numbers: Sequence[int]) -> str:
    """As Postgres writes an array. psycopg takes 0.9 µs per number to write one."""
    return "{" + ",".join(map(str, numbers)) + "}"


async def report(conn: AsyncSession, progress: Sequence[tuple[int, int, str]], schema: str) -> None:
    """Stores the progress of jobs: delivery, token and JSON of each."""
    deliveries, tokens, texts = (list(each) for each in zip(*progress, strict=True))
    params = {"deliveries": deliveries, "tokens": tokens, "progress": texts}
    await conn.execute(statement("jobs/progress", schema), params)


async def renew(conn: AsyncSession, worker: UUID, names: list[str], schema: str) -> list[Row]:
    return await fetch_call(conn, "renew", schema, {"worker": worker, "names": names})


async def route(conn: AsyncSession, params: Params, schema: str) -> tuple[str, int, float]:
    """Turns events into jobs, in a transaction of its own. Returns the outcome of the take, the number of jobs, and if the
    outcome is idle, the seconds until an event may be tried again that another transaction holds up."""
    [(outcome, routed, due_in)] = await fetch_call(conn, "route", schema, params)
    return outcome, routed, float("inf") if due_in is None or outcome != "idle" else max(0.0, due_in)
