"""What `outrider status` shows: a few lines, then tables of subscriptions, streams, rollups and workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from outrider.cli.output.rollups import fields as rollup_fields
from outrider.cli.output.rollups import span
from outrider.cli.output.text import at, capped, counted, make_table, moment, one_line, roughly
from outrider.cli.output.watch import Rates
from outrider.cli.target import Target
from outrider.postgres.admin.status import LATE, Seen, Standing, Status
from outrider.postgres.admin.subscriptions import MOST, Overview
from outrider.postgres.rollups import Rolling

BUSY = timedelta(seconds=10)
"""A handler or job that runs for longer is shown."""
TROUBLES = {
    "rolled_back": "{name} rolled back",
    "broker": "{name} without its broker",
    "failing": "{name} fails",
    "loop": "event loop held by {name}",
    "unanswered": "{name} waits for the database",
}
SHORT = 80
"""Characters of an error that are shown in a state."""
STATES = {
    "broker_down": ("broker", "broker down for {age}: {message}"),
    "troubled": ("rolled_back", "rolled back {in_a_row} times in a row for {age}: {code}"),
    "unanswered": ("unanswered", "has waited for the database for {age}"),
    "failing": ("failing", "failed {in_a_row} times in a row for {age}: {code}"),
}


def view(found: Status, rates: Rates | None = None, *, target: Target) -> Iterator[RenderableType]:
    """`rates`: with --watch."""
    yield from _summary(found, rates)
    if found.subscriptions:
        yield _subscriptions(found, _orphans(found, target), rates)
    if any(each.streams for each in found.subscriptions):
        yield _streams(found, rates)
    if any(each.topics for each in found.subscriptions):
        yield _topics(found)
    if found.rollups:
        yield _rollups(found)
    if found.workers:
        yield _workers(found)


def fields(found: Status, target: Target) -> dict[str, Any]:
    answer, orphans = asdict(found), _orphans(found, target)
    for each in answer["subscriptions"]:
        each["orphaned"] = None if target.subscriptions is None else each["name"] in orphans
    answer["rollups"] = [rollup_fields(each) for each in found.rollups]
    return answer


def _summary(found: Status, rates: Rates | None) -> Iterator[Text]:
    if rates is not None:
        yield Text(at(found.read_at), style="dim")
    pending = f", pending: {', '.join(found.pending)} (outrider migrate)" if found.pending else ", up to date"
    yield Text(f"schema {found.schema}: version {found.version}{pending}", style="yellow" if found.pending else "")
    if found.paused_at is not None:
        yield Text(
            f"everything is paused since {at(found.paused_at)}; to resume: outrider subscription resume --all",
            style="bold yellow",
        )
    for name, since in found.paused_schedules.items():
        shown = one_line(name)
        yield Text(
            f"the schedule {shown} is paused since {at(since)}; to resume: outrider schedule resume {shown}",
            style="yellow",
        )
    events = [each for each in found.subscriptions if each.kind != "job"]
    waiting, dead = (sum(getattr(each, name) for each in events) for name in ("waiting", "dead"))
    speed = "" if rates is None else f" ({rates.drawn} a second)"
    list_waiting = " (outrider event waiting)" if waiting else ""
    list_dead = " (outrider dlq list)" if dead else ""
    yield Text(f"{counted(len(found.subscriptions), 'subscription')}; {counted(found.live, 'worker')}")
    yield Text(
        f"{counted(found.seq, 'log position')} used{speed}; {capped(waiting, MOST)} waiting for retry{list_waiting}; "
        f"{capped(dead, MOST)} dead letter{'s' * (dead != 1)}{list_dead}"
    )
    if found.jobs:
        counts = ", ".join(f"{capped(number, MOST)} {state}" for state, number in found.jobs.items())
        yield Text(f"jobs: {counts} (outrider job list)")


def _subscriptions(found: Status, orphans: set[str], rates: Rates | None) -> Table:
    speeds = ["read/s"] * (rates is not None)
    table = make_table("subscription", "state", "lag", *speeds, "oldest", "waiting", "dead", "position")
    for each in found.subscriptions:
        states = list(states_of(each, found, orphaned=each.name in orphans))
        positions = "\n".join(_positions(each))
        if each.event_types == []:
            positions = counted(sum(worker.serves(each.name) for worker in found.workers), "worker")
        speed = []
        if rates is not None:
            speed = ["\n".join(rates.read(each.name, position.generation) for position in each.positions)]
        row = (
            one_line(each.name), "\n".join(states), "" if each.event_types == [] else f"{each.lag:,}", *speed,
            _oldest(each, found.read_at), waiting(each), capped(each.dead, MOST), positions,
        )  # fmt: skip
        style = "yellow" if states not in (["running"], ["reader"]) else "red" if each.dead else ""
        table.add_row(*map(Text, row), style=style)
    return table


def _positions(each: Standing) -> Iterator[str]:
    """`read to 41, 2 workers`, for each generation."""
    only_zero = all(position.generation == 0 for position in each.positions)
    for position in each.positions:
        generation = "" if only_zero else f"generation {position.generation} "
        by = f" of generation {position.served_by}" if position.served_by != position.generation else ""
        workers = "by its reader" if each.kind == "reader" else f"{counted(len(position.workers), 'worker')}{by}"
        yield f"{generation}read to {position.seq:,}, {workers}"


def _streams(found: Status, rates: Rates | None) -> Table:
    table = make_table("stream", "of", "position", "events", *["events/s"] * (rates is not None), "moved", "refused")
    for each in found.subscriptions:
        for stream in each.streams:
            way = "written by" if each.kind == "relay" else "read by"
            speed = [] if rates is None else [rates.moved(each.name, stream.name)]
            row = (
                one_line(stream.name), f"{way} {one_line(each.name)}", one_line(stream.place), f"{stream.events:,}", *speed,
                f"{roughly(found.read_at - stream.moved_at)} ago",
                "" if each.kind == "relay" else capped(stream.refused, MOST),
            )  # fmt: skip
            table.add_row(*map(Text, row), style="red" if stream.refused else "")
    return table


def _topics(found: Status) -> Table:
    table = make_table("topic", "of", "owed", "oldest", "rejected", "dead")
    for each in found.subscriptions:
        for topic in each.topics:
            row = (
                one_line(topic.name), one_line(each.name), f"{topic.depth:,}{'' if each.topics_are_complete else '+'}",
                "" if topic.oldest_at is None else roughly(found.read_at - topic.oldest_at),
                capped(topic.rejected, MOST), capped(topic.dead, MOST),
            )  # fmt: skip
            table.add_row(*map(Text, row), style="yellow" if topic.rejected else "red" if topic.dead else "")
    return table


def _rollups(found: Status) -> Table:
    table = make_table("rollup", "on", "run by", "last", "waiting", "oldest", "set aside", "last run")
    for each in found.rollups:
        last = each.last_run
        row = (
            one_line(each.name), one_line(each.source), _run_by(each),
            "not yet" if each.ticked_at is None else f"{roughly(found.read_at - each.ticked_at)} ago",
            capped(each.pending, MOST),
            "" if each.oldest_at is None else roughly(found.read_at - each.oldest_at), capped(each.set_aside, MOST),
            "" if last is None else f"{last['result']} {moment(last['run_at'])}",
        )  # fmt: skip
        wrong = each.set_aside or (last is not None and last["result"] == "error")
        style = "red" if wrong else "yellow" if each.complaints or each.uninstalled_at else ""
        table.add_row(*map(Text, row), style=style)
    return table


def _run_by(each: Rolling) -> str:
    if each.uninstalled_at is not None:
        return "nobody: uninstalled"
    return f"{'pg_cron' if each.scheduler == 'cron' else 'workers'}, every {span(each.every)}"


def _workers(found: Status) -> Table:
    table = make_table("worker", "version", "generation", "subscriptions", "woken by", "last seen", "state")
    for each in found.workers:
        row = (
            one_line(f"{each.host}:{each.pid}"), one_line(each.version), str(each.generation), str(len(each.subscriptions)),
            "notifications" if each.listening else "polling",
            f"{roughly(found.read_at - each.seen_at)} ago", _worker_state(each, found.read_at),
        )  # fmt: skip
        bad = not each.live or each.unable or _late(each, found.read_at) or any(one.lasting for one in each.troubles)
        table.add_row(*map(Text, row), style="yellow" if bad else "")
    return table


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
        state.append(f"{TROUBLES.get(one.kind, '{name}').format(name=one_line(one.name) or 'something')} for {age}")
    return "; ".join(state)


def _late(each: Seen, now: datetime) -> bool:
    return now - each.seen_at > LATE


def _oldest(each: Standing, now: datetime) -> str:
    if each.oldest_owed_at is not None:
        return roughly(now - each.oldest_owed_at)
    return "" if each.oldest_is_certain else "?"


def _orphans(found: Status, target: Target) -> set[str]:
    """Subscriptions of the app's context that it does not declare and nobody serves; none without an app."""
    if target.subscriptions is None:
        return set()
    known = {each.name for each in target.subscriptions}
    known |= {name for worker in found.workers if worker.live for name in worker.subscriptions}
    context = target.settings.context
    return {each.name for each in found.subscriptions if each.context == context and each.name not in known}


