"""`outrider tenants`: policies that keep tenants apart, and what is to be carried out or erased of one."""

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

from outrider.cli.audit_options import ByOption, ReasonOption, who
from outrider.cli.bulk_actions import STOPPED, confirm, print_json
from outrider.cli.output.text import one_line, say
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import TenantsRefused
from outrider.postgres.admin import tenants
from outrider.postgres.admin.tenants import Guarded, Rows, Tell, Whose

commands = typer.Typer(no_args_is_help=True, help="Keep tenants apart; export or erase what is one's.")

Workspace = Annotated[str | None, typer.Argument(metavar="[WORKSPACE]", help="The tenant.")]
Subject = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--subject", metavar="KIND ID", help="Only events about this aggregate; without WORKSPACE, everybody's."
    ),
]
JobsOption = Annotated[
    bool,
    typer.Option("--jobs", help="With --subject: also enqueued jobs that have its ID for a key, whatever they are."),
]
SqlOption = Annotated[bool, typer.Option("--sql", help="Print the commands, and change nothing.")]


@commands.command()
def enable(
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="NAME", help="It sees every tenant, too. Repeatable.")
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Those that were given with --role before, and are not now, lose it.")
    ] = False,
    sql: SqlOption = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let policies keep the tenants apart in the log and in what is owed.

    Everybody then has only the rows of the setting app.workspace_id; while it is
    unset or empty, none. The owner of the schema, the roles worker, relay, operator,
    dashboard, cron and upkeep after the schema's name and an underscore where they
    exist, and those given with --role see every tenant. Run it again to add others:
    who sees all keeps it, unless --only is given. It says who has gained and who has
    lost it, and who may read the log and sees one tenant only. A worker that does not
    see all of them fails, and skips nothing.

    Needs: the owner of the schema.

    Example: [bold]outrider tenants enable --role billing_worker[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    _change(place, asyncio.run(_plan(place, enable=True, roles=role or [], keep=not only)), sql=sql, as_json=as_json)


@commands.command()
def disable(
    sql: SqlOption = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the policies away: whoever may read a table reads every tenant's rows.

    Needs: the owner of the schema.

    Example: [bold]outrider tenants disable[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    _change(place, asyncio.run(_plan(place, enable=False, roles=[], keep=False)), sql=sql, as_json=as_json)


@commands.command()
def status(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether policies keep the tenants apart, and whom they do not hold.

    Needs: a role that may use the schema. Changes nothing.

    Example: [bold]outrider tenants status[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_state(place))
    if as_json:
        print_json(schema=place.schema, tables=[asdict(each) | {"whole": each.whole} for each in found])
        return
    for each in found:
        say(f"{one_line(each.table)}: {_standing(each)}")
        if each.enabled:
            say(f"see every tenant: {', '.join(map(one_line, each.sees_all)) or 'nobody'}", indent=2)
    if any(each.enabled for each in found):
        say(f"not held by any policy: {', '.join(map(one_line, found[0].above)) or 'nobody'}")
        _tell_held(_held(found))


@commands.command()
def export(
    workspace: Workspace = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; it must not exist.")] = None,
    subject: Subject = None,
    jobs: JobsOption = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a tenant's events and jobs to a file, one JSON object a line.

    The whole log is looked through, a page at a time: nothing is indexed by tenant.
    The file appears when it is complete. Finished jobs that were enqueued, and what
    handlers wrote elsewhere, are not in it. --json prints how many, not the rows.
    The audit says who has exported whose, and how much.

    Needs: a role that may call note_export and tenant_page, an operator's.

    Example: [bold]outrider tenants export acme --out acme.jsonl[/]
    """
    whose = _whose(workspace, subject, jobs=jobs)
    if out is None:
        raise typer.BadParameter("--out says where to")
    if out.exists():
        raise TenantsRefused(f"nothing was written: {out} is there already")
    place = find_place(Asked(app, dsn, embedded, schema))
    rows = asyncio.run(_export(place, whose, out, who(by), reason, quiet=as_json))
    counts = {"events": rows.events, "jobs": rows.jobs, "audit": rows.audit}
    if as_json:
        print_json(schema=place.schema, **_named(whose), file=str(out), **counts)
        return
    say(f"{rows.events:,} events and {rows.jobs:,} jobs of {one_line(whose)} in {one_line(out)}; audit {rows.audit}")


@commands.command()
def erase(
    workspace: Workspace = None,
    subject: Subject = None,
    jobs: JobsOption = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase the payloads of a tenant or a subject, for good.

    Rows, keys and receipts stay; payloads, results, and what errors said go. What has
    not been handled is withdrawn first, also jobs that run; nobody handles, replays or
    relays it later. What was sent elsewhere is not here any more. Counted first, then
    page by page, each in a short transaction; stopped, it is run again for the rest.
    Without a terminal it wants --yes. It cannot be undone.

    Needs: a role that may call erase, an operator's.

    Example: [bold]outrider tenants erase acme --reason 'contract ended' --yes[/]
    """
    if as_json and not (yes or dry_run):
        raise typer.BadParameter("--json is for programs, which are not asked: it goes with --yes")
    whose = _whose(workspace, subject, jobs=jobs)
    if not dry_run and not reason:
        raise typer.BadParameter("--reason says why; the audit keeps it")
    place = find_place(Asked(app, dsn, embedded, schema))
    asyncio.run(_erase(place, whose, reason or "", who(by), dry_run=dry_run, yes=yes, as_json=as_json))


def _whose(workspace: str | None, subject: tuple[str, str] | None, *, jobs: bool) -> Whose:
    kind, identity = subject or (None, None)
    return Whose(workspace or None, kind, identity, jobs)


def _change(place: Place, plan: list[str], *, sql: bool, as_json: bool) -> None:
    if sql:
        if as_json:
            print_json(schema=place.schema, commands=plan, done=False)
        else:
            typer.echo("\n".join(["begin;", *(f"{one_line(command)};" for command in plan), "commit;"]))
        return
    before, after = asyncio.run(_carry_out(place, plan))
    had, have = _seeing(before), _seeing(after)
    gained, held = sorted(have - had), _held(after)
    lost = sorted(had - have) if have else []  # without policies everybody sees all
    if as_json:
        print_json(schema=place.schema, commands=plan, done=True, gained=gained, lost=lost, held=held)
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
        say(f"may read, and see only the tenant of app.workspace_id: {', '.join(map(one_line, held))}")


def _standing(each: Guarded) -> str:
    if each.whole:
        return "tenants are kept apart"
    if each.enabled and each.open_segments:
        return f"can be read around: {', '.join(map(one_line, each.open_segments))}; enable again"
    return "kept apart in part: enable again" if each.enabled else "not kept apart"


async def _plan(place: Place, *, enable: bool, roles: list[str], keep: bool) -> list[str]:
    async with place.connect() as conn:
        return await tenants.plan(conn, place.schema, enable=enable, roles=roles, keep=keep)


async def _carry_out(place: Place, plan: list[str]) -> tuple[list[Guarded], list[Guarded]]:
    """How it was before, and how it is."""
    async with place.connect() as conn:
        before = await tenants.state(conn, place.schema)
        await tenants.carry_out(conn, place.schema, plan)
        return before, await tenants.state(conn, place.schema)


async def _state(place: Place) -> list[Guarded]:
    async with place.connect() as conn:
        return await tenants.state(conn, place.schema)


async def _export(place: Place, whose: Whose, out: Path, by: str, reason: str | None, *, quiet: bool) -> Rows:
    async with place.connect() as conn:
        with _complete(out) as write, _showing("exporting", quiet=quiet) as tell:
            return await tenants.export(conn, whose, place.schema, write=write, tell=tell, by=by, reason=reason)


async def _erase(place: Place, whose: Whose, reason: str, by: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    stop = asyncio.Event()
    async with place.connect() as conn:
        found = await tenants.count(conn, whose, place.schema)
        said = f"{found.events:,} events and {found.jobs:,} jobs of {one_line(whose)}"
        said += f", {found.erased:,} of them erased before" * bool(found.erased)
        said += f", {found.owed:,} of them not handled yet: they never will be" * bool(found.owed)
        if dry_run:
            if as_json:
                print_json(schema=place.schema, **_named(whose), dry_run=True, **_counts(found), owed=found.owed)
            else:
                say(f"would erase {said}; nothing was changed (dry run)")
            return
        confirm(f"Erase {said}, for good?", "nothing was erased", yes=yes)
        with _showing("erasing", quiet=as_json) as tell, obeying(stop.set, leave):
            done = await tenants.erase(conn, whose, place.schema, reason=reason, by=by, tell=tell, stop=stop)
    if as_json:
        print_json(schema=place.schema, **_named(whose), audit=done.audit, **_counts(done))
    else:
        say(f"erased {done.events:,} events and {done.jobs:,} jobs of {one_line(whose)}; audit {done.audit}")
    if stop.is_set():
        say("stopped: run it again for the rest")
        raise typer.Exit(STOPPED)


def _named(whose: Whose) -> dict[str, object]:
    return {"workspace": whose.workspace_id, "subject": whose.subject and [whose.kind, whose.subject]}


def _counts(rows: Rows) -> dict[str, int]:
    return {"events": rows.events, "jobs": rows.jobs, "erased_before": rows.erased}


@contextmanager
def _complete(out: Path) -> Iterator[Callable[[str], object]]:
    """What is written is there under its name when all of it is, and on disk; else not at all. For its owner's eyes."""
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
