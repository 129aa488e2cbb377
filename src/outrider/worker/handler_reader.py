"""The hot path of events: take → handle → settle, one batch after the other.

A take locks a partition, reads the batch, writes its receipts and moves the position. Then the handlers run in that same
transaction, and settle commits it. When a handler fails, everything is rolled back, and in the same round trip the event is
parked (it waits for a retry) or becomes a dead letter. The next take passes it over and returns the others.

What the next take is asked for depends on what happened before: next_take.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic as clock
from time import time

from outrider import trace
from outrider.envelope import Envelope, HandledEvent
from outrider.error_text import describe, last_frames, sqlstate
from outrider.errors import DatabaseUnavailable, TransactionEnded
from outrider.failpoint import hit
from outrider.outcome import Dead, Infrastructure, Later, Verdict, classify
from outrider.postgres import handler_batches
from outrider.postgres.connection import DatabaseError
from outrider.postgres.errors import queue_is_full
from outrider.postgres.handler_batches import Claim, Connection, Row
from outrider.postgres.log import ATTEMPT, SEQ, TYPE, envelope_of, occurred
from outrider.postgres.worker_sessions import usable
from outrider.retry import Breaker, parse_duration
from outrider.signals import Buried, Failed, Recovered, RetryScheduled, Settled, Signals, Taken, Troubled
from outrider.worker.batch_runner import Call, Failure, Runner
from outrider.worker.call_context import call_after
from outrider.worker.handler import Handler
from outrider.worker.next_take import NextTake

ISOLATE_AFTER = 3
"""After this many consecutive infrastructure failures, events are taken one at a time."""
FAILURES_ALONE = 10
"""After this many infrastructure failures, an event that was taken alone waits for a retry."""
ALONE_DELAY = timedelta(seconds=30)
"""How long that event waits."""
UNIQUE_VIOLATION = "23505"
_OUTCOMES = {Later: "failed", Dead: "dead", Infrastructure: "troubled"}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How one batch ended, and how many of its events were handled, skipped, left to retry, or became dead letters."""

    outcome: str
    handled: int = 0
    duplicates: int = 0
    to_retry: int = 0
    buried: int = 0
    due_in: float | None = None
    errors: tuple[BaseException, ...] = ()
    code: str = ""
    """The code of an infrastructure failure."""

    @property
    def again(self) -> bool:
        """There may be more to do at once."""
        return self.outcome in ("more", "done", "probe", "suspect", "armed", "failed")

    @property
    def caught_up(self) -> bool:
        """All that was published before the take is handled, and nothing waits for a retry."""
        return self.outcome == "done"


@dataclass(frozen=True, slots=True)
class _UnreportedFailure:
    """A failure that the database does not know yet."""

    cursor: int | None
    batch: int | None
    envelope: Envelope
    attempt: int
    verdict: Later | Dead
    error: BaseException
    context: Context | None
    breaker: Breaker | None
    """The breaker that counts the failure, if any."""
    failed_probe: bool
    """The event was the probe of an open breaker. Another event is the next probe."""

    def as_json(self) -> str:
        later = self.verdict if isinstance(self.verdict, Later) else None
        failure: dict[str, object] = {
            "seq": self.envelope.seq,
            "attempt": self.attempt,
            "delay": later.delay.total_seconds() if later else 0,
            "code": self.verdict.code,
            "message": self.verdict.message,
            "traceback": last_frames(self.error),
            "counted": later.counted if later else True,
            "dead": later is None,
            "batch": f"{self.cursor}.{self.batch}",
        }
        if self.breaker is not None:
            probe, longest = parse_duration(self.breaker.probe), parse_duration(self.breaker.longest)
            failure |= {"trip": self.breaker.failures, "spared": self.failed_probe}
            failure |= {"probe": probe.total_seconds(), "longest": longest.total_seconds()}
        return json.dumps([failure])


