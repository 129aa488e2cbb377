"""What fails in a worker now: collected from its signals, reported by its heartbeats and by /readyz."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic as clock
from typing import Any

from outrider.outcome import Later, Snooze
from outrider.postgres.admin.status import ORDER, is_lasting
from outrider.redaction import sanitise
from outrider.signals import (
    BrokerDown,
    BrokerUp,
    Failed,
    JobFailed,
    JobsCompleted,
    LoopHeld,
    Recovered,
    Rejection,
    Relayed,
    Settled,
    Signal,
    Troubled,
)
from outrider.worker.deadline import longest
from outrider.worker.job_signals import JOBS

HEARTBEAT = "(heartbeat)"
"""The name of the heartbeat in signals, in place of a subscription."""
SHOWN = 5
"""The most failures in a report."""
UNKNOWN = 3
"""The most subscriptions with unknown event types in a report, and the most types of each."""
NAME, TYPE, MESSAGE = 200, 100, 300
"""The most bytes of a name, of an event type and of a message. The column takes 8192 characters for the whole report."""
PATIENCE = 15.0
"""Seconds that a handler's statement may wait for its answer before it is reported."""
NO_ANSWER = "another session holds a lock, or the server does not answer"
LASTS = {"rolled_back": 120.0, "broker": 120.0, "failing": 3600.0, "loop": 60.0}
"""Seconds after its last report until a failure counts as over."""


@dataclass(slots=True)
class Streak:
    kind: str
    """rolled_back, broker, failing, loop or unanswered."""
    name: str
    code: str
    message: str
    in_a_row: int
    since: float
    last: float


