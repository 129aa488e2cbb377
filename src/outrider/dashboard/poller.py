"""One look at the database per second, shared by all open pages. Without open pages, one every 10 s for the charts.

A look takes at most a tenth of the time, unless it is so slow that the next one would come too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from outrider.app import Outrider
from outrider.dashboard.database import Database
from outrider.dashboard.history import EVERY, History
from outrider.dashboard.traffic import FIRST, MOST, Traffic
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Finding, Severity
from outrider.error_text import describe
from outrider.errors import OutriderError
from outrider.postgres.admin import activity
from outrider.postgres.admin.activity import Flow, OpenTransaction, Sample
from outrider.postgres.admin.status import Status, status
from outrider.postgres.connection import AsyncSession, DatabaseError

OFTEN = 1.0
SHARE = 10
"""After a look, the poller waits at least this many times as long as the look took."""
LONGEST = 30.0
"""Seconds that it waits at most, so that it soon notices the end of an outage."""
PATIENCE = 10.0
"""Seconds for a look."""
EXAMINE = timedelta(minutes=1)
"""The doctor's rounds, while a page is open."""
AGAIN = timedelta(seconds=10)
"""After a round that failed."""


@dataclass(frozen=True, slots=True)
class LiveState:
    number: int
    status: Status | None = None
    transactions: tuple[OpenTransaction, ...] = ()
    """Open transactions that may still publish, the oldest first."""
    findings: tuple[Finding, ...] | None = None
    """Of the doctor; None: the first round is not finished."""
    examined_at: datetime | None = None
    examine_error: str | None = None
    """Why the doctor's last round failed. The findings are those of the round before."""
    error: str | None = None
    """Why the last look failed. The rest is as of the look before."""

    @property
    def urgent(self) -> list[Finding]:
        found = [each for each in self.findings or () if each.severity >= Severity.warning]
        return sorted(found, key=lambda each: -each.severity)

    @property
    def notes(self) -> list[Finding]:
        return [each for each in self.findings or () if each.severity is Severity.note]


class Poller:
    def __init__(self, app: Outrider, database: Database) -> None:
        self._app = app
        self._database = database
        self.history = History()
        self.traffic = Traffic()
        self.snapshot = LiveState(0)
        self._clocks: tuple[datetime, float] | None = None
        """The database's time at the last look, and this process's clock before it."""
        self.looks = 0
        """How many there were."""
        self.watchers = 0
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = False

    def now(self) -> datetime | None:
        """The database's time. None: it has not answered yet."""
        if self._clocks is None:
            return None
        read_at, before = self._clocks
        return read_at + timedelta(seconds=monotonic() - before)

    async def current(self) -> LiveState:
        """The newest snapshot; at the first page, waits until the first look has succeeded or failed."""
        self._start()
        async with self._changed:
            await self._changed.wait_for(lambda: self.snapshot.status or self.snapshot.error or self.closed)
            return self.snapshot

    async def after(self, number: int) -> LiveState:
        """Waits for a snapshot that is newer than this number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.snapshot.number > number or self.closed)
            return self.snapshot

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this is entered, there is a look each second."""
        self._start()
        self.watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self.watchers -= 1

    def look_now(self) -> None:
        """After an action."""
        self._wake.set()

    async def close(self) -> None:
        """Ends the live updates of all pages."""
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    def _start(self) -> None:
        if not self._tasks and not self.closed:
            self._tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._examine())]

    async def _poll(self) -> None:
        begun = False
        while not self.closed:  # a cancellation that meets a query can arrive as an error of the session
            self._wake.clear()
            began: float | None = None
            try:
                async with asyncio.timeout(PATIENCE), self._database.reading() as conn:
                    began = monotonic()  # not before: to wait for a session costs the database nothing
                    if not begun:
                        self.history.begin(await activity.samples(conn, self._database.schema))
                        begun = True
                    found = await status(conn, self._database.schema)
                    open_now = await activity.open_transactions(conn, self._database.schema)
                    flows = await self._flows(conn, found.seq)
                self.looks += 1
                self._clocks = found.read_at, began
                self.history.add(Sample.of(found))
                self.traffic.add(found, flows)
                await self._publish(status=found, transactions=tuple(open_now), error=None)
            except Exception as error:  # pages wait for this task, so it must not end
                if not isinstance(error, DatabaseError | OutriderError | OSError | TimeoutError):
                    logging.getLogger("outrider").exception("the dashboard's look failed")
                await self._publish(error=describe(error))
            if self.closed:
                return
            took = 0.0 if began is None else monotonic() - began
            await asyncio.sleep(min(LONGEST, max(OFTEN, SHARE * took)))
            if not self.watchers:
                try:
                    async with asyncio.timeout(EVERY.total_seconds()):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _flows(self, conn: AsyncSession, seq: int) -> list[Flow]:
        after = self.traffic.after
        if after is not None and seq <= after:
            return []
        most = FIRST if after is None else MOST
        return await activity.traffic(conn, self._database.schema, after=after or 0, most=most)

    async def _examine(self) -> None:
        while not self.closed:
            rest = EXAMINE
            try:
                async with self._database.reading() as conn:
                    findings = await examine_all(self._app, conn, self._database.schema, self._app.settings.listen_dsn)
                at = self.snapshot.status.read_at if self.snapshot.status else None
                await self._publish(findings=tuple(findings), examined_at=at, examine_error=None)
            except Exception as error:  # the next round may succeed, so this task must not end
                if not isinstance(error, DatabaseError | OutriderError | OSError):
                    logging.getLogger("outrider").exception("the dashboard's doctor failed")
                else:
                    logging.getLogger("outrider").warning("the dashboard's doctor: %s", describe(error))
                rest = min(AGAIN, EXAMINE)
                await self._publish(examine_error=describe(error))
            if self.closed:
                return
            await asyncio.sleep(rest.total_seconds())
            while not self.watchers:
                await self._wake.wait()
                await asyncio.sleep(OFTEN)

    async def _publish(self, **changes: object) -> None:
        values = {name: getattr(self.snapshot, name) for name in LiveState.__slots__} | changes
        values["number"] = self.snapshot.number + 1
        async with self._changed:
            self.snapshot = LiveState(**values)
            self._changed.notify_all()
