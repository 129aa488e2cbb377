"""`outrider subscription`: who reads the log and how far, and what an operator may change about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outrider.cli.options import AuditOptions, Commands
from outrider.cli.output.status import waiting
from outrider.cli.output.text import capped, counted, make_table, one_line, print_json
from outrider.cli.target import Target
from outrider.errors import SubscriptionRefused
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.subscriptions import MOST, Backlog, Overview
from outrider.postgres.connection import AsyncSession
from outrider.postgres.schema.registration import orphaned

commands = Commands(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription.")]
OneOrAll = Annotated[str | None, typer.Argument(metavar="NAME", help="The subscription.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every subscription, including new ones.")]
AcceptOption = Annotated[bool, typer.Option("--yes", help="With --force: you accept what is lost.")]


@commands.command("list")
def show(target: Target) -> None:
    """Show every subscription: events, lag, waiting work, workers.

    The lag counts log positions, of all event types. Events wait for a retry, or
    behind an event that does; dead letters wait for you. Jobs are pending, running
    or dead letters. With an app, subscriptions of its context that it does not
    declare and nobody serves are marked as orphaned.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider subscription list --app shop:app[/]
    """
    found = target.run(lambda conn: subscriptions.overview(conn, target.schema))
    rows = [(each, _orphaned(each, target)) for each in found]
    if target.as_json:
        print_json(schema=target.schema, subscriptions=[asdict(each) | {"orphaned": orphan} for each, orphan in rows])
        return
    whole = ("lag", "waiting", "dead", "workers")
    table = make_table("name", "events", "kind", *whole, "state", title=f"schema {target.schema}", unbroken=whole)
    for each, orphan in rows:
        state = ["paused"] * (each.paused_at is not None) + ["orphaned"] * bool(orphan)
        events = "all" if each.event_types is None else "\n".join(map(one_line, each.event_types))
        kind = f"{each.kind} of {one_line(each.context)}"
        if each.kind != "job":
            kind += f"\norder {each.order}" + f" × {each.partitions}" * (each.partitions > 1)
        row = (
            one_line(each.name), events, kind, "" if each.event_types == [] else f"{each.lag:,}", waiting(each),
            capped(each.dead, MOST), str(each.workers), ", ".join(state),
        )  # fmt: skip
        table.add_row(*map(Text, row), style="yellow" if state else None)
    Console().print(table)


@commands.command()
def pause(target: Target, audit: AuditOptions, name: OneOrAll = None, everything: AllOption = False) -> None:
    """Stop taking events or jobs from a subscription.

    What was taken before is finished. Events stay in the log until it is resumed.
    --all pauses every subscription, also those that are added later. It is a switch
    of its own: resume --all undoes it, and subscriptions paused by name stay paused.

    Needs: a role that may operate.

    Example: [bold]outrider subscription pause billing.invoice[/]
    """
    _one_or_all(name, everything)
    target.run(lambda conn: subscriptions.pause(conn, name, target.schema, audit.signed))
    if target.as_json:
        print_json(schema=target.schema, subscription=name, paused=True)
        return
    said = f"{name} is" if name else "all subscriptions are"
    typer.echo(f"{said} paused; to resume: outrider subscription resume {name or '--all'}")


@commands.command()
def resume(target: Target, audit: AuditOptions, name: OneOrAll = None, everything: AllOption = False) -> None:
    """Continue a paused subscription where it stopped.

    This also closes an open circuit breaker of the subscription. --all undoes
    pause --all; it does not resume subscriptions that were paused by name.

    Needs: a role that may operate.

    Example: [bold]outrider subscription resume billing.invoice[/]
    """
    _one_or_all(name, everything)

    async def run(conn: AsyncSession) -> tuple[list[str], bool]:
        await subscriptions.resume(conn, name, target.schema, audit.signed)
        there = await subscriptions.overview(conn, target.schema)
        still = [each.name for each in there if each.paused_at is not None]
        return still, await subscriptions.all_paused(conn, target.schema)

    still, all_paused = target.run(run)
    if target.as_json:
        print_json(schema=target.schema, subscription=name, paused=False, still_paused=still, all_paused=all_paused)
        return
    except_for = f", except {', '.join(map(one_line, still))}" if still else ""
    typer.echo(f"{name} is resumed" if name else f"all subscriptions are resumed{except_for}")
    if name and all_paused:
        typer.echo("but everything is paused; to resume: outrider subscription resume --all", err=True)


@commands.command()
def rename(
    target: Target,
    audit: AuditOptions,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Its present name.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its name in the new code.")],
    force: Annotated[bool, typer.Option("--force", help="Even if a worker serves it: that worker will fail.")] = False,
) -> None:
    """Give a subscription the name that it has in the new code.

    Its position, its waiting events, its dead letters and its receipts move with
    it, in one transaction: nothing is skipped, nothing is handled twice. Stop its
    workers, or restart them with --exclude OLD; rename; start the new code.

    Needs: a role that may operate.

    Example: [bold]outrider subscription rename billing.invoice billing.send_invoice[/]
    """
    moved = target.run(
        lambda conn: subscriptions.rename(conn, old, new, target.schema, force=force, signed=audit.signed)
    )
    if target.as_json:
        print_json(schema=target.schema, old=old, new=new, receipts=moved)
        return
    typer.echo(f"{old} is now {new}; {counted(moved, 'receipt')} moved with it")


@commands.command()
def narrow(
    target: Target,
    audit: AuditOptions,
    name: Name,
    types: Annotated[list[str], typer.Argument(metavar="TYPE", help="The event types to remove.")],
    force: Annotated[bool, typer.Option("--force", help="Lose unread events of these types. Needs --yes.")] = False,
    yes: AcceptOption = False,
) -> None:
    """Remove event types that the code no longer handles.

    Registration only adds types: during a deploy old code may still need them.
    A worker takes nothing from a subscription that wants types its code does not
    know. Refused while unread or waiting events of these types would be lost;
    --force --yes loses the unread ones.

    Needs: a role that may operate.

    Example: [bold]outrider subscription narrow billing.invoice orders.cancelled[/]
    """
    lost = target.run(
        lambda conn: subscriptions.narrow(conn, name, types, target.schema, force=force and yes, signed=audit.signed)
    )
    if target.as_json:
        print_json(schema=target.schema, subscription=name, types=types, lost=lost)
        return
    typer.echo(
        f"{name} no longer wants {', '.join(types)}" + (f"; lost: {counted(lost, 'unread event')}" if lost else "")
    )


@commands.command()
def retire(
    target: Target,
    audit: AuditOptions,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Lose what it has not handled. Needs --yes.")] = False,
    yes: AcceptOption = False,
) -> None:
    """Delete a subscription whose code is gone.

    Refused while it has unread events, waiting events or dead letters; --force
    --yes loses them. The log and the receipts stay.

    Needs: a role that may operate.

    Example: [bold]outrider subscription retire billing.invoice[/]
    """

    async def run(conn: AsyncSession) -> Backlog:
        if force and not yes:
            lost = await subscriptions.backlog(conn, name, target.schema)
            raise SubscriptionRefused(f"retiring {name} would lose {lost}: to lose them for good, add --yes")
        return await subscriptions.retire(conn, name, target.schema, force=force, signed=audit.signed)

    lost = target.run(run)
    declared = name in [each.name for each in target.subscriptions or ()]
    if target.as_json:
        print_json(schema=target.schema, subscription=name, lost=asdict(lost), still_declared=declared)
        return
    typer.echo(f"{name} is retired" + (f"; lost: {lost}" if lost.unhandled or lost.dead else ""))
    if declared:
        typer.echo(f"the app still declares {name}: its next migrate or worker creates it again, for new events")


def _one_or_all(name: str | None, everything: bool) -> None:
    if (name is None) != everything:
        raise typer.BadParameter("name one subscription, or give --all, not both")


def _orphaned(each: Overview, target: Target) -> bool | None:
    """None without an app: then nobody knows what is declared."""
    if target.subscriptions is None:
        return None
    return orphaned(each, target.settings.context, {known.name for known in target.subscriptions})
