"""`outrider status`: is everything well, and if not, where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from outrider.cli.commands.subscription import count, parked
from outrider.cli.output.rollups import fields, span
from outrider.cli.output.text import at, moment, one_line, roughly
from outrider.cli.output.watch import Lines, Rates, Screen, watch
from outrider.cli.target import AppOption, Asked, DsnOption, EmbeddedOption, JsonOption, Place, SchemaOption, find_place
from outrider.postgres.admin.status import LATE, Seen, Standing, Status
from outrider.postgres.admin.status import status as look
from outrider.postgres.rollups import Rolling

SHORT = 80
BUSY = timedelta(seconds=10)
"""What runs for longer is shown."""
KINDS = {
    "rolled_back": "{name} rolled back",
    "broker": "{name} without its broker",
    "failing": "{name} fails",
    "loop": "event loop held by {name}",
}


def status(
    app: AppOption = None,
    dsn: DsnOption = None,
    embedded: EmbeddedOption = False,
    schema: SchemaOption = None,
    watching: Annotated[bool, typer.Option("--watch", help="Look again and again, with rates, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch: how often.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Show the schema, every subscription, every rollup and every worker.

    Of a subscription: whether it runs, is paused, has its breaker open, is
    orphaned (with an app) or nobody serves it; how many numbers of the log it has
    not passed; how old the oldest event is that it still owes; what is parked and
    dead; of jobs, what is pending, running and dead, and since when the oldest is
    due; how far each generation has read, and who serves it. Of a relay and an
    inbox, each of their streams: up to which position it was written or read, how
    many events that were, when it last moved, how many entries could not be read.
    Of a rollup: who ticks it and when it last did, what waits and since when,
    what was set aside (outrider rollup status says why).

    Counts end at 10,000, and the log is looked at for a thousand numbers: an age
    of "?" means that it may owe something behind those.

    With --watch also how fast: numbers drawn, numbers that each generation has
    read, events of each stream, per second. On a terminal it stays in place; else
    it prints one block, or with --json one line, for each look. It outlives an
    outage of the database, and ends with 0 on Ctrl-C.

    Needs: a role that may read the schema. Changes nothing.

    Examples:

      [bold]outrider status --app shop:app[/]
      [bold]outrider status --app shop:app --watch[/]
    """
    place = find_place(Asked(app, dsn, embedded, schema))
    if watching:
        with suppress(KeyboardInterrupt):
            where = Lines(partial(_fields, place=place)) if as_json else Screen(partial(_view, place=place))
            asyncio.run(watch(place, every, where))
        return
    found = asyncio.run(_status(place))
    if as_json:
        typer.echo(json.dumps(_fields(found, place), default=str, indent=2))
        return
    for each in _view(found, place=place):
        Console().print(each, soft_wrap=isinstance(each, Text))


async def _status(place: Place) -> Status:
    async with place.connect(migrated=False, every_tenant=True) as conn:
        return await look(conn, place.schema)


def _view(found: Status, rates: Rates | None = None, *, place: Place) -> Iterator[RenderableType]:
    """`rates`: while it is watched."""
    yield from _lines(found, rates)
    if found.subscriptions:
        yield _subscriptions(found, _orphans(found, place), rates)
    if any(each.streams for each in found.subscriptions):
        yield _streams(found, rates)
    if found.rollups:
        yield _rollups(found)
    if found.workers:
        yield _workers(found)


