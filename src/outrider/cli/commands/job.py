"""`outrider job`: what waits, runs and failed, one job in full; cancel one, or let it run now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from outrider.cli.audit_options import AuditOptions
from outrider.cli.confirmation import confirm
from outrider.cli.options import Commands, LimitOption, YesOption
from outrider.cli.output import jobs as jobs_output
from outrider.cli.output.text import one_line, print_json, say
from outrider.cli.target import Target
from outrider.errors import NoSuchJob
from outrider.postgres.admin import jobs
from outrider.postgres.admin.jobs import OWED, JobListing, JobOutcome, JobRow
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

commands = Commands(no_args_is_help=True)


class JobState(StrEnum):
    running = "running"
    pending = "pending"
    failed = "failed"
    cancelled = "cancelled"
    done = "done"


NO_TRACE = "no trace of it is kept: it is done, or unknown"
CANCELLED = {
    "cancelled": "cancelled",
    "cancelling": "cancelling: it is running, and its worker was told to stop it",
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

JobId = Annotated[UUID, typer.Argument(metavar="JOB_ID", help="The job's id; for a job of events, the event's id.")]
JobIds = Annotated[list[UUID], typer.Argument(metavar="JOB_ID", help="The ids of the jobs.")]


@commands.command("list")
def show_all(
    target: Target,
    job_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only this job type, or this name of a job of events.")
    ] = None,
    states: Annotated[
        list[JobState] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="running, pending, failed, cancelled or done. Repeatable. Default: the first three.",
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")] = None,
    limit: LimitOption = 50,
) -> None:
    """Show the running, pending and failed jobs.

    Pending jobs come in the order in which they will run. --state cancelled includes
    superseded and discarded jobs. --state done shows the finished jobs that left a
    receipt, the newest first. Counts end at 10,000.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider job list[/]
      [bold]outrider job list --type mail.send_receipt --state failed --limit 10[/]
    """
    wanted = [each.value for each in states] if states else list(OWED)
    found = target.run(
        lambda conn: jobs.listing(conn, target.schema, name=job_type, states=wanted, queue=queue, limit=limit),
        every_tenant=True,
    )
    if target.as_json:
        told = [_fields(each, whole=False) for each in found.jobs]
        print_json(
            schema=target.schema, read_at=found.read_at, paused_at=found.paused_at, counts=found.counts, jobs=told
        )
        return
    if found.jobs:
        jobs_output.show_list(found)
    else:
        say("no jobs" + " match" * bool(job_type or states or queue))
    say(f"{jobs_output.total(found)}" + f"; the first {len(found.jobs):,} shown" * (len(found.jobs) == limit))


@commands.command()
def show(target: Target, job_id: JobId) -> None:
    """Show one job: state, lease, progress, history, payload, result.

    A finished job leaves a receipt if it came from an event, returned a result, failed
    before, or its type sets keep=: when it finished, its result, and its failures.
    Of other finished jobs no trace is kept. Exits with 1 if there is no trace of it.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider job show 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """

    async def look_up(conn: AsyncSession) -> JobListing:
        found = await jobs.whole(conn, job_id, target.schema)
        if not found.jobs:
            await refuse_hidden(conn, target.schema)
            raise NoSuchJob(job_id, target.schema)
        return found

    found = target.run(look_up)
    if target.as_json:
        print_json(schema=target.schema, jobs=[_fields(each, whole=True) for each in found.jobs])
        return
    for number, each in enumerate(found.jobs):
        typer.echo("\n" * (number > 0), nl=False)
        jobs_output.show_whole(each, found)


@commands.command()
def cancel(target: Target, audit: AuditOptions, job_ids: JobIds, yes: YesOption = False) -> None:
    """Keep jobs from running, or stop them.

    A pending job will not run. A dead letter leaves the list. A running job is told
    to stop: an async job at its next await, a blocking one when it asks its context,
    one in a process of its own by a signal. What it has done stays done. Recorded in
    the audit. To bring a job back: outrider dlq replay JOB_ID --force.
    Exits with 1 if there is no trace of a job: it has finished, or is unknown.

    Needs: a role that may operate.

    Examples:

      [bold]outrider job cancel 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason test[/]
    """
    if not yes:
        states = ", ".join(f"{number} {state}" for state, number in _states(target, job_ids).items())
        many = f"{len(job_ids)} jobs" if len(job_ids) > 1 else str(job_ids[0])
        confirm(f"Cancel {many} ({states})?", "nothing was cancelled", yes=False)
    act = partial(jobs.cancel, schema=target.schema, by=audit.who, reason=audit.reason)
    _act(target, job_ids, act, CANCELLED, fine=("cancelled", "cancelling", "done"))


@commands.command("run-now")
def run_now(target: Target, audit: AuditOptions, job_ids: JobIds) -> None:
    """Let jobs that wait for their time or for a retry run now.

    Their workers are woken. Limits still apply: a job may wait for its key or for a
    free slot. Recorded in the audit. Exits with 1 if a job will not run.

    Needs: a role that may operate.

    Example: [bold]outrider job run-now 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
    """
    act = partial(jobs.run_now, schema=target.schema, by=audit.who, reason=audit.reason)
    _act(target, job_ids, act, DUE, fine=("due", "running"))


def _act(
    target: Target,
    job_ids: Sequence[UUID],
    act: Callable[[AsyncSession, UUID], Awaitable[list[JobOutcome]]],
    words: dict[str, str],
    *,
    fine: Sequence[str],
) -> None:
    """Acts on each job, and exits with 1 if an outcome is not `fine`."""

    async def run(conn: AsyncSession) -> list[tuple[UUID, JobOutcome]]:
        return [(job_id, each) for job_id in dict.fromkeys(job_ids) for each in await act(conn, job_id)]

    told = target.run(run)
    if target.as_json:
        print_json(outcomes=[{"job_id": job_id, **asdict(each)} for job_id, each in told])
    else:
        for job_id, each in told:
            name = f" {one_line(each.subscription)}" if each.subscription else ""
            say(f"{job_id}{name}: {words[each.outcome]}")
    if any(each.outcome not in fine for _, each in told):
        raise typer.Exit(1)


def _states(target: Target, job_ids: Sequence[UUID]) -> Counter[str]:
    async def look_up(conn: AsyncSession) -> list[JobListing]:
        return [await jobs.whole(conn, job_id, target.schema) for job_id in dict.fromkeys(job_ids)]

    found = target.run(look_up)
    missing = Counter({"without a trace": sum(not each.jobs for each in found)})
    return Counter(job.state for each in found for job in each.jobs) + missing


def _fields(each: JobRow, *, whole: bool) -> dict[str, Any]:
    told = asdict(each)
    if not whole:
        return {name: value for name, value in told.items() if name not in ("payload", "history")}
    return told | {"payload": json.loads(each.payload) if each.payload else None}
