"""`outrider migrate`: bring the schema up to date and register the app's subscriptions; `status` lists the migrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider.cli import alembic as revisions
from outrider.cli.options import Commands, DryRunOption
from outrider.cli.output.text import moment, print_json, tell
from outrider.cli.target import Target
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
from outrider.postgres.schema.phases import LiveWorker, Phase, held_up, refuse_unaware
from outrider.postgres.schema.registration import Registered, refuse_renamed, register
from outrider.subscription import Subscription

commands = Commands(invoke_without_command=True)


@dataclass(frozen=True, slots=True)
class MigrationReport:
    schema: str
    database: str
    applied: Sequence[Migration]
    registered: Sequence[Registered]
    left: Sequence[Migration]
    """Migrations of the post phase that are not applied yet."""
    dry_run: bool = False
    refused: str | None = None
    """In a dry run: why the migration would be refused."""


@commands.callback()
def run(
    target: Target,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL script instead; needs no database.")] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", metavar="N", min=0, help="With --sql or --alembic: only the migrations after number N."
        ),
    ] = None,
    alembic: Annotated[
        bool, typer.Option("--alembic", help="Write Alembic revisions instead; needs no database.")
    ] = False,
    versions: Annotated[
        Path | None,
        typer.Option(
            "--versions", metavar="DIR", file_okay=False, help="With --alembic: the folder. Default: by alembic.ini."
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="REV", help="With --alembic: the head to follow, if there are several."),
    ] = None,
    phase: Annotated[
        Phase,
        typer.Option("--phase", help="pre: only what works beside workers of the previous release. post: everything."),
    ] = Phase.post,
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if workers run that do not know a breaking migration: they will fail."),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Install or upgrade the schema; register subscriptions.

    Safe at every deploy, and from several machines at once.
    Without an app only the schema is migrated.

    To upgrade beside running workers: run --phase pre, deploy the new code, then run
    this without --phase. A migration that breaks older code is refused while workers
    run that do not know it.

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
    if after is not None and not (sql or alembic):
        raise typer.BadParameter("--after goes with --sql or --alembic: without them the database knows what it has")
    if sql and (dry_run or target.as_json):
        raise typer.BadParameter("--sql prints a script: it goes with neither --dry-run nor --json")
    if alembic and (sql or dry_run):
        raise typer.BadParameter("--alembic writes revisions: it goes with neither --sql nor --dry-run")
    if force and (sql or alembic):
        raise typer.BadParameter("--force goes with neither --sql nor --alembic: what they write cannot be forced")
    if (versions or head) and not alembic:
        raise typer.BadParameter("--versions and --head go with --alembic")
    if alembic:
        written = revisions.write(
            target.schema,
            target.subscriptions or (),
            after=after,
            phase=phase,
            versions=versions,
            head=head,
            allow_orphans=target.settings.allow_orphans,
        )
        revisions.tell(written, target.schema, phase, as_json=target.as_json)
        return
    if sql:
        typer.echo(_script(target, after or 0, phase), nl=False)
        return
    act = _plan if dry_run else _migrate
    report = target.run(lambda conn: act(conn, target, phase, force=force), migrated=False)
    if target.as_json:
        _print_json(report)
    else:
        _show(report)


@commands.command()
def status(target: Target) -> None:
    """Show every migration, and when and by whom it was applied.

    A pending migration of the post phase is blocked by workers whose code does not
    know it; they are named.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider migrate status --dsn postgresql://localhost/shop[/]
    """

    async def look_up(conn: AsyncSession) -> tuple[list[Applied], list[LiveWorker]]:
        have = await applied(conn, target.schema)
        breaking = any(step.breaking for step in pending(have))
        return have, await live_workers(conn, target.schema) if breaking else []

    have, workers = target.run(look_up, migrated=False)
    waiting = {step: held_up(step, workers) for step in pending(have)}
    if target.as_json:
        rows = [asdict(row) | {"phase": row.phase, "held_up_by": []} for row in have]
        rows += [
            _fields(step) | {"applied_at": None, "applied_by": None, "held_up_by": [asdict(worker) for worker in held]}
            for step, held in waiting.items()
        ]
        print_json(schema=target.schema, migrations=rows)
        return
    table = Table("version", "name", "phase", "applied at", "applied by", title=f"schema {target.schema}")
    for row in have:
        table.add_row(str(row.version), row.name, row.phase, moment(row.applied_at), row.applied_by)
    for step, held in waiting.items():
        by = "\n".join(f"blocked by {worker}" for worker in held)
        table.add_row(str(step.version), step.name, step.phase, "pending", by, style="yellow")
    Console().print(table)
    if waiting:
        typer.echo(_next(have, held=any(waiting.values())))


def _next(have: Sequence[Applied], *, held: bool) -> str:
    first = pending(have, Phase.pre)
    if first and not (have and any(step.breaking for step in first)):
        beside = "; beside workers of the previous release: outrider migrate --phase pre" if have else ""
        return f"next: outrider migrate{beside}"
    return "next: outrider migrate, when those workers have ended" if held else "next: outrider migrate"


async def _migrate(conn: AsyncSession, target: Target, phase: Phase, *, force: bool) -> MigrationReport:
    done = await migrate(conn, target.schema, phase=phase, force=force)
    await _refuse_renamed(conn, target)
    registered = [await register(conn, each, target.schema) for each in target.subscriptions or ()]
    for each in target.scheduled:
        await schedules.register(conn, each.schedule, each.request, target.schema, target.settings.context)
    await open_all(conn, target.subscriptions or (), target.settings.generation, target.schema)
    left = pending(await applied(conn, target.schema))
    return MigrationReport(target.schema, conn.info.dbname, done, registered, left)


async def _plan(conn: AsyncSession, target: Target, phase: Phase, *, force: bool) -> MigrationReport:
    have = await applied(conn, target.schema)
    refuse_newer(have, target.schema)
    todo = pending(have, phase)
    refused = None
    try:
        refuse_unaware(todo, [] if force else await live_workers(conn, target.schema))
    except MigrationRefused as error:
        refused = str(error)
    registered = [_unknown(each, new=not have) for each in target.subscriptions or ()]
    if not todo:
        await _refuse_renamed(conn, target)
        registered = [await _try_register(conn, each, target.schema) for each in target.subscriptions or ()]
    left = [step for step in pending(have) if step not in todo]
    return MigrationReport(target.schema, conn.info.dbname, todo, registered, left, dry_run=True, refused=refused)


async def _refuse_renamed(conn: AsyncSession, target: Target) -> None:
    if target.subscriptions and not target.settings.allow_orphans:
        await refuse_renamed(conn, target.subscriptions, [each.name for each in target.subscriptions], target.schema)


async def _try_register(conn: AsyncSession, subscription: Subscription, schema: str) -> Registered:
    """Only the database knows what register would do: it is called, and rolled back."""
    async with conn.transaction(force_rollback=True):
        return await register(conn, subscription, schema)


def _unknown(subscription: Subscription, *, new: bool) -> Registered:
    return Registered(subscription.name, "created" if new else "after the migrations", subscription.partitions)


def _script(target: Target, after: int, phase: Phase) -> str:
    parts = [script(target.schema, after=after, phase=phase)]
    if target.subscriptions and not target.settings.allow_orphans:
        declared = ",\n        ".join(map(registration.row, target.subscriptions))
        parts.append(fill("refuse_renamed.sql", schema=target.schema, declared=declared))
    parts += [registration.script(each, target.schema) for each in target.subscriptions or ()]
    return "\n".join(parts)


def _show(report: MigrationReport) -> None:
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
                f"from it; when no older code needs these types: outrider subscription narrow {each.name} {types}"
            )
    for step in report.left:
        tell(
            f"  migration     {step.version:04} {step.name}: not applied yet; run outrider migrate when no older code runs"
        )
    if not report.applied and not report.left:
        tell(f"  up to date: version {known()[-1].version}")
    if report.refused:
        tell(f"  would be refused: {report.refused}")
    if report.dry_run:
        tell("  nothing was changed (dry run)")


def _print_json(report: MigrationReport) -> None:
    print_json(
        schema=report.schema,
        database=report.database,
        dry_run=report.dry_run,
        applied=[_fields(step) for step in report.applied],
        left=[_fields(step) for step in report.left],
        refused=report.refused,
        registered=[asdict(each) for each in report.registered],
    )


def _fields(step: Migration) -> dict[str, object]:
    return {"version": step.version, "name": step.name, "breaking": step.breaking, "phase": step.phase}
