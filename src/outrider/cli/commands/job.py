"""`outrider job`: what waits, runs and failed, one job in full; cancel jobs, let them run now, or retry them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, get_args
from uuid import UUID

import typer

from outrider.cli.bulk_actions import STOPPED
from outrider.cli.job_options import ChosenJobs, JobFilterOptions
from outrider.cli.options import AuditOptions, Commands, DryRunOption, LimitOption, YesOption, confirm
from outrider.cli.output import jobs as jobs_output
from outrider.cli.output.progress import progress
from outrider.cli.output.text import counted, one_line, print_json, say
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import Target
from outrider.errors import NoSuchJob
from outrider.postgres.admin import bulk_jobs, jobs
from outrider.postgres.admin.bulk_jobs import BulkVerb, JobFilter, JobsDone
from outrider.postgres.admin.jobs import OWED, JobListing, JobOutcome, JobRow, State
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

commands = Commands(no_args_is_help=True)


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

RETRIED = {
    "replayed": "pending again",
    "superseded": "not retried: another job has its unique key",
    "skipped_handled": "not retried: its event has been handled",
    "erased": "not retried: its payload is erased",
    "not_found": NO_TRACE,
}
WORDS: dict[BulkVerb, tuple[str, str]] = {
    "cancel": ("cancel", "cancelled"),
    "run_now": ("make due", "made due"),
    "retry": ("retry", "retried"),
}

JobId = Annotated[UUID, typer.Argument(metavar="JOB_ID", help="The job's id; for a job of events, the event's id.")]
JobIds = Annotated[
    list[UUID] | None, typer.Argument(metavar="JOB_ID", help="The ids of the jobs, instead of a filter.")
]


@commands.command("list")
def show_all(
    target: Target,
    which: JobFilterOptions,
    limit: LimitOption = 50,
    after: Annotated[
        int, typer.Option("--after", metavar="PLACE", min=0, help="With a search: continue where the last one ended.")
    ] = 0,
) -> None:
    """Show the running, pending and failed jobs.

    Pending jobs come in the order in which they will run. --state cancelled includes
    superseded and discarded jobs. --state done shows the finished jobs that left a
    receipt, the newest first. Counts end at 10,000.

    --key, --workspace and --payload search the oldest 100,000 jobs that have not
    finished; the last line says how many were searched. --after continues.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider job list[/]
      [bold]outrider job list --type mail.send_receipt --state failed --limit 10[/]
      [bold]outrider job list --payload order_id=7[/]
    """
    wanted = [each.value for each in which.states or ()] or list(OWED)

    async def look_up(conn: AsyncSession) -> JobListing:
        if after or which.filter_of(()).needs_search:
            return await jobs.searched(conn, which.filter_of(wanted), target.schema, after=after, limit=limit)
        return await jobs.listing(
            conn, target.schema, name=which.job_type, states=wanted, queue=which.queue, limit=limit
        )

    found = target.run(look_up, every_tenant=True)
    if target.as_json:
        told = [_fields(each, whole=False) for each in found.jobs]
        print_json(
            schema=target.schema, read_at=found.read_at, paused_at=found.paused_at, counts=found.counts,
            searched=found.searched, place=found.place, jobs=told,
        )  # fmt: skip
        return
    if found.jobs:
        jobs_output.show_list(found)
    else:
        say("no jobs" + " match" * which.given)
    if found.searched is not None:
        more = f"; for more: --after {found.place}" if found.place is not None else ""
        first = "the first " * (len(found.jobs) == limit)
        say(f"{first}{len(found.jobs):,} found; searched {counted(found.searched, 'job')}{more}")
        return
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
def cancel(
    target: Target,
    which: ChosenJobs,
    audit: AuditOptions,
    job_ids: JobIds = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Keep jobs from running, or stop them: by id, or all that match a filter.

    A pending job will not run. A dead letter leaves the list. A running job is told
    to stop: an async job at its next await, a blocking one when it asks its context,
    one in a process of its own by a signal. What it has done stays done. A filter
    means pending and running jobs, unless --state says otherwise, which exist when it
    begins; it works in batches, and Ctrl-C stops it after one. Recorded in the audit.
    To bring a job back: outrider dlq replay JOB_ID --force.
    Exits with 1 if there is no trace of a job: it has finished, or is unknown.

    Needs: a role that may operate.

    Examples:

      [bold]outrider job cancel 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a --reason test[/]
      [bold]outrider job cancel --type mail.send --payload campaign=spring --dry-run[/]
    """
    if (chosen := which.check("cancel", job_ids)) is not None:
        asyncio.run(bulk(target, chosen, "cancel", audit, dry_run=dry_run, yes=yes))
        return
    ids = _named(job_ids, dry_run)
    if not yes:
        states = ", ".join(f"{number} {state}" for state, number in _states(target, ids).items())
        many = f"{len(ids)} jobs" if len(ids) > 1 else str(ids[0])
        confirm(f"Cancel {many} ({states})?", "nothing was cancelled", yes=False)
    act = partial(jobs.cancel, schema=target.schema, by=audit.who, reason=audit.reason)
    _act(target, ids, act, CANCELLED, fine=("cancelled", "cancelling", "done"))