class HandlerReader:
    """Reads one generation of a handler's subscription, one batch at a time."""

    def __init__(
        self, handler: Handler, signals: Signals, *, schema: str, generation: int, worker: str, loop: str = ""
    ) -> None:
        self.handler = handler
        self.loop = loop
        """The id of the loop that reads, for signals."""
        self._runner = Runner(handler)
        self._signals = signals
        self._schema = schema
        self.generation = generation
        self._worker = worker
        self.next_take = NextTake(handler, generation, worker)
        self._unreported: _UnreportedFailure | None = None
        self._cursor: int | None = None
        """The cursor of the last batch, which unreported rollbacks belong to."""
        self._running: int | None = None
        """The cursor of the batch that runs, until its rollback is excused."""
        self._failures_alone: dict[int, int] = {}
        """By log position: infrastructure failures of an event that was taken alone."""
        self.failures = 0
        """Consecutive infrastructure failures."""
        self.asked_at: float | None = None
        """When the statement was sent whose answer it waits for: a take, a commit, or the record of a failure."""

    def close(self) -> None:
        self._runner.close()

    async def step(self, conn: Connection) -> BatchResult:
        """Take and handle one batch. It is committed, or rolled back with the failed event parked."""
        if self._unreported is not None:
            return await self._report_failure(conn, self._unreported)
        hit("take.sent")
        self.asked_at = clock()
        try:
            claim = await handler_batches.take(conn, self.next_take.request(), self._schema)
        except DatabaseError as error:
            if sqlstate(error) != UNIQUE_VIOLATION or not self.next_take.be_careful():
                raise
            await handler_batches.roll_back(conn)
            return BatchResult("failed")
        self.asked_at = None
        hit("take.done")
        self._signals.emit(Taken(self.handler.name, claim.partition, len(claim.rows), claim.outcome))
        if claim.batch is None:
            await self._end_empty_take(conn, claim)
            return BatchResult(claim.outcome, due_in=claim.due_in)
        self._cursor = self._running = claim.cursor
        begun, spans = clock(), trace.handling(self.handler.name) if claim.rows else None
        try:
            calls = await self._runner.run(conn, claim.rows, spans) if claim.rows else []
            handled = clock() - begun
            hit("commit.before")
            self.asked_at = clock()
            await handler_batches.settle(conn, claim.batch, self._schema)
            self.asked_at = None
            hit("commit.after")
        except Failure as failure:
            return await self._handle_failure(conn, claim, failure, spans)
        except DatabaseError as error:
            return await self._handle_failure(
                conn, claim, Failure(claim.rows, error, 0, ours=True, at_commit=True), spans
            )
        except BaseException:  # the worker is ending
            self.next_take.rollbacks += self._running is not None
            if spans is not None:
                spans.end("rolled_back")
            raise
        finally:
            self._running = None
        if spans is not None:
            spans.end("success")
        return self._finish_batch(claim, calls, handled, clock() - begun)

    async def _end_empty_take(self, conn: Connection, claim: Claim) -> None:
        await handler_batches.end_idle(conn)
        if self.next_take.gives_up_suspect(claim.outcome):
            await self.disarm(conn)
        self.next_take.after_nothing()
        if claim.outcome != "busy":
            self._report_recovery()

    def _report_recovery(self) -> None:
        if self.failures:
            self._signals.emit(Recovered(self.handler.name, self.failures, self.loop))
        self.failures = 0

    def _finish_batch(self, claim: Claim, calls: list[Call], handled: float, seconds: float) -> BatchResult:
        assert claim.partition is not None
        name, events, duplicates = self.handler.name, len(claim.rows), claim.duplicates or 0
        self.next_take.after_batch(claim, handled)
        self._failures_alone.clear()
        self._report_recovery()
        details = _Details(claim.rows, calls)
        self._signals.emit(Settled(name, claim.partition, events, duplicates, seconds * 1000, details, details.times))
        return BatchResult(claim.outcome, events, duplicates, due_in=claim.due_in)

    async def _handle_failure(
        self, conn: Connection, claim: Claim, failure: Failure, spans: trace.BatchSpans | None
    ) -> BatchResult:
        self.next_take.after_failure(claim)
        verdict, rows = self._classify(failure), failure.rows
        if spans is not None:
            spans.end(_OUTCOMES[type(verdict)], failure.error)
        if isinstance(failure.error, TimeoutError) or not handler_batches.in_use(conn):
            handler_batches.end(conn)  # whatever the handler left running on it ends too
        if isinstance(verdict, Infrastructure) or len(rows) != 1:
            await self._roll_back(conn, claim.cursor)
            hit("rollback.after")
            return self._retry_batch(claim, verdict, rows)
        envelope, attempt = envelope_of(rows[0]), rows[0][ATTEMPT]
        failed = Failed(self.handler.name, envelope, attempt, failure.seconds * 1000, verdict, failure.error)
        call_after(failure.context, self._signals.emit, failed)
        self.next_take.armed = None
        counts = isinstance(verdict, Dead) or verdict.counted
        breaker = self.handler.breaker if counts else None
        failed_probe = (
            breaker is not None and claim.outcome == "probe" and not (isinstance(verdict, Dead) and verdict.terminal)
        )
        if failed_probe:
            verdict = Later(timedelta(0), verdict.code, verdict.message, counted=False)
        self._unreported = _UnreportedFailure(
            claim.cursor,
            claim.batch,
            envelope,
            attempt,
            verdict,
            failure.error,
            failure.context,
            breaker,
            failed_probe,
        )
        hit("rollback.after")
        return await self._report_failure(conn, self._unreported) if usable(conn) else BatchResult("failed")

    def _retry_batch(self, claim: Claim, verdict: Verdict, rows: Sequence[Row]) -> BatchResult:
        """Try the batch again. If one of several events is to blame, they are taken one at a time to find it."""
        if rows and not isinstance(verdict, Infrastructure):
            self.next_take.one_by_one(len(rows))
            return BatchResult("failed")
        self.failures += 1
        self._signals.emit(Troubled(self.handler.name, verdict.code, verdict.message, self.failures, self.loop))
        if self.failures >= ISOLATE_AFTER:
            self.next_take.one_by_one(len(claim.rows))
        return BatchResult("troubled", code=verdict.code)

    async def _roll_back(self, conn: Connection, cursor: int | None) -> None:
        """Roll back, and report that it was no death of a worker."""
        try:
            if usable(conn):
                await self._park(conn, cursor, None, self.next_take.armed)
                self.next_take.armed = None
                return
        except DatabaseError:
            handler_batches.end(conn)
        self.next_take.rollbacks += 1

    def excuse(self, dsn: str) -> None:
        """Report that the death of this process is not to be blamed on the batch that runs, nor on the armed suspect.

        Called from a thread, because the event loop may be blocked. If the batch is committed or fails nevertheless, the
        excuse hides one death of a worker until the next batch is committed.
        """
        cursor, armed = self._running, self.next_take.armed
        self._running = self.next_take.armed = None
        if cursor is not None or armed is not None:
            try:
                handler_batches.excuse(dsn, self.handler.name, cursor, armed, self._schema)
            except (DatabaseError, DatabaseUnavailable, OSError):  # `finish` reports it, if the process lives that long
                self.next_take.armed = armed
                self.next_take.rollbacks += cursor is not None

    @property
    def unfinished(self) -> bool:
        """Something must be reported to the database before this reader ends."""
        return self._unreported is not None or self.next_take.rollbacks > 0 or self.next_take.armed is not None

    async def finish(self, conn: Connection) -> None:
        if self._unreported is not None:
            await self._report_failure(conn, self._unreported)
        while self.next_take.rollbacks:
            await self._park(conn, self._cursor, None, self.next_take.armed)
            self.next_take.armed = None
            self.next_take.rollbacks -= 1
        if self.next_take.armed is not None:
            await self.disarm(conn)

    async def disarm(self, conn: Connection) -> None:
        """Do not run the armed suspect: uncount its crash."""
        await self._park(conn, None, None, self.next_take.armed)
        self.next_take.armed = None

    async def _report_failure(self, conn: Connection, failure: _UnreportedFailure) -> BatchResult:
        """Park the failed event, or make it a dead letter. A failure that is reported twice counts once."""
        parked = await self._park(conn, failure.cursor, failure.as_json(), None)
        self._unreported = None
        if failure.envelope.seq not in parked:
            return BatchResult("failed")
        name, envelope, attempt, verdict = self.handler.name, failure.envelope, failure.attempt, failure.verdict
        if isinstance(verdict, Dead):
            buried = Buried(name, envelope, attempt, verdict.code, verdict.message)
            call_after(failure.context, self._signals.emit, buried)
            return BatchResult("failed", buried=1, errors=(failure.error,))
        scheduled = RetryScheduled(name, envelope, attempt, verdict.code, verdict.delay)
        call_after(failure.context, self._signals.emit, scheduled)
        return BatchResult("failed", to_retry=1, errors=(failure.error,))

    async def _park(self, conn: Connection, cursor: int | None, failed: str | None, armed: int | None) -> list[int]:
        """Roll back, if a transaction is open, and report it. Returns the positions of the events that are parked now."""
        asked = {
            "subscription": self.handler.name,
            "cursor": cursor,
            "failed": failed,
            "armed": armed,
            "worker": self._worker,
        }
        self.asked_at = clock()
        parked = await handler_batches.park(conn, asked, self._schema)
        self.asked_at = None
        return parked

    def _classify(self, failure: Failure) -> Verdict:
        error, rows, handler = failure.error, failure.rows, self.handler
        attempt, chance = rows[0][ATTEMPT] if rows else 1, random.random()  # noqa: S311
        state = sqlstate(error)
        verdict: Verdict
        if isinstance(error, TransactionEnded) or state == "OR005":
            verdict = Dead("transaction_ended", describe(error))
        elif failure.at_commit and state is not None and queue_is_full(error):
            verdict = Infrastructure(state, describe(error))
        else:
            verdict = classify(error, attempt, handler.retry, chance, ours=failure.ours, classifier=handler.classify)
        if isinstance(verdict, Infrastructure) and len(rows) == 1:
            seq = rows[0][SEQ]
            self._failures_alone[seq] = self._failures_alone.get(seq, 0) + 1
            if self._failures_alone[seq] >= FAILURES_ALONE:
                return Later(ALONE_DELAY, verdict.code, verdict.message, counted=False)
        return verdict


class _Details:
    """The events of a settled batch, built only when a listener asks for them."""

    __slots__ = ("_calls", "_rows")

    def __init__(self, rows: Sequence[Row], calls: Sequence[Call]) -> None:
        self._rows = rows
        self._calls = calls

    def __call__(self) -> Iterator[HandledEvent]:
        for row, (seconds, context) in zip(self._rows, self._calls, strict=True):
            yield HandledEvent(envelope_of(row), row[ATTEMPT], seconds * 1000, context)

    def times(self) -> Iterator[tuple[str, float, float]]:
        now = time()
        for row, (seconds, _) in zip(self._rows, self._calls, strict=True):
            yield row[TYPE], now - occurred(row), seconds
