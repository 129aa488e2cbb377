"""Signals: one class for everything that can happen. The log and the metrics listen to them, and tests wait for them.

A listener is called in the thread or task that emits the signal, so it must be quick. One that raises is removed, with a
warning in the log: observing must never break publishing. "Committed" means that the transaction was committed before the
signal was emitted. `details` and `times` are computed only when they are called. `context`: the context variables of a call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import dataclass_transform
from uuid import UUID

from outrider.envelope import Envelope, HandledEvent
from outrider.error_text import describe
from outrider.job import JobRun
from outrider.outcome import Verdict


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Signal:
    """Something that has happened in this process. Every subclass is a frozen dataclass.

    The methods that are the same for all stand here: making them for each class would slow every import.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Published(Signal):
    """An event was appended in the caller's transaction, which may still roll back."""

    envelope: Envelope


class Woken(Signal):
    """A loop was woken. `reason`: notification, listener, sequence, generations or poll."""

    subscription: str
    reason: str


class Notified(Signal):
    """A notification has arrived. `kind` is the type of an event or a job. Any role may send notifications."""

    channel: str
    kind: str


class Taken(Signal):
    """A batch was taken, in a transaction that is still open. `outcome`: as the SQL function `take` returns it."""

    subscription: str
    partition: int | None
    events: int
    outcome: str


class Settled(Signal):
    """A batch was committed: the effects of the handlers, the receipts and the position together. `duplicates`: events that
    were skipped because they have a receipt. `times` is cheaper than `details`: the type of each event, its age in seconds,
    and the seconds it took."""

    subscription: str
    partition: int
    events: int
    duplicates: int
    duration_ms: float
    details: Callable[[], Iterator[HandledEvent]]
    times: Callable[[], Iterator[tuple[str, float, float]]] = lambda: iter(())


class Failed(Signal):
    """A handler failed and was rolled back. `RetryScheduled` or `Buried` follows when that is committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    duration_ms: float
    verdict: Verdict
    error: BaseException


class RetryScheduled(Signal):
    """A failed event waits for its retry. Committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    delay: timedelta


class Buried(Signal):
    """A failed event became a dead letter. Committed."""

    subscription: str
    envelope: Envelope
    attempt: int
    code: str
    message: str


class Troubled(Signal):
    """A loop met an infrastructure failure, such as a lost connection. It tries again. `in_a_row` is counted per `loop`."""

    subscription: str
    code: str
    message: str
    in_a_row: int = 1
    loop: str = ""


class Recovered(Signal):
    """A loop works again after `in_a_row` consecutive infrastructure failures."""

    subscription: str
    in_a_row: int
    loop: str = ""


class Skipped(Signal):
    """A subscription is not served. `reason`: paused, open (its breaker), unknown (event types), not installed, changed."""

    subscription: str
    reason: str


class LoopHeld(Signal):
    """Something blocks the event loop of a worker. Emitted from a thread, repeatedly while it lasts. `subscription`: the
    handler or job that runs, otherwise the name of the task. `where`: file, line and function."""

    subscription: str | None
    seconds: float
    where: str


class JobEnqueued(Signal):
    """A job was enqueued in the caller's transaction, which may still roll back. `outcome`: what its unique key decided."""

    job_type: str
    job_id: UUID
    outcome: str
    details: Callable[[], Envelope]


class JobsClaimed(Signal):
    """A worker has claimed jobs; they belong to it for the time of their leases. Committed."""

    jobs: int
    details: Callable[[], Iterator[JobRun]]


class JobsCompleted(Signal):
    """Jobs are done. Committed. `details` yields each job with its duration in milliseconds."""

    jobs: int
    details: Callable[[], Iterator[tuple[JobRun, float]]]


class JobFailed(Signal):
    """An attempt at a job failed. Committed. `outcome`: retry, buried (dead letter), superseded, cancelled."""

    run: JobRun
    duration_ms: float
    code: str
    message: str
    outcome: str
    error: BaseException | None


class JobReleased(Signal):
    """A worker has released a job that did not fail. `outcome`: back (pending again), cancelled or superseded."""

    run: JobRun
    outcome: str


class LeasesRenewed(Signal):
    """The leases of the jobs that run here were renewed. Committed."""

    leases: int


class LeaseLost(Signal):
    """The lease of a running job was lost. Another worker may run it now, and its result here is discarded."""

    run: JobRun
    reason: str


