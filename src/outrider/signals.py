"""Signals: one class for everything that can happen. The log and the metrics listen to them, and tests wait for them.

A listener is called in the thread or task that emits the signal, so it must be quick. One that raises is removed, with a
warning in the log: observing must never break publishing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from outrider.envelope import Envelope
from outrider.error_text import describe
from outrider.outcome import Verdict


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that has happened in this process."""


@dataclass(frozen=True, slots=True)
class Published(Signal):
    """An event was appended in the caller's transaction, which may still roll back."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Woken(Signal):
    """A loop was woken. `reason`: poke (a notification), listener, sequence, generations, poll."""

    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class Notified(Signal):
    """A notification has arrived. `kind` is the type of an event or a job. Any role may send notifications."""

    channel: str
    kind: str


@dataclass(frozen=True, slots=True)
class Taken(Signal):
    """A batch was taken, in a transaction that is still open. `outcome`: as take returns it."""

    subscription: str
    partition: int | None
    events: int
    outcome: str


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """One event of a settled batch."""

    envelope: Envelope
    attempt: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Settled(Signal):
    """A batch was committed: the effects of the handlers, the receipts and the position together."""

    subscription: str
    partition: int
    events: int
    conceded: int
    """Duplicates, which were skipped because they already had a receipt."""
    duration_ms: float
    """From the take to the commit, in milliseconds."""
    details: Callable[[], Iterator[HandledEvent]]
    """The events one by one, made on demand."""
    times: Callable[[], Iterator[tuple[str, float, float]]] = lambda: iter(())
    """For each event its type, its age in seconds by the clock of this machine, and the seconds that its handler took.
    Made on demand, and cheaper than `details`."""


@dataclass(frozen=True, slots=True)
class Failed(Signal):
    """A handler failed and was rolled back. `Parked` or `Buried` follows when that is committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    duration_ms: float
    verdict: Verdict
    error: BaseException


@dataclass(frozen=True, slots=True)
class Parked(Signal):
    """A failed event waits for its retry. Committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Buried(Signal):
    """A failed event became a dead letter. Committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Troubled(Signal):
    """A loop met an infrastructure failure, such as a lost connection. It tries again; no attempt is used."""

    subscription: str
    code: str
    message: str
    in_a_row: int = 1
    loop: str = ""
    """Which loop of the subscription, if it has several: `in_a_row` is counted for each."""


@dataclass(frozen=True, slots=True)
class Recovered(Signal):
    """A loop works again after infrastructure failures."""

    subscription: str
    in_a_row: int
    """How many consecutive failures there were."""
    loop: str = ""


@dataclass(frozen=True, slots=True)
class Skipped(Signal):
    """A subscription is not served. `reason`: paused, open (its breaker), unknown (this code does not know all its event
    types), not installed, changed."""

    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoopHeld(Signal):
    """Something blocks the event loop of a worker, and everything that runs there. Emitted from a thread while it lasts."""

    subscription: str | None
    """The handler or job that runs; otherwise the name of the task, or None."""
    seconds: float
    where: str
    """File, line and function."""


@dataclass(frozen=True, slots=True)
class JobEnqueued(Signal):
    """A job was enqueued in the caller's transaction, which may still roll back. `outcome`: what its unique key decided."""

    job_type: str
    job_id: UUID
    outcome: str
    details: Callable[[], Envelope]
    """The envelope of the job, made on demand."""


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
class JobsClaimed(Signal):
    """A worker has claimed jobs; they belong to it for the time of their leases. Committed."""

    jobs: int
    details: Callable[[], Iterator[JobRun]]
    """The jobs one by one, made on demand."""


@dataclass(frozen=True, slots=True)
class JobsCompleted(Signal):
    """Jobs are done. Committed."""

    jobs: int
    details: Callable[[], Iterator[tuple[JobRun, float]]]
    """Each job with the milliseconds that it took, made on demand."""


@dataclass(frozen=True, slots=True)
class JobFailed(Signal):
    """An attempt at a job failed. Committed. `outcome`: retry, buried (dead letter), superseded (by a newer job with its
    unique key), or cancelled."""

    run: JobRun
    duration_ms: float
    code: str
    message: str
    outcome: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class JobReleased(Signal):
    """A worker has released a job that did not fail. `outcome`: back (pending again), cancelled, or superseded."""

    run: JobRun
    outcome: str


@dataclass(frozen=True, slots=True)
class LeasesRenewed(Signal):
    """The leases of the jobs that run here were renewed. Committed."""

    leases: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Signal):
    """The lease of a running job was lost. Another worker may run it now, and its result here is discarded."""

    run: JobRun
    reason: str


