"""`outrider rollup`: check, install and verify rollups, see how they stand, let one tick, take one off."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from outrider.app import Outrider
from outrider.cli.audit_options import ByOption, ReasonOption, signed
from outrider.cli.bulk_actions import confirm, print_json
from outrider.cli.find import find_app, need_app
from outrider.cli.output.rollups import (
    counted,
    fields,
    lines,
    tell,
    tell_installed,
    tell_plan,
    tell_standing,
    tell_tick,
    waiting,
)
from outrider.cli.output.text import one_line, safe, say
from outrider.cli.target import (
    AppOption,
    Asked,
    DsnOption,
    EmbeddedOption,
    JsonOption,
    Place,
    SchemaOption,
    find_place,
    moved,
)
from outrider.errors import ConfigError, RollupRefused
from outrider.postgres import rollups
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.dead_letters import clock
from outrider.postgres.connection import AsyncSession
from outrider.postgres.rollups import MOST, Aside, Finding, Rolling, Spec, Step, Tick
from outrider.rollup.rollup import Rollup

NEWEST = 5
"""Rows that were set aside, as far as they are shown."""
KEY_TOPIC = "stable key"
AS_MADE = {"installed", "functions", "schedule"}
"""What install makes: if this is not as it should be, installing again repairs it."""

commands = typer.Typer(no_args_is_help=True, help="Check, install, watch and take off rollups.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rollup.")]
Declared = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The rollup. Default: the one of the app.")]
SqlOption = Annotated[bool, typer.Option("--sql", help="Print SQL that does the same, for psql, and do nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@commands.command()
def preflight(
    name: Declared = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Say what stands for and against installing a rollup, one line per topic.

    PASS or FAIL, the topic, what was found, and what that means. A FAIL that
    "blocks" keeps install from doing anything; the others are worth knowing.
    Exits with 1 if something blocks, else with 0.

    Needs: an app with that rollup, and a role that may call the schema's
    functions. Changes nothing: its transaction is read-only.

    Examples:

      [bold]outrider rollup preflight hub.imports --app hub:app[/]
      [bold]outrider rollup preflight hub.imports --app hub:app --sql | psql[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    rollup, place = _declared(name, app, Asked(app, dsn, embedded, schema))
    if as_sql:
        _print_sql(*_reading(rollups.call_in_sql("rollup_preflight", rollup.spec(), place.schema)))
        return
    found = asyncio.run(_preflight(place, rollup.spec()))
    blocking = _blocking(found)
    if as_json:
        print_json(schema=place.schema, rollup=rollup.name, passed=not blocking, findings=_fields(found))
    else:
        tell(found, blocks=True)
        say(f"{rollup.name} can be installed" if not blocking else f"{rollup.name} cannot be installed: {blocking}")
    if blocking:
        raise typer.Exit(1)


@commands.command()
def install(
    name: Declared = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Put a rollup on its table, or on its events, as the app declares it.

    Again, it replaces what is there by what is declared now, and keeps what
    waits; if nothing differs it does nothing. Rows that are in the table already
    are not staged. Refused while a line of the preflight blocks; the lines that
    have failed are shown. Waits no longer than 5 s for writers of the table.
    Exits with 1 if it was refused.

    --sql shows the commands that it would run, as comments, and then the call
    that runs them.

    Needs: an app with that rollup, and a role that owns the table and may write
    the schema's tables.

    Examples:

      [bold]outrider rollup install hub.imports --app hub:app[/]
      [bold]outrider rollup install hub.imports --app hub:app --sql > install.sql[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    rollup, place = _declared(name, app, Asked(app, dsn, embedded, schema))
    if as_sql:
        planned = asyncio.run(_commands(place, rollup.spec()))
        call = rollups.call_in_sql("rollup_install", rollup.spec(), place.schema)
        _print_sql(*(_comment(f"{each};") for each in planned), call)
        return
    found, made, scheduler = asyncio.run(_install(place, rollup))
    blocking = _blocking(found)
    if as_json:
        print_json(
            schema=place.schema, rollup=rollup.name, installed=not blocking, changed=bool(made), scheduler=scheduler,
            commands=made or [], findings=_fields(found),
        )  # fmt: skip
    else:
        tell([each for each in found if not each.passed], blocks=True)
        if scheduler is not None:
            tell_installed(rollup, made, scheduler)
    if blocking:
        raise RollupRefused(f"nothing was changed: {rollup.name} cannot be installed: {blocking}")


@commands.command()
def verify(
    name: Name,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Say whether a rollup is installed as it was made: the preflight again, and more.

    Whether its trigger and functions are there, pinned and closed to the public,
    whether pg_cron or workers tick, and not both. With an app also (topic
    "declared") whether it is declared as it is installed.
    Exits with 1 if anything has failed, else with 0; the stable key does not
    count, because rows without one may be meant.

    Needs: a role that may call the schema's functions. Changes nothing.

    Example: [bold]outrider rollup verify hub.imports --dsn postgresql://localhost/hub[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    place = find_place(Asked(app, dsn, embedded, schema))
    if as_sql:
        _print_sql(*_reading(rollups.call_in_sql("rollup_verify", name, place.schema)))
        return
    found = asyncio.run(_verify(place, name, find_app(app)))
    failed = [each.topic for each in found if not each.passed and each.topic != KEY_TOPIC]
    if as_json:
        print_json(schema=place.schema, rollup=name, passed=not failed, findings=_fields(found))
    else:
        tell(found)
        say(f"{name}: {'all is well' if not failed else 'failed: ' + ', '.join(failed)}")
    if failed:
        raise typer.Exit(1)


@commands.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this rollup.")] = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Show every rollup: who ticks it, what waits, what was set aside, its settings, its last run.

    The last run is the newest that found something to do, among the last
    thousand. Of what was set aside the newest five are shown, with their errors.
    Counts end at 100,000.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider rollup status[/]
      [bold]outrider rollup status hub.imports --json[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    place = find_place(Asked(app, dsn, embedded, schema))
    if as_sql:
        of_one = {"name": name, "most": NEWEST}
        aside = [] if name is None else [rollups.query("rollup_set_aside", place.schema, of_one)]
        _print_sql(rollups.query("rollup_standings", place.schema, {"most": MOST}), *aside)
        return
    now, found = asyncio.run(_status(place, name))
    if as_json:
        print_json(
            schema=place.schema,
            read_at=now,
            rollups=[fields(each) | {"newest_set_aside": [asdict(row) for row in asides]} for each, asides in found],
        )
    elif not found:
        say("no rollups")
    for each, asides in [] if as_json else found:
        tell_standing(each, asides, now)


@commands.command()
def run(
    name: Name,
    flush: Annotated[bool, typer.Option("--flush", help="Emit all that waits, due or not.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="First let what was set aside wait again.")] = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Let a rollup tick once, whoever else does it on time.

    Emits the groups that are due, and says what came of it. While another tick
    runs it is skipped, and exits with 0. After an error nothing was emitted and
    everything waits on; then it exits with 1. Audited.

    Needs: a role that may operate.

    Examples:

      [bold]outrider rollup run hub.imports[/]
      [bold]outrider rollup run hub.imports --retry --flush[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    place = find_place(Asked(app, dsn, embedded, schema))
    if as_sql:
        first = [rollups.call_in_sql("rollup_retry", name, place.schema)] if retry else []
        _print_sql(*first, rollups.call_in_sql("rollup_run", name, place.schema, flush=flush))
        return
    retried, ticked = asyncio.run(_run(place, name, signed(by, reason), flush=flush, retry=retry))
    if as_json:
        print_json(schema=place.schema, rollup=name, retried=retried, **asdict(ticked))
    else:
        if retried is not None:
            say(f"{name}: of what had been set aside {waiting(retried)} again")
        tell_tick(name, ticked)
    if ticked.result == "error":
        raise typer.Exit(1)


@commands.command()
def uninstall(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete what waits and what was set aside.")] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show and check the plan, and change nothing.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    as_sql: SqlOption = False,
) -> None:
    """Take a rollup off its table: its schedule, its trigger, its functions, its rows.

    Says first what will be done, and what will stay, and why. Rows that wait
    stay with what is needed to emit them (outrider rollup run --flush, then this
    again), unless forced. A CHECK constraint goes back to what it was only if no
    row would violate it; a column that install added stays while it holds data,
    or while a function names it. The events stay.

    --dry-run also looks whether all that the plan touches is there, and exits
    with 1 if not. --sql shows the plan as comments, and then the call that carries
    it out: that locks the table and plans again, so that nothing that is staged
    meanwhile is lost.

    Needs: a role that owns the table and may write the schema's tables.

    Examples:

      [bold]outrider rollup uninstall hub.imports --dry-run[/]
      [bold]outrider rollup uninstall hub.imports --yes[/]
    """
    _one_of(as_json=as_json, as_sql=as_sql)
    place = find_place(Asked(app, dsn, embedded, schema))
    if as_sql:
        planned = asyncio.run(_plan(place, name, force=force))[0]
        call = rollups.call_in_sql("rollup_uninstall", name, place.schema, force=force)
        _print_sql(*(_comment("\n".join(lines(each, whole=True))) for each in planned), call)
        return
    asyncio.run(_uninstall(place, name, force=force, yes=yes, dry_run=dry_run, as_json=as_json))


async def _preflight(place: Place, spec: Spec) -> list[Finding]:
    async with place.connect() as conn:
        return await rollups.preflight(conn, spec, place.schema)


async def _commands(place: Place, spec: Spec) -> list[str]:
    async with place.connect() as conn:
        return await rollups.commands(conn, spec, place.schema)


async def _install(place: Place, rollup: Rollup) -> tuple[list[Finding], list[str] | None, str | None]:
    """What the preflight has found, what was done (None: nothing had to be), and who ticks (None: it was refused)."""
    spec, schema = rollup.spec(), place.schema
    async with place.connect() as conn:
        found = await rollups.preflight(conn, spec, schema)
        if _blocking(found):
            return found, None, None
        if (scheduler := await _as_it_is(conn, spec, found, schema)) is not None:
            return found, None, scheduler
        told = await rollups.install(conn, spec, schema)
        return found, told["commands"], told["scheduler"]


async def _as_it_is(conn: AsyncSession, spec: Spec, found: Sequence[Finding], schema: str) -> str | None:
    """Who ticks, if it is installed in every way as it would be now."""
    name = spec["name"]
    state = (await rollups.states(conn, {name: spec}, schema)).get(name)
    if state is None or not state.installed or state.changed:
        return None
    cron = any((each.topic, each.value) == ("pg_cron", "INSTALLED") for each in found) and spec["scheduler"] != "worker"
    noted = all((each.topic, each.value) != ("other triggers", "CHANGED") for each in found)
    made = all(each.passed for each in await rollups.verify(conn, name, schema) if each.topic in AS_MADE)
    altered = any(each.startswith(("alter table ", "drop ")) for each in await rollups.commands(conn, spec, schema))
    same = state.scheduler == ("cron" if cron else "worker")
    return state.scheduler if noted and made and same and not altered else None


async def _verify(place: Place, name: str, app: Outrider | None) -> list[Finding]:
    async with place.connect() as conn:
        found = await rollups.verify(conn, name, place.schema)
        installed = await rollups.installed_spec(conn, name, place.schema)
    if app is not None and installed is not None and installed["context"] == app.settings.context:
        found.append(_compared(name, installed, {each.name: each.spec() for each in app.rollups}))
    return found


def _compared(name: str, installed: Spec, declared: dict[str, dict[str, Any]]) -> Finding:
    if name not in declared:
        detail = f"the app does not declare it: declare it, or outrider rollup uninstall {name}"
        return Finding("declared", False, "ABSENT", detail, False)
    spec = declared[name]
    differing = [each for each in sorted({*spec, *installed}) if spec.get(each) != installed.get(each)]
    if differing:
        detail = f"declared otherwise than installed: {', '.join(differing)}: outrider rollup install {name}"
        return Finding("declared", False, "CHANGED", detail, False)
    return Finding("declared", True, "EQUAL", "it is installed as it is declared", False)


async def _status(place: Place, name: str | None) -> tuple[datetime, list[tuple[Rolling, list[Aside]]]]:
    async with place.connect() as conn:
        found = await rollups.standings(conn, place.schema)
        if name is not None and name not in (known := [each.name for each in found]):
            raise RollupRefused(f"there is no rollup {name!r}; there are: {', '.join(known) or 'none'}")
        shown = [each for each in found if name in (None, each.name)]
        now = await clock(conn, place.schema)
        return now, [(each, await _asides(conn, each, place.schema)) for each in shown]


async def _asides(conn: AsyncSession, each: Rolling, schema: str) -> list[Aside]:
    return await rollups.set_aside(conn, each.name, schema, most=NEWEST) if each.set_aside else []


async def _run(place: Place, name: str, by: Signed, *, flush: bool, retry: bool) -> tuple[int | None, Tick]:
    async with place.connect() as conn:
        retried = await rollups.retry(conn, name, place.schema, by) if retry else None
        return retried, await rollups.run(conn, name, place.schema, by, flush=flush)


async def _plan(place: Place, name: str, *, force: bool) -> tuple[list[Step], list[str]]:
    """And what of it is not there."""
    async with place.connect() as conn:
        planned = await rollups.plan(conn, name, place.schema, force=force)
        return planned, await rollups.missing(conn, name, place.schema, force=force)


async def _uninstall(place: Place, name: str, *, force: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    planned, missing = await _plan(place, name, force=force)
    if not as_json:
        tell_plan(planned)
    if dry_run:
        if as_json:
            print_json(
                schema=place.schema,
                rollup=name,
                dry_run=True,
                uninstalled=False,
                steps=_fields(planned),
                missing=missing,
            )
        else:
            well = "all that it touches is there" if not missing else f"not there: {one_line('; '.join(missing))}"
            say(f"{well}; nothing was changed (dry run)", "" if not missing else "red")
        if missing:
            raise typer.Exit(1)
        return
    lost = next((each.what for each in planned if force and each.what.startswith("delete its rows")), "")
    confirm(f"Take {name} off{f' and {lost}' * bool(lost)}?", "nothing was changed", yes=yes)
    async with place.connect() as conn:
        done = await rollups.uninstall(conn, name, place.schema, force=force)
    kept = [each for each in done if each.action == "keep"]
    if as_json:
        print_json(schema=place.schema, rollup=name, dry_run=False, uninstalled=True, steps=_fields(done), missing=[])
        return
    if done != planned:
        say("it was not as planned any more; what was done:")
        tell_plan(done)
    skipped = f"; {len(kept)} of {counted(len(done), 'step')} were skipped (see above)" if kept else ""
    say(f"{name} is removed{skipped}")


def _declared(name: str | None, app: str | None, asked: Asked) -> tuple[Rollup, Place]:
    found = need_app(app)
    declared = {each.name: each for each in found.rollups}
    if not declared:
        raise ConfigError("the app declares no rollup: app.rollup(…) is one")
    if name is None and len(declared) == 1:
        [name] = declared
    if name not in declared:
        wrong = "name one" if name is None else f"{name!r} is no rollup of the app"
        raise ConfigError(f"{wrong}; it declares: {', '.join(declared)}")
    return declared[name], Place(moved(found.settings, asked), found.subscriptions)


def _one_of(*, as_json: bool, as_sql: bool) -> None:
    if as_json and as_sql:
        raise typer.BadParameter("--json and --sql exclude each other: drop one of them")


def _blocking(found: Sequence[Finding]) -> str:
    """The topics that do."""
    return ", ".join(each.topic for each in found if each.blocks and not each.passed)


def _fields(found: Sequence[Finding | Step]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def _reading(call: str) -> tuple[str, ...]:
    return "begin transaction read only;", call, "commit;"


def _comment(text: str) -> str:
    return "\n".join(f"-- {line}" for line in text.splitlines())


def _print_sql(*texts: str) -> None:
    """As it is, for a file or psql; a terminal gets it made safe."""
    for text in texts:
        typer.echo(safe(text) if sys.stdout.isatty() else text)
