"""`outrider subscription`: who reads the log and how far, and what an operator may do about it."""

from __future__ import annotations

import asyncio
import json
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
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.status import Standing
from outrider.postgres.admin.subscriptions import MOST, Backlog, Overview
from outrider.postgres.schema.orphans import orphaned

commands = typer.Typer(no_args_is_help=True, help="See, pause, rename and retire subscriptions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription.")]
OneOrAll = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The subscription.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every subscription, those to come included.")]


@commands.command("list")
def show(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every subscription: what it wants, how far it is, what it owes, who serves it.

    The lag counts numbers of the log, whatever their type. Parked events wait
    for a retry; dead ones wait for you. Jobs are pending, running or dead. With an
    app, those of its context that it does not declare and nobody serves are
    marked as orphaned.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider subscription list --app shop:app[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    rows = [(each, _orphaned(each, place)) for each in asyncio.run(_overview(place))]
    if as_json:
        answer = [asdict(each) | {"orphaned": orphan} for each, orphan in rows]
        typer.echo(json.dumps({"schema": place.schema, "subscriptions": answer}, default=str, indent=2))
        return
    table = Table(title=f"schema {place.schema}", padding=(0, 0), pad_edge=False)
    for column in ("name", "events", "kind", "lag", "parked", "dead", "workers", "state"):
        table.add_column(column, overflow="fold", no_wrap=column in ("lag", "parked", "dead", "workers"))
    for each, orphan in rows:
        state = ["paused"] * (each.paused_at is not None) + ["orphaned"] * bool(orphan)
        events = "all" if each.event_types is None else "\n".join(map(one_line, each.event_types))
        kind = f"{each.kind} of {one_line(each.context)}"
        if each.kind != "job":
            kind += f"\norder {each.order}" + f" × {each.partitions}" * (each.partitions > 1)
        row = (
            one_line(each.name), events, kind, "" if each.event_types == [] else str(each.lag), parked(each),
            count(each.dead), str(each.workers), ", ".join(state),
        )  # fmt: skip
        table.add_row(*map(Text, row), style="yellow" if state else None)
    Console().print(table)


@commands.command()
def pause(
    name: OneOrAll = None,
    everything: AllOption = False,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let nobody take from a subscription, or with --all from any.

    What was taken before is finished. Events stay in the log until it is resumed.
    --all is a switch of its own: it also holds subscriptions that come later.

    Needs: a role that may operate.

    Example: [bold]outrider subscription pause billing.invoice[/]
    """
    _one_or_all(name, everything)
    place = find_place(Asked(app, dsn, embedded, schema))
    asyncio.run(_pause(place, name, signed(by, reason)))
    if as_json:
        print_json(schema=place.schema, subscription=name, paused=True)
        return
    said = f"{name} is" if name else "all subscriptions are"
    typer.echo(f"{said} paused; to go on: outrider subscription resume {name or '--all'}")


@commands.command()
def resume(
    name: OneOrAll = None,
    everything: AllOption = False,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take from a paused subscription again, from where it stopped; with --all, undo pause --all.

    An open circuit breaker of the subscription is closed. --all leaves alone
    what was paused by its name.

    Needs: a role that may operate.

    Example: [bold]outrider subscription resume billing.invoice[/]
    """
    _one_or_all(name, everything)
    place = find_place(Asked(app, dsn, embedded, schema))
    still, everything_paused = asyncio.run(_resume(place, name, signed(by, reason)))
    if as_json:
        print_json(
            schema=place.schema, subscription=name, paused=False, still_paused=still, all_paused=everything_paused
        )
        return
    except_for = f", except {', '.join(map(one_line, still))}" if still else ""
    typer.echo(f"{name} goes on" if name else f"all subscriptions go on{except_for}")
    if name and everything_paused:
        typer.echo("but everything is paused; to go on: outrider subscription resume --all", err=True)


@commands.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Its name until now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name in the new code.")],
    force: Annotated[bool, typer.Option("--force", help="Although a worker serves it: that worker will fail.")] = False,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a subscription the name that it has in the new code.

    Its position, its parked and dead events and its receipts move along, in
    one transaction: nothing is skipped, nothing is handled twice.
    Stop its workers, or restart them with --exclude OLD; rename; start the new
    code.

    Needs: a role that may operate.

    Example: [bold]outrider subscription rename billing.invoice billing.send_invoice[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    moved = asyncio.run(_rename(place, old, new, signed(by, reason), force=force))
    if as_json:
        print_json(schema=place.schema, old=old, new=new, receipts=moved)
        return
    typer.echo(f"{old} is now {new}; {moved} receipts moved with it")


@commands.command()
def narrow(
    name: Name,
    types: Annotated[list[str], typer.Argument(metavar="TYPE...", help="Event types that it shall no longer want.")],
    force: Annotated[bool, typer.Option("--force", help="Lose what it has not read of them. Needs --yes.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --force: I know what is lost.")] = False,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take event types from a subscription whose code no longer handles them.

    Registration only adds types: during a deploy old code may still need them,
    and a worker takes nothing while types are wanted that its code does not know.
    Refused while unread or parked events of these types would be lost: --force
    --yes loses the unread ones.

    Needs: a role that may operate.

    Example: [bold]outrider subscription narrow billing.invoice orders.cancelled[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    lost = asyncio.run(_narrow(place, name, types, signed(by, reason), force=force and yes))
    if as_json:
        print_json(schema=place.schema, subscription=name, types=types, lost=lost)
        return
    typer.echo(
        f"{name} no longer wants {', '.join(types)}" + (f"; lost with them: {lost} unread events" if lost else "")
    )


@commands.command()
def retire(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Lose what it has not handled. Needs --yes.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --force: I know what is lost.")] = False,
    by: ByOption = None,
    reason: ReasonOption = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a subscription whose code is gone.

    Refused while it has unread, parked or dead events, which would be lost:
    --force --yes loses them. The log and the receipts stay.

    Needs: a role that may operate.

    Example: [bold]outrider subscription retire billing.invoice[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    lost = asyncio.run(_retire(place, name, signed(by, reason), force=force, yes=yes))
    declared = bool(place.subscriptions) and name in [each.name for each in place.subscriptions or ()]
    if as_json:
        print_json(schema=place.schema, subscription=name, lost=asdict(lost), still_declared=declared)
        return
    typer.echo(f"{name} is retired" + (f"; lost with it: {lost}" if lost.waiting or lost.dead else ""))
    if declared:
        typer.echo(
            f"the app still declares {name}: its next migrate or worker makes it anew, with what comes after that"
        )


async def _overview(place: Place) -> list[Overview]:
    async with place.connect() as conn:
        return await subscriptions.overview(conn, place.schema)


def _one_or_all(name: str | None, everything: bool) -> None:
    if (name is None) != everything:
        raise typer.BadParameter("name one subscription, or give --all, not both")


async def _pause(place: Place, name: str | None, by: Signed) -> None:
    async with place.connect() as conn:
        await subscriptions.pause(conn, name, place.schema, by)


async def _resume(place: Place, name: str | None, by: Signed) -> tuple[list[str], bool]:
    """What is paused all the same: by its name, and with everything."""
    async with place.connect() as conn:
        await subscriptions.resume(conn, name, place.schema, by)
        there = await subscriptions.overview(conn, place.schema)
        still = [each.name for each in there if each.paused_at is not None]
        return still, await subscriptions.all_paused(conn, place.schema)


async def _rename(place: Place, old: str, new: str, by: Signed, *, force: bool) -> int:
    async with place.connect() as conn:
        return await subscriptions.rename(conn, old, new, place.schema, force=force, signed=by)


async def _narrow(place: Place, name: str, types: list[str], by: Signed, *, force: bool) -> int:
    async with place.connect() as conn:
        return await subscriptions.narrow(conn, name, types, place.schema, force=force, signed=by)


async def _retire(place: Place, name: str, by: Signed, *, force: bool, yes: bool) -> Backlog:
    async with place.connect() as conn:
        if force and not yes:
            lost = await subscriptions.backlog(conn, name, place.schema)
            raise SubscriptionRefused(f"{name} would take {lost} with it: to lose them for good, add --yes")
        return await subscriptions.retire(conn, name, place.schema, force=force, signed=by)


def _orphaned(each: Overview, place: Place) -> bool | None:
    """None without an app: nobody knows what is declared."""
    if place.subscriptions is None:
        return None
    return orphaned(each, place.settings.context, {known.name for known in place.subscriptions})


def parked(each: Overview | Standing) -> str:
    """What it owes; of jobs, how much of that is being done."""
    if each.kind != "job":
        return count(each.parked)
    return f"{count(each.parked - each.running)} pending\n{count(each.running)} running"


def count(number: int) -> str:
    return f"{number}+" if number >= MOST else str(number)
