"""The signals about jobs, and the counts of a drain."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

from outrider.error_text import code_of, describe
from outrider.job import JobRun
from outrider.postgres.jobs import TRACE, WORKSPACE, Leased, Other
from outrider.postgres.log import trace_of
from outrider.signals import (
    JobFailed,
    JobReleased,
    JobsClaimed,
    JobsCompleted,
    LeaseLost,
    LeasesRenewed,
    Recovered,
    Signals,
    Troubled,
)
from outrider.trace import trace_id
from outrider.worker.call_context import call_after
from outrider.worker.job_runner import EndedJob

JOBS = "(jobs)"
"""The name of the job loop in signals, in place of a subscription."""


@dataclass(slots=True)
class Counts:
    """The jobs of one drain."""

    completed: int = 0
    failed: int = 0
    buried: int = 0
    error: BaseException | None = None
    """The first one."""


class JobSignals:
    def __init__(self, signals: Signals, worker: str) -> None:
        self._signals = signals
        self._worker = worker
        self.counts: Counts | None = None
        """Only for a drain: an error keeps its frames alive."""

    def renewed(self, leases: int) -> None:
        if leases:
            self._signals.emit(LeasesRenewed(leases))

    def claimed(self, leased: Sequence[Leased]) -> None:
        self._signals.emit(JobsClaimed(len(leased), lambda: (self._run(each) for each in leased)))

    def completed(self, done: Sequence[EndedJob]) -> None:
        if self.counts is not None:
            self.counts.completed += len(done)
        details = lambda: ((self._run(each.leased, each.context), each.seconds * 1000) for each in done)  # noqa: E731
        self._signals.emit(JobsCompleted(len(done), details))

    def ended(self, outcome: EndedJob, settle: Other, landed: str) -> None:
        """It failed, or was released."""
        run = self._run(outcome.leased)
        if settle.verdict in ("back", "cancelled") or landed == "cancelled":
            call_after(outcome.context, self._signals.emit, JobReleased(run, landed))
            return
        if self.counts is not None:
            self.counts.failed += 1
            self.counts.buried += landed == "buried"
            if self.counts.error is None:
                self.counts.error = outcome.error
        code, message = settle.code or "error", settle.message or ""
        failed = JobFailed(run, outcome.seconds * 1000, code, message, landed, outcome.error)
        call_after(outcome.context, self._signals.emit, failed)

    def lost(self, leased: Leased, reason: str) -> None:
        self._signals.emit(LeaseLost(self._run(leased), reason))

    def troubled(self, error: BaseException, in_a_row: int, loop: str) -> None:
        self._signals.emit(Troubled(JOBS, code_of(error), describe(error), in_a_row, loop))

    def recovered(self, in_a_row: int, loop: str) -> None:
        if in_a_row:
            self._signals.emit(Recovered(JOBS, in_a_row, loop))

    def _run(self, leased: Leased, context: Context | None = None) -> JobRun:
        row = leased.row
        traced = None if row[TRACE] is None else trace_id(trace_of(row[TRACE]))
        return JobRun(
            leased.subscription, leased.id, leased.key, leased.attempt, self._worker, row[WORKSPACE], traced, context
        )
