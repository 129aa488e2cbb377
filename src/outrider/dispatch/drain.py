"""Drain: handle all that is due now, then return. For tests and scripts; a worker does the same for ever."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from outrider.dispatch.generations import NO_CURSOR, Generations
from outrider.dispatch.handler import Handler, roles_of
from outrider.dispatch.tail import Step, Tail
from outrider.errors import CursorError
from outrider.outcome import code_of
from outrider.postgres.lanes import Lanes, usable
from outrider.postgres.tenant import check_roles
from outrider.signals import Signals

PAUSE = 0.02


@dataclass(slots=True)
class Drained:
    """What a drain came to, in events."""

    handled: int = 0
    conceded: int = 0
    """They had a receipt already."""
    parked: int = 0
    """They failed and wait for their retry."""
    buried: int = 0
    """They failed for good: dead letters."""
    by_handler: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Handled, by handler."""

    def add(self, name: str, step: Step) -> None:
        self.handled += step.handled
        self.conceded += step.conceded
        self.parked += step.parked
        self.buried += step.buried
        if step.handled:
            self.by_handler[name] += step.handled

    def __str__(self) -> str:
        return f"{self.handled} handled, {self.parked} parked, {self.buried} buried, {self.conceded} conceded"


async def drain(
    handlers: Sequence[Handler],
    lanes: Lanes,
    signals: Signals,
    *,
    schema: str,
    generation: int,
    raise_on_failure: bool = False,
) -> Drained:
    """Until a whole round over all handlers finds nothing: what handlers publish is handled too.

    Its own generation, and those that no worker is there for.
    """
    total = Drained()
    if not handlers:
        return total
    served = Generations(generation, handlers, schema, clock=monotonic)
    async with lanes.lane(handlers[0].name) as conn:
        await check_roles(conn, roles_of(handlers))
        await served.look(conn)
    tails = [
        Tail(each, signals, schema=schema, generation=of, worker="drain")
        for each in handlers
        for name, of in served
        if name == each.name
    ]
    try:
        found = True
        while found:
            found = False
            for tail in tails:
                found |= await _drain_one(tail, lanes, total, generation, raise_on_failure=raise_on_failure)
    finally:
        for tail in tails:
            tail.close()
    return total


async def _drain_one(tail: Tail, lanes: Lanes, total: Drained, own: int, *, raise_on_failure: bool) -> bool:
    found = False
    while True:
        async with lanes.lane(tail.handler.name) as conn:
            while usable(conn):
                try:
                    step = await tail.step(conn)
                except CursorError as error:
                    if tail.generation == own or code_of(error) != NO_CURSOR:
                        raise
                    return found  # folded: its events are found by generation 0
                total.add(tail.handler.name, step)
                if raise_on_failure and step.errors:
                    raise step.errors[0]
                if step.outcome in ("busy", "troubled"):
                    await asyncio.sleep(PAUSE * (1 + tail.trouble))
                elif not step.again:
                    return found
                found = True
