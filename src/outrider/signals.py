"""The vocabulary of what happens, and who listens. Logs, spans and metrics are listeners; tests wait on it.

A listener is called in place, on the thread or task where it happened, and must be quick. One that raises is dropped
with a warning in the log: observing must never break publishing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from outrider.envelope import Envelope
from outrider.error_text import describe
from outrider.outcome import Verdict


@dataclass(frozen=True, slots=True)
class Published:
    """An event was appended in the caller's transaction, which may still roll back."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Woken:
    """A subscription has a reason to look: start, poke, listener, poll, due, stop."""

    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class Notified:
    """A notification has arrived; `kind` is the type of an event or a job. It may have been sent by anybody."""

    channel: str
    kind: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A cursor was read in a transaction that is still open; `outcome` as take returns it."""

    subscription: str
    partition: int | None
    events: int
    outcome: str


@dataclass(frozen=True, slots=True)
class Handled:
    """One event that a handler has handled."""

    envelope: Envelope
    attempt: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Settled:
    """A batch was committed: the effects of its handlers, their receipts and the position, together."""

    subscription: str
    partition: int
    events: int
    conceded: int
    """Events that had a receipt already: not handled again."""
    duration_ms: float
    """From the take to the commit."""
    details: Callable[[], Iterator[Handled]]
    """The events one by one; made on demand, because most batches are only counted."""
    times: Callable[[], Iterator[tuple[str, float, float]]] = lambda: iter(())
    """Of each event its type, how many seconds ago it occurred by the clock of this machine, and how many its handler
    took; made on demand, and cheaper than the details."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler failed; what it did was rolled back. It will be parked or buried with the next commit."""

    subscription: str
    envelope: Envelope
    attempt: int
    duration_ms: float
    verdict: Verdict
    error: BaseException


@dataclass(frozen=True, slots=True)
class Parked:
    """A failed event waits for its retry; this is committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Buried:
    """A failed event became a dead letter; this is committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Troubled:
    """A batch was rolled back for a reason that is not its handlers' fault; it comes again, no attempt is used."""

    subscription: str
    code: str
    message: str
    in_a_row: int = 1
    loop: str = ""
    """Which of the loops of that subscription, where there are several: `in_a_row` counts for each."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was troubled works again."""

    subscription: str
    in_a_row: int
    """How often in a row it had failed."""
    loop: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A subscription is not read: paused by an operator, open (its breaker), or it wants types unknown to this code."""

    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoopHeld:
    """Something blocks the event loop of a worker, and with it all that runs there. Heard on a thread, while it lasts."""

    subscription: str | None
    """The handler or job that runs; else the name of the task, or none."""
    seconds: float
    where: str
    """File, line and function."""


@dataclass(frozen=True, slots=True)
class JobEnqueued:
    """A job was enqueued in the caller's transaction, which may still roll back; or what its unique key made of it."""

    job_type: str
    job_id: UUID
    outcome: str
    details: Callable[[], Envelope]
    """The job as it was asked for; made on demand."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One attempt at one job."""

    subscription: str
    job_id: UUID
    key: str | None
    attempt: int
    worker: str
    workspace_id: str | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class JobsClaimed:
    """Jobs are this worker's own for the time of their lease; this is committed."""

    jobs: int
    details: Callable[[], Iterator[JobRun]]
    """One by one; made on demand."""