def _lines(found: Status, rates: Rates | None) -> Iterator[Text]:
    if rates is not None:
        yield Text(at(found.read_at), style="dim")
    pending = f", pending: {', '.join(found.pending)} (outrider migrate)" if found.pending else ", up to date"
    yield Text(f"schema {found.schema}: version {found.version}{pending}", style="yellow" if found.pending else "")
    if found.paused_at is not None:
        yield Text(
            f"everything is paused since {at(found.paused_at)}; to go on: outrider subscription resume --all",
            style="bold yellow",
        )
    events = [each for each in found.subscriptions if each.kind != "job"]
    waiting, dead = (sum(getattr(each, name) for each in events) for name in ("parked", "dead"))
    speed = "" if rates is None else f" ({rates.drawn} a second)"
    yield Text(
        f"{found.seq} numbers drawn{speed}; {_counted(len(found.subscriptions), 'subscription')}, "
        f"{count(waiting)} parked and {count(dead)} dead events; {_counted(found.live, 'worker')}"
    )
    if found.jobs:
        yield Text(
            f"jobs: {', '.join(f'{count(number)} {state}' for state, number in found.jobs.items())} (outrider job list)"
        )


def _subscriptions(found: Status, orphans: set[str], rates: Rates | None) -> Table:
    table = _table(
        "subscription",
        "state",
        "lag",
        *["read/s"] * (rates is not None),
        "oldest owed",
        "parked",
        "dead",
        "generations",
    )
    for each in found.subscriptions:
        states = list(tell_states(each, found, orphaned=each.name in orphans))
        generations = "\n".join(
            f"{place.generation} at {place.seq}: {_served(each, place.workers, place.generation, place.served_by)}"
            for place in each.positions
        )
        if each.event_types == []:
            generations = _counted(sum(worker.serves(each.name) for worker in found.workers), "worker")
        style = "yellow" if states not in (["running"], ["reader"]) else "red" if each.dead else ""
        speed = (
            [] if rates is None else ["\n".join(rates.read(each.name, place.generation) for place in each.positions)]
        )
        row = (
            one_line(each.name), "\n".join(states), "" if each.event_types == [] else str(each.lag), *speed,
            _oldest(each, found.read_at), parked(each), count(each.dead), generations,
        )  # fmt: skip
        table.add_row(*map(Text, row), style=style)
    return table


def _streams(found: Status, rates: Rates | None) -> Table:
    table = _table("stream", "of", "position", "events", *["events/s"] * (rates is not None), "moved", "refused")
    for each in found.subscriptions:
        for stream in each.streams:
            way = "written by" if each.kind == "relay" else "read by"
            speed = [] if rates is None else [rates.moved(each.name, stream.name)]
            row = (
                one_line(stream.name), f"{way} {one_line(each.name)}", one_line(stream.place), str(stream.events), *speed,
                f"{roughly(found.read_at - stream.moved_at)} ago", "" if each.kind == "relay" else count(stream.refused),
            )  # fmt: skip
            table.add_row(*map(Text, row), style="red" if stream.refused else "")
    return table


def _rollups(found: Status) -> Table:
    table = _table("rollup", "on", "ticked by", "last", "waiting", "oldest", "set aside", "last run")
    for each in found.rollups:
        last = each.last_run
        row = (
            one_line(each.name), one_line(each.source), _ticked_by(each),
            "not yet" if each.ticked_at is None else f"{roughly(found.read_at - each.ticked_at)} ago", count(each.pending),
            "" if each.oldest_at is None else roughly(found.read_at - each.oldest_at), count(each.set_aside),
            "" if last is None else f"{last['result']} {moment(last['run_at'])}",
        )  # fmt: skip
        wrong = each.set_aside or (last is not None and last["result"] == "error")
        style = "red" if wrong else "yellow" if each.complaints or each.uninstalled_at else ""
        table.add_row(*map(Text, row), style=style)
    return table


def _ticked_by(each: Rolling) -> str:
    if each.uninstalled_at is not None:
        return "nobody: taken off"
    return f"{'pg_cron' if each.scheduler == 'cron' else 'workers'}, every {span(each.every)}"


def _workers(found: Status) -> Table:
    table = _table("worker", "version", "generation", "subscriptions", "woken by", "last seen", "state")
    for each in found.workers:
        row = (
            one_line(f"{each.host}:{each.pid}"), one_line(each.version), str(each.generation), str(len(each.subscriptions)),
            "pokes" if each.listening else "polls",
            f"{roughly(found.read_at - each.seen_at)} ago", _worker_state(each, found.read_at),
        )  # fmt: skip
        bad = not each.live or each.unable or _late(each, found.read_at) or any(one.lasting for one in each.troubles)
        table.add_row(*map(Text, row), style="yellow" if bad else "")
    return table


