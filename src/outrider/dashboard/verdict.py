"""What the first page says first.

"All is well" needs a recent look and a recent round of the doctor, both without anything to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.dashboard.poller import EXAMINE, LiveState
from outrider.dashboard.text import capped, span
from outrider.doctor.finding import Severity
from outrider.postgres.admin.status import Status

OLD = 3 * EXAMINE
"""Findings of the doctor that are older are not relied on."""
NAMED = 3
"""Names in a sentence."""
BAD = {
    "breaker": "breaker open",
    "no_worker": "no worker",
    "unable": "unknown event types",
    "broker_down": "broker down",
    "troubled": "rolled back",
    "unanswered": "waits for the database",
    "failing": "failing",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    title: str
    text: str
    tone: str = ""
    """critical, warning, checking; empty: good."""


def verdict(snapshot: LiveState, now: datetime | None) -> Verdict:
    status, urgent = snapshot.status, snapshot.urgent
    if snapshot.error is not None or status is None:
        return Verdict("Not known", "The database does not answer. What is below is older.", "critical")
    age = now - snapshot.examined_at if now and snapshot.examined_at else timedelta(0)
    if urgent:
        needs = "1 thing needs attention" if len(urgent) == 1 else f"{len(urgent)} things need attention"
        needs += f": {_names(list(dict.fromkeys(each.check.replace('_', ' ') for each in urgent)))}."
        if urgent[0].severity is Severity.critical:
            return Verdict("Act now", needs, "critical")
        return Verdict("Look at this soon", needs, "warning")
    if bad := list(_bad(status)):
        return Verdict("Look at this soon", _sentence(bad), "warning")
    if snapshot.examine_error is not None:
        return Verdict("Not checked", f"The doctor's last round failed: {snapshot.examine_error}", "warning")
    if snapshot.findings is None:
        return Verdict("Checking …", "The doctor makes its first round.", "checking")
    if age > OLD:
        return Verdict("Checking …", f"The doctor's last round was {span(age)} ago.", "checking")
    if not status.subscriptions:
        return Verdict("Nothing to watch yet", "No subscription is registered.", "checking")
    running = [_counted(len(status.subscriptions), "subscription"), _counted(status.live, "worker")]
    if (noted := list(_noted(status))) or snapshot.notes:
        below = ["see the notes below"] if snapshot.notes else []
        return Verdict("Nothing is urgent", _sentence([*running, *noted, *below]))
    return Verdict("All is well", _sentence([*running, "nothing needs attention"]))


def _bad(status: Status) -> Iterator[str]:
    if status.paused_at is not None:
        yield "everything is paused"
    for state, told in BAD.items():
        if found := [each.name for each in status.subscriptions if state in each.states]:
            yield f"{told}: {_names(found)}"


def _noted(status: Status) -> Iterator[str]:
    if dead := sum(each.dead for each in status.subscriptions):
        yield f"{capped(dead)} {'dead letter' if dead == 1 else 'dead letters'}"
    paused = [each.name for each in status.subscriptions if each.paused_at is not None]
    if paused := [*paused, *status.paused_schedules]:
        yield f"paused: {_names(paused)}"
    if refused := sum(stream.refused for each in status.subscriptions for stream in each.streams):
        yield f"{capped(refused)} refused by inboxes"
    if aside := sum(each.set_aside for each in status.rollups):
        yield f"{capped(aside)} set aside by rollups"


def _names(found: Sequence[str]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _sentence(parts: Sequence[str]) -> str:
    told = "; ".join(parts)
    return f"{told[:1].upper()}{told[1:]}."