class Troubles:
    def __init__(
        self,
        on_held: Callable[[LoopHeld], None] = lambda _: None,
        unanswered: Callable[[], Iterable[tuple[str, float]]] = lambda: (),
    ) -> None:
        self._on_held = on_held
        self._unanswered = unanswered
        self._known: dict[tuple[str, str, str], Streak] = {}
        """By kind, name and loop."""
        self._handled = self._failed_attempts = 0
        self._hears: dict[type[Any], Callable[[Any], None]] = {
            Troubled: self._troubled,
            Recovered: lambda signal: self._over("rolled_back", signal.subscription, signal.loop),
            BrokerDown: self._broker_down,
            BrokerUp: lambda signal: self._over("broker", signal.subscription),
            Failed: self._failed,
            Settled: self._settled,
            JobFailed: self._job_failed,
            JobsCompleted: self._completed,
            Rejection: lambda signal: self._fails(signal.relay, signal.code, signal.message),
            Relayed: self._relayed,
            LoopHeld: self._held,
        }

    def hear(self, signal: Signal) -> None:
        if (hears := self._hears.get(type(signal))) is not None:
            hears(signal)

    def now(self) -> list[Streak]:
        """Current failures, the oldest first. Works from any thread."""
        at = clock()
        found = [each for each in list(self._known.values()) if at - each.last < LASTS[each.kind]]
        waiting: dict[str, float] = {}
        for name, since in self._unanswered():
            if at - since > PATIENCE:
                waiting[name] = min(since, waiting.get(name, since))
        found += [Streak("unanswered", name, "no_answer", NO_ANSWER, 1, since, at) for name, since in waiting.items()]
        return sorted(found, key=lambda each: each.since)

    def report(self, unknown: Mapping[str, Collection[str]]) -> str | None:
        """The JSON for a heartbeat; None if there is nothing to say.

        What runs longest; the lasting failures, first those that mean a standstill; by subscription, event types that this
        code does not know; how much was handled, and how often something failed, since the start.
        """
        at, doing = clock(), longest()
        troubles = [each for each in self.now() if is_lasting(each.kind, each.code, each.in_a_row)]
        troubles.sort(key=lambda each: ORDER.index(each.kind))
        counts = {"handled": self._handled, "failed": self._failed_attempts}
        if doing is None and not troubles and not unknown and not any(counts.values()):
            return None
        told = [
            {
                "kind": each.kind,
                "name": sanitise(each.name, NAME),
                "code": sanitise(each.code, NAME),
                "message": sanitise(each.message, MESSAGE),
                "in_a_row": each.in_a_row,
                "seconds": round((each.last if each.kind == "loop" else at) - each.since, 1),
            }
            for each in troubles[:SHOWN]
        ]
        runs = None if doing is None else {"name": sanitise(doing[0], NAME), "seconds": round(doing[1], 1)}
        types = {
            sanitise(name, NAME): [sanitise(each, TYPE) for each in sorted(unknown[name])[:UNKNOWN]]
            for name in sorted(unknown)[:UNKNOWN]
        }
        return json.dumps({"doing": runs, "troubles": told, "unknown": types, **counts}, ensure_ascii=False)

    def standstill(self, longest: float) -> str | None:
        """Why takes or claims have failed in a row, or waited, for more than that many seconds; None when they have not."""
        for each in self.now():
            ours = not each.name.startswith("(") or each.name in (JOBS, HEARTBEAT)
            seconds = clock() - each.since
            if each.kind == "unanswered" and seconds > longest:
                return f"{each.name} has waited for the database for {seconds:.0f} s: {each.message}"
            if each.kind == "rolled_back" and ours and each.in_a_row > 1 and seconds > longest:
                return (
                    f"{each.name} has failed {each.in_a_row} times in a row for {seconds:.0f} s: "
                    f"{each.code}: {sanitise(each.message, MESSAGE)}"
                )
        return None

    # What it hears

    def _note(self, kind: str, name: str, loop: str, code: str, message: str, in_a_row: int | None = None) -> None:
        at, known = clock(), self._known.get((kind, name, loop))
        if known is not None and at - known.last >= LASTS[kind]:
            known = None
        count = (0 if known is None else known.in_a_row) + 1 if in_a_row is None else in_a_row
        since = at if known is None or count == 1 else known.since
        self._known[kind, name, loop] = Streak(kind, name, code, message, count, since, at)

    def _over(self, kind: str, name: str, loop: str = "") -> None:
        if self._known:
            self._known.pop((kind, name, loop), None)

    def _settled(self, signal: Settled) -> None:
        self._handled += signal.events
        if signal.events:
            self._over("failing", signal.subscription)

    def _relayed(self, signal: Relayed) -> None:
        self._handled += signal.events
        self._over("failing", signal.relay)

    def _fails(self, name: str, code: str, message: str) -> None:
        self._failed_attempts += 1
        self._note("failing", name, "", code, message)

    def _troubled(self, signal: Troubled) -> None:
        self._note("rolled_back", signal.subscription, signal.loop, signal.code, signal.message, signal.in_a_row)

    def _broker_down(self, signal: BrokerDown) -> None:
        self._note("broker", signal.subscription, "", signal.code, signal.message, signal.in_a_row)

    def _failed(self, signal: Failed) -> None:
        if not isinstance(signal.verdict, Later) or signal.verdict.counted:
            self._fails(signal.subscription, signal.verdict.code, signal.verdict.message)

    def _job_failed(self, signal: JobFailed) -> None:
        if not isinstance(signal.error, Snooze):
            self._fails(signal.run.subscription, signal.code, signal.message)

    def _completed(self, signal: JobsCompleted) -> None:
        self._handled += signal.jobs
        if any(kind == "failing" for kind, _, _ in list(self._known)):
            for run, _ in signal.details():
                self._over("failing", run.subscription)

    def _held(self, signal: LoopHeld) -> None:
        """Reported again and again while it lasts, with more seconds each time."""
        name, at = signal.subscription or "", clock()
        known, since = self._known.get(("loop", name, "")), at - signal.seconds
        same = known is not None and since < known.last
        count = 1 if known is None else known.in_a_row + (not same)
        self._known["loop", name, ""] = Streak("loop", name, "loop_held", signal.where, count, since, at)
        self._on_held(signal)
