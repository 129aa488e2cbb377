"""Which generations a worker serves: its own, and those that have no live worker. It looks with every heartbeat.

A look opens the worker's own generation where it has no cursors. It folds generations that have had no worker for a while
and have nothing left to read. Two workers may serve the same cursor: its lock decides.

A strict worker serves its own, and what an operator moved to it. It only advances cursors that nobody serves past the events
of others, so that they do not keep the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from outrider.errors import ConfigError, CursorError, SchemaMismatch
from outrider.postgres import generations
from outrider.postgres.connection import AsyncSession
from outrider.postgres.generations import Serving
from outrider.worker.handler import Handler
from outrider.worker.site import FOLD_AFTER

NO_CURSOR = "OR002"
"""The error code of a take whose generation was folded."""

Place = tuple[str, int]
"""A subscription and one of its generations."""


class Generations:
    """Before the first look a worker serves its own generation only."""

    def __init__(
        self,
        own: int,
        handlers: Sequence[Handler],
        schema: str,
        *,
        strict: bool = False,
        fold_after: float = FOLD_AFTER,
        clock: Callable[[], float],
    ) -> None:
        if strict and own == 0:
            raise ConfigError(
                'generations="strict" needs a generation above 0: set OUTRIDER_GENERATION. Generation 0 reads the events of '
                "all generations that have no worker yet"
            )
        self.own = own
        self._strict = strict
        self._knows = {each.name: frozenset(each.models) for each in handlers}
        self._schema = schema
        self._fold_after = fold_after
        self._clock = clock
        self._cursors: dict[str, frozenset[int]] = {name: frozenset([own]) for name in self._knows}
        self._served: set[Place] = {(name, own) for name in self._knows}
        self._unserved: set[Place] = set()
        """What a strict worker leaves alone, and nobody else of the owner's serves."""
        self._existing = frozenset([own])
        """Every generation that has a cursor or a live worker anywhere."""
        self._looked = False
        self._abandoned_since: dict[Place, float] = {}
        """When a generation was first seen without a live worker of its own."""
        self.unable: frozenset[str] = frozenset()
        """Subscriptions that this worker does not serve, because its code does not know all their event types."""
        self.unknown: dict[str, frozenset[str]] = {}
        """These types, as of the last look."""

    async def look(self, conn: AsyncSession) -> None:
        """Find out what to serve now. Open the own generation, fold abandoned ones."""
        seen = await self._seen(conn)
        missing = [name for name in self._knows if self.own not in seen.cursors[name]]
        for name in missing:
            if not seen.cursors[name]:
                raise CursorError(
                    f'there is no cursor for subscription "{name}" any more: it was renamed or retired while this worker ran'
                    if self._looked
                    else f'subscription "{name}" is not registered in this database: await app.migrate(), or run outrider '
                    "migrate --app (if it was there before, outrider audit says who has renamed or retired it)"
                )
            if await generations.open_generation(conn, name, self.own, self._schema):
                logging.getLogger("outrider").info("opened generation %d of %s", self.own, name)
        self._remember(await self._seen(conn) if missing else seen)
        self._looked = True
        if self._fold_after == float("inf"):
            return
        try:
            await self._fold(conn, await self._passed(conn))
        except SchemaMismatch as error:  # this role lacks the right: another worker may have it
            logging.getLogger("outrider").warning("cannot fold generations: %s", error)
            self._fold_after = float("inf")

    def serves(self, name: str, generation: int) -> bool:
        return (name, generation) in self._served and name not in self.unable

    def __iter__(self) -> Iterator[Place]:
        return (place for place in sorted(self._served) if place[0] not in self.unable)

    def cannot(self, name: str) -> None:
        """A take found event types that this code does not know. Serve the subscription no more, until the next look."""
        self.unable |= {name}

    def forget(self, name: str, generation: int) -> None:
        """Its cursor is gone. Serve it no more, until the next look."""
        self._served.discard((name, generation))

    def route(self, name: str, generation: int) -> int:
        """The generation whose cursors read these events: their own, or 0 if it has no cursors."""
        return generation if generation in self._cursors[name] else 0

    def heard(self) -> set[int]:
        """The generations whose notifications concern this worker. Generation 0 also reads those without cursors."""
        served = {generation for _, generation in self._served} | {self.own}
        return served | self._existing if 0 in served else served

    def all_heard(self) -> bool:
        """Whether the notifications of all known generations concern this worker."""
        return self._existing <= self.heard()

    def addressed(self, generation: int) -> bool:
        """Whether each event of this generation is sure to notify this worker. 0 also reads generations yet unknown."""
        return generation == self.own and (generation != 0 or self._existing <= {0})

    async def _seen(self, conn: AsyncSession) -> Serving:
        return await generations.serving(conn, list(self._knows), self.own, self._schema)

    def _remember(self, seen: Serving) -> None:
        before, now = self._served, self._clock()
        self._existing = frozenset(seen.traces)
        self._cursors = {name: frozenset(found) for name, found in seen.cursors.items()}
        self._served = {
            (name, generation)
            for name, found in seen.cursors.items()
            for generation, cursors in found.items()
            if cursors.owned or (cursors.unserved and not self._strict)
        }
        self._unserved = {
            (name, generation)
            for name, found in seen.cursors.items()
            for generation, cursors in found.items()
            if self._strict and cursors.unserved and not cursors.owned
        }
        wanted = {
            name: frozenset[str]().union(*(each.event_types or () for each in found.values()))
            for name, found in seen.cursors.items()
        }
        self.unknown = {name: types - self._knows[name] for name, types in wanted.items() if types - self._knows[name]}
        self.unable = frozenset(self.unknown)
        self._abandoned_since = {
            (name, generation): self._abandoned_since.get((name, generation), now)
            for name, generation in (self._unserved if self._strict else self._served)
            if generation not in (0, self.own) and seen.cursors[name][generation].abandoned
        }
        for name, generation in sorted(self._served - before):
            if generation != self.own:
                logging.getLogger("outrider").info("now serves generation %d of %s", generation, name)
        for name, generation in sorted(before - self._served):
            logging.getLogger("outrider").info("no longer serves generation %d of %s", generation, name)

    async def _passed(self, conn: AsyncSession) -> set[Place]:
        """Advance the cursors that nobody serves. Returns those without anything that waits for a worker."""
        if not self._unserved:
            return set()
        idle = await generations.idle(conn, [name for name, _ in self._unserved], self._schema)
        return {
            place
            for place in sorted(self._unserved)
            if place in idle or await generations.pass_over(conn, *place, self._schema)
        }

    async def _fold(self, conn: AsyncSession, passed: set[Place]) -> None:
        for (name, generation), since in list(self._abandoned_since.items()):
            if self._clock() - since < self._fold_after or name in self.unable:
                continue
            if self._strict and (name, generation) not in passed:
                continue
            if await generations.fold_generation(conn, name, generation, self._schema):
                self.forget(name, generation)
                self._cursors[name] -= {generation}
                logging.getLogger("outrider").info("folded generation %d of %s", generation, name)
