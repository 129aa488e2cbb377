"""`outrider generations`: which deployment generations there are, who serves them, and moving one to other workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands
from outrider.cli.output.text import capped, make_table, one_line, print_json
from outrider.cli.target import Target
from outrider.errors import SubscriptionRefused
from outrider.postgres import generations
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.connection import AsyncSession
from outrider.postgres.generations import GenerationOverview

commands = Commands(invoke_without_command=True)


@commands.callback()
def show(target: Target) -> None:
    """Show deployment generations, or move one to other workers.

    One row per generation and subscription that has a position of its own.
    Generation 0 reads all others: without generations, everything.
    A generation whose workers are gone is served by all other workers that are not
    strict; when it has nothing left to read, it is merged into generation 0.

    The lag counts log positions, of all event types and generations.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider generations --dsn postgresql://localhost/shop[/]
    """
    rows = target.run(lambda conn: generations.overview(conn, target.schema))
    if target.as_json:
        print_json(schema=target.schema, generations=[asdict(each) for each in rows])
        return
    whole = ("lag", "waiting", "dead")
    table = make_table(
        "generation", "subscription", *whole, "served by", title=f"schema {target.schema}", unbroken=whole
    )
    for each in rows:
        served, well = _served(each)
        row = (
            str(each.generation), one_line(each.subscription), f"{each.lag:,}", capped(each.waiting, MOST),
            capped(each.dead, MOST), one_line(served),
        )  # fmt: skip
        table.add_row(*map(Text, row), style=None if well else "yellow")
    Console().print(table)


@commands.command()
def move(
    target: Target,
    audit: AuditOptions,
    origin: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The generation whose events are moved.")],
    to: Annotated[
        int, typer.Argument(metavar="TO", min=0, help="The generation whose workers handle them; FROM = undo.")
    ],
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="Only there. Default: wherever FROM is.")
    ] = None,
) -> None:
    """Let the workers of another generation handle the events of one.

    For old workers that are alive but make no progress, and for what no strict worker
    takes: the workers of TO take over where FROM is; nothing is skipped, nothing is
    handled twice. Events that FROM publishes later follow, until FROM is merged into
    generation 0. FROM's own workers keep their other subscriptions. Jobs of FROM that
    wait become jobs of TO. FROM = TO undoes it, except for jobs. Recorded in the audit.

    Needs: a role that may operate.

    Examples:

      [bold]outrider generations move 41 42[/]
      [bold]outrider generations move 41 42 --subscription billing.invoice[/]
      [bold]outrider generations move 41 41[/]
    """

    async def run(conn: AsyncSession) -> tuple[list[GenerationOverview], list[str]]:
        there = await generations.overview(conn, target.schema)
        names = [each.subscription for each in there if each.generation == origin]
        names += [each.name for each in await subscriptions.overview(conn, target.schema) if each.kind == "job"]
        chosen = names if subscription is None else [subscription]
        done = [name for name in chosen if await generations.move(conn, name, origin, to, audit.signed, target.schema)]
        if not done:
            raise SubscriptionRefused(_nowhere(there, origin, subscription))
        after = await generations.overview(conn, target.schema)
        positions = [each for each in after if each.generation == origin and each.subscription in done]
        return positions, sorted(set(done) - {each.subscription for each in positions})

    moved, jobs = target.run(run)
    if target.as_json:
        print_json(schema=target.schema, moved=[asdict(each) for each in moved], jobs=jobs)
        return
    for each in moved:
        typer.echo(one_line(_became(each, origin, to)))
    for name in jobs:
        typer.echo(one_line(f"{name}: jobs of generation {origin} that wait are jobs of generation {to} now"))
    if missing := [each.subscription for each in moved if not each.workers]:
        typer.echo(
            f"warning: generation {to} has no worker for {', '.join(missing)}: until one starts, all other workers "
            "that are not strict serve it",
            err=True,
        )


def _nowhere(there: Sequence[GenerationOverview], origin: int, subscription: str | None) -> str:
    found = sorted({each.generation for each in there if subscription in (None, each.subscription)})
    where = f" of {subscription}" if subscription else ""
    known = ", ".join(map(str, found)) or "none"
    return f"there is no generation {origin}{where} with a position of its own; there are: {known}"


def _became(each: GenerationOverview, origin: int, to: int) -> str:
    whose = "its own workers" if origin == to else f"the workers of generation {to}"
    return (
        f"{each.subscription}: events of generation {origin} are handled by {whose}, who notice it within 10 s; "
        f"{capped(each.waiting, MOST)} waiting events move with it"
    )


def _served(each: GenerationOverview) -> tuple[str, bool]:
    """By whom, and whether that is as it should be."""
    owner = "" if each.owner == each.generation else f"moved to {each.owner}: "
    if each.workers:
        return owner + ", ".join(each.workers), True
    if each.adopted_by:
        adopted = "; ".join(f"{', '.join(who)} of {of}" for of, who in sorted(each.adopted_by.items()))
        return f"{owner}adopted by {adopted}", True
    return f"{owner}nobody", not (each.lag or each.waiting)