class Routed(Signal):
    """Events of a subscription have become jobs. Committed."""

    subscription: str
    jobs: int


class Fired(Signal):
    """A schedule was due, and this worker has enqueued its jobs."""

    schedule: str
    jobs: int


class Relayed(Signal):
    """A relay has written events to a stream, up to `position`. Committed. `topics`: the number of events by type."""

    relay: str
    stream: str
    events: int
    position: str
    topics: Mapping[str, int]


class Rejection(Signal):
    """The broker or the codec rejects an event for its content. Committed. Unless `buried`, the events behind it wait."""

    relay: str
    envelope: Envelope
    attempts: int
    code: str
    message: str
    buried: bool


class RelayLease(Signal):
    """The lease of a relay. `result`: acquired; renewed; lost: it has expired, or another process has it."""

    relay: str
    result: str


class Rewound(Signal):
    """A stream has lost its end: it was known up to `position`, and ends at `end` now. A relay sends what it had sent since
    `at` again; unless `whole`, older events are missing too. An inbox (`at` = None) reads the stream again."""

    subscription: str
    stream: str
    position: str
    end: str
    at: datetime | None
    whole: bool


class Trimmed(Signal):
    """Entries after `position` were removed before they were read. A relay sends them again; an inbox has missed them."""

    subscription: str
    stream: str
    position: str


class Intruded(Signal):
    """A stream of a relay contains entries that the relay has not written. It must be the only writer."""

    relay: str
    stream: str
    entries: int
    event_id: UUID | None


class BrokerDown(Signal):
    """A broker does not answer, or a stream is missing or misconfigured. It is tried again; no event is given up."""

    subscription: str
    code: str
    message: str
    in_a_row: int


class BrokerUp(Signal):
    """A broker answers again."""

    subscription: str


class Ingested(Signal):
    """An inbox has read a stream up to `position`. Committed. `events`: new ones. `known`: those that had arrived before."""

    inbox: str
    stream: str
    events: int
    known: int
    refused: int
    position: str


class EntryRefused(Signal):
    """An inbox could not read an entry as an event. The entry is kept, with the reason. Committed."""

    inbox: str
    stream: str
    position: str
    message: str


class RolledUp(Signal):
    """A tick of a rollup has emitted events, or has failed and will try again. Committed. `groups`: rollup events. `pieces`:
    single events. `set_aside`: rows that could not be turned into events, which need attention."""

    rollup: str
    groups: int
    pieces: int
    conflicts: int
    set_aside: int
    pending: int
    failed: bool
    message: str | None


class Upkept(Signal):
    """Upkeep did something, or could not: `action` is then kept (still needed) or busy (locked by another session)."""

    action: str
    subject: str
    number: int
    detail: str | None


class ListenerUp(Signal):
    """Notifications arrive: a test notification was received."""


class ListenerDown(Signal):
    """Notifications do not arrive. Workers poll instead."""

    reason: str


class WorkerUp(Signal):
    """A worker is registered and begins to work."""

    worker: UUID
    subscriptions: tuple[str, ...]


class WorkerStopping(Signal):
    """A worker was told to stop. It takes nothing more, and waits up to `grace` seconds for running handlers and jobs."""

    worker: UUID
    handlers: tuple[str, ...]
    jobs: tuple[str, ...]
    grace: float


class WorkerDown(Signal):
    """A worker has ended. `clean`: all handlers and jobs had finished."""

    worker: UUID
    clean: bool


class Choosy:
    wants: Callable[[type[Signal]], bool]
    """Of a listener: whether it wants signals of this kind. Asked once where one call sends thousands."""


class Signals:
    def __init__(self) -> None:
        self._listeners: list[Callable[[Signal], None]] = []

    def listen(self, listener: Callable[[Signal], None]) -> Callable[[], None]:
        """Call `listener` for every signal from now on. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Callable[[Signal], None]) -> None:
        with suppress(ValueError):  # another thread may have removed it already
            self._listeners.remove(listener)

    def emit_all(self, kind: type[Signal], signals: Iterable[Signal]) -> None:
        """Emit each of them, all of one kind. If no listener wants it, the signals are not even created."""
        if not all(isinstance(each, Choosy) and not each.wants(kind) for each in self._listeners):
            for signal in signals:
                self.emit(signal)

    def emit(self, signal: Signal) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(signal)
            except Exception as error:
                self._drop(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                logging.getLogger("outrider").warning("the listener %s was removed: %s", name, describe(error))
