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
from outrider.cli.place import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.postgres import registration
from outrider.postgres.migrate import Applied, Migration, applied, known, migrate, pending, refuse_newer, script
from outrider.postgres.orphans import refuse_renamed
from outrider.postgres.registration import Registered, register
from outrider.postgres.session import AsyncSession
from outrider.subscription import Subscription

commands = typer.Typer(invoke_without_command=True)


@dataclass(frozen=True, slots=True)
class Report:
    schema: str
    database: str
    applied: Sequence[Migration]
    registered: Sequence[Registered]
    dry_run: bool = False


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Install or upgrade the schema, and register an app's subscriptions.

    Safe at every deploy, and from several machines at once.
    Without an app only the schema is migrated.

    Needs: Postgres 15 or newer, and a role that owns the database or the schema.
    No superuser, no extension.

    Examples:

      [bold]outrider migrate --dsn postgresql://localhost/shop[/]
      [bold]outrider migrate --app shop:app --dry-run[/]
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
    if (versions or head) and not alembic:
        raise typer.BadParameter("--versions and --head go with --alembic")
    place = find_place(asked)
    if alembic:
        written = revisions.write(place.schema, place.subscriptions or (), after=after, versions=versions, head=head)
        revisions.tell(written, place.schema, as_json=as_json)
        return
    if sql:
        typer.echo(_script(place, after or 0), nl=False)
        return
    report = asyncio.run(_plan(place) if dry_run else _migrate(place))
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
    """Show every migration: applied when and by whom, or pending.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider migrate status --dsn postgresql://localhost/shop[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema).over(ctx.obj))
    have = asyncio.run(_applied(place))
    todo = pending(have)
    if as_json:
        rows = [asdict(row) for row in have] + [_fields(row) | {"applied_at": None, "applied_by": None} for row in todo]
        typer.echo(json.dumps({"schema": place.schema, "migrations": rows}, default=str, indent=2))
        return
    table = Table("version", "name", "breaking", "applied at", "applied by", title=f"schema {place.schema}")
    for row in have:
        at = row.applied_at.astimezone().isoformat(" ", "seconds")
        table.add_row(str(row.version), row.name, _yes(row.breaking), at, row.applied_by)
    for step in todo:
        table.add_row(str(step.version), step.name, _yes(step.breaking), "pending", "", style="yellow")
    Console().print(table)


async def _migrate(place: Place) -> Report:
    async with place.connect() as conn:
        done = await migrate(conn, place.schema)
        await _refuse_renamed(conn, place)
        registered = [await register(conn, each, place.schema) for each in place.subscriptions or ()]
        return Report(place.schema, conn.info.dbname, done, registered)


async def _plan(place: Place) -> Report:
    async with place.connect() as conn:
        have = await applied(conn, place.schema)
        refuse_newer(have, place.schema)
        todo = pending(have)
        registered = [_unknown(each, new=not have) for each in place.subscriptions or ()]
        if not todo:
            await _refuse_renamed(conn, place)
            registered = [await _try_register(conn, each, place.schema) for each in place.subscriptions or ()]
        return Report(place.schema, conn.info.dbname, todo, registered, dry_run=True)


async def _refuse_renamed(conn: AsyncSession, place: Place) -> None:
    if place.subscriptions and not place.settings.allow_orphans:
        await refuse_renamed(conn, place.subscriptions, [each.name for each in place.subscriptions], place.schema)


async def _try_register(conn: AsyncSession, subscription: Subscription, schema: str) -> Registered:
    """Only the database's own register knows what it would do: it is asked, and rolled back."""
    async with conn.transaction(force_rollback=True):
        return await register(conn, subscription, schema)


def _unknown(subscription: Subscription, *, new: bool) -> Registered:
    return Registered(subscription.name, "created" if new else "after the migrations", subscription.partitions)


async def _applied(place: Place) -> list[Applied]:
    async with place.connect() as conn:
        return await applied(conn, place.schema)


def _script(place: Place, after: int) -> str:
    parts = [script(place.schema, after=after)]
    parts += [registration.script(each, place.schema) for each in place.subscriptions or ()]
    return "\n".join(parts)


def _show(report: Report) -> None:
    typer.echo(f'schema "{report.schema}" in database "{report.database}"')
    would = "would be " if report.dry_run else ""
    for step in report.applied:
        breaking = " (breaking: older code stops working)" if step.breaking and step.version > 1 else ""
        typer.echo(f"  migration     {step.version:04} {step.name}: {would}applied{breaking}")
    for each in report.registered:
        partitions = "1 partition" if each.partitions == 1 else f"{each.partitions} partitions"
        typer.echo(f"  subscription  {each.name}: {would}{each.outcome}, {partitions}")
        if each.surplus:
            types = " ".join(each.surplus)
            typer.echo(
                f"                it also wants {types}, which this code does not declare, so its workers take nothing "
                f"from it; when no older code needs them: outrider subscription narrow {each.name} {types}"
            )
    if not report.applied:
        typer.echo(f"  up to date: version {known()[-1].version}")
    if report.dry_run:
        typer.echo("  nothing was changed (dry run)")


def _as_json(report: Report) -> str:
    answer = {
        "schema": report.schema,
        "database": report.database,
        "dry_run": report.dry_run,
        "applied": [_fields(step) for step in report.applied],
        "registered": [asdict(each) for each in report.registered],
    }
    return json.dumps(answer, indent=2)


def _fields(step: Migration) -> dict[str, object]:
    return {"version": step.version, "name": step.name, "breaking": step.breaking}


def _yes(value: bool) -> str:
    return "yes" if value else "no"
