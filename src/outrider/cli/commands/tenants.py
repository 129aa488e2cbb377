"""`outrider tenants`: policies that isolate tenants, and exporting or erasing the data of one."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from outrider.cli.bulk_actions import STOPPED
from outrider.cli.options import AuditOptions, Commands, DryRunOption, YesOption, confirm
from outrider.cli.output.text import one_line, print_json, say
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import Target
from outrider.errors import TenantsRefused
from outrider.postgres.admin import tenants
from outrider.postgres.admin.tenants import Guarded, Rows, Tell, Whose
from outrider.postgres.connection import AsyncSession

commands = Commands(no_args_is_help=True)

Workspace = Annotated[str | None, typer.Argument(metavar="WORKSPACE", help="The tenant.")]
Subject = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--subject", metavar="KIND ID", help="Only events about this aggregate; without WORKSPACE, of every tenant."
    ),
]
JobsOption = Annotated[
    bool,
    typer.Option("--jobs", help="With --subject: also enqueued jobs of any type whose key is ID."),
]
SqlOption = Annotated[bool, typer.Option("--sql", help="Print the SQL, and change nothing.")]


@commands.command()
def enable(
    target: Target,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="NAME", help="This role also sees every tenant. Repeatable.")
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Roles of an earlier --role that are not given now lose this right.")
    ] = False,
    sql: SqlOption = False,
) -> None:
    """Isolate tenants with row-level security policies.

    In the log and in pending work, every role then sees only the rows of the tenant in
    the setting app.workspace_id; while it is unset or empty, none. Exceptions, which
    see every tenant: the owner of the schema; the roles worker, relay, operator,
    dashboard, cron and upkeep of outrider roles; and those given with --role. Run it
    again to add others: earlier ones stay unless --only is given. It says which roles
    have gained and lost this right, and which may read the log but see only one tenant.
    A worker that does not see every tenant fails; it skips nothing.

    Needs: the owner of the schema.

    Example: [bold]outrider tenants enable --role billing_worker[/]
    """
    _change(target, enable=True, roles=role or [], keep=not only, sql=sql)


@commands.command()
def disable(target: Target, sql: SqlOption = False) -> None:
    """Remove the policies, so that roles see every tenant again.

    Needs: the owner of the schema.

    Example: [bold]outrider tenants disable[/]
    """
    _change(target, enable=False, roles=[], keep=False, sql=sql)


@commands.command()
def status(target: Target) -> None:
    """Show whether tenants are isolated, and who sees all of them.

    Needs: a role that may use the schema. Changes nothing.

    Example: [bold]outrider tenants status[/]
    """
    found = target.run(lambda conn: tenants.state(conn, target.schema))
    if target.as_json:
        print_json(schema=target.schema, tables=[asdict(each) | {"whole": each.whole} for each in found])
        return
    for each in found:
        say(f"{one_line(each.table)}: {_standing(each)}")
        if each.enabled:
            say(f"see every tenant: {', '.join(map(one_line, each.sees_all)) or 'nobody'}", indent=2)
    if any(each.enabled for each in found):
        say(f"not subject to any policy: {', '.join(map(one_line, found[0].above)) or 'nobody'}")
        _tell_held(_held(found))


@commands.command()
def export(
    target: Target,
    audit: AuditOptions,
    workspace: Workspace = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file; it must not exist.")] = None,
    subject: Subject = None,
    jobs: JobsOption = False,
) -> None:
    """Write the events and jobs of a tenant to a file.

    The file has one JSON object per line. The command reads the whole log, page by
    page: nothing is indexed by tenant. The file appears when it is complete. It does
    not contain finished jobs that were enqueued, nor what handlers wrote elsewhere.
    --json prints the counts, not the rows. The audit records who exported whose data,
    and how much.

    Needs: a role that may call note_export and tenant_page, an operator's.

    Example: [bold]outrider tenants export acme --out acme.jsonl[/]
    """
    whose = _whose(workspace, subject, jobs=jobs)
    if out is None:
        raise typer.BadParameter("--out is missing: name the file")
    if out.exists():
        raise TenantsRefused(f"nothing was written: {out} exists")

    async def write(conn: AsyncSession) -> Rows:
        with _complete(out) as write, _showing("exporting", quiet=target.as_json) as tell:
            return await tenants.export(
                conn, whose, target.schema, write=write, tell=tell, by=audit.who, reason=audit.reason
            )

    rows = target.run(write)
    if target.as_json:
        counts = {"events": rows.events, "jobs": rows.jobs, "audit": rows.audit}
        print_json(schema=target.schema, **_named(whose), file=str(out), **counts)
        return
    say(f"{rows.events:,} events and {rows.jobs:,} jobs of {one_line(whose)} in {one_line(out)}; audit {rows.audit}")


@commands.command()
def erase(
    target: Target,
    audit: AuditOptions,
    workspace: Workspace = None,
    subject: Subject = None,
    jobs: JobsOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Erase the payloads of a tenant or a subject, for good.

    Rows, keys and receipts stay; payloads, results and error texts are erased. Events
    and jobs that were not handled, also running jobs, are withdrawn first; nobody
    handles, replays or relays them later. Copies sent elsewhere are not erased. It
    counts first, then erases page by page, each in a short transaction; if it was
    stopped, run it again for the rest. Without a terminal it requires --yes. It
    cannot be undone.

    Needs: a role that may call erase, an operator's.

    Example: [bold]outrider tenants erase acme --reason 'contract ended' --yes[/]
    """
    if target.as_json and not (yes or dry_run):
        raise typer.BadParameter("--json is for programs, which cannot be asked: add --yes")
    whose = _whose(workspace, subject, jobs=jobs)
    reason = audit.reason or ""
    if not dry_run and not reason:
        raise typer.BadParameter("--reason is missing: say why, for the audit")
    if dry_run:
        _show_plan(target, whose)
    else:
        asyncio.run(_erase(target, whose, reason, audit.who, yes=yes))


