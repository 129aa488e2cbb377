"""The hot path of jobs: claim → run → settle, as many at a time as there are slots.

One session claims, another settles: while both are under way, jobs run (slots.py). A side process renews the leases
(lease.py). Nothing is lost with the worker: what it had claimed is pending again when its leases end, and what it settles
after that does not land.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic as clock
from typing import Any

from outrider.config import Settings
from outrider.error_text import sqlstate
from outrider.errors import DatabaseUnavailable, SchemaMismatch
from outrider.failpoint import hit
from outrider.postgres import connection, jobs
from outrider.postgres.connection import AsyncSession
from outrider.postgres.heartbeat import Identity
from outrider.postgres.jobs import Asked, Claimed, Done, Lane, Leased, Other
from outrider.postgres.pool import Pool
from outrider.postgres.worker_sessions import OwnSession
from outrider.signals import Signals
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_processes import Processes
from outrider.worker.job_runner import JobRunner, Outcome
from outrider.worker.job_signals import JOBS, Counts, JobSignals
from outrider.worker.job_slots import JobSlots
from outrider.worker.leases import Begun, Leases, Report
from outrider.worker.loop import DEADLINE, TROUBLES, Loop, pause, within

SLOTS = 10
AHEAD = 1000
"""The most jobs that wait in the worker for a slot."""
AHEAD_SECONDS = 0.1
"""Seconds of work to claim ahead, so that a slot does not wait for a round trip while jobs are short."""
RENEWAL = 20.0
"""The longest time between two renewals: also a sign of life of the side process."""
FAREWELL = 1.0
INTERRUPTED = 0.4
"""Seconds to wait for cancelled jobs to stop, and again for them to be released."""
LOOK = 1.0
"""Seconds that it may claim from one lane only, without a look at the others."""
PROGRESS = 1.0
CLAIM, SETTLE = "claim", "settle"


@asynccontextmanager
async def beside(running: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run it as a task of its own while the block lasts."""
    task = asyncio.create_task(running)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, *TROUBLES):
            await task


