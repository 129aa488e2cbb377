"""The jobs that a worker holds: those that wait for a slot, those that run, and what became of them until it is settled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic as clock

from outrider.postgres.jobs import Done, Leased, Other
from outrider.worker.job_processes import Processes
from outrider.worker.job_runner import JobRunner, Outcome, Running
from outrider.worker.leases import Begun, Report
from outrider.worker.thread import HandlerThread

BLOCKED = 3.0
PATIENCE = 1.0
HELD = 1.0
"""Seconds until a job that others had locked is settled again."""
BREATH = 0.005
"""Seconds after which a slot yields to the event loop, if its jobs never wait."""


class JobSlots:
    """`on_change` is called whenever a job has ended; `on_lost` when a job is this worker's no more."""

    def __init__(
        self,
        number: int,
        work: Mapping[str, JobRunner],
        processes: Processes,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Leased, str], None],
    ) -> None:
        self.number = number
        self._work = work
        self._processes = processes
        self.begun: Begun | None = None
        self._on_change = on_change
        self._on_lost = on_lost
        self._ready: deque[Leased] = deque()
        self._running: dict[int, Running] = {}
        self._outcomes: list[Outcome] = []
        self._settling: Sequence[Outcome] = ()
        self._held: list[tuple[float, Outcome]] = []
        """Jobs that a transaction of somebody else keeps from being settled, and when to try again."""
        self._runners: set[asyncio.Task[None]] = set()
        self._threads: list[HandlerThread] = []
        self._strange: set[tuple[int, int]] = set()
        """Leases of this worker that it does not know of, as the last report said."""
        self.back: list[Other] = []
        """Of these, what it gives back."""
        self._abandoned = False
        self._expired_at = float("-inf")
        self.finished = 0
        self.broken: BaseException | None = None

    # What there is

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def suspect(self) -> bool:
        """A job is here whose worker has died before."""
        return any(each.suspect for each in self._ready) or any(run.leased.suspect for run in self._running.values())

    @property
    def idle(self) -> bool:
        return not (self._ready or self._running or self._outcomes or self._settling or self._held or self.back)

    def running(self) -> Iterator[Running]:
        return iter(list(self._running.values()))

    def said(self) -> list[tuple[int, int, str]]:
        """How far the jobs are, as they said since the last time: delivery, token and JSON."""
        found: list[tuple[int, int, str]] = []
        for running in self._running.values():
            leased, ctx = running.leased, running.ctx
            text = self._processes.said(leased.delivery) if ctx is None else ctx.said
            if text is not None:
                found.append((leased.delivery, leased.token, text))
            if ctx is not None:
                ctx.said = None
        return found

    def known(self) -> set[tuple[int, int]]:
        held = [*self._ready, *(each.leased for each in self._running.values())]
        held += [each.leased for each in (*self._outcomes, *self._settling, *(each for _, each in self._held))]
        return {(each.delivery, each.token) for each in held}

    # Run

    def add(self, leased: Sequence[Leased]) -> None:
        self._ready.extend(leased)
        self._man()

    def _man(self) -> None:
        while len(self._runners) < min(self.number, len(self._ready) + len(self._running)):
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._ended)

    async def _run(self) -> None:
        """One slot: job after job, while there are any."""
        thread = self._threads.pop() if self._threads else HandlerThread()
        breath = clock()
        while self._ready:
            leased = self._ready.popleft()
            running = Running(leased, clock())
            self._running[leased.delivery] = running
            begun = self.begun
            place = None if begun is None else begun.begin(leased.delivery)
            try:
                outcome = await self._work[leased.subscription].run(running, thread)
            finally:
                if place is not None and begun is not None:
                    begun.end(place)
                held = self._running.get(leased.delivery) is running
                if held:
                    del self._running[leased.delivery]
            if held:
                self.finished += 1
                if outcome.settle is not None:
                    self._outcomes.append(outcome)
                self._on_change()
            if clock() - breath > BREATH:
                await asyncio.sleep(0)
                breath = clock()
        self._threads.append(thread)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self.broken = self.broken or error
        else:
            self._man()  # for what came while it was on its way out, and was counted still
        self._on_change()

    # Settle

    def begin_settling(self) -> Sequence[Outcome]:
        again = [each for at, each in self._held if at <= clock()]
        self._held = [(at, each) for at, each in self._held if at > clock()]
        self._settling, self._outcomes = [*again, *self._outcomes], []
        return self._settling

    def end_settling(self, *, again: bool) -> None:
        if again:
            self._outcomes[:0] = self._settling
        self._settling = ()

    def hold(self, outcome: Outcome) -> None:
        """It could not be settled now. After the grace time it is not tried again, and its lease runs out."""
        if not self._abandoned:
            self._held.append((clock() + HELD, outcome))

    def hand_back(self, leased: Sequence[Leased]) -> None:
        self._outcomes += [Outcome(each, 0.0, Other(each.delivery, each.token, "back")) for each in leased]
        self._on_change()

    # Stop

    def stop(self) -> None:
        """Begin nothing more."""
        waiting = list(self._ready)
        self._ready.clear()
        self.hand_back(waiting)

    def shed(self) -> bool:
        """Give back what has waited for a slot while others may have one: jobs were shorter when it was claimed."""
        late = [each for each in self._ready if clock() - each.since > PATIENCE]
        for each in late:
            self._ready.remove(each)
        if late:
            self.hand_back(late)
        return bool(late)

    def without_results(self) -> None:
        """The database does not take one of the results: the jobs are done all the same."""
        for place, each in enumerate(self._outcomes):
            if isinstance(each.settle, Done) and each.settle.result is not None:
                settle = Done(each.settle.delivery, each.settle.token, '{"not_kept": "Postgres refused it"}')
                self._outcomes[place] = Outcome(each.leased, each.seconds, settle)

    def interrupt(self) -> None:
        """What still runs shall stop."""
        for running in self.running():
            running.stop("back")

    def abandon(self) -> None:
        """What does not stop is handed back all the same, and left behind: a thread, or a task that goes on."""
        self._abandoned = True
        self._held = [(0.0, each) for _, each in self._held]
        left = [running.leased for running in self.running()]
        self._running.clear()
        self.hand_back(left)

    def close(self) -> None:
        for runner in self._runners:
            runner.cancel()
        for thread in self._threads:
            thread.leave()
        self._processes.close()

    def cancel(self, deliveries: Sequence[int]) -> None:
        """Somebody wants these to stop."""
        for delivery in deliveries:
            running = self._running.get(delivery)
            if running is not None and running.reason is None:
                running.stop("cancelled")
        for leased in [each for each in self._ready if each.delivery in deliveries]:
            self._ready.remove(leased)
            self._outcomes.append(Outcome(leased, 0.0, Other(leased.delivery, leased.token, "cancelled")))
            self._on_change()

    # Leases

    def heard(self, report: Report, *, claiming: bool) -> None:
        """What the database holds for this worker: what it does not hold any more was lost. What the worker does not know
        of, twice in a row, came of a claim whose answer was lost."""
        for each in [*(running.leased for running in self._running.values()), *self._ready]:
            found = report.held.get((each.delivery, each.token))
            if found is not None:
                each.until = report.at + found[0]
                if found[1]:
                    self.cancel([each.delivery])
            elif each.since < report.at:
                self._lose(each, "it ran out, or was taken away")
        strange = report.held.keys() - self.known()
        if not claiming:
            self.back += [Other(delivery, token, "back") for delivery, token in strange & self._strange]
        self._strange = set(strange)
        if self.back:
            self._on_change()

    def expire(self) -> None:
        """Called about once a second. After a longer while nobody has listened either: the report may be there already."""
        before, self._expired_at, now = self._expired_at, clock(), clock()
        if now - before > BLOCKED:
            return
        for each in [*(running.leased for running in self._running.values()), *self._ready]:
            if now > each.until:
                self._lose(each, "it could not be renewed in time")

    def _lose(self, leased: Leased, reason: str) -> None:
        running = self._running.get(leased.delivery)
        if running is None:
            self._ready.remove(leased)
            self._on_change()
        elif running.reason == "lost":
            return
        else:
            running.reason = None
            running.stop("lost")
        self._on_lost(leased, reason)
