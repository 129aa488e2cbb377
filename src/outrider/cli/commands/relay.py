"""`outrider relay`: run an app's relays in a process of their own, see how far they are, let one go on in a stream."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from outrider.cli.audit_options import ByOption, ReasonOption, signed
from outrider.cli.bulk_actions import confirm, print_json
from outrider.cli.commands.status import tell_states
from outrider.cli.commands.subscription import count
from outrider.cli.find import need_app
from outrider.cli.logs import Level, arrange
from outrider.cli.output.text import one_line, roughly, say
from outrider.cli.serve import Options, run_here, say_unless
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
from outrider.postgres import relays
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.status import Standing, Status
from outrider.postgres.admin.status import status as look
from outrider.postgres.admin.streams import Stream
from outrider.relay.recovery import open_streams
from outrider.relay.relay import Relay, only_stream
from outrider.streams.stream import bare_position
from outrider.worker.job_loop import SLOTS


class RunUnlessTold(TyperGroup):
    """What does not begin with a subcommand is `run`: its options, and names of relays."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if args and args[0] in known else ["run", *args])


commands = typer.Typer(
    cls=RunUnlessTold, help="Run only the relays of an app (the default); list them, let one go on in a stream."
)


@commands.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these: a name or a pattern. Default: all.")
    ] = None,
    app: AppOption = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long a stop may wait for what was begun.")
    ] = "30s",
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=65535, help="Serve /healthz and /readyz here; 0 = any."
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", metavar="HOST", help="With --health-port.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve /metrics for Prometheus here; 0 = any.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="With --metrics-port.")
    ] = "127.0.0.1",
    otel_metrics: Annotated[
        bool, typer.Option("--otel-metrics", help="Give them to OpenTelemetry too, as the app has set it up.")
    ] = False,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    log_level: Annotated[Level | None, typer.Option("--log-level", help="Default: info.")] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-console", help="Log lines as JSON, or as text (the default).")
    ] = None,
) -> None:
    """Run the app's relays, and none of its handlers and jobs, until SIGTERM or Ctrl-C.

    [bold]run[/] may be left out. [bold]outrider worker[/] runs relays too: this is for those who
    want them in processes of their own, with other rights, or restarted apart.
    Any number may run; of each relay one is active, and another takes over when
    it ends. The first signal lets the batch that was begun finish within the grace
    time; the second leaves within 3 s. Either way what is in the stream is found there
    by the next one, and not sent again. Exits as outrider worker does.

    Needs: a migrated schema ([bold]outrider migrate[/]) and an app with relays.

    Examples:

      [bold]outrider relay --app shop:app[/]
      [bold]outrider relay --app shop:app shop.out 'audit.*' --health-port 8080[/]
    """
    if told := [each for each in names or () if each in ("run", "list", "adopt")]:
        raise ConfigError(f"{told[0]} must come first: outrider relay {told[0]} …")
    found = need_app(app)
    if not found.relays:
        raise ConfigError(
            'the app declares no relay: app.relay("shop.out", RedisStreams("redis://…", stream="orders")) is one'
        )
    chosen = [each.name for each in found.chosen(names or ()).relays]
    if not chosen:
        declared = ", ".join(each.name for each in found.relays)
        raise ConfigError(f"none of {', '.join(names or ())} is a relay; the app declares: {declared}")
    asked = Asked(app, dsn, embedded, schema)
    options = Options(
        asked,
        chosen,
        (),
        (),
        SLOTS,
        (),
        grace,
        health_port,
        health_host,
        metrics_port,
        metrics_host,
        log_level,
        log_json,
        otel_metrics,
    )
    options.check()
    found.relocate(moved(found.settings, asked))
    arrange(log_level, log_json)
    say_unless(run_here(found, options), grace)