def waiting(each: Overview | Standing) -> str:
    """The events that wait for a retry or behind one that does; of jobs, those that wait and those that run."""
    if each.kind != "job":
        return capped(each.waiting, MOST)
    return f"{capped(each.waiting - each.running, MOST)} pending\n{capped(each.running, MOST)} running"


def states_of(each: Standing, found: Status, *, orphaned: bool = False) -> Iterator[str]:
    if orphaned:
        yield "orphaned"
    for state in each.states:
        match state:
            case "paused":
                yield f"paused since {at(each.paused_at)}" if each.paused_at else "paused"
            case "breaker":
                until = max(position.open_until for position in each.positions if position.open_until)
                yield f"breaker open until {at(until)}"
            case "no_worker":
                yield "nobody serves it"
            case "unable":
                yield "its workers do not know all its event types"
            case "broker_down" | "troubled" | "unanswered" | "failing":
                yield _trouble(state, each, found.read_at)
            case "running" if not orphaned:
                yield "reader" if each.kind == "reader" else "paused with all" if found.paused_at else "running"


def _trouble(state: str, each: Standing, now: datetime) -> str:
    kind, told = STATES[state]
    worst = max((one for one in each.troubles if one.kind == kind), key=lambda one: one.in_a_row)
    message = one_line(worst.message)
    return told.format(
        age=roughly(now - worst.since),
        in_a_row=worst.in_a_row,
        code=one_line(worst.code),
        message=message if len(message) <= SHORT else f"{message[:SHORT]}…",
    )
