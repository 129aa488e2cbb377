"""Who is woken by what, and how long one sleeps at most. No I/O; everything happens on one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass

JITTER = 0.1


class _Bell:
    """The wake-ups of one subscription, counted, so that each waiter knows which of them it has answered."""

    def __init__(self) -> None:
        self.rings = 0
        self.reason = ""
        self._next = asyncio.Event()

    def ring(self, reason: str) -> None:
        self.rings += 1
        self.reason = reason
        self._next.set()
        self._next = asyncio.Event()

    async def next_ring(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._next.wait()


class Wakes:
    """Routes wake-ups to the subscriptions that want them, and there to the readers of one generation.

    `wants`: the event types of each subscription, None = all of them. `on_woken(name, reason)` is called whenever a wait
    ends, except for "stop". `route(name, generation)` says which generation's readers of a subscription find the events
    of a generation: its own, or those of 0.
    """

    def __init__(
        self,
        wants: Mapping[str, frozenset[str] | None],
        on_woken: Callable[[str, str], None],
        *,
        generation: int = 0,
        route: Callable[[str, int], int] = lambda _, generation: generation,
    ) -> None:
        self._wants = dict(wants)
        self._on_woken = on_woken
        self._route = route
        self._bells = {(name, generation): _Bell() for name in wants}
        self._answered: dict[tuple[str, int, Hashable], int] = {}
        self._stopped = False

    def expect(self, name: str, generation: int) -> None:
        """Keep wake-ups for the readers of this generation from now on: before they look for the first time."""
        self._bells.setdefault((name, generation), _Bell())

    def poke(self, event_type: str, generation: int = 0) -> None:
        """`event_type` is what a notification said: any text, of which nothing is kept."""
        for name, types in self._wants.items():
            if types is None or event_type in types:
                bell = self._bells.get((name, self._route(name, generation)))
                if bell is not None:
                    bell.ring("poke")

    def wake_all(self, reason: str) -> None:
        for bell in self._bells.values():
            bell.ring(reason)

    def stop(self) -> None:
        """Every wait ends, now and from now on."""
        self._stopped = True
        self.wake_all("stop")

    async def wait(self, name: str, timeout: float | None, waiter: Hashable = None, generation: int = 0) -> str:  # noqa: ASYNC109
        """The reason of the latest wake-up since the last wait of this `waiter`, or "poll" when `timeout` has passed.

        Tasks that serve the same subscription (its partitions) each name themselves: then one that is busy still finds
        the wake-up that another has answered.
        """
        bell, key = self._bells[name, generation], (name, generation, waiter)
        answered = self._answered.get(key, 0)
        if bell.rings == answered:
            await bell.next_ring(timeout)
        if self._stopped:
            return "stop"
        reason = bell.reason if bell.rings > answered else "poll"
        self._answered[key] = bell.rings
        self._on_woken(name, reason)
        return reason


@dataclass(frozen=True, slots=True)
class Polling:
    """How long to sleep without a wake-up, in seconds: polling covers what pokes miss."""

    listening: float = 30
    """While the listener is up."""
    blind: float = 5
    """While it is down."""

    def next(self, listener_up: bool, due_in: float | None) -> float:
        """`due_in`: until the next owed row is due. The interval is shortened by up to 10 %, so that workers spread."""
        interval = self.listening if listener_up else self.blind
        interval *= 1 - JITTER * random.random()  # noqa: S311 (spreads the workers, keeps no secret)
        return max(0.0, interval if due_in is None else min(interval, due_in))
