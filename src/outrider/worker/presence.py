"""The heartbeat of a worker: it reports what runs and what fails, and finds the generations to serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic as clock

from outrider.error_text import code_of, describe, sqlstate
from outrider.errors import DatabaseUnavailable, SchemaMismatch
from outrider.postgres import heartbeat
from outrider.postgres.admin import activity
from outrider.postgres.connection import DatabaseError
from outrider.postgres.heartbeat import Identity
from outrider.signals import LoopHeld, Recovered, Skipped, Troubled
from outrider.worker.generations import Generations
from outrider.worker.loop import within
from outrider.worker.site import Site
from outrider.worker.troubles import HEARTBEAT, Troubles

LEAVE_SECONDS = 2.0
"""Seconds to try to delete the worker's row at shutdown. If that fails, the row expires."""
HELD = 2.0
"""Seconds that the event loop may be blocked before the worker's row reports it."""
REFUSED = ("25", "42")
"""Classes of SQLSTATE: the session is read-only; a right or a table is missing."""


class Presence:
    """`on_look` is called after each look at what there is to serve. `unanswered`: loops that wait for an answer, and since
    when. With `samples`, the worker takes those that are due."""

    def __init__(
        self,
        site: Site,
        identity: Identity,
        generations: Generations,
        every: float,
        on_look: Callable[[], None],
        unanswered: Callable[[], Iterable[tuple[str, float]]],
        *,
        samples: bool,
    ) -> None:
        self._identity = identity
        self._samples = samples
        self._generations = generations
        self._dsn, self._pool, self._schema, self._signals = site.dsn, site.pool, site.settings.schema, site.signals
        self._every = every
        self._on_look = on_look
        self._news = asyncio.Event()
        self.one_look = asyncio.Lock()
        self.last_contact = float("-inf")
        """When the database last answered, by time.monotonic."""
        self.troubles = Troubles(self._loop_held, unanswered)
        self._refused = 0
        """Heartbeats in a row that the database refused."""
        self._reporting: threading.Thread | None = None

    def look_again(self) -> None:
        """The next heartbeat does not wait for its time."""
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled: also while the worker finishes what it has begun."""
        while True:
            await within(self._every, self._news.wait())
            self._news.clear()
            await self.look()

    async def look(self) -> None:
        """Write the heartbeat before looking: of two workers that start at the same time, at least one sees the other."""
        self._update_unable()
        try:
            async with self.one_look, self._pool.autocommit() as conn:
                self._identity.report = self._report()
                sample_due = await heartbeat.beat(conn, self._identity, self._schema)
                if not self._identity.stopping:
                    await self._generations.look(conn)
                if self._update_unable():
                    self._identity.report = self._report()
                    await heartbeat.beat(conn, self._identity, self._schema)
                self.last_contact = clock()
                if sample_due and self._samples and not self._identity.stopping:
                    await activity.take_sample(conn, self._schema)
            if self._refused:
                self._signals.emit(Recovered(HEARTBEAT, self._refused))
            self._refused = 0
        except (DatabaseError, DatabaseUnavailable, SchemaMismatch) as error:
            if isinstance(error, SchemaMismatch) and self.last_contact == float("-inf"):
                raise
            if (sqlstate(error) or "").startswith(REFUSED):  # the loops report all other errors
                self._refused += 1
                self._signals.emit(Troubled(HEARTBEAT, code_of(error), describe(error), self._refused))
        if not self._identity.stopping:
            self._on_look()

    async def leave(self) -> None:
        with suppress(DatabaseError, DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS), self._pool.autocommit() as conn:
                await heartbeat.leave(conn, self._identity, self._schema)

    def _update_unable(self) -> bool:
        before, self._identity.unable = self._identity.unable, sorted(self._generations.unable)
        for name in self._generations.unable.difference(before):
            self._signals.emit(Skipped(name, "unknown"))
        return before != self._identity.unable

    def _report(self) -> str | None:
        return self.troubles.report(self._generations.unknown)

    def _loop_held(self, held: LoopHeld) -> None:
        """Report from a thread, because no heartbeat comes while the event loop is blocked. Called by the watchdog."""
        if held.seconds >= HELD and (self._reporting is None or not self._reporting.is_alive()):
            self._reporting = threading.Thread(target=self._report_held, name="outrider-report", daemon=True)
            self._reporting.start()

    def _report_held(self) -> None:
        if (report := self._report()) is not None:
            with suppress(DatabaseError, DatabaseUnavailable, OSError):
                heartbeat.tell(self._dsn, self._identity, report, self._schema)
