"""Operations on jobs: list, show one, cancel, run now, retry; `bulk_jobs` does so for all that match."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Unpack
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from outrider.errors import NoSuchType, ReplayRefused, SubscriptionRefused
from outrider.postgres.admin import bulk_jobs
from outrider.postgres.admin.bulk_jobs import BulkVerb, JobCount, JobFilter, JobFiltered, JobsDone, JobsProgress
from outrider.postgres.admin.replay import HELD
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.pool import Pool
from outrider.postgres.statement import fetch, fetch_call, looking

State = Literal["pending", "running", "failed", "cancelled", "superseded", "discarded", "done"]
ORDER = ("in_flight", "pending", "failed", "discarded", "done")
OWED = ("pending", "running", "failed")


@dataclass(frozen=True, slots=True)
class JobRow:
    id: UUID
    subscription: str
    """The job type; for a job on events, its name."""
    event_type: str
    """The job type; for a job on events, the type of its event."""
    version: int | None
    state: State
    """failed: a dead letter. superseded: another job with its unique key was enqueued while it ran."""
    queue: str | None
    priority: int | None
    key: str | None
    unique_key: str | None
    run_at: datetime | None
    attempts: int | None
    cycle: int | None
    crashes: int | None
    waiting: bool | None
    """It waits because key_concurrency jobs of its key are running."""
    worker: UUID | None
    worker_name: str | None
    """host:pid, while the worker is known."""
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    cancelled_at: datetime | None
    """When its cancellation was requested."""
    progress: dict[str, Any] | None
    code: str | None
    error: str | None
    source: str | None
    created_at: datetime | None
    done_at: datetime | None
    workspace_id: str | None
    generation: int | None
    paused: bool | None
    """Its type is paused."""
    served: bool | None
    """A worker has code for it."""
    payload: str | None
    result: Any
    history: list[dict[str, Any]] | None
    seq: int | None
    """The log position of its event; None if it was enqueued."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> JobRow:
        status, superseded = row[4:6]
        fields = dict(zip(cls.__slots__, (*row[:5], *row[6:]), strict=True))
        return cls(**fields | {"state": _state(status, fields["code"], superseded=superseded)})


def _state(status: str, code: str | None, *, superseded: bool) -> State:
    match status:
        case "in_flight":
            return "running"
        case "discarded":
            return "superseded" if superseded else "cancelled" if code == "cancelled" else "discarded"
        case "pending" | "failed" | "done":
            return status
    raise ValueError(status)


