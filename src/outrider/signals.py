"""The vocabulary of what happens, and who listens. Logs, spans and metrics are listeners; tests wait on it.

A listener is called in place, on the thread or task where it happened, and must be quick. One that raises is dropped
with a warning: observing must never break publishing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from outrider.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Published:
    """An event was appended in the caller's transaction, which may still roll back."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Taken:
    """A cursor was read in the caller's transaction; `outcome` as take returns it."""

    subscription: str
    partition: int | None
    events: int
    outcome: str


Signal = Published | Taken
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
                warnings.warn(f"the listener {listener!r} raised {error!r} and was dropped", stacklevel=2)
