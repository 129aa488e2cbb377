"""`outrider migrate`: bring the schema up to date and register the app's subscriptions; `status` shows where it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider.cli import alembic as revisions
from outrider.cli.output.text import tell
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.cli.templates import fill
from outrider.errors import MigrationRefused
from outrider.postgres import schedules
from outrider.postgres.connection import AsyncSession
from outrider.postgres.generations import open_all
from outrider.postgres.schema import registration
from outrider.postgres.schema.migrate import (
    Applied,
    Migration,
    applied,
    known,
    live_workers,
    migrate,
    pending,
    refuse_newer,
    script,
)
from outrider.postgres.schema.orphans import refuse_renamed
from outrider.postgres.schema.phases import LiveWorker, Phase, held_up, refuse_unaware
from outrider.postgres.schema.registration import Registered, register
from outrider.subscription import Subscription

commands = typer.Typer(invoke_without_command=True)


@dataclass(frozen=True, slots=True)
class Report:
    schema: str
    database: str
    applied: Sequence[Migration]
    registered: Sequence[Registered]
    left: Sequence[Migration]
    """What the pre phase leaves to the post phase."""
    dry_run: bool = False
    refused: str | None = None
    """In a dry run: why it would be refused."""


@commands.callback()
def run(
    ctx: typer.Context,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL script instead; connects to nothing.")] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", metavar="N", min=0, help="With --sql or --alembic: only the migrations after number N."
        ),
    ] = None,
    alembic: Annotated[
        bool, typer.Option("--alembic", help="Write Alembic revisions instead; connects to nothing.")
    ] = False,
    versions: Annotated[
        Path | None,
        typer.Option(
            "--versions", metavar="DIR", file_okay=False, help="With --alembic: where to. Else by alembic.ini."
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="REV", help="With --alembic: the head to follow, if there are several."),
    ] = None,
    phase: Annotated[
        Phase,
        typer.Option(
            "--phase", help="pre: only what the release before can live with, to be run beside its workers. post: all."
        ),
    ] = Phase.post,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although workers run that do not know a breaking migration: they will fail."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Install or upgrade the schema, and register an app's subscriptions.

    Safe at every deploy, and from several machines at once.
    Without an app only the schema is migrated.

    An upgrade beside running workers has two phases: --phase pre first, then
    the new code, then this without an option. A migration that breaks older
    code is refused while workers run that do not know it.

    Needs: Postgres 15 or newer, and a role that owns the database or the schema.
    No superuser, no extension.

    Examples:

      [bold]outrider migrate --dsn postgresql://localhost/shop[/]
      [bold]outrider migrate --app shop:app --dry-run[/]
      [bold]outrider migrate --app shop:app --phase pre[/]
      [bold]outrider migrate --sql | psql -v ON_ERROR_STOP=1 shop[/]
      [bold]outrider migrate --app shop:app --alembic && alembic upgrade head[/]
      [bold]outrider migrate status[/]
    """
    asked = Asked(app, dsn, embedded, schema)
    ctx.obj = asked
    if ctx.invoked_subcommand is not None:
        return
    if after is not None and not (sql or alembic):
        raise typer.BadParameter("--after goes with --sql or --alembic: without them the database knows what it has")
    if sql and (dry_run or as_json):
        raise typer.BadParameter("--sql prints a script: it goes with neither --dry-run nor --json")
    if alembic and (sql or dry_run):
        raise typer.BadParameter("--alembic writes revisions: it goes with neither --sql nor --dry-run")
    if force and (sql or alembic):
        raise typer.BadParameter("--force goes with neither --sql nor --alembic: what they write cannot be forced")
    if (versions or head) and not alembic:
        raise typer.BadParameter("--versions and --head go with --alembic")
    place = find_place(asked)
    if alembic:
        written = revisions.write(
            place.schema,
            place.subscriptions or (),
            after=after,
            phase=phase,
            versions=versions,
            head=head,
            allow_orphans=place.settings.allow_orphans,
        )
        revisions.tell(written, place.schema, phase, as_json=as_json)
        return
    if sql:
        typer.echo(_script(place, after or 0, phase), nl=False)
        return
    report = asyncio.run(_plan(place, phase, force=force) if dry_run else _migrate(place, phase, force=force))
    if as_json:
        typer.echo(_as_json(report))
    else:
        _show(report)


