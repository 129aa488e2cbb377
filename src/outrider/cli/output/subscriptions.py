"""How subscriptions look on a terminal: their states in words, and what waits in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from outrider.cli.output.text import at, capped, one_line, roughly
from outrider.postgres.admin.status import Standing, Status
from outrider.postgres.admin.subscriptions import MOST, Overview

SHORT = 80
"""Characters of an error that are shown in a state."""
TROUBLES = {
    "broker_down": ("broker", "broker down for {age}: {message}"),
    "troubled": ("rolled_back", "rolled back {in_a_row} times in a row for {age}: {code}"),
    "failing": ("failing", "failed {in_a_row} times in a row for {age}: {code}"),
}


def waiting(each: Overview | Standing) -> str:
    """The events that wait for a retry or behind one that does; of jobs, those that wait and those that run."""
    if each.kind != "job":
        return capped(each.parked, MOST)
    return f"{capped(each.parked - each.running, MOST)} pending\n{capped(each.running, MOST)} running"


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
            case "broker_down" | "troubled" | "failing":
                yield _trouble(state, each, found.read_at)
            case "running" if not orphaned:
                yield "reader" if each.kind == "reader" else "paused with all" if found.paused_at else "running"


def _trouble(state: str, each: Standing, now: datetime) -> str:
    kind, told = TROUBLES[state]
    worst = max((one for one in each.troubles if one.kind == kind), key=lambda one: one.in_a_row)
    message = one_line(worst.message)
    return told.format(
        age=roughly(now - worst.since),
        in_a_row=worst.in_a_row,
        code=one_line(worst.code),
        message=message if len(message) <= SHORT else f"{message[:SHORT]}…",
    )
