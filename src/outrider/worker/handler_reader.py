"""The hot path of events: take → handle → settle, one batch after the other.

A take locks a partition, reads the batch, writes its receipts and moves the position. Then the handlers run in that same
transaction, and settle commits it. When a handler fails, everything is rolled back, and in the same round trip the event is
parked (it waits for a retry) or becomes a dead letter. The next take passes it over and returns the others.

Four modes change the next take:
- suspect: an event of the partition may have killed a worker. The next take waits until it can be isolated.
- isolated: nothing else runs in this process, so that a crash can be blamed on the one event that was taken.
- armed: the crash of a suspect is counted and committed. The next take runs it; if the process survives, it is uncounted.
- careful: a receipt existed already. For a while takes look for receipts before they insert them, which is slower.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic as clock
from time import time

from outrider import trace
from outrider.envelope import Envelope
from outrider.error_text import describe, last_frames, sqlstate
from outrider.errors import TransactionEnded
from outrider.failpoint import hit
from outrider.outcome import Dead, Infrastructure, Later, Verdict, classify
from outrider.postgres import handler_batches
from outrider.postgres.connection import DatabaseError
from outrider.postgres.handler_batches import Claim, Connection, Row
from outrider.postgres.log import ATTEMPT, SEQ, TYPE, TakeRequest, envelope_of, occurred
from outrider.postgres.statement import Params
from outrider.postgres.worker_sessions import usable
from outrider.retry import Breaker, parse_duration
from outrider.signals import Buried, Failed, HandledEvent, Parked, Recovered, Settled, Signals, Taken, Troubled
from outrider.worker.batch_runner import Failure, Runner
from outrider.worker.batch_size import Size
from outrider.worker.handler import Handler

SCAN = 10_000
"""The most rows of the log that one take looks at."""
ISOLATE_AFTER = 3
"""After this many consecutive infrastructure failures, events are taken one at a time."""
FAILURES_ALONE = 10
"""After this many infrastructure failures, an event that was taken alone waits for a retry."""
ALONE_DELAY = timedelta(seconds=30)
"""How long that event waits."""
ARMED_TAKES = 50
"""A suspect is disarmed after this many takes that found its partition locked."""
UNIQUE_VIOLATION = "23505"
CAREFUL_TAKES = 100
"""How many takes stay careful."""
_OUTCOMES = {Later: "failed", Dead: "dead", Infrastructure: "troubled"}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How one batch ended, and how many of its events were handled, skipped, parked, or became dead letters."""

    outcome: str
    handled: int = 0
    conceded: int = 0
    parked: int = 0
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
        self._size = Size(handler.limit)
        self.isolated = True
        self.suspect = False
        self._unreported: _UnreportedFailure | None = None
        self._partition: int | None = None
        """The partition to take from next; None = any."""
        self._armed: int | None = None
        """The delivery of the armed suspect."""
        self._armed_takes_left = 0
        self._unreported_rollbacks = 0
        """Rollbacks of `_cursor` that could not be reported because the session was lost. Unreported, they look like
        the death of a worker."""
        self._cursor: int | None = None
        self._one_by_one = 0
        """How many events to take one at a time, to find the one that made a batch fail."""
        self._careful = 0
        """How many more takes are careful."""
        self._failures_alone: dict[int, int] = {}
        """By log position: infrastructure failures of an event that was taken alone."""
        self.failures = 0
        """Consecutive infrastructure failures."""

    def close(self) -> None:
        self._runner.close()

    @property
    def armed(self) -> bool:
        return self._armed is not None

    async def step(self, conn: Connection) -> BatchResult:
        """Take and handle one batch. It is committed, or rolled back with the failed event parked."""
        if self._unreported is not None:
            return await self._report_failure(conn, self._unreported)
        hit("take.sent")
        try:
            claim = await handler_batches.take(conn, self._build_request(), self._schema)
        except DatabaseError as error:
            if self._careful or sqlstate(error) != UNIQUE_VIOLATION:
                raise
            await handler_batches.roll_back(conn)
            self._careful = CAREFUL_TAKES
            return BatchResult("failed")
        hit("take.done")
        self._signals.emit(Taken(self.handler.name, claim.partition, len(claim.rows), claim.outcome))
        if claim.batch is None:
            await self._end_empty_take(conn, claim)
            return BatchResult(claim.outcome, due_in=claim.due_in)
        self._cursor = claim.cursor
        begun, spans = clock(), trace.handling(self.handler.name) if claim.rows else None
        try:
            took = await self._runner.run(conn, claim.rows, spans) if claim.rows else []
            handled = clock() - begun
            hit("commit.before")
            await handler_batches.settle(conn, claim.batch, self._schema)
            hit("commit.after")
        except Failure as failure:
            return await self._handle_failure(conn, claim, failure, spans)
        except DatabaseError as error:
            return await self._handle_failure(conn, claim, Failure(claim.rows, error, 0, ours=True), spans)
        except BaseException:  # the worker is ending
            self._unreported_rollbacks += 1
            if spans is not None:
                spans.end("rolled_back")
            raise
        if spans is not None:
            spans.end("success")
        return self._finish_batch(claim, took, handled, clock() - begun)

    def _build_request(self) -> TakeRequest:
        return TakeRequest(
            subscription=self.handler.name,
            partition=self._partition,
            limit=1 if self._one_by_one else self._size.now,
            scan=SCAN,
            generation=self.generation,
            knows=list(self.handler.models),
            armed=self._armed,
            excused=self._unreported_rollbacks,
            worker=self._worker,
            careful=self._careful > 0,
            alone=self.isolated,
        )

    async def _end_empty_take(self, conn: Connection, claim: Claim) -> None:
        await handler_batches.end_idle(conn)
        self._armed_takes_left -= 1
        if self._armed is not None and (claim.outcome != "busy" or self._armed_takes_left <= 0):
            await self.disarm(conn)
        if self._armed is None:
            self._partition, self._unreported_rollbacks, self.suspect = None, 0, False
        if claim.outcome != "busy":
            self._report_recovery()

    def _report_recovery(self) -> None:
        if self.failures:
            self._signals.emit(Recovered(self.handler.name, self.failures, self.loop))
        self.failures = 0

    def _finish_batch(self, claim: Claim, took: list[float], handled: float, seconds: float) -> BatchResult:
        assert claim.partition is not None
        name, events, conceded = self.handler.name, len(claim.rows), claim.conceded or 0
        self._size.learn(events, handled)
        self._one_by_one = max(0, self._one_by_one - max(1, events))
        self._careful = max(0, self._careful - 1)
        self._failures_alone.clear()
        self._unreported_rollbacks = 0
        self._report_recovery()
        self._armed, self._armed_takes_left = claim.delivery, ARMED_TAKES
        self.suspect = claim.outcome == "suspect"
        self._partition = claim.partition if self._one_by_one or self.armed or self.suspect else None
        details = _Details(claim.rows, took)
        self._signals.emit(Settled(name, claim.partition, events, conceded, seconds * 1000, details, details.times))
        return BatchResult(claim.outcome, events, conceded, due_in=claim.due_in)

    async def _handle_failure(
        self, conn: Connection, claim: Claim, failure: Failure, spans: trace.BatchSpans | None
    ) -> BatchResult:
        self._size.shrink()
        self._partition = claim.partition
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
        self._signals.emit(Failed(self.handler.name, envelope, attempt, failure.seconds * 1000, verdict, failure.error))
        self._armed = None
        counts = isinstance(verdict, Dead) or verdict.counted
        breaker = self.handler.breaker if counts else None
        failed_probe = (
            breaker is not None and claim.outcome == "probe" and not (isinstance(verdict, Dead) and verdict.terminal)
        )
        if failed_probe:
            verdict = Later(timedelta(0), verdict.code, verdict.message, counted=False)
        self._unreported = _UnreportedFailure(
            claim.cursor, claim.batch, envelope, attempt, verdict, failure.error, breaker, failed_probe
        )
        hit("rollback.after")
        return await self._report_failure(conn, self._unreported) if usable(conn) else BatchResult("failed")

    def _retry_batch(self, claim: Claim, verdict: Verdict, rows: Sequence[Row]) -> BatchResult:
        """Try the batch again. If one of several events is to blame, they are taken one at a time to find it."""
        if rows and not isinstance(verdict, Infrastructure):
            self._one_by_one = max(self._one_by_one, len(rows))
            return BatchResult("failed")
        self.failures += 1
        self._signals.emit(Troubled(self.handler.name, verdict.code, verdict.message, self.failures, self.loop))
        if self.failures >= ISOLATE_AFTER:
            self._one_by_one = max(self._one_by_one, len(claim.rows))
        return BatchResult("troubled", code=verdict.code)

    async def _roll_back(self, conn: Connection, cursor: int | None) -> None:
        """Roll back, and report that it was no death of a worker."""
        try:
            if usable(conn):
                await handler_batches.park(conn, self._build_park_arguments(cursor, None, self._armed), self._schema)
                self._armed = None
                return
        except DatabaseError:
            handler_batches.end(conn)
        self._unreported_rollbacks += 1

    @property
    def unfinished(self) -> bool:
        """Something must be reported to the database before this reader ends."""
        return self.armed or self._unreported is not None or self._unreported_rollbacks > 0

    async def finish(self, conn: Connection) -> None:
        if self._unreported is not None:
            await self._report_failure(conn, self._unreported)
        while self._unreported_rollbacks:
            await handler_batches.park(conn, self._build_park_arguments(self._cursor, None, self._armed), self._schema)
            self._armed = None
            self._unreported_rollbacks -= 1
        if self.armed:
            await self.disarm(conn)

    async def disarm(self, conn: Connection) -> None:
        """Do not run the armed suspect: uncount its crash."""
        await handler_batches.park(conn, self._build_park_arguments(None, None, self._armed), self._schema)
        self._armed = None

    async def _report_failure(self, conn: Connection, failure: _UnreportedFailure) -> BatchResult:
        """Park the failed event, or make it a dead letter. A failure that is reported twice counts once."""
        parked = await handler_batches.park(
            conn, self._build_park_arguments(failure.cursor, failure.as_json(), None), self._schema
        )
        self._unreported = None
        if failure.envelope.seq not in parked:
            return BatchResult("failed")
        name, envelope, attempt, verdict = self.handler.name, failure.envelope, failure.attempt, failure.verdict
        if isinstance(verdict, Dead):
            self._signals.emit(Buried(name, envelope, attempt, verdict.code, verdict.message))
            return BatchResult("failed", buried=1, errors=(failure.error,))
        self._signals.emit(Parked(name, envelope, attempt, verdict.code, verdict.delay))
        return BatchResult("failed", parked=1, errors=(failure.error,))

    def _build_park_arguments(self, cursor: int | None, failed: str | None, armed: int | None) -> Params:
        return {
            "subscription": self.handler.name,
            "cursor": cursor,
            "failed": failed,
            "armed": armed,
            "worker": self._worker,
        }

    def _classify(self, failure: Failure) -> Verdict:
        error, rows = failure.error, failure.rows
        attempt = rows[0][ATTEMPT] if rows else 1
        verdict = (
            Dead("transaction_ended", describe(error))
            if isinstance(error, TransactionEnded) or sqlstate(error) == "OR005"
            else classify(error, attempt, self.handler.retry, random.random(), ours=failure.ours)  # noqa: S311
        )
        if isinstance(verdict, Infrastructure) and len(rows) == 1:
            seq = rows[0][SEQ]
            self._failures_alone[seq] = self._failures_alone.get(seq, 0) + 1
            if self._failures_alone[seq] >= FAILURES_ALONE:
                return Later(ALONE_DELAY, verdict.code, verdict.message, counted=False)
        return verdict


class _Details:
    """The events of a settled batch, built only when a listener asks for them."""

    __slots__ = ("_rows", "_took")

    def __init__(self, rows: Sequence[Row], took: Sequence[float]) -> None:
        self._rows = rows
        self._took = took

    def __call__(self) -> Iterator[HandledEvent]:
        for row, seconds in zip(self._rows, self._took, strict=True):
            yield HandledEvent(envelope_of(row), row[ATTEMPT], seconds * 1000)

    def times(self) -> Iterator[tuple[str, float, float]]:
        now = time()
        for row, seconds in zip(self._rows, self._took, strict=True):
            yield row[TYPE], now - occurred(row), seconds
