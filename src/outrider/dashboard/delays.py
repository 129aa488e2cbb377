"""What delays a subscription, named: a pause, a breaker, a missing worker, a broker, failures, a long batch, an open
transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.dashboard.text import capped, short, span
from outrider.postgres.admin.activity import OpenTransaction
from outrider.postgres.admin.status import Standing, Status
from outrider.redaction import mask, without_literals

BUSY = timedelta(seconds=10)
"""A handler that runs for longer is named."""
OPEN = timedelta(seconds=2)
"""A transaction that has published and stays open for longer is named."""
TROUBLES = {
    "broker": "its broker does not answer",
    "rolled_back": "its batches are rolled back, {in_a_row} in a row",
    "unanswered": "it waits for the database",
    "failing": "every attempt fails, {in_a_row} in a row",
}


@dataclass(frozen=True, slots=True)
class Delay:
    what: str
    more: str = ""
    """An error, or which worker."""
    since: datetime | None = None
    grave: bool = True
    """Not only a matter of time."""
    detail: str = ""
    """Only for the page of the subscription."""


def delays(each: Standing, status: Status, transactions: Sequence[OpenTransaction] = ()) -> list[Delay]:
    return [*_found(each, status), *_uncommitted(each, status, transactions)]


def _uncommitted(each: Standing, status: Status, transactions: Sequence[OpenTransaction]) -> Iterator[Delay]:
    """The cursor does not wait for them: only their own events are late."""
    if each.kind == "inbox" or each.event_types == []:
        return
    for found in transactions:
        if found.publishes and found.age > OPEN:
            query = f": {short(mask(without_literals(found.query)), 200)}" if found.query else ""
            yield Delay(
                f"events of process {found.pid} wait for its commit",
                since=status.read_at - found.age,
                grave=False,
                detail=f"process {found.pid}, {found.application}, {found.state}{query}",
            )


def _found(each: Standing, status: Status) -> Iterator[Delay]:
    owes = bool(each.lag or each.waiting)
    if status.paused_at is not None:
        yield Delay("everything is paused", since=status.paused_at)
    if each.paused_at is not None:
        yield Delay("it is paused", since=each.paused_at)
    for position in each.positions:
        if position.open_until is not None:
            yield Delay(
                f"its breaker is open after {position.failures} failures; next try in "
                f"{span(position.open_until - status.read_at)}"
            )
    if "no_worker" in each.states:
        yield Delay("no worker serves it", "outrider worker --app module:name", grave=owes)
    if "unable" in each.states:
        serving = (worker for worker in status.workers if worker.serves(each.name))
        unknown = sorted({name for worker in serving for name in worker.unknown.get(each.name, ())})
        told = (
            f"its workers do not all know {', '.join(unknown)}"
            if unknown
            else "its workers do not know all its event types"
        )
        yield Delay(told, "newer code has registered it: deploy it everywhere")
    for trouble in each.troubles:
        if trouble.kind in TROUBLES:
            told = TROUBLES[trouble.kind].format(in_a_row=trouble.in_a_row)
            yield Delay(told, f"{trouble.code}: {short(trouble.message)}", trouble.since)
    for worker in status.workers:
        doing = worker.doing
        if worker.live and doing and doing.name == each.name and status.read_at - doing.since > BUSY:
            yield Delay("a batch takes long", f"{worker.host}:{worker.pid}", doing.since, grave=False)
    if each.kind != "job" and each.waiting:
        verb = "waits" if each.waiting == 1 else "wait"
        yield Delay(f"{capped(each.waiting)} {verb} for a retry, or behind an event that does", grave=False)
