"""`outrider job`: what waits, runs and failed, one job in full; cancel one, or let it run now."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from outrider.cli.audit_options import ByOption, ReasonOption, who
from outrider.cli.bulk_actions import confirm, print_json
from outrider.cli.output import jobs as jobs_output
from outrider.cli.output.text import one_line, say
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import NoSuchJob
from outrider.postgres.admin import jobs
from outrider.postgres.admin.jobs import OWED, JobOutcome, JobRow, Listing
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

commands = typer.Typer(no_args_is_help=True, help="List, show and cancel jobs, or let them run now.")


class State(StrEnum):
    running = "running"
    pending = "pending"
    failed = "failed"
    cancelled = "cancelled"
    done = "done"


NO_TRACE = "no trace of it is kept: it is done, or unknown"
CANCELLED = {
    "cancelled": "cancelled",
    "cancelling": "cancelling: it is running, and its worker was told",
    "done": "done, too late",
    "not_found": NO_TRACE,
}
DUE = {
    "due": "due now",
    "running": "running already",
    "dead": "not due: it is a dead letter; outrider dlq replay lets it run again",
    "cancelled": "not due: it was cancelled",
    "done": "not due: it is done",
    "not_found": NO_TRACE,
}

JobId = Annotated[UUID, typer.Argument(metavar="JOB_ID", help="The job's id; of a job of events, the event's.")]
JobIds = Annotated[list[UUID], typer.Argument(metavar="JOB_ID...", help="The jobs' ids.")]


@commands.command("list")
def show_all(
    job_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only this job type, or name of a job of events.")
    ] = None,
    states: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="running, pending, failed, cancelled or done; repeatable. Default: the first three.",
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what runs, what waits in the order in which it will run, and what failed.

    With --state cancelled also what was superseded or discarded; with --state done
    the jobs that left a receipt, the last to be enqueued first. Counts end at 10,000.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider job list[/]
      [bold]outrider job list --type mail.send_receipt --state failed --limit 10[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    wanted = [each.value for each in states] if states else list(OWED)
    found = asyncio.run(_listing(place, job_type, wanted, queue, limit))
    if as_json:
        told = [_fields(each, whole=False) for each in found.jobs]
        print_json(
            schema=place.schema, read_at=found.read_at, paused_at=found.paused_at, counts=found.counts, jobs=told
        )
        return
    if found.jobs:
        jobs_output.show_list(found)
    else:
        say("no jobs" + " fit" * bool(job_type or states or queue))
    say(f"{jobs_output.total(found)}" + f"; the first {len(found.jobs):,} shown" * (len(found.jobs) == limit))


@commands.command()
def show(
    job_id: JobId,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of one job: state, lease, progress, history, payload, result.

    A job that is done leaves a receipt if it came from an event, returned a result,
    failed before, or its type sets keep=: when, its result, and what failed before.
    Of other jobs nothing remains. Exits with 1 if there is no trace of the job.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider job show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_whole(place, job_id))
    if as_json:
        print_json(schema=place.schema, jobs=[_fields(each, whole=True) for each in found.jobs])
        return
    for number, each in enumerate(found.jobs):
        typer.echo("\n" * (number > 0), nl=False)
        jobs_output.show_whole(each, found)


@commands.command()
def cancel(
    job_ids: JobIds,
    reason: ReasonOption = None,
    by: ByOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep jobs from running, or stop them.

    What is pending does not run any more; a dead letter leaves the list. What is
    running is told to stop: an async job at its next await, a blocking one when it
    asks its context, one in a process of its own by a signal. What it did stays
    done. Audited. To bring one back: outrider dlq replay JOB_ID --force.
    Exits with 1 if there is no trace of one of them: it is done, or unknown.

    Needs: a role that may operate.

    Example: [bold]outrider job cancel 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason "a test"[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    if not yes:
        states = ", ".join(f"{number} {state}" for state, number in asyncio.run(_states(place, job_ids)).items())
        many = f"{len(job_ids)} jobs" if len(job_ids) > 1 else str(job_ids[0])
        confirm(f"Cancel {many} ({states})?", "nothing was cancelled", yes=False)
    act = partial(jobs.cancel, schema=place.schema, by=who(by), reason=reason)
    _tell(asyncio.run(_each(place, job_ids, act)), CANCELLED, fine=("cancelled", "cancelling", "done"), as_json=as_json)


@commands.command("run-now")
def run_now(
    job_ids: JobIds,
    reason: ReasonOption = None,
    by: ByOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let jobs that wait for their time, or for their retry, run now.

    Their workers are woken. Limits hold: a job may still wait for its key, or for
    a free slot. Audited. Exits with 1 if one of them will not run.

    Needs: a role that may operate.

    Example: [bold]outrider job run-now 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    act = partial(jobs.run_now, schema=place.schema, by=who(by), reason=reason)
    _tell(asyncio.run(_each(place, job_ids, act)), DUE, fine=("due", "running"), as_json=as_json)


def _tell(
    told: Sequence[tuple[UUID, JobOutcome]], words: dict[str, str], *, fine: Sequence[str], as_json: bool
) -> None:
    if as_json:
        print_json(outcomes=[{"job_id": job_id, **asdict(each)} for job_id, each in told])
    for job_id, each in told if not as_json else ():
        name = f" {one_line(each.subscription)}" if each.subscription else ""
        say(f"{job_id}{name}: {words[each.outcome]}")
    if any(each.outcome not in fine for _, each in told):
        raise typer.Exit(1)


async def _listing(place: Place, name: str | None, states: list[str], queue: str | None, limit: int) -> Listing:
    async with place.connect(every_tenant=True) as conn:
        return await jobs.listing(conn, place.schema, name=name, states=states, queue=queue, limit=limit)


async def _whole(place: Place, job_id: UUID) -> Listing:
    async with place.connect() as conn:
        found = await jobs.whole(conn, job_id, place.schema)
        if not found.jobs:
            await refuse_hidden(conn, place.schema)
    if not found.jobs:
        raise NoSuchJob(job_id, place.schema)
    return found


async def _states(place: Place, job_ids: Sequence[UUID]) -> Counter[str]:
    async with place.connect() as conn:
        found = [await jobs.whole(conn, job_id, place.schema) for job_id in dict.fromkeys(job_ids)]
    return Counter(job.state for each in found for job in each.jobs) + Counter(
        {"without a trace": [each.jobs for each in found].count([])}
    )


async def _each(
    place: Place, job_ids: Sequence[UUID], act: Callable[[AsyncSession, UUID], Awaitable[list[JobOutcome]]]
) -> list[tuple[UUID, JobOutcome]]:
    async with place.connect() as conn:
        return [(job_id, each) for job_id in dict.fromkeys(job_ids) for each in await act(conn, job_id)]


def _fields(each: JobRow, *, whole: bool) -> dict[str, Any]:
    told = asdict(each)
    if not whole:
        return {name: value for name, value in told.items() if name not in ("payload", "history")}
    return told | {"payload": json.loads(each.payload) if each.payload else None}
