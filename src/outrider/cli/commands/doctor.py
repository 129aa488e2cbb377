"""`outrider doctor`: one page of checks, and what to do about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.app import Outrider
from outrider.cli.options import Commands
from outrider.cli.output.text import counted, make_table, one_line, print_json
from outrider.cli.target import Target
from outrider.doctor.canary import HOPS, CanaryRun, send_canaries
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Finding, Severity, critical
from outrider.errors import OutriderError, SchemaMismatch
from outrider.postgres.connection import AsyncSession, DatabaseError

STYLES = {Severity.ok: "green", Severity.note: "cyan", Severity.warning: "yellow", Severity.critical: "bold red"}

commands = Commands()


@commands.command()
def doctor(
    target: Target,
    send_canary: Annotated[
        bool,
        typer.Option("--canary", help="Also send an event through a worker of each generation, and time each hop."),
    ] = False,
) -> None:
    """Find what is wrong, and say what to do about it.

    It checks: the server and its clock; notifications; what workers report about
    themselves; workers that hang; settings of our sessions; locks and transactions that
    are held for long; WAL kept by replication slots; overdue events and jobs;
    schedules; dead rows; segments and growth of the log; orphaned subscriptions and
    generations; rollups; rights that are too broad. With an app also its brokers, who
    can write in the schemas that it owns, and subscriptions that it does not declare.

    Exits as monitoring systems expect: 0 when nothing is worse than a note, 1 with
    a warning, 2 when something is critical or the database cannot be reached.
    docs/runbook.md explains every finding.

    With --canary it publishes an event of its own, which any one worker of each
    generation takes and settles, and prints how long each hop took. A hop that takes
    longer than 5 s is critical. Handlers, relays and metrics do not see the event, and
    nothing of it is left.

    Needs: a role that may read the schema; pg_monitor to see the transactions of
    others. Changes nothing. --canary needs a role that may operate.

    Examples:

      [bold]outrider doctor --app shop:app[/]
      [bold]outrider doctor --canary[/]
    """
    settings = target.settings
    app = target.app or Outrider(dsn=settings.dsn, embedded=settings.embedded, schema=target.schema)

    async def examine(conn: AsyncSession) -> tuple[list[Finding], list[CanaryRun]]:
        found = await examine_all(app, conn, target.schema, settings.listen_dsn)
        if not send_canary or any(each.check == "schema" and each.severity is Severity.critical for each in found):
            return found, []
        return found, await send_canaries(conn, target.schema, settings.listen_dsn, settings.notify)

    runs: list[CanaryRun] = []
    try:
        findings, runs = target.run(examine, migrated=False)
        findings += [each.finding for each in runs if each.finding is not None]
    except (OutriderError, DatabaseError) as error:
        check = "schema" if isinstance(error, SchemaMismatch) else "server"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        findings = [critical(check, said, "without it nothing else can be checked")]
    worst = max(each.severity for each in findings)
    if target.as_json:
        told = [asdict(each) | {"severity": each.severity.name} for each in findings]
        sent = [{"generation": each.generation, "worker": each.worker, "seconds": each.hops} for each in runs]
        canary = {"canary": sent} if send_canary else {}
        print_json(schema=target.schema, severity=worst.name, findings=told, **canary)
    else:
        _print(findings)
        _print_hops([each for each in runs if each.hops])
    raise typer.Exit(max(0, worst))


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
    severe, warnings, notes = (
        sum(each.severity is level for each in findings)
        for level in (Severity.critical, Severity.warning, Severity.note)
    )
    worse = f"{severe} critical, {counted(warnings, 'warning')}, {counted(notes, 'note')}"
    console.print(Text(f"{counted(len(findings), 'finding')}: {worse}"))


def _print_hops(runs: Sequence[CanaryRun]) -> None:
    if not runs:
        return
    table = make_table("generation", *HOPS, "worker", title="canary, in ms")
    for each in runs:
        took = [f"{each.hops[hop] * 1000:.1f}" if hop in each.hops else "-" for hop in HOPS]
        table.add_row(*map(Text, (str(each.generation), *took, one_line(each.worker or "-"))))
    Console().print(table)
