"""`outrider rollup`: check, install and verify rollups, see how they stand, run one, remove one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from outrider.cli.options import AuditOptions, Commands, DryRunOption, YesOption, confirm
from outrider.cli.output.rollups import (
    fields,
    lines,
    tell,
    tell_installed,
    tell_plan,
    tell_standing,
    tell_tick,
    waiting,
)
from outrider.cli.output.text import counted, one_line, print_json, safe, say
from outrider.cli.target import Target
from outrider.errors import RollupRefused
from outrider.postgres import rollups
from outrider.postgres.admin.dead_letters import clock
from outrider.postgres.connection import AsyncSession
from outrider.postgres.rollups import (
    MOST,
    Aside,
    Rolling,
    RollupFinding,
    Step,
    Tick,
    blocking_topics,
    compared,
    install_unless_same,
)
from outrider.rollup.rollup import Rollup, chosen_rollup

NEWEST = 5
"""How many of the rows that were set aside are shown."""
KEY_TOPIC = "stable key"

commands = Commands(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rollup.")]
Declared = Annotated[str | None, typer.Argument(metavar="NAME", help="The rollup. Default: the only one of the app.")]


@dataclass(frozen=True)
class RollupTarget(Target):
    as_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for psql, and change nothing.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_json and self.as_sql:
            raise typer.BadParameter("--json and --sql exclude each other: drop one of them")

    def declared(self, name: str | None) -> Rollup:
        return chosen_rollup({each.name: each for each in self.need_app().rollups}, name)


@commands.command()
def preflight(target: RollupTarget, name: Declared = None) -> None:
    """Check whether a rollup can be installed, one line per topic.

    PASS or FAIL, the topic, what was found, and what that means. A FAIL that
    "blocks" keeps install from doing anything; the others are worth knowing.
    Exits with 1 if something blocks, else with 0.

    Needs: an app with that rollup, and a role that may call the schema's
    functions. Changes nothing: its transaction is read-only.

    Examples:

      [bold]outrider rollup preflight hub.imports --app hub:app[/]
      [bold]outrider rollup preflight hub.imports --app hub:app --sql | psql[/]
    """
    rollup = target.declared(name)
    if target.as_sql:
        _print_sql(*_read_only(rollups.call_in_sql("rollup_preflight", rollup.spec(), target.schema)))
        return
    found = target.run(lambda conn: rollups.preflight(conn, rollup.spec(), target.schema))
    blocking = blocking_topics(found)
    if target.as_json:
        print_json(schema=target.schema, rollup=rollup.name, passed=not blocking, findings=_fields(found))
    else:
        tell(found, blocks=True)
        say(f"{rollup.name} can be installed" if not blocking else f"{rollup.name} cannot be installed: {blocking}")
    if blocking:
        raise typer.Exit(1)


@commands.command()
def install(target: RollupTarget, name: Declared = None) -> None:
    """Install a rollup as the app declares it.

    If it is installed, it is replaced by what is declared now, and waiting rows are
    kept; if nothing differs, nothing is done. Rows that are already in the table are
    not staged. Refused while a line of the preflight blocks; the lines that failed
    are shown. Waits at most 5 s for writers of the table. Exits with 1 if refused.

    --sql prints the commands that it would run, as comments, and then the call that
    runs them.

    Needs: an app with that rollup, and a role that owns the table and may write
    the schema's tables.

    Examples:

      [bold]outrider rollup install hub.imports --app hub:app[/]
      [bold]outrider rollup install hub.imports --app hub:app --sql > install.sql[/]
    """
    rollup = target.declared(name)
    if target.as_sql:
        planned = target.run(lambda conn: rollups.commands(conn, rollup.spec(), target.schema))
        call = rollups.call_in_sql("rollup_install", rollup.spec(), target.schema)
        _print_sql(*(_comment(f"{each};") for each in planned), call)
        return
    done = target.run(lambda conn: install_unless_same(conn, rollup.spec(), target.schema))
    blocking = blocking_topics(done.findings)
    if target.as_json:
        print_json(
            schema=target.schema, rollup=rollup.name, installed=not blocking, changed=bool(done.commands),
            scheduler=done.scheduler, commands=done.commands or [], findings=_fields(done.findings),
        )  # fmt: skip
    else:
        tell([each for each in done.findings if not each.passed], blocks=True)
        if done.scheduler is not None:
            tell_installed(rollup, done.commands, done.scheduler)
    if blocking:
        raise RollupRefused(f"nothing was changed: {rollup.name} cannot be installed: {blocking}")


@commands.command()
def verify(target: RollupTarget, name: Name) -> None:
    """Check whether a rollup is still installed as it should be.

    Runs the preflight again, and checks that its trigger and functions exist, are
    pinned and closed to the public, and that either pg_cron or workers tick it. With
    an app also (topic "declared") whether it is declared as it is installed.
    Exits with 1 if anything failed, else with 0; the stable key does not count,
    because rows without one may be intended.

    Needs: a role that may call the schema's functions. Changes nothing.

    Example: [bold]outrider rollup verify hub.imports --dsn postgresql://localhost/hub[/]
    """
    if target.as_sql:
        _print_sql(*_read_only(rollups.call_in_sql("rollup_verify", name, target.schema)))
        return

    async def check(conn: AsyncSession) -> list[RollupFinding]:
        found = await rollups.verify(conn, name, target.schema)
        installed = await rollups.installed_spec(conn, name, target.schema)
        if target.app is not None and installed is not None and installed["context"] == target.settings.context:
            found.append(compared(name, installed, {each.name: each.spec() for each in target.app.rollups}))
        return found

    found = target.run(check)
    failed = [each.topic for each in found if not each.passed and each.topic != KEY_TOPIC]
    if target.as_json:
        print_json(schema=target.schema, rollup=name, passed=not failed, findings=_fields(found))
    else:
        tell(found)
        say(f"{name}: {'all is well' if not failed else 'failed: ' + ', '.join(failed)}")
    if failed:
        raise typer.Exit(1)


@commands.command()
def status(
    target: RollupTarget,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this rollup.")] = None,
) -> None:
    """Show every rollup: who runs it, what waits, what failed.

    Also its settings and its last run. The last run is the newest that found something
    to do, among the last thousand. Of the rows that were set aside the newest five are
    shown, with their errors. Counts end at 100,000.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider rollup status[/]
      [bold]outrider rollup status hub.imports --json[/]
    """
    if target.as_sql:
        of_one = {"name": name, "most": NEWEST}
        aside = [] if name is None else [rollups.query("rollup_set_aside", target.schema, of_one)]
        _print_sql(rollups.query("rollup_standings", target.schema, {"most": MOST}), *aside)
        return

    async def look_up(conn: AsyncSession) -> tuple[datetime, list[tuple[Rolling, list[Aside]]]]:
        found = await rollups.standings(conn, target.schema)
        if name is not None and name not in (known := [each.name for each in found]):
            raise RollupRefused(f"there is no rollup {name!r}; there are: {', '.join(known) or 'none'}")
        shown = [each for each in found if name in (None, each.name)]
        now = await clock(conn, target.schema)
        return now, [(each, await _set_aside(conn, each, target.schema)) for each in shown]

    now, found = target.run(look_up)
    if target.as_json:
        print_json(
            schema=target.schema,
            read_at=now,
            rollups=[fields(each) | {"newest_set_aside": [asdict(row) for row in asides]} for each, asides in found],
        )
        return
    if not found:
        say("no rollups")
    for each, asides in found:
        tell_standing(each, asides, now)


@commands.command()
def run(
    target: RollupTarget,
    audit: AuditOptions,
    name: Name,
    flush: Annotated[bool, typer.Option("--flush", help="Emit every group, due or not.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="First retry the rows that were set aside.")] = False,
) -> None:
    """Run a rollup once, beside its schedule.

    Emits the groups that are due, and says what was done. If it is running already,
    nothing is done. After an error nothing was emitted, all rows still wait, and the
    command exits with 1. Recorded in the audit.

    Needs: a role that may operate.

    Examples:

      [bold]outrider rollup run hub.imports[/]
      [bold]outrider rollup run hub.imports --retry --flush[/]
    """
    if target.as_sql:
        first = [rollups.call_in_sql("rollup_retry", name, target.schema)] if retry else []
        _print_sql(*first, rollups.call_in_sql("rollup_run", name, target.schema, flush=flush))
        return

    async def tick(conn: AsyncSession) -> tuple[int | None, Tick]:
        retried = await rollups.retry(conn, name, target.schema, audit.signed) if retry else None
        return retried, await rollups.run(conn, name, target.schema, audit.signed, flush=flush)

    retried, ticked = target.run(tick)
    if target.as_json:
        print_json(schema=target.schema, rollup=name, retried=retried, **asdict(ticked))
    else:
        if retried is not None:
            say(f"{name}: of what was set aside {waiting(retried)} again")
        tell_tick(name, ticked)
    if ticked.result == "error":
        raise typer.Exit(1)


@commands.command()
def uninstall(
    target: RollupTarget,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete rows that wait or were set aside.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove a rollup, with its schedule, trigger, functions and rows.

    Shows first what will be removed, what will stay, and why. Waiting rows stay with
    what is needed to emit them (outrider rollup run --flush, then this again), unless
    forced. A CHECK constraint is restored only if no row would violate it; a column
    that install added stays while it holds data, or while a function names it. The
    events stay.

    --dry-run also checks that all objects of the plan exist, and exits with 1 if not.
    --sql prints the plan as comments, and then the call that carries it out: that
    locks the table and plans again, so that rows staged meanwhile are not lost.

    Needs: a role that owns the table and may write the schema's tables.

    Examples:

      [bold]outrider rollup uninstall hub.imports --dry-run[/]
      [bold]outrider rollup uninstall hub.imports --yes[/]
    """

    async def plan(conn: AsyncSession) -> tuple[list[Step], list[str]]:
        planned = await rollups.plan(conn, name, target.schema, force=force)
        return planned, await rollups.missing(conn, name, target.schema, force=force)

    planned, missing = target.run(plan)
    if target.as_sql:
        call = rollups.call_in_sql("rollup_uninstall", name, target.schema, force=force)
        _print_sql(*(_comment("\n".join(lines(each, whole=True))) for each in planned), call)
        return
    if not target.as_json:
        tell_plan(planned)
    if dry_run:
        _show_plan(target, name, planned, missing)
        return
    lost = next((each.what for each in planned if force and each.what.startswith("delete its rows")), "")
    confirm(f"Remove {name}{f' and {lost}' * bool(lost)}?", "nothing was changed", yes=yes)
    done = target.run(lambda conn: rollups.uninstall(conn, name, target.schema, force=force))
    if target.as_json:
        print_json(schema=target.schema, rollup=name, dry_run=False, uninstalled=True, steps=_fields(done), missing=[])
        return
    if done != planned:
        say("the plan had changed meanwhile; this was done:")
        tell_plan(done)
    kept = sum(each.action == "keep" for each in done)
    skipped = f"; {kept} of {counted(len(done), 'step')} were skipped (see above)" if kept else ""
    say(f"{name} is removed{skipped}")


def _show_plan(target: Target, name: str, planned: Sequence[Step], missing: list[str]) -> None:
    if target.as_json:
        print_json(
            schema=target.schema, rollup=name, dry_run=True, uninstalled=False, steps=_fields(planned), missing=missing
        )
    else:
        well = "all objects of the plan exist" if not missing else f"missing: {one_line('; '.join(missing))}"
        say(f"{well}; nothing was changed (dry run)", "" if not missing else "red")
    if missing:
        raise typer.Exit(1)


async def _set_aside(conn: AsyncSession, each: Rolling, schema: str) -> list[Aside]:
    return await rollups.set_aside(conn, each.name, schema, most=NEWEST) if each.set_aside else []


def _fields(found: Sequence[RollupFinding | Step]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def _read_only(call: str) -> tuple[str, ...]:
    return "begin transaction read only;", call, "commit;"


def _comment(text: str) -> str:
    return "\n".join(f"-- {line}" for line in text.splitlines())


def _print_sql(*texts: str) -> None:
    """As it is, for a file or psql; made safe for a terminal."""
    for text in texts:
        typer.echo(safe(text) if sys.stdout.isatty() else text)
