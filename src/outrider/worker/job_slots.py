"""The jobs that a worker holds: waiting for a slot, running, or ended and not yet settled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic as clock

from outrider import trace
from outrider.postgres.jobs import Leased, Other
from outrider.worker.call_context import call_after
from outrider.worker.deadline import Deadline
from outrider.worker.job_processes import JobProcesses
from outrider.worker.job_runner import EndedJob, JobRunner, RunningJob
from outrider.worker.leases import CrashRecord, LeaseReport
from outrider.worker.thread import HandlerThreads

AHEAD = 1000
"""The most jobs that wait in the worker for a slot."""
AHEAD_SECONDS = 0.1
"""Seconds of work to claim ahead, so that a slot does not wait for a round trip while jobs are short."""
WAITING_SECONDS = 1.0
"""Seconds that a job may wait for a slot. Then it is released, because another worker may have a free one."""
HELD_SECONDS = 1.0
"""Seconds until a job that another session had locked is settled again."""
BUSY_SECONDS = 0.005
"""Seconds after which a slot ends, if its jobs never wait for anything: the event loop has other things to do."""
BLOCKED_SECONDS = 3.0
"""If the event loop was blocked for longer, a report of renewals may be unread. Then no lease counts as expired yet."""


class JobSlots:
    """Owns the jobs of a worker from claim to settlement, and the tasks that run them.

    `on_change` is called when a job has ended, `on_lost` when the lease of a job was lost.
    """

    def __init__(
        self,
        number: int,
        runners: Mapping[str, JobRunner],
        threads: HandlerThreads,
        processes: JobProcesses,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Leased, str], None],
    ) -> None:
        self.number = number
        self.record = CrashRecord(number)
        self._runners = runners
        self._threads, self._processes = threads, processes
        self._on_change = on_change
        self._on_lost = on_lost
        self._waiting: deque[Leased] = deque()
        self._running: dict[int, RunningJob] = {}
        self._suspect: Leased | None = None
        """The last one. No other is claimed while it is here."""
        self._ended: list[EndedJob] = []
        self._settling: Sequence[EndedJob] = ()
        self._held: list[tuple[float, EndedJob]] = []
        """Jobs that another session had locked when they were settled, and when to settle them again."""
        self._unknown: set[tuple[int, int]] = set()
        """Leases of this worker in the last report whose jobs are not here: the answer of their claim was lost."""
        self._to_release: list[Other] = []
        """Unknown leases, to be released with the next settlement."""
        self._traced = False
        """Somebody collects spans. Looked up once per claim, because it takes 1 µs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._abandoned = False
        self._expired_at = float("-inf")
        self._ahead = 0
        """How many more jobs to claim than there are slots."""
        self._finished, self._measured_at = 0, clock()
        """Jobs that have ended since that time."""
        self._error: BaseException | None = None

    # What is here

    @property
    def suspect(self) -> bool:
        """One of these jobs may have killed a worker."""
        return self._suspect is not None and self._suspect in self._here()

    @property
    def idle(self) -> bool:
        held = self._waiting or self._running or self._ended or self._settling or self._held
        return not (held or self._to_release)

    @property
    def room(self) -> int:
        """How many jobs to claim now. None while all slots are busy and enough jobs wait for them."""
        busy, waiting = len(self._running), len(self._waiting)
        if busy >= self.number and waiting > self._ahead // 2:
            return 0
        return max(0, self.number + self._ahead - busy - waiting)

    def check(self) -> None:
        """Raises the error that ended a slot, if any."""
        if self._error is not None:
            raise self._error

    def running(self) -> Iterator[RunningJob]:
        return iter(list(self._running.values()))

    def progress(self) -> list[tuple[int, int, str]]:
        """The progress that jobs have reported since the last call: delivery, token and JSON."""
        found: list[tuple[int, int, str]] = []
        for running in self._running.values():
            leased, ctx = running.leased, running.ctx
            text = self._processes.progress(leased.delivery) if ctx is None else ctx.take_progress()
            if text is not None:
                found.append((leased.delivery, leased.token, text))
        return found

    def _here(self) -> list[Leased]:
        return [*(each.leased for each in self._running.values()), *self._waiting]

    # Run

    def add(self, leased: Sequence[Leased]) -> None:
        self._traced = trace.collected()
        self._waiting.extend(leased)
        self._suspect = next((each for each in leased if each.suspect), self._suspect)
        self._start()

    def _start(self) -> None:
        """Start one slot, if a job waits for it. The next one starts when this one waits for its job, or has ended: as long
        as jobs do not wait for anything, one slot runs them all."""
        if self._waiting and len(self._tasks) < self.number:
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    async def _run(self) -> None:
        """One slot: job after job, until one has waited."""
        # Every job begins and ends in this task, because asyncio.timeout and others keep the task in which they began. Only
        # a job that never waits shares it: what a job leaves in its task, such as a cancellation, is not the next job's.
        with Deadline("", None) as deadline:
            asyncio.get_running_loop().call_soon(self._waits, deadline)
            until = clock() + BUSY_SECONDS
            task = deadline.task
            while self._waiting and not deadline.watched and not task.cancelling() and clock() < until:
                leased = self._waiting.popleft()
                running = RunningJob(leased, task)
                self._running[leased.delivery] = running
                place = self.record.begin(leased.delivery)
                try:
                    ended = await self._runners[leased.subscription].run(running, deadline, traced=self._traced)
                finally:
                    self.record.end(place)
                    ours = self._running.get(leased.delivery) is running
                    if ours:
                        del self._running[leased.delivery]
                if ours:
                    self._finished += 1
                    if ended is not None:
                        self._ended.append(ended)

    def _waits(self, deadline: Deadline) -> None:
        """The event loop goes on: the slot waits for its job, or has ended."""
        if not deadline.task.done():
            deadline.watch()
            self._start()
            if self._ended:
                self._on_change()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        else:
            self._start()
        self._on_change()

    def adapt(self) -> None:
        """Set how many jobs to claim ahead, by the rate at which jobs have ended lately."""
        if (passed := clock() - self._measured_at) > AHEAD_SECONDS / 4:
            rate, self._finished, self._measured_at = self._finished / passed, 0, clock()
            self._ahead = min(AHEAD, int((self._ahead + rate * AHEAD_SECONDS) / 2))

    # Settle

    @contextmanager
    def settling(self) -> Iterator[tuple[Sequence[EndedJob], Sequence[Other]]]:
        """The jobs that have ended, and the unknown leases to release. If the block fails, they are settled again."""
        now = clock()
        ended = [*(each for at, each in self._held if at <= now), *self._ended]
        self._held = [(at, each) for at, each in self._held if at > now]
        unknown, self._to_release = self._to_release, []
        self._settling, self._ended = ended, []
        try:
            yield ended, unknown
        except BaseException:
            for each in ended:
                each.sent_before = True
            self._ended[:0] = ended
            self._to_release[:0] = unknown
            raise
        finally:
            self._settling = ()

    def hold(self, ended: EndedJob) -> None:
        """Another session had it locked: settle it again. After the grace time its lease runs out instead."""
        if not self._abandoned:
            self._held.append((clock() + HELD_SECONDS, ended))

    def drop_results(self) -> None:
        """The database refuses one of the results. The jobs are done all the same."""
        for each in self._ended:
            if each.result is not None:
                each.result = '{"not_kept": "Postgres refused it"}'

    def release(self, leased: Sequence[Leased], verdict: str = "back") -> None:
        """Give jobs back that have not run, or not to their end."""
        self._ended += [EndedJob(each, other=Other(each.delivery, each.token, verdict)) for each in leased]
        self._on_change()

    # Stop

    def stop(self) -> None:
        """Begin no further job."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.release(waiting)

    def shed(self) -> None:
        """Release jobs that have waited too long for a slot: jobs were shorter when they were claimed."""
        late = [each for each in self._waiting if clock() - each.since > WAITING_SECONDS]
        if late:
            for each in late:
                self._waiting.remove(each)
            self._ahead = 0
            self.release(late)

    def interrupt(self) -> None:
        """Cancel the running jobs."""
        for running in self.running():
            running.stop("back")

    def abandon(self) -> None:
        """Release the jobs that do not stop. Their threads and tasks go on without us."""
        self._abandoned = True
        self._held = [(0.0, each) for _, each in self._held]
        left = [running.leased for running in self.running()]
        self._running.clear()
        self.release(left)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._threads.close()
        self._processes.close()

    def cancel(self, deliveries: Sequence[int]) -> None:
        """Somebody wants these jobs to stop."""
        for delivery in deliveries:
            running = self._running.get(delivery)
            if running is not None and running.reason is None:
                running.stop("cancelled")
        if waiting := [each for each in self._waiting if each.delivery in deliveries]:
            for each in waiting:
                self._waiting.remove(each)
            self.release(waiting, "cancelled")

    # Leases

    def compare(self, report: LeaseReport, *, claiming: bool) -> None:
        """A job whose lease is not in the report was lost. A lease in two reports in a row whose job is not here is
        released, unless a claim is under way."""
        for each in self._here():
            found = report.held.get((each.delivery, each.token))
            if found is not None:
                each.until = report.at + found[0]
                if found[1]:
                    self.cancel([each.delivery])
            elif each.since < report.at:
                self._lose(each, "its lease ran out, or was taken away")
        unknown = self._not_here(report)
        if not claiming:
            self._release_leases(unknown & self._unknown)
        self._unknown = unknown

    def release_unknown(self, report: LeaseReport) -> None:
        """After a failed claim: whatever it may have claimed is released."""
        self._release_leases(self._not_here(report))

    def _release_leases(self, leases: set[tuple[int, int]]) -> None:
        if leases:
            self._to_release += [Other(delivery, token, "back") for delivery, token in leases]
            self._on_change()

    def _not_here(self, report: LeaseReport) -> set[tuple[int, int]]:
        ended = (*self._ended, *self._settling, *(each for _, each in self._held))
        here = [*self._here(), *(each.leased for each in ended)]
        return report.held.keys() - {(each.delivery, each.token) for each in here}

    def expire(self) -> None:
        """Stop the jobs whose leases could not be renewed in time. Called about once a second."""
        before, now = self._expired_at, clock()
        self._expired_at = now
        if now - before > BLOCKED_SECONDS:
            return
        for each in self._here():
            if now > each.until:
                self._lose(each, "its lease could not be renewed in time")

    def _lose(self, leased: Leased, reason: str) -> None:
        running = self._running.get(leased.delivery)
        if running is None:
            self._waiting.remove(leased)
            self._on_change()
        elif running.reason == "lost":
            return
        else:
            running.reason = None
            running.stop("lost")
        call_after(None if running is None else running.context, self._on_lost, leased, reason)
