"""`outrider inbox`: how far inboxes have read, what they could not read, and reading that again."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.options import Commands, LimitOption, YesOption, confirm
from outrider.cli.output.status import states_of
from outrider.cli.output.text import capped, lines, make_table, moment, one_line, print_json, roughly, say, short
from outrider.cli.target import Target, find_declared
from outrider.inbox.inbox import destination_of
from outrider.inbox.receiver import RetryResult, retry_refused
from outrider.postgres import inboxes
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.status import status as look
from outrider.postgres.admin.subscriptions import MOST
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import Kept

SHOWN = 300
"""Bytes of an entry that are shown."""

commands = Commands(no_args_is_help=True)


@commands.command("list")
def show(target: Target) -> None:
    """Show every inbox and replica, and how far it has read its stream.

    The position is the broker's: everything up to there is in this database.
    Only the broker knows how much the stream holds beyond it; "moved" says when
    something last came in. Counts of refused entries end at 10,000.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider inbox list --dsn postgresql://localhost/billing[/]
    """
    found = target.run(lambda conn: look(conn, target.schema))
    shown = [each for each in found.subscriptions if each.kind == "inbox"]
    if target.as_json:
        print_json(schema=target.schema, read_at=found.read_at, inboxes=[asdict(each) for each in shown])
        return
    if not shown:
        say("no inboxes")
        return
    table = make_table("inbox", "stream", "position", "events", "moved", "refused", "state")
    for each in shown:
        states = list(states_of(each, found))
        for stream in each.streams or (None,):
            of_stream = ("not read yet", "", "", "", "")
            if stream is not None:
                ago = f"{roughly(found.read_at - stream.moved_at)} ago"
                refused = capped(stream.refused, MOST)
                of_stream = (one_line(stream.name), one_line(stream.place), f"{stream.events:,}", ago, refused)
            style = "red" if stream and stream.refused else "yellow" if states != ["running"] else ""
            table.add_row(*map(Text, (one_line(each.name), *of_stream, "\n".join(states))), style=style)
    Console().print(table)


@commands.command()
def refused(
    target: Target,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this inbox.")] = None,
    limit: LimitOption = 50,
    after: Annotated[int, typer.Option("--after", metavar="ID", min=0, help="Only those with a greater id.")] = 0,
) -> None:
    """Show the stream entries that could not become events.

    The oldest come first, each with the reason and the start of its data; --json has
    all of the data, as base64. The inbox has read on after them. When its code can
    read them: outrider inbox retry.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider inbox refused[/]
      [bold]outrider inbox refused billing.orders --limit 10 --json[/]
    """

    async def look_up(conn: AsyncSession) -> list[Kept]:
        if name is not None:
            await subscriptions.find(conn, name, target.schema)
        return await inboxes.refused(conn, target.schema, subscription=name, after=after, limit=limit)

    found = target.run(look_up)
    if target.as_json:
        print_json(schema=target.schema, refused=[_fields(each) for each in found])
        return
    if not found:
        say("no entry was refused")
        return
    table = Table(show_lines=True)
    table.add_column("id", no_wrap=True)
    table.add_column("inbox\nstream", overflow="fold")
    table.add_column("why\nthe entry", overflow="fold")
    for each in found:
        table.add_row(
            str(each.id),
            lines(each.inbox, f"{each.stream} {each.position.partition('@')[0]}", moment(each.at)),
            lines(short(each.message), start_of(each.data)),
        )
    Console().print(table)
    if len(found) == limit:
        say(f"the first {limit:,}; for more: --after {found[-1].id}")


@commands.command()
def retry(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The inbox.")],
    yes: YesOption = False,
) -> None:
    """Read refused entries again, with the codec that the app has now.

    Entries that can be read become new events, after all that has come in
    meanwhile, and leave the list in the same transaction. The others stay. What has
    come in before is not doubled. Exits with 1 if an entry still cannot be read.

    Needs: an app with that inbox, and a role that may write the schema's tables.

    Example: [bold]outrider inbox retry billing.orders --app billing:app[/]
    """
    inbox = find_declared("inbox", target.need_app().inboxes, name)
    confirm(f"Read all refused entries of {name} again?", "nothing was read", yes=yes)

    async def read_again(conn: AsyncSession) -> RetryResult:
        await subscriptions.find(conn, name, target.schema)
        return await retry_refused(conn, name, destination_of(inbox, target.settings), target.schema)

    done = target.run(read_again)
    if target.as_json:
        print_json(
            schema=target.schema,
            ingested=done.ingested,
            known=done.known,
            refused=[_still_refused(each, why) for each, why in done.refused],
        )
    else:
        say(f"{done.ingested:,} came in, {done.known:,} had come in before, {len(done.refused):,} still refused")
        for each, why in done.refused:
            say(f"{each.id}: {one_line(short(why))}", indent=2)
    if done.refused:
        raise typer.Exit(1)


def start_of(data: bytes) -> str:
    """On one line; bytes that are no text are escaped."""
    head = data[:SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut = len(head) < len(data) and error.start > len(head) - 4
        text = head[: error.start].decode() if cut else repr(head)[2:-1]
    return one_line(text) + "…" * (len(head) < len(data))


def _fields(each: Kept) -> dict[str, Any]:
    return asdict(each) | {"data": base64.b64encode(each.data).decode()}


def _still_refused(each: Kept, why: str) -> dict[str, Any]:
    """Without its data: outrider inbox refused shows that."""
    return {name: value for name, value in asdict(each).items() if name != "data"} | {"message": why}
