"""One event for operators: its state at each subscription, its failures, the audit. Also lists and withdraws events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Literal, get_args
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row

from outrider.envelope import Envelope
from outrider.errors import NoSuchEvent, WithdrawRefused
from outrider.postgres.errors import clear_error
from outrider.postgres.log import SEQ, envelope_of
from outrider.postgres.schema.migrate import check_needed
from outrider.postgres.statement import call, looking
from outrider.redaction import sanitise

PATIENCE = "10s"
"""How long `withdraw` waits for running batches."""
MOST_ACTS = 1000
MOST_JOBS = 100_000
MOST_CHILDREN = 20_000
"""Events that are searched for those that an event caused, after it and after each time it was handled."""
ALL_CHILDREN = 5 * MOST_CHILDREN
"""Events that are searched for them in all."""
MOST_LISTED, PAGE_LISTED = 1_000_000, 20_000
_ENVELOPE = 18  # columns

Why = Literal[
    "all_paused", "paused", "breaker", "behind", "key", "suspect", "retry", "due", "unread", "no_worker", "unable"
]  # fmt: skip
Mark = Literal["replayed", "discarded", "cancelled", "superseded"]
MARKS: tuple[Mark, ...] = get_args(Mark)
"""Entries of a failure history that are not failures. Each has its time as `replayed_at`, `discarded_at` and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One entry of a failure history: a failed attempt, or what ended the failure. Only jobs are cancelled or superseded."""

    at: datetime
    what: Literal["failed"] | Mark
    cycle: int
    attempt: int | None = None
    """Attempts used so far. If two entries have the same number, one was an infrastructure failure and used none."""
    code: str | None = None
    message: str | None = None
    worker: str | None = None
    by: str | None = None
    reason: str | None = None
    forced: bool = False
    """It was replayed although it had been handled or discarded."""
    edited: bool = False
    """It was replayed with another payload."""
    generation: int | None = None
    """It was replayed for the workers of this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The state of an event at one subscription."""

    subscription: str
    kind: str
    status: str
    """pending, running (a job), delivered, failed (a dead letter), discarded or withdrawn"""
    why: tuple[Why, ...] = ()
    """All reasons for which it is pending.

    all_paused, paused: everything, or this subscription, is paused. breaker: open until `open_until`.
    unread: the cursor has not reached it. behind: the event `behind` has the same key and failed before it.
    retry: it is tried again at `run_at`. due: a worker may take it now. key: key_concurrency jobs of its key are running.
    suspect: a worker died while handling it, so it runs alone. no_worker: no live worker serves the subscription.
    unable: no live worker knows all event types of the subscription.
    """
    attempts: int | None = None
    """Attempts in this cycle, including the one that succeeded. None for readers and relays, and before the first."""
    run_at: datetime | None = None
    behind: UUID | None = None
    behind_seq: int | None = None
    began_at: datetime | None = None
    """When the row was inserted that it has while it is pending, running or a dead letter."""
    claimed_at: datetime | None = None
    worker: str | None = None
    """Of a running job, as host:pid."""
    cancelled_at: datetime | None = None
    """When the cancellation of a running job was requested."""
    paused_at: datetime | None = None
    """Since when the subscription or everything is paused."""
    open_until: datetime | None = None
    handled_at: datetime | None = None
    handled_as: UUID | None = None
    """The event with the same idempotency key that was handled instead."""
    buried_at: datetime | None = None
    error_code: str | None = None
    error: str | None = None
    history: tuple[Moment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One entry of the audit."""

    at: datetime
    by: str
    role: str
    """The database role of the session."""
    action: str
    subscription: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    at: datetime
    by: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Caused:
    id: UUID
    job_type: str
    status: str
    """pending, in_flight, failed (a dead letter) or discarded."""