@dataclass(frozen=True, slots=True)
class JobsCompleted:
    """Jobs are done, and have their receipts; this is committed."""

    jobs: int
    details: Callable[[], Iterator[tuple[JobRun, float]]]
    """Each with the milliseconds that it took; made on demand."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    """An attempt failed; this is committed. `outcome`: retry, buried; superseded by a newer one with its unique key;
    cancelled meanwhile."""

    run: JobRun
    duration_ms: float
    code: str
    message: str
    outcome: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job is this worker's no more, and did not fail: back (handed back), cancelled, or superseded."""

    run: JobRun
    outcome: str


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """The jobs that run here are this worker's own for another while; this is committed."""

    leases: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Somebody else may be running this job by now: what became of it here counts for nothing."""

    run: JobRun
    reason: str


@dataclass(frozen=True, slots=True)
class Routed:
    """Events of a subscription have become jobs; this is committed."""

    subscription: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Fired:
    """A schedule has come due, and this worker has enqueued its jobs."""

    schedule: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Relayed:
    """Events are in a stream of the broker, up to `position`; this is committed."""

    relay: str
    stream: str
    events: int
    position: str
    topics: Mapping[str, int]
    """How many of each event type."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The broker, or the codec, refuses an event for what it is; this is committed. Somebody should look at it."""

    relay: str
    envelope: Envelope
    attempts: int
    code: str
    message: str
    buried: bool
    """It is a dead letter now; else everything behind it waits."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """A stream has lost its end. A relay goes back to where it stood at `at` and sends again what is missing; an inbox
    (`at` = None) reads the stream anew."""

    subscription: str
    stream: str
    position: str
    """Up to where it had been written, or read."""
    end: str
    """Where it ends."""
    at: datetime | None
    whole: bool
    """False: what was sent before `at` is lost in the stream, and no mark reaches back to it."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Entries after `position` were removed from a stream before they were read. An inbox has missed them; a relay cannot
    know what they were, and sends them again."""

    subscription: str
    stream: str
    position: str


@dataclass(frozen=True, slots=True)
class Intruded:
    """There are entries in a relay's stream that it has not written. It must be the only one who writes there."""

    relay: str
    stream: str
    entries: int
    event_id: UUID | None


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """A broker does not answer, or a stream is missing or misconfigured: nothing is buried, it is asked again later."""

    subscription: str
    code: str
    message: str
    in_a_row: int


@dataclass(frozen=True, slots=True)
class BrokerUp:
    """It answers again."""

    subscription: str


@dataclass(frozen=True, slots=True)
class Ingested:
    """An inbox has read up to `position`; this is committed."""

    inbox: str
    stream: str
    events: int
    """That were new."""
    known: int
    """That had come in before."""
    refused: int
    position: str


@dataclass(frozen=True, slots=True)
class EntryRefused:
    """An inbox could not make an event of an entry; it is kept, with the reason; this is committed."""

    inbox: str
    stream: str
    position: str
    message: str


@dataclass(frozen=True, slots=True)
class RolledUp:
    """A tick of a rollup has emitted something, or something is wrong with it; this is committed."""

    rollup: str
    groups: int
    """Rollup events."""
    pieces: int
    """Single events."""
    conflicts: int
    set_aside: int
    """Staged rows that no event could be made of: somebody should look at them."""
    pending: int
    failed: bool
    """Nothing was emitted, everything waits on."""
    message: str | None


@dataclass(frozen=True, slots=True)
class Upkept:
    """Upkeep has done something, or could not (`kept`: somebody needs it; `busy`: others use it); this is committed."""

    action: str
    """made, cut, detached, dropped, expired, reaped, ticked, kept, busy."""
    subject: str
    number: int
    detail: str | None


@dataclass(frozen=True, slots=True)
class ListenerUp:
    """Notifications arrive, as a test has just shown."""


@dataclass(frozen=True, slots=True)
class ListenerDown:
    """Notifications do not arrive: polling covers."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker has registered and begins to take."""

    worker: UUID
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStopping:
    """A worker was told to stop: it takes nothing more, and waits for what runs."""

    worker: UUID
    handlers: tuple[str, ...]
    """Those that are at a batch."""
    jobs: tuple[str, ...]
    """The types of those that run."""
    grace: float
    """The most seconds that it waits."""


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker has ended; `clean` = everything that it had begun was finished."""

    worker: UUID
    clean: bool


Signal = (
    Published
    | Woken
    | Notified
    | Taken
    | Settled
    | Failed
    | Parked
    | Buried
    | Troubled
    | Recovered
    | Skipped
    | LoopHeld
    | JobEnqueued
    | JobsClaimed
    | JobsCompleted
    | JobFailed
    | JobReleased
    | LeasesRenewed
    | LeaseLost
    | Routed
    | Fired
    | Relayed
    | Rejection
    | Rewound
    | Trimmed
    | Intruded
    | BrokerDown
    | BrokerUp
    | Ingested
    | EntryRefused
    | RolledUp
    | Upkept
    | ListenerUp
    | ListenerDown
    | WorkerUp
    | WorkerStopping
    | WorkerDown
)
Listener = Callable[[Signal], None]


class Signals:
    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every signal from now on; returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        """It may be gone already: dropped by another thread, or ended by itself."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    def emit(self, signal: Signal) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(signal)
            except Exception as error:
                self._drop(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                logging.getLogger("outrider").warning(
                    "the listener %s was dropped: it raised %s", name, describe(error)
                )
