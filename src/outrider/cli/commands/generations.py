"""`outrider generations`: which deployment generations there are, who serves them, and what an operator may do about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.audit_options import ByOption, ReasonOption, signed
from outrider.cli.bulk_actions import print_json
from outrider.cli.output.text import one_line
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.errors import SubscriptionRefused
from outrider.postgres import generations
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.generations import Overview

commands = typer.Typer(invoke_without_command=True)


@commands.callback()
def show(
    ctx: typer.Context,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the deployment generations, and let other workers serve one.

    One line per generation and subscription that has a position of its own.
    Generation 0 reads whatever has none: without generations, everything.
    A generation whose workers are gone is served by all others that are there;
    when it has nothing left to read, it is folded into generation 0.

    The lag counts numbers of the log, whatever their type and generation.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider generations --dsn postgresql://localhost/shop[/]
    """
    ctx.obj = Asked(app, dsn, embedded, schema)
    if ctx.invoked_subcommand is not None:
        return
    place = find_place(ctx.obj)
    rows = asyncio.run(_overview(place))
    if as_json:
        typer.echo(json.dumps({"schema": place.schema, "generations": [asdict(each) for each in rows]}, indent=2))
        return
    table = Table(title=f"schema {place.schema}", padding=(0, 0), pad_edge=False)
    for column in ("generation", "subscription", "lag", "parked", "dead", "served by"):
        table.add_column(column, overflow="fold", no_wrap=column in ("lag", "parked", "dead"))
    for each in rows:
        served, well = _served(each)
        table.add_row(
            str(each.generation), Text(one_line(each.subscription)), str(each.lag), _count(each.parked), _count(each.dead),
            Text(one_line(served)), style=None if well else "yellow",
        )  # fmt: skip
    Console().print(table)


@commands.command()
def move(
    ctx: typer.Context,
    origin: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The generation whose events it is about.")],
    to: Annotated[
        int, typer.Argument(metavar="TO", min=0, help="The one whose workers shall handle them; FROM = as it was.")
    ],
    subscription: Annotated[
        str | None, typer.Option("--subscription", metavar="NAME", help="Only there. Else wherever FROM is.")
    ] = None,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the workers of another generation handle what one has published.

    For old workers that are alive and do not get on: those of TO take over,
    from where they are; nothing is skipped, nothing is handled twice. Events
    that FROM still publishes follow. FROM's own workers keep their other
    subscriptions. FROM = TO gives it back. Kept in the audit.

    Needs: a role that may operate.

    Examples:

      [bold]outrider generations move 41 42[/]
      [bold]outrider generations move 41 42 --subscription billing.invoice[/]
      [bold]outrider generations move 41 41[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema).over(ctx.obj))
    moved = asyncio.run(_move(place, origin, to, subscription, signed(by, reason)))
    if as_json:
        print_json(schema=place.schema, moved=[asdict(each) for each in moved])
        return
    for each in moved:
        typer.echo(one_line(_became(each, origin, to)))
    if missing := [each.subscription for each in moved if not each.workers]:
        typer.echo(
            f"warning: generation {to} has no worker there for {', '.join(missing)}: until one comes, all others that are "
            "there serve it",
            err=True,
        )


async def _overview(place: Place) -> list[Overview]:
    async with place.connect() as conn:
        return await generations.overview(conn, place.schema)


async def _move(place: Place, origin: int, to: int, subscription: str | None, by: Signed) -> list[Overview]:
    """What became of each."""
    async with place.connect() as conn:
        there = await generations.overview(conn, place.schema)
        chosen = [
            each.subscription
            for each in there
            if each.generation == origin and subscription in (None, each.subscription)
        ]
        if not chosen:
            raise SubscriptionRefused(_nowhere(there, origin, subscription))
        for name in chosen:
            await generations.move(conn, name, origin, to, by, place.schema)
        after = await generations.overview(conn, place.schema)
        return [each for each in after if each.generation == origin and each.subscription in chosen]


def _nowhere(there: Sequence[Overview], origin: int, subscription: str | None) -> str:
    found = sorted({each.generation for each in there if subscription in (None, each.subscription)})
    where = f" of {subscription}" if subscription else ""
    known = ", ".join(map(str, found)) or "none"
    return f"there is no generation {origin}{where} that has a position of its own; there are: {known}"


def _became(each: Overview, origin: int, to: int) -> str:
    whose = "its own workers" if origin == to else f"the workers of generation {to}"
    return (
        f"{each.subscription}: what generation {origin} has published and will publish is handled by {whose}, who notice it "
        f"within 10 s; {_count(each.parked)} parked events go with it"
    )


def _served(each: Overview) -> tuple[str, bool]:
    """By whom, and whether all is as it should be."""
    owner = "" if each.owner == each.generation else f"moved to {each.owner}: "
    if each.workers:
        return owner + ", ".join(each.workers), True
    if each.adopted_by:
        adopted = "; ".join(f"{', '.join(who)} of {of}" for of, who in sorted(each.adopted_by.items()))
        return f"{owner}adopted by {adopted}", True
    return f"{owner}nobody", not (each.lag or each.parked)


def _count(number: int) -> str:
    return f"{number}+" if number == MOST else str(number)
