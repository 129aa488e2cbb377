"""`capture`: collects what a block of a test publishes and enqueues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outrider.app import Outrider
from outrider.envelope import E, Envelope
from outrider.errors import Undecodable
from outrider.event import Event, spec_of
from outrider.job import Job
from outrider.job import jobs as job_registry
from outrider.registry import Registry, registry
from outrider.signals import JobEnqueued, Published, Signal


class Captured:
    """The published events and enqueued jobs, in order. It grows while the block runs."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        """Of events."""
        self.enqueued: list[Envelope] = []
        """Of jobs, without those that a unique key kept from being enqueued."""
        self.elsewhere = 0
        """How many events the app published meanwhile outside of the block."""
        self.elsewhere_jobs = 0
        """How many jobs the app enqueued meanwhile outside of the block."""

    @property
    def events(self) -> list[Event]:
        return [_decoded(envelope, registry) for envelope in self.envelopes]

    @property
    def jobs(self) -> list[Job]:
        return [_decoded(envelope, job_registry) for envelope in self.enqueued]

    def of(self, model: type[E]) -> list[E]:
        """Those of one type, events or jobs, as `model` sees them."""
        wanted = spec_of(model).type
        found = self.enqueued if issubclass(model, Job) else self.envelopes
        return [envelope.decode(model) for envelope in found if envelope.event_type == wanted]


_open: ContextVar[frozenset[Captured]] = ContextVar("outrider_captures", default=frozenset())


@contextmanager
def capture(app: Outrider, *, everywhere: bool = False) -> Iterator[Captured]:
    """Collect what this block publishes and enqueues through the app: `with capture(app) as published:`, also in async code.

    Seen: publishes of the block itself, of the tasks that it starts and of `asyncio.to_thread`; also those that are
    rolled back later. Not seen: what other tasks and tests publish at the same time, threads and workers that the block
    did not start as above, other processes, and publishes in SQL. `everywhere=True` sees all that this app publishes
    in this process, whoever does it.
    """
    captured = Captured()

    def hear(signal: Signal) -> None:
        mine = everywhere or captured in _open.get()
        match signal:
            case Published(envelope) if mine:
                captured.envelopes.append(envelope)
            case Published():
                captured.elsewhere += 1
            case JobEnqueued(outcome="kept"):
                pass
            case JobEnqueued(details=details) if mine:
                captured.enqueued.append(details())
            case JobEnqueued():
                captured.elsewhere_jobs += 1

    stop = app.signals.listen(hear)
    _open.set(_open.get() | {captured})
    try:
        yield captured
    finally:
        stop()
        _open.set(_open.get() - {captured})


def _decoded(envelope: Envelope, known: Registry[E]) -> E:
    model = known.owned(envelope.event_type, envelope.event_version)
    if model is None:
        raise Undecodable(f"{envelope} has no class in this process: use the envelopes")
    return envelope.decode(model)
