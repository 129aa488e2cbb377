"""`outrider relay`: run an app's relays in a process of their own, see how far they are, let one go on in a stream."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.logs import arrange
from outrider.cli.options import AuditOptions, CliGroup, Commands, YesOption, confirm
from outrider.cli.output.status import states_of
from outrider.cli.output.text import capped, make_table, one_line, print_json, roughly, say
from outrider.cli.serve import ServeOptions, Service, run_here
from outrider.cli.target import Location, Target, find_declared
from outrider.errors import ConfigError
from outrider.postgres import relays
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.status import Standing, Status
from outrider.postgres.admin.status import status as look
from outrider.postgres.admin.streams import Stream
from outrider.postgres.admin.subscriptions import MOST
from outrider.relay.recovery import open_streams
from outrider.relay.relay import Relay, only_stream
from outrider.signed import Signed
from outrider.streams.stream import bare_position


class RunByDefault(CliGroup):
    """A command line that does not begin with a subcommand is one of `run`: its options, and names of relays."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if args and args[0] in known else ["run", *args])


commands = Commands(cls=RunByDefault)


@commands.command()
def run(
    location: Location,
    options: ServeOptions,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these: a name or a pattern. Default: all.")
    ] = None,
) -> None:
    """Run the app's relays, without its handlers and jobs.

    Runs until SIGTERM or Ctrl-C. The word [bold]run[/] may be left out. [bold]outrider worker[/] runs relays
    too: use this one to give relays other rights, or to restart them separately.
    Any number may run; of each relay one is active, and another takes over when
    it ends. The first signal lets the current batch finish within the grace time;
    the second ends the process within 3 s. What has reached the stream is found
    there by the next process and not sent again. Exits as outrider worker does.

    Needs: a migrated schema ([bold]outrider migrate[/]) and an app with relays.

    Examples:

      [bold]outrider relay --app shop:app[/]
      [bold]outrider relay --app shop:app shop.out 'audit.*' --health-port 8080[/]
    """
    if told := [each for each in names or () if each in ("run", "list", "adopt")]:
        raise ConfigError(f"{told[0]} must come first: outrider relay {told[0]} …")
    app = location.need_app()
    if not app.relays:
        raise ConfigError(
            'the app declares no relay: app.relay("shop.out", RedisStreams("redis://…", stream="orders")) is one'
        )
    chosen = [each.name for each in app.chosen(names or ()).relays]
    if not chosen:
        declared = ", ".join(each.name for each in app.relays)
        raise ConfigError(f"none of {', '.join(names or ())} is a relay; the app declares: {declared}")
    options.check()
    app.relocate(location.settings)
    arrange(options.log_level, options.log_json)
    run_here(app, Service(location, options, handlers=chosen))


@commands.command("list")
def show(target: Target) -> None:
    """Show every relay, its streams and how far it has sent.

    The position is the broker's: everything up to there is in the stream and
    committed here. The lag counts log positions that the relay has not passed,
    of all event types. Events that the broker has rejected wait for a retry or are
    dead letters. A stream is listed from its first event on.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider relay list --dsn postgresql://localhost/shop[/]
    """
    found = target.run(lambda conn: look(conn, target.schema))
    shown = [each for each in found.subscriptions if each.kind == "relay"]
    if target.as_json:
        print_json(schema=target.schema, read_at=found.read_at, relays=[asdict(each) for each in shown])
        return
    if not shown:
        say("no relays")
        return
    table = make_table("relay", "stream", "position", "events", "moved", "lag", "rejected", "dead", "state")
    for each in shown:
        for number, stream in enumerate(each.streams or (None,)):
            _add(table, each, stream, found, first=number == 0)
    Console().print(table)


@commands.command()
def adopt(
    target: Target,
    audit: AuditOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The relay.")],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, as its broker calls it.")],
    yes: YesOption = False,
) -> None:
    """Let a relay continue in a stream that holds entries of others.

    A relay starts only in an empty stream, and stops at entries that it has not
    written. This command accepts all that is in the stream: the next event comes
    after it. Nothing is read or removed. If the stream holds events that the relay
    has not passed yet, they will be there twice. From then on nobody else may
    write to the stream. Recorded in the audit.

    Needs: an app with that relay, its broker, and a role that may relay and operate.

    Example: [bold]outrider relay adopt shop.out orders --app shop:app[/]
    """
    relay = find_declared("relay", target.need_app().relays, name)
    answer = asyncio.run(_adopt(target, relay, stream, audit.signed, yes=yes))
    if target.as_json:
        print_json(schema=target.schema, **answer)
    else:
        say(f"{name} continues in {one_line(stream)} after {answer['position']}")


async def _adopt(target: Target, relay: Relay, stream: str, by: Signed, *, yes: bool) -> dict[str, Any]:
    sink, schema = relay.sink, target.schema
    async with target.connect() as conn:
        await subscriptions.find(conn, relay.name, schema)
        if (only := only_stream(sink)) is not None and only != stream:
            raise ConfigError(f"{relay.name} writes to the stream {only}, and to no other")
        await sink.open()
        try:
            written = (await relays.positions(conn, relay.name, schema)).get(stream)
            before = None if written is None else bare_position(written)
            end = await sink.end(stream)
            confirm(_question(relay, stream, before, end), "nothing was changed", yes=yes)
            async with conn.transaction():
                await open_streams(conn, relay, [stream], schema, adopt=True)
                after = (await relays.positions(conn, relay.name, schema))[stream]
                await relays.note_adoption(conn, relay.name, stream, (before, after), by, schema)
        finally:
            await sink.close()
    return {"relay": relay.name, "stream": stream, "before": before, "position": after}


def _question(relay: Relay, stream: str, before: str | None, end: str) -> str:
    sort_key = relay.sink.sort_key
    question = f"Let {relay.name} continue in {one_line(stream)} after {end}, where it ends?"
    if before is None or before == end:
        return question
    if sort_key(end) < sort_key(before):
        return f"It has written up to {before}; what the stream has lost of that will not be sent again. {question}"
    return f"It has written up to {before}; the entries after that will stay. {question}"


def _add(table: Table, each: Standing, stream: Stream | None, found: Status, *, first: bool) -> None:
    """One row for each stream; what belongs to the relay itself stands in its first row."""
    states = list(states_of(each, found))
    of_stream = ("none yet", "", "", "")
    if stream is not None:
        ago = f"{roughly(found.read_at - stream.moved_at)} ago"
        of_stream = (one_line(stream.name), one_line(stream.place), f"{stream.events:,}", ago)
    own = (f"{each.lag:,}", capped(each.waiting, MOST), capped(each.dead, MOST), "\n".join(states))
    style = "yellow" if states != ["running"] or each.waiting else "red" if each.dead else ""
    row = (one_line(each.name), *of_stream, *own) if first else ("", *of_stream, "", "", "", "")
    table.add_row(*map(Text, row), style=style)