@dataclass(frozen=True, slots=True)
class Child:
    seq: int
    id: UUID
    event_type: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The history of an event."""

    envelope: Envelope
    payload_pretty: str
    """The payload, indented, with its numbers as the database prints them. May contain control characters."""
    payload_bytes: int
    read_at: datetime
    """The time of the snapshot, by the database's clock."""
    withdrawal: Withdrawal | None
    fates: tuple[Fate, ...]
    """One for each subscription that wants it."""
    acts: tuple[Act, ...]
    """What operators did with it, oldest first."""
    also: tuple[int, ...] = ()
    """Further log positions of the same envelope, if it was published more than once."""
    erased_at: datetime | None = None
    """When its payload was erased."""
    jobs: tuple[Caused, ...] = ()
    """Unfinished jobs that its handlers enqueued: at most 100, out of the newest 100,000 jobs."""
    caused_by: UUID | None = None
    """The event, or the job, whose handler published it."""
    children: tuple[Child, ...] = ()
    """Events that its handlers published: at most 100, of those soon after it was published or handled."""
    children_searched: bool = True
    """False: the search for them ran out of time."""
    passages: dict[str, datetime] = field(default_factory=dict)
    """When it came in through its inbox; by when each relay had sent it. Relays note this every now and then."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    subscription: str
    outcome: Literal["withdrawn", "delivered"]
    """delivered: it had already been handled or read there."""


async def story(conn: AsyncConnection[Any], event_id: UUID, schema: str) -> Story | None:
    """None if no such event is committed. Uses index look-ups only."""
    _refuse_other_ids(event_id)
    await check_needed(conn, schema)
    async with looking(conn, schema) as look:
        found = sorted(await look.rows("admin/event", {"event_id": event_id}), key=itemgetter(0))
        if not found:
            return None
        row = found[0]
        fates = await look.rows("admin/fates", {"seq": row[0]})
        acts = await look.rows("admin/audit_of", {"event_id": event_id, "most": MOST_ACTS})
        caused = await look.rows("admin/caused", {"event_id": event_id, "most": MOST_JOBS})
        passages = await look.rows("admin/passages", {"seq": row[0]})
        near = {
            "event_id": event_id,
            "seq": row[0],
            "handled": sorted({fate[5] for fate in fates if fate[5] is not None}),
        }
        children, searched = [], True
        try:
            async with conn.transaction():
                children = await look.rows("admin/children", near | {"most": MOST_CHILDREN, "total": ALL_CHILDREN})
        except psycopg.errors.QueryCanceled:
            searched = False
    pretty, size, read_at, withdrawn_at, withdrawn_by, reason, erased_at, caused_by = row[_ENVELOPE:]
    audit = tuple(
        Act(at=at, by=by, role=role, action=action, subscription=subscription, details=details)
        for at, by, role, action, subscription, details in acts
    )
    return Story(
        envelope=envelope_of((None,) * SEQ + row[:_ENVELOPE]),
        payload_pretty=pretty,
        payload_bytes=size,
        read_at=read_at,
        withdrawal=None if withdrawn_at is None else Withdrawal(at=withdrawn_at, by=withdrawn_by, reason=reason),
        fates=tuple(_fate(fate, read_at, audit) for fate in fates),
        acts=audit,
        also=tuple(other[0] for other in found[1:]),
        erased_at=erased_at,
        jobs=tuple(Caused(*row) for row in caused),
        caused_by=caused_by,
        children=tuple(Child(*row) for row in children),
        children_searched=searched,
        passages={name: at for name, at in passages if at is not None},
    )


@dataclass(frozen=True, slots=True)
class Listed:
    seq: int
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    workspace_id: str | None
    kind: str | None
    key: str | None
    erased_at: datetime | None
    id: UUID
    fates: dict[str, str]
    """Its status, by subscription."""


@dataclass(frozen=True, slots=True)
class Listing:
    events: list[Listed]
    scanned: int
    before: int | None
    """Continue with the events before this position. None = everything, or everything since `since`, was searched."""
    jumped: bool = False
    """The search began at the time of `until`: events that were published later, with an earlier `occurred_at`, are not in
    it. A search with a `before` above the newest event finds them."""


async def listed(
    conn: AsyncConnection[Any],
    schema: str,
    *,
    key: str | None = None,
    event_type: str | None = None,
    workspace_id: str | None = None,
    since: datetime | timedelta | None = None,
    until: datetime | timedelta | None = None,
    limit: int = 50,
    before: int | None = None,
    most: int = MOST_LISTED,
    page: int = PAGE_LISTED,
) -> Listing:
    """The newest events that match: at most `limit`, from the last `most` positions. Each page is a snapshot of its own."""
    await check_needed(conn, schema)
    lowest, jumped = 0, False
    async with looking(conn, schema) as look:
        [(now, *_)] = await look.rows("admin/moment")
        since = now - since if isinstance(since, timedelta) else since
        until = now - until if isinstance(until, timedelta) else until
        if since is not None:
            [[lowest]] = await look.rows("admin/event_list_begins", {"since": since})
        if until is not None and before is None:
            before = next((seq for (seq,) in await look.rows("admin/event_list_ends", {"until": until})), None)
            jumped = before is not None
    params: dict[str, Any] = {"key": key, "event_type": event_type, "workspace_id": workspace_id}
    params |= {"lowest": lowest, "since": since, "until": until}
    found: list[Listed] = []
    scanned, place = 0, 2**63 - 1 if before is None else before
    while scanned < most:
        asked = {"before": place, "scan": min(page, most - scanned), "limit": limit - len(found)}
        async with looking(conn, schema) as look:
            [(reached, count, *_), *rows] = await look.rows("admin/event_list", params | asked)
        found += [Listed(*(row[0], *row[2:11], row[11] or {})) for row in rows]
        scanned += count
        if len(found) == limit:
            return Listing(found, scanned, found[-1].seq, jumped)
        if count < asked["scan"]:
            return Listing(found, scanned, None, jumped)
        place = reached
    return Listing(found, scanned, place, jumped)


async def withdraw(
    conn: AsyncConnection[Any], event_id: UUID, by: str | None, reason: str | None, schema: str
) -> list[Withdrawn]:
    """Waits for running batches first, so that each outcome is final."""
    _refuse_other_ids(event_id)
    await check_needed(conn, schema)
    params = {"event_id": event_id, "by": sanitise(by or "") or None, "reason": sanitise(reason or "") or None}
    try:
        async with conn.transaction(), AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute("select set_config('lock_timeout', %s, true)", [PATIENCE])
            await cursor.execute(call("withdraw", schema, tuple(params)), params)
            rows = await cursor.fetchall()
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise WithdrawRefused(
            f"nothing was withdrawn: a worker held a subscription of this event for {PATIENCE}; try again, or pause the "
            "subscription first (outrider subscription pause)"
        ) from error
    except psycopg.Error as error:
        if (clear := clear_error(error, schema)) is not None:
            raise clear from error
        raise
    if rows == [(None, "not_found")]:
        raise NoSuchEvent(event_id, schema)
    return [Withdrawn(*row) for row in rows]


def _refuse_other_ids(event_id: object) -> None:
    if not isinstance(event_id, UUID):
        raise TypeError(f"the id of an event is a UUID, not {type(event_id).__name__}")


def _fate(row: Sequence[Any], now: datetime, acts: Iterable[Act]) -> Fate:
    (
        subscription, kind, status, attempts, run_at, handled_at, handled_as, code, error, history, buried_at, suspect,
        reached, waiting, cancelled_at, all_paused_at, paused_at, open_until, behind, behind_seq, workers, able,
        began_at, locked_at, worker,
    ) = row  # fmt: skip
    status = "running" if status == "in_flight" else status
    retried, later = run_at is not None, run_at is not None and run_at > now
    reasons: list[tuple[Why, bool]] = [
        ("all_paused", all_paused_at is not None),
        ("paused", paused_at is not None),
        ("breaker", open_until is not None),
        ("unread", not retried or not (reached or later or kind == "relay")),
        ("behind", behind is not None),
        ("key", bool(waiting)),
        ("suspect", bool(suspect)),
        ("retry", behind is None and later),
        ("due", behind is None and retried and (reached or kind == "relay") and not later and not waiting),
        ("no_worker", kind in ("handler", "job", "relay") and not workers),
        ("unable", workers > 0 and not able),
    ]
    if status == "withdrawn":
        history = _withdrawn_history(subscription, acts)
    moments = tuple(map(moment_of, history or ()))
    if status == "delivered" and handled_at is not None and handled_as is None:
        attempts = 1 + _failed_attempts(moments)
    return Fate(
        subscription=subscription,
        kind=kind,
        status=status,
        why=tuple(reason for reason, holds in reasons if holds and status == "pending"),
        attempts=attempts,
        run_at=run_at if status == "pending" else None,
        behind=behind,
        behind_seq=behind_seq,
        began_at=began_at,
        claimed_at=locked_at if status == "running" else None,
        worker=worker if status == "running" else None,
        cancelled_at=cancelled_at,
        paused_at=all_paused_at or paused_at,
        open_until=open_until,
        handled_at=handled_at,
        handled_as=handled_as,
        buried_at=buried_at,
        error_code=code,
        error=error,
        history=moments,
    )


def moment_of(entry: dict[str, Any]) -> Moment:
    """An entry of a failure history."""
    rest = {name: value for name, value in entry.items() if name in Moment.__slots__ and name != "at"}
    for mark in MARKS:
        if (when := entry.get(f"{mark}_at")) is not None:
            return Moment(at=datetime.fromisoformat(when), what=mark, **rest)
    return Moment(at=datetime.fromisoformat(entry["at"]), what="failed", **rest)


def _failed_attempts(moments: Sequence[Moment]) -> int:
    """Since the last replay."""
    cycle = max((each.cycle + 1 for each in moments if each.what == "replayed"), default=1)
    return max((each.attempt or 0 for each in moments if each.what == "failed" and each.cycle == cycle), default=0)


def _withdrawn_history(subscription: str, acts: Iterable[Act]) -> list[dict[str, Any]]:
    """A withdrawal deletes the failure history; the audit keeps a copy."""
    for act in acts:
        for owed in act.details.get("owed", ()) if act.action == "withdraw" else ():
            if owed.get("subscription") == subscription:
                return list(owed.get("failure_history", ()))
    return []