@dataclass(frozen=True, slots=True)
class JobListing:
    read_at: datetime
    """The time of the snapshot, by the database's clock."""
    paused_at: datetime | None
    """Since when everything is paused."""
    jobs: list[JobRow]
    counts: dict[str, int] = field(default_factory=dict)
    """running, pending, failed; up to MOST. Empty for a search."""
    searched: int | None = None
    """A search read so many jobs; None: indices found these."""
    place: int | None = None
    """Where a search continues; None: it has seen the last job."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    subscription: str | None
    outcome: str


async def listing(
    conn: AsyncConnection[Any],
    schema: str,
    *,
    name: str | None = None,
    states: Iterable[str] = OWED,
    queue: str | None = None,
    limit: int = 50,
) -> JobListing:
    """Sorted by state: running; pending, in the order in which they will run; failed; discarded; done."""
    async with looking(conn, schema) as look:
        [(read_at, _, paused_at)] = await look.rows("admin/moment")
        known = [known for (known,) in await look.rows("jobs/job_types")]
        if name is not None and name not in known:
            raise NoSuchType(name, known)
        which = {"names": known if name is None else [name], "queue": queue, "most": MOST, "ids": []}
        rows = await look.rows("jobs/jobs", {**which, "states": list(states), "limit": limit})
        counts: dict[str, int] = dict(await look.rows("jobs/job_counts", which))
    rows.sort(key=lambda row: (ORDER.index(row[4]), row[-1]))
    return JobListing(read_at, paused_at, [JobRow.of(row[:-1]) for row in rows[:limit]], counts)


async def searched(
    conn: AsyncConnection[Any],
    which: JobFilter,
    schema: str,
    *,
    after: int = 0,
    limit: int = 50,
    seconds: float | None = None,
) -> JobListing:
    """Reads the jobs by id, at most 100,000 of them. Each page is sorted as `listing` does."""
    found = await bulk_jobs.search(conn, which, schema, after=after, limit=limit, seconds=seconds)
    async with looking(conn, schema) as look:
        [(read_at, _, paused_at)] = await look.rows("admin/moment")
        names = [known for (known,) in await look.rows("jobs/job_types")]
        params = {"names": names, "queue": None, "most": MOST, "ids": found.ids, "states": [], "limit": limit}
        rows = await look.rows("jobs/jobs", params)
    rows.sort(key=lambda row: (ORDER.index(row[4]), row[-1]))
    jobs = [JobRow.of(row[:-1]) for row in rows]
    return JobListing(read_at, paused_at, jobs, searched=found.searched, place=found.place)


async def whole(conn: AsyncConnection[Any], job_id: UUID, schema: str) -> JobListing:
    """One row per subscription that has the job: usually one, none if no trace of it is kept."""
    async with looking(conn, schema) as look:
        [(read_at, _, paused_at)] = await look.rows("admin/moment")
        return JobListing(read_at, paused_at, [JobRow.of(row) for row in await look.rows("jobs/job", {"id": job_id})])


async def cancel(
    conn: AsyncConnection[Any], job_id: UUID, schema: str, *, by: str | None, reason: str | None
) -> list[JobOutcome]:
    return await _change(conn, "cancel", job_id, schema, by, reason)


async def run_now(
    conn: AsyncConnection[Any], job_id: UUID, schema: str, *, by: str | None, reason: str | None
) -> list[JobOutcome]:
    return await _change(conn, "run_now", job_id, schema, by, reason)


async def _change(
    conn: AsyncConnection[Any], verb: str, job_id: UUID, schema: str, by: str | None, reason: str | None
) -> list[JobOutcome]:
    params = {"job_id": job_id, "by": by, "reason": reason}
    try:
        return [JobOutcome(*row) for row in await fetch_call(conn, verb, schema, params)]
    except psycopg.errors.LockNotAvailable as error:
        raise SubscriptionRefused(
            "nothing was changed: a transaction that enqueues onto the job has locked it for 10 s. Try again when it has "
            "ended"
        ) from error


async def retry(
    conn: AsyncConnection[Any], job_id: UUID, schema: str, *, by: str | None, reason: str | None
) -> list[JobOutcome]:
    params = {"job_id": job_id, "by": by, "reason": reason}
    try:
        rows = await fetch(conn, "jobs/retry_job", schema, params)
    except psycopg.errors.LockNotAvailable as error:
        raise ReplayRefused(f"nothing was retried: {HELD}") from error
    if not rows:
        return [JobOutcome(each.subscription, each.state) for each in (await whole(conn, job_id, schema)).jobs] or [
            JobOutcome(None, "not_found")
        ]
    return [JobOutcome(*row) for row in rows]


class Jobs:
    """`app.jobs`."""

    def __init__(self, opened: Callable[[], Pool], schema: str) -> None:
        self._opened = opened
        self._schema = schema

    async def find(
        self,
        *,
        name: str | None = None,
        states: Iterable[str] = OWED,
        queue: str | None = None,
        key: str | None = None,
        workspace_id: str | None = None,
        payload: Mapping[str, str] | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        """`states`: running, pending, failed, cancelled (includes superseded and discarded), done (left a receipt). Sorted
        by state: running; pending, in the order in which they will run; failed; cancelled; done.

        With a key, a tenant or fields of the payload ({"order_id": "7"}) it searches the oldest 100,000 jobs, and not
        finished ones."""
        which = JobFilter(name, queue, key, workspace_id, payload=payload or {})
        async with self._opened().autocommit() as conn:
            if which.needs_search:
                which = replace(which, states=tuple(states))
                return (await searched(conn, which, self._schema, limit=limit)).jobs
            found = await listing(conn, self._schema, name=name, states=states, queue=queue, limit=limit)
            return found.jobs

    async def get(self, job_id: UUID) -> list[JobRow]:
        """One row per subscription that has the job: usually one. None if no trace of it is kept: the id is unknown, or the
        job finished without a result and without a failure, and its type does not set keep=."""
        async with self._opened().autocommit() as conn:
            return (await whole(conn, job_id, self._schema)).jobs

    async def cancel(self, job_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[JobOutcome]:
        """Outcomes: cancelled (it was pending), cancelling (its worker stops it), done (it left a receipt), not_found (no
        trace of it is kept: it is done, or unknown). Audited."""
        async with self._opened().autocommit() as conn:
            return await cancel(conn, job_id, self._schema, by=by, reason=reason)

    async def run_now(self, job_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[JobOutcome]:
        """Outcomes: due, running, dead (replay it instead), done (it left a receipt), cancelled, not_found (no trace of it
        is kept: it is done, or unknown). Audited."""
        async with self._opened().autocommit() as conn:
            return await run_now(conn, job_id, self._schema, by=by, reason=reason)

    async def retry(self, job_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[JobOutcome]:
        """Let a dead letter run again, with all its attempts. Outcomes: replayed, superseded (another job has its unique
        key), skipped_handled (its event was handled), erased; its state, if it is no dead letter; not_found. Audited."""
        async with self._opened().autocommit() as conn:
            return await retry(conn, job_id, self._schema, by=by, reason=reason)

    async def count(self, **which: Unpack[JobFiltered]) -> JobCount:
        """How many jobs match, by state. Reads all jobs, page by page."""
        async with self._opened().autocommit() as conn:
            return await bulk_jobs.count(conn, JobFilter(**which), self._schema)

    async def act(
        self,
        verb: BulkVerb,
        *,
        by: str | None = None,
        reason: str | None = None,
        on_progress: JobsProgress | None = None,
        stop: asyncio.Event | None = None,
        **which: Unpack[JobFiltered],
    ) -> JobsDone:
        """Cancel, run_now or retry all jobs that match and that exist when it begins, in batches. Audited.

        Without `states`: cancel is for pending and running jobs, run_now for pending ones, retry for dead letters.
        `on_progress` is called with the counts so far. `stop` ends the run early.
        """
        options: dict[str, Any] = {"by": by, "reason": reason, "on_progress": on_progress, "stop": stop}
        async with self._opened().autocommit() as conn:
            return await bulk_jobs.act(conn, verb, JobFilter(**which), self._schema, **options)
