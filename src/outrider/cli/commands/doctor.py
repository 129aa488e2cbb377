"""`outrider doctor`: one page of checks, and what to do about each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from outrider.app import Outrider
from outrider.cli.bulk_actions import print_json
from outrider.cli.find import find_app
from outrider.cli.output.text import one_line
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Finding, Severity, critical
from outrider.doctor.text import counted
from outrider.errors import OutriderError, SchemaMismatch
from outrider.postgres.connection import DatabaseError

STYLES = {Severity.ok: "green", Severity.note: "cyan", Severity.warning: "yellow", Severity.critical: "bold red"}


def doctor(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at everything, and say what is wrong and what to do about it.

    The server and its clock, the listener and the queue of notifications, what
    workers say in their heartbeats (what fails in a row, what holds them up), frozen
    workers, settings that reach our sessions, who holds locks and transactions open,
    WAL that replication slots keep, what is overdue, schedules, dead rows, segments
    and growth of the log, orphaned subscriptions and generations, rollups, rights
    that are too broad; with an app also its brokers, and which subscriptions are not
    its own.

    Exits as monitoring systems count: 0 when nothing is worse than a note, 1 with a
    warning, 2 when something is critical or the database cannot be reached.
    docs/runbook.md explains every finding.

    Needs: a role that may read the schema; pg_monitor to see the transactions of
    others. Changes nothing.

    Example: [bold]outrider doctor --app shop:app[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    declared = find_app(app) or Outrider(dsn=place.settings.dsn, embedded=place.settings.embedded, schema=place.schema)
    try:
        findings = asyncio.run(_examine(place, declared))
    except (OutriderError, DatabaseError) as error:
        check = "schema" if isinstance(error, SchemaMismatch) else "server"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        findings = [critical(check, said, "without it nothing else can be looked at")]
    worst = max(each.severity for each in findings)
    if as_json:
        told = [asdict(each) | {"severity": each.severity.name} for each in findings]
        print_json(schema=place.schema, severity=worst.name, findings=told)
    else:
        _print(findings)
    raise typer.Exit(max(0, worst))


async def _examine(place: Place, declared: Outrider) -> list[Finding]:
    async with place.connect(migrated=False) as conn:
        return await examine_all(declared, conn, place.schema, place.settings.listen_dsn)


def _print(findings: Sequence[Finding]) -> None:
    console = Console()
    width = max(len(each.check) for each in findings)
    for each in findings:
        line = Text()
        line.append(f"{each.severity.name:<8} ", style=STYLES[each.severity])
        line.append(f"{each.check:<{width}}  {one_line(each.found)}")
        console.print(line, soft_wrap=True)
        if each.advice:
            console.print(Text(f"{'':<8} {'':<{width}}  → {one_line(each.advice)}", style="dim"), soft_wrap=True)
    count = {level: sum(each.severity is level for each in findings) for level in (Severity.critical, Severity.warning)}
    console.print(
        Text(
            f"{counted(len(findings), 'finding')}: {count[Severity.critical]} critical, "
            f"{counted(count[Severity.warning], 'warning')}"
        )
    )
