"""Wakes the loops of a worker: notifications reach those that want them, and polling covers what notifications miss."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.config import Settings
from outrider.postgres.listener import Listener
from outrider.signals import ListenerDown, ListenerUp, Notified
from outrider.worker.channels import EVERY_CLASS, channels, counterpart
from outrider.worker.generations import Generations
from outrider.worker.site import Site

if TYPE_CHECKING:
    from outrider.worker.duties import Duties
    from outrider.worker.loops import Loops

JITTER = 0.1
"""Pauses are shortened by up to this part at random, so that workers do not poll at the same time."""
WATCH = 0.05
"""Seconds between two looks at the log's sequence, where publishers notify after their commit or not at all."""
LOOKS_AFTER_TICK = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds after which loops look again: a log position is used before its transaction commits."""


@dataclass(frozen=True, slots=True)
class Polling:
    """How long to sleep without a wake-up, in seconds."""

    listening: float = 30
    """While the listener is up."""
    blind: float = 5
    """While it is down."""

    @classmethod
    def of(cls, settings: Settings) -> Polling:
        if settings.poll is None:
            return cls()
        blind = settings.poll if settings.notify == "off" else min(settings.poll, cls().blind)
        return cls(listening=settings.poll, blind=blind)

    def next(self, listener_up: bool, due_in: float | None) -> float:
        """`due_in`: seconds until the next retry is due."""
        interval = self.listening if listener_up else self.blind
        interval *= 1 - JITTER * random.random()  # noqa: S311 (spreads the workers, keeps no secret)
        return max(0.0, interval if due_in is None else min(interval, due_in))


class Wakeups:
    """`loops` returns the current loops. `on_change` is called when the listener goes up or down."""

    def __init__(
        self,
        site: Site,
        duties: Duties,
        generations: Generations,
        loops: Callable[[], Loops],
        on_change: Callable[[], None],
        heartbeat: float,
    ) -> None:
        settings = self._settings = site.settings
        self._signals = site.signals
        self._generations = generations
        self._loops = loops
        self._on_change = on_change
        self._classes, self._channel = duties.classes, duties.channel
        self._more = {EVERY_CLASS} if duties.every_class else set[str]()
        self.listening = False
        self.polling = Polling.of(settings)
        self.channels = self._channels_of(settings.generation)
        """The generation of each channel that it listens to."""
        self._listener = Listener(
            settings.listen_dsn or site.dsn,
            [*self.channels, *self._more],
            on_notification=self.notified,
            on_up=self._up,
            on_down=self._down,
            on_tick=self._ticked,
            watch_sequence=WATCH if settings.notify == "after_commit" else None,
            schema=settings.schema,
            heartbeat=heartbeat,
            deadline=heartbeat / 2,
        )

    async def run(self) -> None:
        """Until it is cancelled."""
        if self._settings.notify == "off":
            await asyncio.Event().wait()
        await self._listener.run()

    def follow(self) -> None:
        """Listen to the channels of the generations that are served now."""
        self.channels = {}
        for generation in sorted(self._generations.heard()):
            self.channels |= self._channels_of(generation)
        self._listener.follow(self.channels.keys() | self._more)

    def notified(self, channel: str, kind: str) -> None:
        """`kind` is what a notification said: the type of an event or a job."""
        if (generation := self.channels.get(channel)) is not None:
            self._signals.emit(Notified(channel, kind))
            self.wake(kind, generation)
        elif channel in self._more:
            self._signals.emit(Notified(channel, kind))
            self._loops().wake_for_class(kind)

    def wake(self, kind: str, generation: int) -> None:
        self._loops().wake(kind, generation)

    def wake_all(self, reason: str) -> None:
        self._loops().wake_all(reason)

    def pause(self, generation: int | None = None, due_in: float | None = None) -> float:
        """Seconds to sleep without a wake-up. `generation`: whose events the loop reads; None = all."""
        return self.polling.next(self._hears(generation), due_in)

    def hears_at_once(self, generation: int | None) -> bool:
        """Whether each event of this generation (None = of all) notifies this worker at COMMIT, even one of its own."""
        return self._settings.notify == "commit" and self._hears(generation)

    def _hears(self, generation: int | None) -> bool:
        heard = self._generations.all_heard() if generation is None else self._generations.addressed(generation)
        return self.listening and heard

    def _channels_of(self, generation: int) -> dict[str, int]:
        if self._channel is None:
            found = channels(generation, self._classes)
        else:
            found = [counterpart(self._channel, self._settings.generation, generation)]
        return dict.fromkeys(found, generation)

    def _up(self) -> None:
        if not self.listening:
            self.listening = True
            self._on_change()
            self._signals.emit(ListenerUp())
        self.wake_all("listener")

    def _down(self, reason: str) -> None:
        if self.listening:
            self.listening = False
            self._on_change()
        self._signals.emit(ListenerDown(reason))
        self.wake_all("listener")

    def _ticked(self) -> None:
        self.wake_all("sequence")
        for delay in LOOKS_AFTER_TICK:
            asyncio.get_running_loop().call_later(delay, self.wake_all, "sequence")
