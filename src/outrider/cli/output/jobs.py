"""How jobs look on a terminal. Their texts come from anywhere, so nothing in them is markup or an escape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.table import Table

from outrider.cli.output.dead_letters import told
from outrider.cli.output.text import UNREADABLE, capped, counted, lines, moment, one_line, roughly, safe, say, short
from outrider.postgres.admin.jobs import JobListing, JobRow
from outrider.postgres.admin.subscriptions import MOST

BAR = 10


def show_list(found: JobListing) -> None:
    table = Table(show_lines=True)
    table.add_column("job", no_wrap=True)
    table.add_column("state", overflow="fold")
    table.add_column("queue, attempts, progress", overflow="fold")
    for each in found.jobs:
        table.add_row(
            lines(each.id, each.subscription, each.key is not None and f"key {short(each.key)}"),
            lines(standing(each, found)),
            lines(*_course(each)),
        )
    Console().print(table)


def total(found: JobListing) -> str:
    return ", ".join(f"{capped(number, MOST)} {state}" for state, number in found.counts.items())


def show_whole(each: JobRow, found: JobListing) -> None:
    for name, said in _facts(each, found):
        if said is not None:
            say(f"{name:<10} {one_line(said)}")
    if each.error:
        say(safe(each.error), indent=2)
    if each.history:
        say("\nhistory")
    for entry in each.history or ():
        say(one_line(told(entry)), indent=2)
    if each.payload is not None:
        say("\npayload")
        say(safe(each.payload) or UNREADABLE, indent=2)
    if each.result is not None:
        say("\nresult")
        say(safe(json.dumps(each.result, indent=4, ensure_ascii=False)), indent=2)
    if each.state == "failed":
        say(f"\nto let it run again: outrider dlq replay {each.id}")


def standing(each: JobRow, found: JobListing) -> str:
    """The state, and what it waits for."""
    match each.state:
        case "running" if each.cancelled_at is not None:
            return "running, cancelling"
        case "running":
            return "running"
        case "pending":
            return f"pending: {', '.join(_why(each, found))}"
        case "failed":
            return "failed: a dead letter"
        case "superseded":
            return "superseded: a newer one has its unique key"
        case other:
            return other


def _why(each: JobRow, found: JobListing) -> Iterator[str]:
    if found.paused_at is not None:
        yield "everything is paused"
    if each.paused:
        yield "paused"
    if each.waiting:
        yield "waiting for its key"
    elif each.run_at is not None:
        yield _due(each.run_at, found.read_at)
    if not each.served:
        yield "nobody serves it"


def _due(run_at: datetime, now: datetime) -> str:
    return f"due in {roughly(run_at - now)}" if run_at > now else f"due for {roughly(now - run_at)}"


def _course(each: JobRow) -> Iterator[str | None]:
    if each.queue is not None:
        yield f"{each.queue}, priority {each.priority}"
        yield _attempts(each)
    if each.state == "running":
        yield f"on {_worker(each)}"
        yield _progress(each)
    if each.code is not None:
        yield f"{each.code}: {short(each.error)}"
    if each.done_at is not None:
        yield f"done {moment(each.done_at)}"


def _facts(each: JobRow, found: JobListing) -> Iterator[tuple[str, object]]:
    version = f" version {each.version}" if each.version is not None else ""
    yield "job", f"{each.id}, {each.event_type}{version}"
    if each.seq is not None:
        yield "of events", each.subscription
    yield "state", standing(each, found)
    yield "enqueued", each.created_at and f"{moment(each.created_at)} by {each.source}"
    yield "run at", moment(each.run_at) if each.state == "pending" else None
    yield "done", each.done_at and moment(each.done_at)
    yield "queue", each.queue and f"{each.queue}, priority {each.priority}"
    yield "key", each.key
    yield "unique key", each.unique_key
    yield "workspace", each.workspace_id
    yield "generation", str(each.generation) if each.generation else None
    yield "attempts", _attempts(each) if each.queue is not None else None
    if each.state == "running":
        yield "worker", f"{_worker(each)}, since {moment(each.claimed_at)}"
        yield "lease", f"until {moment(each.lease_expires_at)}, renewed while it runs"
    yield "cancelled", each.cancelled_at and f"{moment(each.cancelled_at)}, and its worker was told"
    yield "progress", _progress(each)
    yield "error", each.code


def _attempts(each: JobRow) -> str:
    said = counted(each.attempts or 0, "attempt")
    said += f" in cycle {each.cycle}" if (each.cycle or 1) > 1 else ""
    return said + (f", {each.crashes} of its workers died" if each.crashes else "")


def _worker(each: JobRow) -> str:
    return each.worker_name or f"worker {each.worker}, which is gone"


def _progress(each: JobRow) -> str | None:
    """`[####......] 40%  page 4 of 10`. The row may hold anything."""
    if each.progress is None:
        return None
    fraction, message = each.progress.get("fraction"), each.progress.get("message")
    done = min(1.0, max(0.0, fraction)) if isinstance(fraction, int | float) else 0.0
    filled = round(done * BAR)
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {done:.0%}" + (f"  {short(str(message))}" if message else "")