@commands.command("list")
def show(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every relay and its streams, and how far each is.

    The position is the broker's: everything up to there is in the stream, and
    committed here. The lag counts numbers of the log that the relay has not
    passed, whatever their type; what the broker has rejected waits or is dead.
    A stream is listed from its first event on.

    Needs: a role that may read the schema. Changes nothing.

    Example: [bold]outrider relay list --dsn postgresql://localhost/shop[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    found = asyncio.run(_status(place))
    shown = [each for each in found.subscriptions if each.kind == "relay"]
    if as_json:
        print_json(schema=place.schema, read_at=found.read_at, relays=[asdict(each) for each in shown])
        return
    if not shown:
        say("no relays")
        return
    table = _table("relay", "stream", "position", "events", "moved", "lag", "rejected", "dead", "state")
    for each in shown:
        for number, stream in enumerate(each.streams or (None,)):
            _add(table, each, stream, found, first=number == 0)
    Console().print(table)


@commands.command()
def adopt(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The relay.")],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, as its broker calls it.")],
    reason: ReasonOption = None,
    by: ByOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a relay go on after what is in a stream, whoever has written it.

    A relay begins only in streams that are empty, and stops at entries that it
    has not written. This says: all that is there stays, and the relay's next event
    comes after it. Nothing is read, nothing is removed; if the stream holds
    events that the relay has not passed yet, they will be there twice. Nobody else
    may write to the stream from then on. Kept in the audit.

    Needs: an app with that relay, its broker, and a role that may relay and operate.

    Example: [bold]outrider relay adopt shop.out orders --app shop:app[/]
    """
    found = need_app(app)
    asked = Asked(app, dsn, embedded, schema)
    declared = {each.name: each for each in found.relays}
    if name not in declared:
        raise ConfigError(f"{name!r} is no relay of the app; it declares: {', '.join(declared) or 'none'}")
    place = Place(moved(found.settings, asked), found.subscriptions)
    answer = asyncio.run(_adopt(place, declared[name], stream, signed(by, reason), yes=yes))
    if as_json:
        print_json(schema=place.schema, **answer)
    else:
        say(f"{name} goes on in {one_line(stream)} after {answer['position']}")


async def _adopt(place: Place, relay: Relay, stream: str, by: Signed, *, yes: bool) -> dict[str, Any]:
    sink, schema = relay.sink, place.schema
    async with place.connect() as conn:
        await subscriptions.find(conn, relay.name, schema)
        if (only := only_stream(sink)) is not None and only != stream:
            raise ConfigError(f"{relay.name} writes to the stream {only}, and to no other")
        await sink.open()
        try:
            written = (await relays.positions(conn, relay.name, schema)).get(stream)
            before = None if written is None else bare_position(written)
            end = await sink.end(stream)
            confirm(_foretold(relay, stream, before, end), "nothing was changed", yes=yes)
            async with conn.transaction():
                await open_streams(conn, relay, [stream], schema, adopt=True)
                after = (await relays.positions(conn, relay.name, schema))[stream]
                await relays.note_adoption(conn, relay.name, stream, (before, after), by, schema)
        finally:
            await sink.close()
    return {"relay": relay.name, "stream": stream, "before": before, "position": after}


def _foretold(relay: Relay, stream: str, before: str | None, end: str) -> str:
    sort_key = relay.sink.sort_key
    said = f"Let {relay.name} go on in {one_line(stream)} after {end}, where it ends?"
    if before is None or before == end:
        return said
    if sort_key(end) < sort_key(before):
        return f"It has written up to {before}; what is lost of that will not be sent again. {said}"
    return f"It has written up to {before}; what came after that will stay. {said}"


async def _status(place: Place) -> Status:
    async with place.connect() as conn:
        return await look(conn, place.schema)


def _add(table: Table, each: Standing, stream: Stream | None, found: Status, *, first: bool) -> None:
    """One line for each stream; what is the relay's own stands on the first."""
    states = list(tell_states(each, found))
    of_stream = (
        (one_line(stream.name), one_line(stream.place), str(stream.events), _ago(stream, found))
        if stream
        else ("none yet", "", "", "")
    )
    own = (str(each.lag), count(each.parked), count(each.dead), "\n".join(states)) if first else ("",) * 4
    style = "yellow" if states != ["running"] or each.parked else "red" if each.dead else ""
    table.add_row(*map(Text, (one_line(each.name) if first else "", *of_stream, *own)), style=style)


def _ago(stream: Stream, found: Status) -> str:
    return f"{roughly(found.read_at - stream.moved_at)} ago"


def _table(*columns: str) -> Table:
    table = Table(padding=(0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