class JobLoop(Loop):
    """Claims jobs, runs them in its slots, settles them. Its steps overlap, so it has a run of its own."""

    def __init__(
        self,
        handlers: Sequence[JobHandler],
        *,
        dsn: str,
        pool: Pool,
        settings: Settings,
        signals: Signals,
        identity: Identity,
        slots: int = SLOTS,
        queues: Sequence[str] = (),
        poll: Callable[[], float] = lambda: 5.0,
    ) -> None:
        super().__init__(JOBS, signals, types=frozenset(each.name for each in handlers))
        self._dsn = dsn
        self._schema, self._notify = settings.schema, settings.notify
        self._generation = settings.generation
        self._identity = identity
        self._worker = str(identity)
        self._voice = JobSignals(signals, self._worker)
        self._queues = list(queues) or None
        self._names = sorted(each.name for each in handlers)
        self._limited = {
            each.name
            for each in handlers
            if each.limits.concurrency is not None or each.limits.key_concurrency is not None
        }
        self._processes = Processes()
        work = {each.name: JobRunner(each, pool.connection, dsn, self._processes) for each in handlers}
        self._slots = JobSlots(slots, work, self._processes, on_change=self._changed, on_lost=self._voice.lost)
        self._renewal = min([RENEWAL, *(each.limits.lease.total_seconds() / 3 for each in handlers)])
        self._claims, self._settles = (OwnSession(dsn, settings.notify, "outrider jobs") for _ in range(2))
        self._room = asyncio.Event()
        """There may be room, or something to claim."""
        self._news = asyncio.Event()
        """There may be something to settle."""
        self._hungry = True
        """There may be something to claim."""
        self._looking = False
        """Ask even if there is no room: somebody may want a job to stop."""
        self._claiming = False
        self._wary = False
        """Whether the last claim was made while a suspect was here, or brought one. Once it is gone, the next may come."""
        self._lane: Lane | None = None
        self._looks_at = float("-inf")
        """When all lanes are looked at again."""
        self._starved = False
        """There is no connection for the session that settles: the other one does it."""
        self._one_at_a_time = asyncio.Lock()
        self._uncertain = False
        """A claim may have landed without an answer."""
        self._again: set[int] = set()
        """What was settled already, and nobody knows whether it arrived."""
        self._ahead = 0
        self._counted = clock()
        self._due: float | None = None
        """When there may be more, by the clock."""
        self._poll = poll
        """How long it sleeps without a reason to wake."""
        self._polls_at = float("-inf")
        self._told_at = float("-inf")

    # Start and stop

    async def run(self, looked: Callable[[], None] = lambda: None) -> None:
        """Until it is told to stop, and everything that it had begun is settled."""
        async with self._renewing(), self._ending():
            claiming = asyncio.create_task(self._claim_all(looked))
            claiming.add_done_callback(lambda _: self._news.set())
            settling = asyncio.create_task(self._settle_all(claiming))
            try:
                await asyncio.wait([claiming, settling], return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for task in (claiming, settling):
                    task.cancel()
                ended = await asyncio.gather(claiming, settling, return_exceptions=True)
            for error in ended:
                if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                    raise error

    async def drain(self) -> Counts:
        """All that is due now, and what becomes due by it."""
        counts = self._voice.counts = Counts()
        async with beside(self._renew()), self._ending():
            while True:
                self._hungry = True
                asked = self._asked()
                claimed = 0 if asked is None else await self._claim(asked)
                if await self._settle(self._settles):
                    continue
                if self._slots.broken is not None:
                    raise self._slots.broken
                if not claimed and self._slots.idle:
                    return counts
                if not claimed:
                    await within(PROGRESS, self._news.wait())
                self._news.clear()

    async def step(self) -> float:
        raise NotImplementedError

    def wake(self, reason: str) -> None:  # noqa: ARG002
        """There may be something to claim, or to stop."""
        self._hungry = self._looking = True
        self._room.set()

    def stop(self) -> None:
        """Claim nothing more, release what has not begun."""
        super().stop()
        self._slots.stop()
        self._changed()

    async def finish(self, over: asyncio.Event) -> bool:
        """What runs may end until the grace time is over; the rest is released. True: nothing was interrupted."""
        finished = await super().finish(over)
        for insist in (self._slots.interrupt, self._slots.abandon):
            if self.task is not None and not self.task.done():
                insist()
                await asyncio.wait([self.task], timeout=INTERRUPTED)
        return finished

    def spare(self) -> None:
        """Whatever ends this process from now on is no crash of its jobs."""
        if self._slots.begun is not None:
            self._slots.begun.spare()

    def at_work(self) -> list[str]:
        return [each.leased.subscription for each in self._slots.running()]

    def _changed(self) -> None:
        self._news.set()
        self._room.set()

    @asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._stopped.set()
            try:
                if not self._slots.idle:  # it was interrupted: what it holds shall not wait for its lease
                    self._slots.stop()
                    self._slots.abandon()
                    with suppress(*TROUBLES):
                        async with asyncio.timeout(FAREWELL):
                            await self._settle(self._settles)
            finally:
                self._slots.close()
                self._claims.drop()
                self._settles.drop()
                with suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL):
                        await self._processes.ended()

    @asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        begun = self._slots.begun = Begun(self._slots.number)
        leases = Leases(
            dsn=self._dsn,
            schema=self._schema,
            notify=self._notify,
            worker=self._identity.id,
            names=self._names,
            every=self._renewal,
            begun=begun,
            heard=self._heard,
        )
        try:
            async with beside(leases.run()):
                yield
        finally:
            begun.close()

    async def _renew(self) -> None:
        """A drain is short: it renews its leases by itself."""
        while True:
            await asyncio.sleep(self._renewal)
            async with asyncio.timeout(DEADLINE), await connection.connect(self._dsn, autocommit=True) as conn:
                at = clock()
                rows = await jobs.renew(conn, self._identity.id, self._names, self._schema)
                self._heard(Report(at, {(row[0], row[1]): (row[2], row[3]) for row in rows}))

    # claim → run

    async def _claim_all(self, looked: Callable[[], None]) -> None:
        trouble = 0
        while not self.stopping:
            self._room.clear()
            if clock() >= self._polls_at:
                self._hungry = self._looking = True
                self._polls_at = clock() + self._poll()
            try:
                if self._starved:
                    await self._settle(self._claims)
                if (asked := self._asked()) is not None:
                    await self._claim(asked)
                    looked()
                    self._voice.recovered(trouble, CLAIM)
                    trouble = 0
                    continue
            except TROUBLES as error:
                if isinstance(error, SchemaMismatch) and self.last_contact == float("-inf"):
                    raise
                trouble += 1
                self._uncertain = self._hungry = True
                await self._troubled(error, self._claims, trouble, CLAIM)
                await within(pause(trouble), self._room.wait())
                continue
            wakes_at = self._polls_at if self._due is None else min(self._due, self._polls_at)
            await within(wakes_at - clock(), self._room.wait())
        self._claims.drop()

    def _asked(self) -> Asked | None:
        if self._due is not None and clock() >= self._due:
            self._hungry, self._due = True, None
        slots = self._slots
        if self._wary and not slots.suspect:
            self._hungry = True
        room = slots.number + self._ahead - slots.busy - slots.waiting
        full = room <= 0 or (slots.busy >= slots.number and slots.waiting > self._ahead // 2)
        if self.stopping or not self._hungry or (full and not self._looking):
            return None
        return Asked(self._identity.id, self._names, max(0, room), self._generation, self._queues, not slots.suspect)

    async def _claim(self, asked: Asked) -> int:
        """What there is room for; how many jobs it was."""
        hit("claim.sent")
        self._claiming, self._wary, sent = True, not asked.suspect, clock()
        looking, self._hungry, self._looking = self._looking, False, False
        try:
            async with asyncio.timeout(DEADLINE):
                conn = await self._claims.open()
                if self._uncertain:
                    await self._reconcile(conn)
                claimed = await self._more(conn, asked)
                if claimed is None:
                    claimed = await jobs.claim(conn, asked, self._schema)
                else:
                    self._looking = self._looking or looking
        finally:
            self._claiming = False
        hit("claim.done")
        self.last_contact = clock()
        self._begin(claimed, asked, sent)
        return len(claimed.rows)

    async def _more(self, conn: AsyncSession, asked: Asked) -> Claimed | None:
        """Of the same lane, for a moment, where there was more than enough: see the SQL function claim_lane."""
        if self._lane is None or clock() >= self._looks_at or not asked.limit:
            self._looks_at = clock() + LOOK
            return None
        return await jobs.claim_lane(conn, asked, self._lane, self._schema)

    def _wait_at_most(self, seconds: float) -> None:
        """What a claim says may be older than what a settlement has said meanwhile: the earlier one counts."""
        at = clock() + seconds
        self._due = at if self._due is None else min(self._due, at)

    async def _reconcile(self, conn: AsyncSession) -> None:
        """What an earlier claim has brought without an answer goes back."""
        rows = await jobs.renew(conn, self._identity.id, self._names, self._schema)
        known = self._slots.known()
        self._slots.back += [Other(row[0], row[1], "back") for row in rows if (row[0], row[1]) not in known]
        self._uncertain = False
        self._changed()

    def _begin(self, claimed: Claimed, asked: Asked, sent: float) -> None:
        self._slots.cancel(claimed.stop)
        self._polls_at = clock() + self._poll()
        more = len(claimed.rows) >= asked.limit
        self._hungry = self._hungry or more
        self._lane = claimed.lane if more else None
        if claimed.due_in is not None and not more:
            self._wait_at_most(claimed.due_in)
        now = clock()
        leased = [Leased(row, now, sent) for row in claimed.rows]
        if not leased:
            return
        for each in leased:
            each.until += each.lease
            self._wary = self._wary or each.suspect
        if self.stopping:  # it was told while the claim was under way
            self._slots.hand_back(leased)
            return
        self._voice.claimed(leased)
        self._slots.add(leased)
        self._news.set()

    # settle

    async def _settle_all(self, claiming: asyncio.Task[None]) -> None:
        trouble = 0
        while True:
            self._news.clear()
            try:
                if await self._settle(self._settles):
                    self._voice.recovered(trouble, SETTLE)
                    trouble, self._starved = 0, False
                    continue
            except TROUBLES as error:
                trouble += 1
                self._starved = isinstance(error, DatabaseUnavailable)
                self._room.set()
                if (sqlstate(error) or "").startswith(("22", "54")):
                    self._slots.without_results()
                await self._troubled(error, self._settles, trouble, SETTLE)
                await within(pause(trouble), self._news.wait())
                continue
            if self._slots.broken is not None:
                raise self._slots.broken
            if claiming.done() and self._slots.idle:
                return
            await within(PROGRESS if not self._slots.idle or self.stopping else None, self._news.wait())
            self._slots.expire()
            if self._slots.shed():
                self._ahead = 0
            await self._tell()

    async def _settle(self, where: OwnSession) -> bool:
        """What has ended; whether there was anything."""
        async with self._one_at_a_time:
            return await self._settle_on(where)

    async def _settle_on(self, where: OwnSession) -> bool:
        outcomes, back = self._slots.begin_settling(), self._slots.back
        if not outcomes and not back:
            return False
        self._slots.back = []
        settling, again = [each.settle for each in outcomes], True
        hit("settle.sent")
        try:
            async with asyncio.timeout(DEADLINE):
                landed = await jobs.settle(
                    await where.open(),
                    [each for each in settling if isinstance(each, Done)],
                    [*(each for each in settling if isinstance(each, Other)), *back],
                    self._names if back else sorted({each.leased.subscription for each in outcomes}),
                    self._worker,
                    self._schema,
                )
            again = False
        finally:
            self._slots.end_settling(again=again)
            if again:
                self._slots.back[:0] = back
                self._again.update(each.leased.delivery for each in outcomes)
        hit("settle.done")
        self.last_contact = clock()
        self._settled(outcomes, landed)
        return True

    def _settled(self, outcomes: Sequence[Outcome], landed: dict[int, str]) -> None:
        done: list[Outcome] = []
        for each in outcomes:
            delivery, settle = each.leased.delivery, each.settle
            outcome = landed.get(delivery)
            if outcome == "held":
                self._slots.hold(each)
            elif outcome is None:
                if delivery not in self._again:  # else it may have landed the first time
                    self._voice.lost(each.leased, "it was another's when it was settled")
            elif isinstance(settle, Done):
                done.append(each)
            elif isinstance(settle, Other):
                self._voice.ended(each, settle, outcome)
                if outcome in ("retry", "back"):
                    self._wait_at_most(settle.delay)
            if each.leased.subscription in self._limited:
                self._hungry = True
        if self._again:
            self._again.difference_update(each.leased.delivery for each in outcomes)
        if done:
            self._voice.completed(done)
        if (passed := clock() - self._counted) > AHEAD_SECONDS / 4:
            rate, self._slots.finished, self._counted = self._slots.finished / passed, 0, clock()
            self._ahead = min(AHEAD, int((self._ahead + rate * AHEAD_SECONDS) / 2))
        self._room.set()

    async def _tell(self) -> None:
        """How far the jobs are."""
        if clock() >= self._told_at + PROGRESS and (said := self._slots.said()):
            self._told_at = clock()
            with suppress(*TROUBLES):
                async with asyncio.timeout(DEADLINE):
                    await jobs.report(await self._settles.open(), said, self._schema)

    # Leases, trouble

    def _heard(self, report: Report) -> None:
        self._slots.heard(report, claiming=self._claiming)
        self._voice.renewed(len(report.held))

    async def _troubled(self, error: BaseException, where: OwnSession, in_a_row: int, loop: str) -> None:
        where.drop()
        self._voice.troubled(error, in_a_row, loop)
        self._slots.expire()