@commands.command()
def status(
    ctx: typer.Context,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every migration: its phase, applied when and by whom, or pending.

    A pending migration of the post phase is held up by workers whose code does
    not know it; they are named.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider migrate status --dsn postgresql://localhost/shop[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema).over(ctx.obj))
    have, workers = asyncio.run(_look(place))
    waiting = {step: held_up(step, workers) for step in pending(have)}
    if as_json:
        rows = [asdict(row) | {"phase": row.phase, "held_up_by": []} for row in have]
        rows += [
            _fields(step) | {"applied_at": None, "applied_by": None, "held_up_by": [asdict(worker) for worker in held]}
            for step, held in waiting.items()
        ]
        typer.echo(json.dumps({"schema": place.schema, "migrations": rows}, default=str, indent=2))
        return
    table = Table("version", "name", "phase", "applied at", "applied by", title=f"schema {place.schema}")
    for row in have:
        at = row.applied_at.astimezone().isoformat(" ", "seconds")
        table.add_row(str(row.version), row.name, row.phase, at, row.applied_by)
    for step, held in waiting.items():
        by = "\n".join(f"held up by {worker}" for worker in held)
        table.add_row(str(step.version), step.name, step.phase, "pending", by, style="yellow")
    Console().print(table)
    if waiting:
        typer.echo(_next(have, held=any(waiting.values())))


def _next(have: Sequence[Applied], *, held: bool) -> str:
    if pending(have, Phase.pre):
        beside = "; beside workers of the release before: outrider migrate --phase pre" if have else ""
        return f"next: outrider migrate{beside}"
    return "next: when those workers have ended, outrider migrate" if held else "next: outrider migrate"


async def _migrate(place: Place, phase: Phase, *, force: bool) -> Report:
    async with place.connect(migrated=False) as conn:
        done = await migrate(conn, place.schema, phase=phase, force=force)
        await _refuse_renamed(conn, place)
        registered = [await register(conn, each, place.schema) for each in place.subscriptions or ()]
        for schedule in place.schedules:
            await schedules.register(conn, schedule, place.schema, place.settings.context)
        await open_all(conn, place.subscriptions or (), place.settings.generation, place.schema)
        left = pending(await applied(conn, place.schema))
        return Report(place.schema, conn.info.dbname, done, registered, left)


async def _plan(place: Place, phase: Phase, *, force: bool) -> Report:
    async with place.connect(migrated=False) as conn:
        have = await applied(conn, place.schema)
        refuse_newer(have, place.schema)
        todo = pending(have, phase)
        refused = None
        try:
            refuse_unaware(todo, [] if force else await live_workers(conn, place.schema))
        except MigrationRefused as error:
            refused = str(error)
        registered = [_unknown(each, new=not have) for each in place.subscriptions or ()]
        if not todo:
            await _refuse_renamed(conn, place)
            registered = [await _try_register(conn, each, place.schema) for each in place.subscriptions or ()]
        left = [step for step in pending(have) if step not in todo]
        return Report(place.schema, conn.info.dbname, todo, registered, left, dry_run=True, refused=refused)


async def _refuse_renamed(conn: AsyncSession, place: Place) -> None:
    if place.subscriptions and not place.settings.allow_orphans:
        await refuse_renamed(conn, place.subscriptions, [each.name for each in place.subscriptions], place.schema)


async def _try_register(conn: AsyncSession, subscription: Subscription, schema: str) -> Registered:
    """Only the database's own register knows what it would do: it is asked, and rolled back."""
    async with conn.transaction(force_rollback=True):
        return await register(conn, subscription, schema)


def _unknown(subscription: Subscription, *, new: bool) -> Registered:
    return Registered(subscription.name, "created" if new else "after the migrations", subscription.partitions)


async def _look(place: Place) -> tuple[list[Applied], list[LiveWorker]]:
    async with place.connect(migrated=False) as conn:
        have = await applied(conn, place.schema)
        breaking = any(step.breaking for step in pending(have))
        return have, await live_workers(conn, place.schema) if breaking else []


def _script(place: Place, after: int, phase: Phase) -> str:
    parts = [script(place.schema, after=after, phase=phase)]
    if place.subscriptions and not place.settings.allow_orphans:
        declared = ",\n        ".join(map(registration.row, place.subscriptions))
        parts.append(fill("refuse_renamed.sql", schema=place.schema, declared=declared))
    parts += [registration.script(each, place.schema) for each in place.subscriptions or ()]
    return "\n".join(parts)


def _show(report: Report) -> None:
    tell(f'schema "{report.schema}" in database "{report.database}"')
    would = "would be " if report.dry_run else ""
    fresh = any(step.version == 1 for step in report.applied)  # there is no older code
    for step in report.applied:
        breaking = " (breaking: older code stops working)" if step.breaking and not fresh else ""
        tell(f"  migration     {step.version:04} {step.name}: {would}applied{breaking}")
    for each in report.registered:
        partitions = "1 partition" if each.partitions == 1 else f"{each.partitions} partitions"
        tell(f"  subscription  {each.name}: {would}{each.outcome}, {partitions}")
        if each.surplus:
            types = " ".join(each.surplus)
            tell(
                f"                it also wants {types}, which this code does not declare, so its workers take nothing "
                f"from it; when no older code needs them: outrider subscription narrow {each.name} {types}"
            )
    for step in report.left:
        tell(f"  migration     {step.version:04} {step.name}: left; outrider migrate, when no older code runs")
    if not report.applied and not report.left:
        tell(f"  up to date: version {known()[-1].version}")
    if report.refused:
        tell(f"  would be refused: {report.refused}")
    if report.dry_run:
        tell("  nothing was changed (dry run)")


def _as_json(report: Report) -> str:
    answer = {
        "schema": report.schema,
        "database": report.database,
        "dry_run": report.dry_run,
        "applied": [_fields(step) for step in report.applied],
        "left": [_fields(step) for step in report.left],
        "refused": report.refused,
        "registered": [asdict(each) for each in report.registered],
    }
    return json.dumps(answer, indent=2)


def _fields(step: Migration) -> dict[str, object]:
    return {"version": step.version, "name": step.name, "breaking": step.breaking, "phase": step.phase}