@commands.command("run-now")
def run_now(
    target: Target,
    which: ChosenJobs,
    audit: AuditOptions,
    job_ids: JobIds = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Let jobs that wait for their time or for a retry run now.

    By id, or all pending jobs that match a filter. Their workers are woken. Limits
    still apply: a job may wait for its key or for a free slot. Recorded in the audit.
    Exits with 1 if a job will not run.

    Needs: a role that may operate.

    Examples:

      [bold]outrider job run-now 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
      [bold]outrider job run-now --type mail.send --queue bulk --yes[/]
    """
    if (chosen := which.check("run_now", job_ids)) is not None:
        asyncio.run(bulk(target, chosen, "run_now", audit, dry_run=dry_run, yes=yes))
        return
    act = partial(jobs.run_now, schema=target.schema, by=audit.who, reason=audit.reason)
    _act(target, _named(job_ids, dry_run), act, DUE, fine=("due", "running"))


@commands.command()
def retry(
    target: Target,
    which: ChosenJobs,
    audit: AuditOptions,
    job_ids: JobIds = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Let failed jobs run again, with all their attempts.

    By id, or all dead letters among the jobs that match a filter. A job is skipped if
    another one has its unique key by then. Recorded in the audit. A job that waits
    for a retry is no dead letter yet: use run-now. For dead letters by cause, and for
    events: outrider dlq replay.
    Exits with 1 if a job is not retried.

    Needs: a role that may operate.

    Examples:

      [bold]outrider job retry 01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a[/]
      [bold]outrider job retry --type bank.settle --dry-run[/]
    """
    if (chosen := which.check("retry", job_ids)) is not None:
        asyncio.run(bulk(target, chosen, "retry", audit, dry_run=dry_run, yes=yes))
        return
    act = partial(jobs.retry, schema=target.schema, by=audit.who, reason=audit.reason)
    words = RETRIED | {state: f"not retried: it is {state}" for state in get_args(State)}
    _act(target, _named(job_ids, dry_run), act, words, fine=("replayed",))


async def bulk(
    target: Target, which: JobFilter, verb: BulkVerb, audit: AuditOptions, *, dry_run: bool, yes: bool
) -> None:
    """Count, ask, act."""
    do, done_word = WORDS[verb]
    async with target.connect() as conn:
        until = await bulk_jobs.newest(conn, target.schema)
        found = await bulk_jobs.count(conn, which, target.schema, until=until)
        told = ", ".join(f"{number:,} {state}" for state, number in found.states.items())
        many = counted(found.jobs, "job") + f" ({told})" * bool(told)
        if dry_run:
            if target.as_json:
                print_json(dry_run=True, action=verb, jobs=found.jobs, states=found.states, searched=found.searched)
            else:
                typer.echo(f"would {do} {many}; nothing was changed (dry run)")
            return
        if not found.jobs and not target.as_json:
            typer.echo(f"no jobs match: nothing was {done_word}")
            return
        if found.jobs:
            confirm(f"{do.capitalize()} {many}?", f"nothing was {done_word}", yes=yes)
        stop = asyncio.Event()
        with progress(do, found.jobs, quiet=target.as_json) as tell, obeying(stop.set, leave):
            done = await bulk_jobs.act(
                conn, verb, which, target.schema, by=audit.who, reason=audit.reason, until=until,
                on_progress=lambda so_far: tell(so_far.jobs), stop=stop,
            )  # fmt: skip
    if target.as_json:
        print_json(**asdict(done))
    else:
        typer.echo(_told(done, done_word))
    if done.stopped:
        raise typer.Exit(STOPPED)


def _told(done: JobsDone, done_word: str) -> str:
    said = [f"{done.changed:,} {done_word}"]
    said += [f"{done.stopping:,} running: their workers stop them"] * bool(done.stopping)
    said += [f"{done.skipped:,} skipped: nothing to do"] * bool(done.skipped)
    said += [f"{done.held:,} locked by other transactions: run it again for these"] * bool(done.held)
    return ", ".join(said) + "; stopped: run it again for the rest" * done.stopped


def _named(job_ids: Sequence[UUID] | None, dry_run: bool) -> Sequence[UUID]:
    if dry_run:
        raise typer.BadParameter("--dry-run is for a filter: outrider job show shows one job")
    return job_ids or ()


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
