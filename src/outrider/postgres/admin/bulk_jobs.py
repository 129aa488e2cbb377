"""Finds the jobs that match a filter, and cancels, runs or retries all of them, in batches of short transactions.

Jobs have no index for every filter, so a search reads them by id, page by page. A run can be interrupted and repeated: what
was done stays done.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal, TypedDict, get_args

import psycopg
from psycopg import AsyncConnection

from outrider.errors import ConfigError, Interrupted, NoSuchType, OutriderError
from outrider.postgres.statement import Params, fetch, fetch_call
from outrider.redaction import mask, sanitise

BulkVerb = Literal["cancel", "run_now", "retry"]
STATES = ("running", "pending", "failed", "cancelled")
ACTS_ON: dict[BulkVerb, tuple[str, ...]] = {
    "cancel": ("pending", "running"),
    "run_now": ("pending",),
    "retry": ("failed",),
}
"""The states that an action is for, if none is given."""
POSSIBLE: dict[BulkVerb, tuple[str, ...]] = {**ACTS_ON, "cancel": ("pending", "running", "failed")}
SCAN = 1000
"""Jobs that a page reads. A batch changes at most as many."""
MOST_FIELDS = 8
LONGEST_PATH = 200
LONGEST_VALUE = 1000
HELD_AGAIN = (0.0, 0.1, 0.5, 1.0)
"""Seconds to wait before each further try for jobs that other transactions have locked."""


class JobFiltered(TypedDict, total=False):
    """The fields of a `JobFilter`, as keyword arguments."""

    name: str | None
    queue: str | None
    key: str | None
    workspace_id: str | None
    states: Sequence[str]
    payload: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A job must match all fields that are given."""

    name: str | None = None
    """The job type, or the name of a job of events."""
    queue: str | None = None
    key: str | None = None
    workspace_id: str | None = None
    states: Sequence[str] = ()
    """Of running, pending, failed and cancelled. Empty: those that the action is for; for a search, all."""
    payload: Mapping[str, str] = field(default_factory=dict)
    """Fields of the payload with their text, like {"order_id": "7", "customer.country": "DE"}."""
    classes: Sequence[str] | None = None
    """Payloads of events of other content classes do not match."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.states) - set(STATES)):
            raise ConfigError(f"no such state: {', '.join(unknown)}; there are: {', '.join(STATES)}")
        if len(self.payload) > MOST_FIELDS:
            raise ConfigError(f"at most {MOST_FIELDS} fields of the payload can be compared, not {len(self.payload)}")
        for path, value in self.payload.items():
            if not path or len(path) > LONGEST_PATH or len(value) > LONGEST_VALUE:
                raise ConfigError(
                    f"{path[:60]!r}: the name of a field has 1 to {LONGEST_PATH} characters, "
                    f"its value at most {LONGEST_VALUE:,}"
                )

    def __bool__(self) -> bool:
        """Whether any field is given."""
        return self != JobFilter(classes=self.classes)

    @property
    def needs_search(self) -> bool:
        """Whether no index finds these jobs."""
        return self.key is not None or self.workspace_id is not None or bool(self.payload)

    def acted_on(self, verb: BulkVerb) -> JobFilter:
        """The same with the states that the action is for."""
        if verb not in get_args(BulkVerb):
            raise ConfigError(f"no such action: {verb}; there are: {', '.join(get_args(BulkVerb))}")
        if impossible := sorted(set(self.states) - set(POSSIBLE[verb])):
            raise ConfigError(
                f"{verb.replace('_', ' ')} is for {' and '.join(POSSIBLE[verb])} jobs, not for {impossible[0]}"
            )
        return replace(self, states=tuple(self.states) or ACTS_ON[verb])

    def params(self) -> Params:
        return {
            "type": self.name,
            "queue": self.queue,
            "key": self.key,
            "workspace_id": self.workspace_id,
            "states": list(self.states) or None,
            "payload": json.dumps(dict(self.payload)) if self.payload else None,
            "classes": None if self.classes is None else list(self.classes),
        }

    def described(self) -> dict[str, Any]:
        """For the audit: everything but the values of payload fields, which may be anybody's data."""
        told = {"type": self.name, "queue": self.queue, "key": self.key, "workspace": self.workspace_id}
        given: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        return given | {"states": list(self.states)} | ({"fields": sorted(self.payload)} if self.payload else {})


@dataclass(frozen=True, slots=True)
class JobCount:
    states: dict[str, int]
    """How many match, by state."""
    searched: int
    more: bool = False
    """The search ended before the last job: there may be more."""

    @property
    def jobs(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True, slots=True)
class JobsFound:
    ids: list[int]
    searched: int
    place: int | None
    """Where to continue; None: there are no more."""


@dataclass(frozen=True, slots=True)
class JobsDone:
    """The outcome of a run."""

    changed: int = 0
    """Cancelled, due or pending again."""
    stopping: int = 0
    """Running jobs whose workers were told to stop them."""
    skipped: int = 0
    """There was nothing to do: their state has changed, they were due already, or a retry skips them, because another job
    has their unique key, an open transaction is enqueuing it, or their event was handled."""
    held: int = 0
    """Left alone, because other transactions have locked them."""
    stopped: bool = False
    """The run was stopped before the last of them."""

    @property
    def jobs(self) -> int:
        return self.changed + self.stopping + self.skipped + self.held

    def __str__(self) -> str:
        return f"{self.jobs:,} job{'s' * (self.jobs != 1)} ({self.changed + self.stopping:,} changed)"