def _whose(workspace: str | None, subject: tuple[str, str] | None, *, jobs: bool) -> Whose:
    kind, identity = subject or (None, None)
    return Whose(workspace or None, kind, identity, jobs)


def _change(target: Target, *, enable: bool, roles: list[str], keep: bool, sql: bool) -> None:
    plan = target.run(lambda conn: tenants.plan(conn, target.schema, enable=enable, roles=roles, keep=keep))
    if sql:
        if target.as_json:
            print_json(schema=target.schema, commands=plan, done=False)
        else:
            typer.echo("\n".join(["begin;", *(f"{one_line(command)};" for command in plan), "commit;"]))
        return

    async def carry_out(conn: AsyncSession) -> tuple[list[Guarded], list[Guarded]]:
        before = await tenants.state(conn, target.schema)
        await tenants.carry_out(conn, target.schema, plan)
        return before, await tenants.state(conn, target.schema)

    before, after = target.run(carry_out)
    had, have = _seeing(before), _seeing(after)
    gained, held = sorted(have - had), _held(after)
    lost = sorted(had - have) if have else []  # without policies everybody sees all
    if target.as_json:
        print_json(schema=target.schema, commands=plan, done=True, gained=gained, lost=lost, held=held)
        return
    for each in after:
        say(f"{one_line(each.table)}: {_standing(each)}")
    for verb, names in (("now see every tenant", gained), ("no longer see every tenant", lost)):
        if names:
            say(f"{verb}: {', '.join(map(one_line, names))}")
    _tell_held(held)


def _seeing(found: list[Guarded]) -> set[str]:
    return {name for each in found if each.enabled for name in each.sees_all}


def _held(found: list[Guarded]) -> list[str]:
    return sorted({name for each in found if each.enabled for name in each.held})


def _tell_held(held: list[str]) -> None:
    if held:
        say(f"may read, but see only the tenant of app.workspace_id: {', '.join(map(one_line, held))}")


def _standing(each: Guarded) -> str:
    if each.whole:
        return "tenants are isolated"
    if each.enabled and each.open_segments:
        return f"not isolated in {', '.join(map(one_line, each.open_segments))}: enable again"
    return "partly isolated: enable again" if each.enabled else "not isolated"


def _show_plan(target: Target, whose: Whose) -> None:
    found = target.run(lambda conn: tenants.count(conn, whose, target.schema))
    if target.as_json:
        print_json(schema=target.schema, **_named(whose), dry_run=True, **_counts(found), owed=found.owed)
    else:
        say(f"would erase {_amount(found, whose)}; nothing was changed (dry run)")


async def _erase(target: Target, whose: Whose, reason: str, by: str, *, yes: bool) -> None:
    stop = asyncio.Event()
    async with target.connect() as conn:
        found = await tenants.count(conn, whose, target.schema)
        confirm(f"Erase {_amount(found, whose)}, for good?", "nothing was erased", yes=yes)
        with _showing("erasing", quiet=target.as_json) as tell, obeying(stop.set, leave):
            done = await tenants.erase(conn, whose, target.schema, reason=reason, by=by, tell=tell, stop=stop)
    if target.as_json:
        print_json(schema=target.schema, **_named(whose), audit=done.audit, **_counts(done))
    else:
        say(f"erased {done.events:,} events and {done.jobs:,} jobs of {one_line(whose)}; audit {done.audit}")
    if stop.is_set():
        say("stopped: run it again for the rest")
        raise typer.Exit(STOPPED)


def _amount(found: Rows, whose: Whose) -> str:
    said = f"{found.events:,} events and {found.jobs:,} jobs of {one_line(whose)}"
    said += f", {found.erased:,} of them erased before" * bool(found.erased)
    return said + f", {found.owed:,} of them not handled yet, which nobody will handle" * bool(found.owed)


def _named(whose: Whose) -> dict[str, object]:
    return {"workspace": whose.workspace_id, "subject": whose.subject and [whose.kind, whose.subject]}


def _counts(rows: Rows) -> dict[str, int]:
    return {"events": rows.events, "jobs": rows.jobs, "erased_before": rows.erased}


@contextmanager
def _complete(out: Path) -> Iterator[Callable[[str], object]]:
    """The file gets its name only when it is complete and on disk. Only its owner may read it."""
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        os.link(name, out)
    finally:
        Path(name).unlink()


@contextmanager
def _showing(verb: str, *, quiet: bool) -> Iterator[Tell]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(verb)
        yield lambda rows: bar.update(task, description=f"{verb}: {rows.events:,} events, {rows.jobs:,} jobs")