@dataclass(frozen=True, slots=True)
class Routed(Signal):
    """Events of a subscription have become jobs. Committed."""

    subscription: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Fired(Signal):
    """A schedule was due, and this worker has enqueued its jobs."""

    schedule: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Relayed(Signal):
    """Events are in a stream of the broker, up to `position`. Committed."""

    relay: str
    stream: str
    events: int
    position: str
    topics: Mapping[str, int]
    """The number of events by type."""


@dataclass(frozen=True, slots=True)
class Rejection(Signal):
    """The broker or the codec rejects an event because of its content. Committed. It needs attention."""

    relay: str
    envelope: Envelope
    attempts: int
    code: str
    message: str
    buried: bool
    """True: it is a dead letter. False: the events behind it wait."""


@dataclass(frozen=True, slots=True)
class Rewound(Signal):
    """A stream has lost its end. A relay goes back to its position at the time `at` and sends the missing events again;
    an inbox (`at` = None) reads the stream again."""

    subscription: str
    stream: str
    position: str
    """The position up to which it had been written or read."""
    end: str
    """The position at which it ends now."""
    at: datetime | None
    whole: bool
    """False: events from before `at` are lost in the stream, and no mark reaches back to them."""


@dataclass(frozen=True, slots=True)
class Trimmed(Signal):
    """Entries after `position` were removed from a stream before they were read. An inbox has missed them; a relay cannot
    tell which they were, and sends them again."""

    subscription: str
    stream: str
    position: str


@dataclass(frozen=True, slots=True)
class Intruded(Signal):
    """A stream of a relay contains entries that the relay has not written. It must be the only writer."""

    relay: str
    stream: str
    entries: int
    event_id: UUID | None


@dataclass(frozen=True, slots=True)
class BrokerDown(Signal):
    """A broker does not answer, or a stream is missing or misconfigured. It is tried again; no event is given up."""

    subscription: str
    code: str
    message: str
    in_a_row: int


@dataclass(frozen=True, slots=True)
class BrokerUp(Signal):
    """A broker answers again."""

    subscription: str


@dataclass(frozen=True, slots=True)
class Ingested(Signal):
    """An inbox has read a stream up to `position`. Committed."""

    inbox: str
    stream: str
    events: int
    """New events."""
    known: int
    """Events that had arrived before."""
    refused: int
    position: str


@dataclass(frozen=True, slots=True)
class EntryRefused(Signal):
    """An inbox could not read an entry as an event. The entry is kept, with the reason. Committed."""

    inbox: str
    stream: str
    position: str
    message: str


@dataclass(frozen=True, slots=True)
class RolledUp(Signal):
    """A tick of a rollup has emitted events, or has failed. Committed."""

    rollup: str
    groups: int
    """Rollup events."""
    pieces: int
    """Single events."""
    conflicts: int
    set_aside: int
    """Staged rows that could not be turned into events. They need attention."""
    pending: int
    failed: bool
    """Nothing was emitted; the staged rows wait for the next tick."""
    message: str | None


@dataclass(frozen=True, slots=True)
class Upkept(Signal):
    """Upkeep has done something, or could not (`kept`: still needed; `busy`: locked by another session). Committed."""

    action: str
    """made, cut, detached, dropped, expired, reaped, ticked, kept, busy."""
    subject: str
    number: int
    detail: str | None


@dataclass(frozen=True, slots=True)
class ListenerUp(Signal):
    """Notifications arrive: a test notification was received."""


@dataclass(frozen=True, slots=True)
class ListenerDown(Signal):
    """Notifications do not arrive. Workers poll instead."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerUp(Signal):
    """A worker is registered and begins to work."""

    worker: UUID
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStopping(Signal):
    """A worker was told to stop. It takes nothing more, and waits for running handlers and jobs."""

    worker: UUID
    handlers: tuple[str, ...]
    """The handlers that run."""
    jobs: tuple[str, ...]
    """The types of the jobs that run."""
    grace: float
    """The longest wait, in seconds."""


@dataclass(frozen=True, slots=True)
class WorkerDown(Signal):
    """A worker has ended. `clean`: all handlers and jobs had finished."""

    worker: UUID
    clean: bool


Listener = Callable[[Signal], None]


class Signals:
    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every signal from now on. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        """Another thread may have removed it already."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    def emit_all(self, signals: Iterable[Signal]) -> None:
        """One after another; they are not made where nobody listens."""
        if self._listeners:
            for signal in signals:
                self.emit(signal)

    def emit(self, signal: Signal) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(signal)
            except Exception as error:
                self._drop(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                logging.getLogger("outrider").warning(
                    "the listener %s was removed: it raised %s", name, describe(error)
                )