JobsProgress = Callable[[JobsDone], object]


async def newest(conn: AsyncConnection[Any], schema: str) -> int:
    """The greatest id of a job: those that are enqueued later have greater ones."""
    [(until,)] = await fetch(conn, "jobs/newest_job", schema)
    return int(until)


async def count(
    conn: AsyncConnection[Any],
    which: JobFilter,
    schema: str,
    *,
    until: int | None = None,
    most: int | None = None,
    seconds: float | None = None,
) -> JobCount:
    """Searches at most `most` jobs up to the id `until`, and begins no page after so many seconds."""
    await refuse_unknown(conn, which, schema)
    states: Counter[str] = Counter()
    searched, place, began = 0, 0, monotonic()
    while True:
        page = await _page(conn, which, schema, place, until, SCAN)
        states.update(page[3])
        searched += page[1]
        if page[1] < SCAN:
            return JobCount(dict(states), searched)
        place = page[0]
        if (most is not None and searched >= most) or (seconds is not None and monotonic() - began > seconds):
            return JobCount(dict(states), searched, more=True)


async def search(
    conn: AsyncConnection[Any],
    which: JobFilter,
    schema: str,
    *,
    after: int = 0,
    limit: int = 50,
    most: int = 100_000,
    seconds: float | None = None,
) -> JobsFound:
    """The first jobs that match after the id `after`, by id. Searches at most `most` jobs, and as long as `count` does."""
    await refuse_unknown(conn, which, schema)
    ids: list[int] = []
    searched, place, began = 0, after, monotonic()
    while True:
        last, read, found, _ = await _page(conn, which, schema, place, None, SCAN)
        searched += read
        ids += found
        if len(ids) > limit:
            return JobsFound(ids[:limit], searched, ids[limit - 1])
        if read < SCAN:
            return JobsFound(ids, searched, None)
        place = last
        if searched >= most or (seconds is not None and monotonic() - began > seconds):
            return JobsFound(ids, searched, place)


async def act(
    conn: AsyncConnection[Any],
    verb: BulkVerb,
    which: JobFilter,
    schema: str,
    *,
    by: str | None = None,
    reason: str | None = None,
    until: int | None = None,
    on_progress: JobsProgress | None = None,
    stop: asyncio.Event | None = None,
) -> JobsDone:
    """Acts on the jobs that match, up to the id `until`, and that exist when it begins. Setting `stop` ends the run after
    the current batch.

    If the run cannot continue, it raises Interrupted, which says what was done.
    """
    assert conn.autocommit, "each batch must be a transaction of its own"
    which, stop = which.acted_on(verb), stop or asyncio.Event()
    await refuse_unknown(conn, which, schema)
    last_id = await newest(conn, schema)
    until = last_id if until is None else min(until, last_id)
    how = {"states": list(which.states), "by": by, "reason": reason, "which": json.dumps(which.described())}
    done, place = JobsDone(), 0
    while not stop.is_set():
        try:
            last, read, found, _ = await _page(conn, which, schema, place, until, SCAN)
            if found:
                done = await _change(conn, verb, found, how, schema, done, stop)
        except (psycopg.Error, OutriderError) as error:
            if not done.jobs and isinstance(error, OutriderError):
                raise
            told = (sanitise(mask(str(error))).splitlines() or [type(error).__name__])[0]
            raise Interrupted(done, SCAN, told) from error
        if found and on_progress is not None:
            on_progress(done)
        if read < SCAN:
            return done
        place = last
    return replace(done, stopped=True)


async def refuse_unknown(conn: AsyncConnection[Any], which: JobFilter, schema: str) -> None:
    """A misspelt type must not look like an empty list."""
    if which.name is not None:
        known = [known for (known,) in await fetch(conn, "jobs/job_types", schema)]
        if which.name not in known:
            raise NoSuchType(which.name, known)


async def _page(
    conn: AsyncConnection[Any], which: JobFilter, schema: str, after: int, until: int | None, scan: int
) -> tuple[int, int, list[int], list[str]]:
    params = which.params() | {"after": after, "until": until, "scan": scan}
    [(last, searched, ids, states)] = await fetch_call(conn, "jobs_page", schema, params)
    return last, searched, ids, states


async def _change(
    conn: AsyncConnection[Any],
    verb: BulkVerb,
    ids: list[int],
    how: Params,
    schema: str,
    done: JobsDone,
    stop: asyncio.Event,
) -> JobsDone:
    """Asks again for jobs that others have locked: most of them are being claimed or settled, which takes milliseconds."""
    for pause in HELD_AGAIN:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        [(changed, stopping, skipped, ids)] = await fetch_call(
            conn, "change_jobs", schema, {"action": verb, "jobs": ids} | how
        )
        done = replace(
            done, changed=done.changed + changed, stopping=done.stopping + stopping, skipped=done.skipped + skipped
        )
        if not ids:
            return done
    return replace(done, held=done.held + len(ids))