def tell_states(each: Standing, found: Status, *, orphaned: bool = False) -> Iterator[str]:
    if orphaned:
        yield "orphaned"
    for state in each.states:
        match state:
            case "paused":
                yield f"paused since {at(each.paused_at)}" if each.paused_at else "paused"
            case "breaker":
                until = max(place.open_until for place in each.positions if place.open_until)
                yield f"breaker open until {at(until)}"
            case "no_worker":
                yield "nobody serves it"
            case "unable":
                yield "its workers do not know all its event types"
            case "broker_down" | "troubled" | "failing":
                yield _trouble(state, each, found.read_at)
            case "running" if not orphaned:
                yield "reader" if each.kind == "reader" else "paused with all" if found.paused_at else "running"


def _trouble(state: str, each: Standing, now: datetime) -> str:
    kind, told = {
        "broker_down": ("broker", "broker down for {age}: {message}"),
        "troubled": ("rolled_back", "rolled back {in_a_row} times in a row for {age}: {code}"),
        "failing": ("failing", "failed {in_a_row} times in a row for {age}: {code}"),
    }[state]
    worst = max((one for one in each.troubles if one.kind == kind), key=lambda one: one.in_a_row)
    message = one_line(worst.message)
    return told.format(
        age=roughly(now - worst.since),
        in_a_row=worst.in_a_row,
        code=one_line(worst.code),
        message=message if len(message) <= SHORT else f"{message[:SHORT]}…",
    )


def _late(each: Seen, now: datetime) -> bool:
    return now - each.seen_at > LATE


def _worker_state(each: Seen, now: datetime) -> str:
    if not each.live:
        return "lost"
    state = ["stopping" if each.stopping else "running"]
    if _late(each, now):
        state.append(f"no heartbeat for {roughly(now - each.seen_at)}")
    if each.doing is not None and now - each.doing.since > BUSY:
        state.append(f"{one_line(each.doing.name)} runs for {roughly(now - each.doing.since)}")
    if each.unable:
        state.append(f"takes nothing from {one_line(', '.join(each.unable))}")
    for one in (one for one in each.troubles if one.lasting):
        age = f"{one.seconds:.0f} s" if one.kind == "loop" else roughly(now - one.since)
        state.append(f"{KINDS.get(one.kind, '{name}').format(name=one_line(one.name) or 'something')} for {age}")
    return "; ".join(state)


def _served(each: Standing, workers: tuple[str, ...], generation: int, served_by: int) -> str:
    if each.kind == "reader":
        return "read by its reader"
    by = f" (by generation {served_by})" if served_by != generation else ""
    return f"{_counted(len(workers), 'worker')}{by}"


def _oldest(each: Standing, now: datetime) -> str:
    if each.oldest_owed_at is not None:
        return roughly(now - each.oldest_owed_at)
    return "" if each.oldest_is_certain else "?"


def _orphaned(each: Standing, found: Status, place: Place) -> bool | None:
    """None without an app: nobody knows what is declared."""
    if place.subscriptions is None:
        return None
    served = any(worker.live and each.name in worker.subscriptions for worker in found.workers)
    declared = each.name in {known.name for known in place.subscriptions}
    return each.context == place.settings.context and not declared and not served


def _orphans(found: Status, place: Place) -> set[str]:
    return {each.name for each in found.subscriptions if _orphaned(each, found, place)}


def _fields(found: Status, place: Place) -> dict[str, Any]:
    answer, orphans = asdict(found), _orphans(found, place)
    for each in answer["subscriptions"]:
        each["orphaned"] = None if place.subscriptions is None else each["name"] in orphans
    answer["rollups"] = [fields(each) for each in found.rollups]
    return answer


def _table(*columns: str) -> Table:
    table = Table(padding=(0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
