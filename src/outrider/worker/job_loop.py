"""The hot path of jobs: claim → run → settle.

One session claims jobs into the slots, which run them (job_slots.py). Another session settles the jobs that have ended. Both
work at the same time, and a side process renews the leases (leases.py). When a worker dies, its jobs are pending again once
their leases have ended, and nothing that it settles after that is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic as clock

from outrider.error_text import sqlstate
from outrider.errors import DatabaseUnavailable, SchemaMismatch
from outrider.failpoint import hit
from outrider.postgres import jobs
from outrider.postgres.errors import queue_is_full
from outrider.postgres.heartbeat import Identity
from outrider.postgres.jobs import LEASE, Claimed, ClaimRequest, Lane, Leased
from outrider.postgres.worker_sessions import OwnSession
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_processes import JobProcesses
from outrider.worker.job_runner import EndedJob, JobRunner
from outrider.worker.job_signals import JOBS, Counts, JobSignals
from outrider.worker.job_slots import JobSlots
from outrider.worker.leases import RENEWAL, LeaseReport, Leases
from outrider.worker.loop import DEADLINE, TROUBLES, Loop, beside, pause, within
from outrider.worker.site import SLOTS, Site
from outrider.worker.thread import HandlerThreads

SHUTDOWN_SECONDS = 1.0
"""Seconds to release the jobs of an interrupted loop, and again for the processes of jobs to end."""
CANCEL_SECONDS = 0.4
"""Seconds to wait for cancelled jobs to stop, and again for them to be released."""
SAME_LANE_SECONDS = 1.0
"""Seconds that only one lane is claimed from before all lanes are looked at again."""
TICK_SECONDS = 1.0
"""Seconds between two looks at leases that have ended, and between two reports of progress."""
NOW = float("-inf")
CLAIM, SETTLE = "claim", "settle"


class JobLoop(Loop):
    """Claims jobs from the database into the slots, and settles the jobs that have ended there.

    Claims and settlements overlap, so it has a `run` of its own.
    """

    def __init__(
        self,
        site: Site,
        identity: Identity,
        handlers: Sequence[JobHandler],
        *,
        slots: int = SLOTS,
        queues: Sequence[str] = (),
        poll: Callable[[], float] = lambda: 5.0,
    ) -> None:
        super().__init__(JOBS, site.signals, types=frozenset(each.name for each in handlers))
        self._identity, self._worker = identity, str(identity)
        self._schema, self._generation = site.settings.schema, site.settings.generation
        self._strict = site.settings.generations == "strict"
        self._names = sorted(each.name for each in handlers)
        self._limited = {each.name for each in handlers if each.limited}
        self._queues = list(queues) or None
        self._poll = poll
        self._jobs = JobSignals(site.signals, self._worker)
        self._processes, threads = JobProcesses(), HandlerThreads()
        runners = {
            each.name: JobRunner(each, site.pool.connection, site.dsn, threads, self._processes) for each in handlers
        }
        self._slots = JobSlots(
            slots, runners, threads, self._processes, on_change=self._changed, on_lost=self._jobs.lost
        )
        every = min([RENEWAL, *(each.lease.total_seconds() / 3 for each in handlers)])
        self._leases = Leases(site, identity.id, self._names, every, self._slots.record, on_report=self._reported)
        self._claims, self._settlements = (
            OwnSession(site.dsn, site.settings.notify, "outrider jobs") for _ in range(2)
        )
        self._may_claim, self._may_settle = asyncio.Event(), asyncio.Event()
        self._claim_at = NOW
        """When to claim, if there is room. Times are by time.monotonic."""
        self._look_at = NOW
        """When to claim even without room: the answer also says which jobs to stop."""
        self._all_lanes_at = NOW
        """When to look at all lanes again."""
        self._lane: Lane | None = None
        """The only lane that held jobs at the last claim, if it held more than were claimed."""
        self._had_suspect = False
        """A suspect was in a slot or waited for one. When it has gone, another suspect may be claimed."""
        self._claiming = False
        self._uncertain = False
        """A claim failed, and may have been committed."""
        self._one_session = False
        """There is no connection for settlements: the session that claims settles too."""
        self._settling = asyncio.Lock()
        self._progress_at = NOW
        """When progress is reported again."""

    # Start and stop

    async def run(self, looked: Callable[[], None] = lambda: None) -> None:
        """Until it is told to stop, and everything that it has begun is settled."""
        async with beside(self._leases.run()), self._ending():
            claiming = asyncio.create_task(self._claim_all(looked))
            claiming.add_done_callback(lambda _: self._may_settle.set())
            tasks = [claiming, asyncio.create_task(self._settle_all(claiming))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self) -> Counts:
        """Run all jobs that are due now, and the jobs that they enqueue. Then return."""
        counts = self._jobs.counts = Counts()
        async with beside(self._leases.renew_here()), self._ending():
            while True:
                self._claim_at = NOW
                request = self._request()
                claimed = 0 if request is None else await self._claim(request)
                if await self._settle(self._settlements):
                    continue
                self._slots.check()
                if not claimed and self._slots.idle:
                    return counts
                if not claimed:
                    await within(TICK_SECONDS, self._may_settle.wait())
                self._may_settle.clear()

    async def step(self) -> float:
        raise NotImplementedError

    def wake(self, reason: str) -> None:  # noqa: ARG002
        """There may be a job to claim, or to stop."""
        self._claim_at = self._look_at = NOW
        self._may_claim.set()

    def stop(self) -> None:
        """Claim nothing more. Release the jobs that have not begun."""
        super().stop()
        self._slots.stop()
        self._changed()

    async def finish(self, over: asyncio.Event) -> bool:
        """Running jobs may end until the grace time is over. The others are cancelled and released."""
        finished = await super().finish(over)
        for end in (self._slots.interrupt, self._slots.abandon):
            if self.task is not None and not self.task.done():
                end()
                await asyncio.wait([self.task], timeout=CANCEL_SECONDS)
        return finished

    def ignore_crashes(self) -> None:
        self._slots.record.clear()

    def at_work(self) -> list[str]:
        return [each.leased.subscription for each in self._slots.running()]

    def _changed(self) -> None:
        self._may_settle.set()
        self._may_claim.set()

    @asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._stopped.set()
            try:
                if not self._slots.idle:  # interrupted: release the jobs now, not at the end of their leases
                    self._slots.stop()
                    self._slots.abandon()
                    with suppress(*TROUBLES):
                        async with asyncio.timeout(SHUTDOWN_SECONDS):
                            await self._settle(self._settlements)
            finally:
                self._slots.close()
                self._claims.drop()
                self._settlements.drop()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SHUTDOWN_SECONDS):
                        await self._processes.ended()

    # claim → run

    async def _claim_all(self, looked: Callable[[], None]) -> None:
        failures = 0
        while not self.stopping:
            self._may_claim.clear()
            try:
                if self._one_session:
                    await self._settle(self._claims)
                if (request := self._request()) is None:
                    await within(self._claim_in(), self._may_claim.wait())
                    continue
                await self._claim(request)
                looked()
                self._jobs.recovered(failures, CLAIM)
                failures = 0
            except TROUBLES as error:
                if isinstance(error, SchemaMismatch) and self.last_contact == NOW:
                    raise
                failures += 1
                self._uncertain, self._claim_at, self._look_at = True, NOW, NOW
                self._failed(error, self._claims, failures, CLAIM)
                await within(pause(failures), self._may_claim.wait())
        self._claims.drop()

    def _request(self) -> ClaimRequest | None:
        """What to claim now. None: nothing yet."""
        suspect = self._slots.suspect
        if self._had_suspect and not suspect:
            self._claim_at = NOW
        self._had_suspect = suspect
        if self.stopping or self._claim_in() > 0:
            return None
        return ClaimRequest(
            self._identity.id, self._names, self._slots.room, self._generation, self._queues, not suspect, self._strict
        )

    def _claim_in(self) -> float:
        """Seconds until the next claim, if no job ends before."""
        return (min(self._claim_at, self._look_at) if self._slots.room else self._look_at) - clock()

    async def _claim(self, request: ClaimRequest) -> int:
        """Claim jobs and give them to the slots. Returns how many."""
        hit("claim.sent")
        sent = clock()
        poll_at = sent + self._poll()
        lane = self._lane if request.limit and sent < self._all_lanes_at else None
        if lane is None:
            self._look_at, self._all_lanes_at = poll_at, sent + SAME_LANE_SECONDS
        if self._claim_at <= sent:
            self._claim_at = poll_at
        self._claiming = True
        try:
            async with asyncio.timeout(DEADLINE):
                conn = await self._claims.open()
                if self._uncertain:
                    self._slots.release_unknown(await self._leases.renew(conn))
                    self._uncertain = False
                if lane is None:
                    claimed = await jobs.claim(conn, request, self._schema)
                else:
                    claimed = await jobs.claim_lane(conn, request, lane, self._schema)
        finally:
            self._claiming = False
        hit("claim.done")
        self.last_contact = clock()
        self._begin(claimed, request.limit, sent)
        return len(claimed.rows)

    def _begin(self, claimed: Claimed, limit: int, sent: float) -> None:
        self._slots.cancel(claimed.stop)
        more = len(claimed.rows) >= limit
        self._lane = claimed.lane if more else None
        if more:
            self._claim_at = NOW
        elif claimed.due_in is not None:
            self._claim_within(claimed.due_in)
        now = clock()
        leased = [Leased(row, now, sent + row[LEASE]) for row in claimed.rows]
        if not leased:
            return
        self._had_suspect = self._had_suspect or any(each.suspect for each in leased)
        if self.stopping:  # since the claim was sent
            self._slots.release(leased)
            return
        self._jobs.claimed(leased)
        self._slots.add(leased)
        self._may_settle.set()

    def _claim_within(self, seconds: float) -> None:
        """The earliest time counts: the answer of a claim may be older than that of a settlement."""
        self._claim_at = min(self._claim_at, clock() + seconds)

    # settle

    async def _settle_all(self, claiming: asyncio.Task[None]) -> None:
        failures = 0
        while True:
            self._may_settle.clear()
            try:
                if await self._settle(self._settlements):
                    self._jobs.recovered(failures, SETTLE)
                    failures, self._one_session = 0, False
                    continue
            except TROUBLES as error:
                failures += 1
                self._one_session = isinstance(error, DatabaseUnavailable)
                self._may_claim.set()
                if (sqlstate(error) or "").startswith(("22", "54")) and not queue_is_full(error):
                    self._slots.drop_results()
                self._failed(error, self._settlements, failures, SETTLE)
                await within(pause(failures), self._may_settle.wait())
                continue
            self._slots.check()
            if claiming.done() and self._slots.idle:
                return
            await within(TICK_SECONDS if not self._slots.idle or self.stopping else None, self._may_settle.wait())
            self._slots.expire()
            self._slots.shed()
            await self._report_progress()

    async def _settle(self, session: OwnSession) -> bool:
        """Settle the jobs that have ended. Returns whether there were any."""
        async with self._settling:
            with self._slots.settling() as (ended, unknown):
                if not ended and not unknown:
                    return False
                done = [each for each in ended if each.other is None]
                hit("settle.sent")
                async with asyncio.timeout(DEADLINE):
                    landed = await jobs.settle(
                        await session.open(),
                        [each.leased for each in done],
                        [each.result for each in done],
                        [*(each.other for each in ended if each.other is not None), *unknown],
                        self._names if unknown else sorted({each.leased.subscription for each in ended}),
                        self._worker,
                        self._schema,
                    )
            hit("settle.done")
            self.last_contact = clock()
            self._settled(ended, landed)
            return True

    def _settled(self, ended: Sequence[EndedJob], landed: dict[int, str]) -> None:
        done: list[EndedJob] = []
        for each in ended:
            outcome = landed.get(each.leased.delivery)
            if outcome == "held":
                self._slots.hold(each)
            elif outcome is None:
                if not each.sent_before:
                    self._jobs.lost(each.leased, "another worker had it when it was settled")
            elif each.other is None:
                done.append(each)
            else:
                self._jobs.ended(each, each.other, outcome)
                if outcome in ("retry", "back"):
                    self._claim_within(each.other.delay)
        if self._limited and any(each.leased.subscription in self._limited for each in ended):
            self._claim_at = NOW
        if done:
            self._jobs.completed(done)
        self._slots.adapt()
        self._may_claim.set()

    async def _report_progress(self) -> None:
        if clock() >= self._progress_at and (progress := self._slots.progress()):
            self._progress_at = clock() + TICK_SECONDS
            with suppress(*TROUBLES):
                async with asyncio.timeout(DEADLINE):
                    await jobs.report(await self._settlements.open(), progress, self._schema)

    # Leases and failures

    def _reported(self, report: LeaseReport) -> None:
        self._slots.compare(report, claiming=self._claiming)
        self._jobs.renewed(len(report.held))

    def _failed(self, error: BaseException, session: OwnSession, in_a_row: int, what: str) -> None:
        session.drop()
        self._jobs.troubled(error, in_a_row, what)
        self._slots.expire()
