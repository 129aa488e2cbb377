"""`outrider inbox`: how far inboxes have read, what they could not read, and to try that again."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.bulk_actions import confirm, print_json
from outrider.cli.commands.status import tell_states
from outrider.cli.commands.subscription import count
from outrider.cli.find import need_app
from outrider.cli.output.text import lines, moment, one_line, roughly, say, short
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
from outrider.errors import ConfigError
from outrider.inbox.destination import destination_of
from outrider.inbox.inbox import Inbox
from outrider.inbox.retry import RetryResult, retry_refused
from outrider.postgres import inboxes
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.status import Status
from outrider.postgres.admin.status import status as look
from outrider.postgres.inboxes import Kept

SHOWN = 300
"""Bytes of an entry that are shown."""

commands = typer.Typer(no_args_is_help=True, help="List inboxes, see what they could not read, and try that again.")


@commands.command("list")
def show(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every inbox and replica, and how far it has read its stream.

    The position is the broker's: everything up to there is in this database.
    How much the stream holds beyond it, only its broker knows; "moved" says when
    something last came in. Counts of refused entries end at 10,000.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider inbox list --dsn postgresql://localhost/billing[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_status(place))
    shown = [each for each in found.subscriptions if each.kind == "inbox"]
    if as_json:
        print_json(schema=place.schema, read_at=found.read_at, inboxes=[asdict(each) for each in shown])
        return
    if not shown:
        say("no inboxes")
        return
    table = _table("inbox", "stream", "position", "events", "moved", "refused", "state")
    for each in shown:
        states = list(tell_states(each, found))
        for stream in each.streams or (None,):
            of_stream = ("not read yet", "", "", "", "")
            if stream is not None:
                ago = f"{roughly(found.read_at - stream.moved_at)} ago"
                refused = count(stream.refused)
                of_stream = (one_line(stream.name), one_line(stream.place), str(stream.events), ago, refused)
            style = "red" if stream and stream.refused else "yellow" if states != ["running"] else ""
            table.add_row(*map(Text, (one_line(each.name), *of_stream, "\n".join(states))), style=style)
    Console().print(table)


@commands.command()
def refused(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only of this inbox.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
    after: Annotated[int, typer.Option("--after", metavar="ID", min=0, help="Only those with a greater id.")] = 0,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the entries that inboxes could not make events of, the oldest first.

    Each with the reason and the start of its data, made safe for a terminal;
    --json has all of the data, as base64. The inbox has gone on behind them. When
    its code can read them: outrider inbox retry.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider inbox refused[/]
      [bold]outrider inbox refused billing.orders --limit 10 --json[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_refused(place, name, after, limit))
    if as_json:
        print_json(schema=place.schema, refused=[_fields(each) for each in found])
        return
    if not found:
        say("nothing was refused")
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
        say(f"the first {limit:,}; go on with --after {found[-1].id}")


@commands.command()
def retry(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The inbox.")],
    ids: Annotated[
        list[int] | None, typer.Option("--id", metavar="N", help="Only the entry with this id. Repeatable.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read refused entries again, with the codec that the app has today.

    Those that are events now come in, as new ones: after what has come in of
    their keys meanwhile. They leave the list in the same transaction; the others
    stay. What has come in before is not doubled.
    Exits with 1 if one of them still cannot be read.

    Needs: an app with that inbox, and a role that may write the schema's tables.

    Examples:

      [bold]outrider inbox retry billing.orders --app billing:app[/]
      [bold]outrider inbox retry billing.orders --id 7 --yes --app billing:app[/]
    """
    found = need_app(app)
    declared = {each.name: each for each in found.inboxes}
    if name not in declared:
        raise ConfigError(f"{name!r} is no inbox of the app; it declares: {', '.join(declared) or 'none'}")
    place = Place(moved(found.settings, Asked(app, dsn, embedded, schema)), found.subscriptions)
    many = f"{len(ids)} refused entries" if ids else "all refused entries"
    confirm(f"Read {many} of {name} again?", "nothing was read", yes=yes)
    done = asyncio.run(_retry(place, declared[name], ids))
    if as_json:
        print_json(
            schema=place.schema,
            ingested=done.ingested,
            known=done.known,
            refused=[_fields(each) | {"message": why} for each, why in done.refused],
        )
    else:
        say(f"{done.ingested:,} came in, {done.known:,} had come in before, {len(done.refused):,} still refused")
        for each, why in done.refused:
            say(f"{each.id}: {one_line(short(why))}", indent=2)
    if done.refused:
        raise typer.Exit(1)


def start_of(data: bytes) -> str:
    """On one line; what is no text, as bytes."""
    head = data[:SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut = len(head) < len(data) and error.start > len(head) - 4
        text = head[: error.start].decode() if cut else repr(head)[2:-1]
    return one_line(text) + "…" * (len(head) < len(data))


async def _status(place: Place) -> Status:
    async with place.connect() as conn:
        return await look(conn, place.schema)


async def _refused(place: Place, name: str | None, after: int, limit: int) -> list[Kept]:
    async with place.connect() as conn:
        if name is not None:
            await subscriptions.find(conn, name, place.schema)
        return await inboxes.refused(conn, place.schema, subscription=name, after=after, limit=limit)


async def _retry(place: Place, inbox: Inbox, ids: list[int] | None) -> RetryResult:
    async with place.connect() as conn:
        await subscriptions.find(conn, inbox.name, place.schema)
        return await retry_refused(conn, inbox.name, destination_of(inbox, place.settings), ids, place.schema)


def _fields(each: Kept) -> dict[str, Any]:
    return asdict(each) | {"data": base64.b64encode(each.data).decode()}


def _table(*columns: str) -> Table:
    table = Table(padding=(0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
