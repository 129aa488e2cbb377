"""`capture`: what a block of a test published, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outrider.app import Outrider
from outrider.envelope import E, Envelope
from outrider.errors import Undecodable
from outrider.event import Event, spec_of
from outrider.registry import registry
from outrider.signals import Published, Signal


class Captured:
    """What was published, in the order of publishing; it grows while the block runs."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.elsewhere = 0
        """How many events the app published meanwhile outside of the block."""

    @property
    def events(self) -> list[Event]:
        return [_decoded(envelope) for envelope in self.envelopes]

    def of(self, model: type[E]) -> list[E]:
        """Those of one type, as `model` sees them."""
        wanted = spec_of(model).type
        return [envelope.decode(model) for envelope in self.envelopes if envelope.event_type == wanted]


_open: ContextVar[frozenset[Captured]] = ContextVar("outrider_captures", default=frozenset())


@contextmanager
def capture(app: Outrider, *, everywhere: bool = False) -> Iterator[Captured]:
    """Collect what this block publishes through the app: `with capture(app) as published:`, also in async code.

    Seen: publishes of the block itself, of the tasks that it starts and of `asyncio.to_thread`; also those that are
    rolled back later. Not seen: what other tasks and tests publish at the same time, threads and workers that the block
    did not start as above, other processes, and publishes in SQL. `everywhere=True` sees all that this app publishes
    in this process, whoever does it.
    """
    captured = Captured()

    def hear(signal: Signal) -> None:
        if not isinstance(signal, Published):
            return
        if everywhere or captured in _open.get():
            captured.envelopes.append(signal.envelope)
        else:
            captured.elsewhere += 1

    stop = app.signals.listen(hear)
    _open.set(_open.get() | {captured})
    try:
        yield captured
    finally:
        stop()
        _open.set(_open.get() - {captured})


def _decoded(envelope: Envelope) -> Event:
    model = registry.owned(envelope.event_type, envelope.event_version)
    if model is None:
        raise Undecodable(f"{envelope} has no event class in this process: use `envelopes`")
    return envelope.decode(model)
