"""The hot path: take → handle → settle, one batch after the other, until there is nothing left.

A take locks a partition, reads the batch, writes its receipts and moves the position; then the handlers run in that same
transaction; settle commits it. When a handler fails, everything is rolled back and the event is parked (or buried) in the
same round trip; the next take passes it over, parks what must wait behind it, and returns the others.
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
from outrider.postgres.log import ATTEMPT, SEQ, TYPE, Asked, envelope_of, occurred
from outrider.postgres.statement import Params
from outrider.postgres.worker_sessions import usable
from outrider.retry import Breaker, parse_duration
from outrider.signals import Buried, Failed, Handled, Parked, Recovered, Settled, Signals, Taken, Troubled
from outrider.worker.batch_runner import Failure, Runner
from outrider.worker.batch_size import Size
from outrider.worker.handler import Handler

SCAN = 10_000
ISOLATE_AFTER = 3
"""After this many consecutive infrastructure failures, events are taken one at a time."""
ALONE_AT_MOST = 10
"""After this many consecutive infrastructure failures of an event taken alone, it waits for a retry."""
TROUBLE_DELAY = timedelta(seconds=30)
ARMED_PATIENCE = 50
"""Attempts of a counted suspect at its partition, if others hold it. Then the count is taken back."""
UNIQUE_VIOLATION = "23505"
CAREFUL_TAKES = 100
_OUTCOMES = {Later: "failed", Dead: "dead", Infrastructure: "troubled"}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one batch came to."""

    outcome: str
    handled: int = 0
    conceded: int = 0
    parked: int = 0
    buried: int = 0
    due_in: float | None = None
    errors: tuple[BaseException, ...] = ()
    code: str = ""
    """What the trouble was."""

    @property
    def again(self) -> bool:
        """There may be more at once."""
        return self.outcome in ("more", "done", "probe", "suspect", "armed", "failed")


@dataclass(frozen=True, slots=True)
class _Unsaid:
    """A failure that the database does not know of yet."""

    cursor: int | None
    batch: int | None
    envelope: Envelope
    attempt: int
    verdict: Later | Dead
    error: BaseException
    breaker: Breaker | None
    """Where the failure counts for it."""
    spared: bool
    """It was tried to see whether all is well again; it waits until others have been tried."""

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
            failure |= {"trip": self.breaker.failures, "spared": self.spared}
            failure |= {"probe": probe.total_seconds(), "longest": longest.total_seconds()}
        return json.dumps([failure])


class HandlerReader:
    """One reader of a handler's subscription."""

    def __init__(
        self, handler: Handler, signals: Signals, *, schema: str, generation: int, worker: str, loop: str = ""
    ) -> None:
        self.handler = handler
        self.loop = loop
        """Which of several loops of the subscription reads."""
        self._runner = Runner(handler)
        self._signals = signals
        self._schema = schema
        self.generation = generation
        self._worker = worker
        self._size = Size(handler.limit)
        self.alone = True
        """Nothing else runs in this process: a suspect that kills it is to blame."""
        self.suspect = False
        """Its next take should be made alone."""
        self._unsaid: _Unsaid | None = None
        self._partition: int | None = None
        """The one to go on with; None = any."""
        self._armed: int | None = None
        self._patience = 0
        self._unexcused = 0
        """Rollbacks in good order that could not be reported, because the session was gone."""
        self._cursor: int | None = None
        """Whose they were."""
        self._alone = 0
        """How many events to take one at a time, because one of a failed batch is to blame and it is not known which."""
        self._careful = 0
        """How many takes must expect events that have a receipt already."""
        self._troubles: dict[int, int] = {}
        """How often an event, alone, was rolled back for no fault of its own."""
        self.trouble = 0
        """How often in a row; the worker waits longer each time."""

    def close(self) -> None:
        self._runner.close()

    @property
    def armed(self) -> bool:
        """Its next take runs a suspect, which may kill the process."""
        return self._armed is not None

    async def step(self, conn: Connection) -> BatchResult:
        """One batch, committed; or rolled back, with what failed parked."""
        if self._unsaid is not None:
            return await self._say(conn, self._unsaid)
        hit("take.sent")
        try:
            claim = await handler_batches.take(conn, self._asked(), self._schema)
        except DatabaseError as error:
            if self._careful or sqlstate(error) != UNIQUE_VIOLATION:
                raise
            await handler_batches.roll_back(conn)
            self._careful = CAREFUL_TAKES
            return BatchResult("failed")
        hit("take.done")
        self._signals.emit(Taken(self.handler.name, claim.partition, len(claim.rows), claim.outcome))
        if claim.batch is None:
            await self._nothing(conn, claim)
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
            return await self._failed(conn, claim, failure, spans)
        except DatabaseError as error:
            return await self._failed(conn, claim, Failure(claim.rows, error, 0, ours=True), spans)
        except BaseException:  # it was cancelled
            self._unexcused += 1
            if spans is not None:
                spans.end("rolled_back")
            raise
        if spans is not None:
            spans.end("success")
        return self._settled(claim, took, handled, clock() - begun)

    def _asked(self) -> Asked:
        return Asked(
            subscription=self.handler.name,
            partition=self._partition,
            limit=1 if self._alone else self._size.now,
            scan=SCAN,
            generation=self.generation,
            knows=list(self.handler.models),
            armed=self._armed,
            excused=self._unexcused,
            worker=self._worker,
            careful=self._careful > 0,
            alone=self.alone,
        )

    async def _nothing(self, conn: Connection, claim: Claim) -> None:
        await handler_batches.roll_back(conn)
        self._patience -= 1
        if self._armed is not None and (claim.outcome != "busy" or self._patience <= 0):
            await self.disarm(conn)
        if self._armed is None:
            self._partition, self._unexcused, self.suspect = None, 0, False
        if claim.outcome != "busy":
            self._recovered()

    def _recovered(self) -> None:
        if self.trouble:
            self._signals.emit(Recovered(self.handler.name, self.trouble, self.loop))
        self.trouble = 0

    def _settled(self, claim: Claim, took: list[float], handled: float, seconds: float) -> BatchResult:
        assert claim.partition is not None
        name, events, conceded = self.handler.name, len(claim.rows), claim.conceded or 0
        self._size.learn(events, handled)
        self._alone = max(0, self._alone - max(1, events))
        self._careful = max(0, self._careful - 1)
        self._troubles.clear()
        self._unexcused = 0
        self._recovered()
        self._armed, self._patience = claim.delivery, ARMED_PATIENCE
        self.suspect = claim.outcome == "suspect"
        self._partition = claim.partition if self._alone or self.armed or self.suspect else None
        details = _Details(claim.rows, took)
        self._signals.emit(Settled(name, claim.partition, events, conceded, seconds * 1000, details, details.times))
        return BatchResult(claim.outcome, events, conceded, due_in=claim.due_in)

    async def _failed(
        self, conn: Connection, claim: Claim, failure: Failure, spans: trace.Handling | None
    ) -> BatchResult:
        self._size.shrink()
        self._partition = claim.partition
        verdict, rows = self._judge(failure), failure.rows
        if spans is not None:
            spans.end(_OUTCOMES[type(verdict)], failure.error)
        if isinstance(failure.error, TimeoutError) or not handler_batches.in_use(conn):
            handler_batches.end(conn)  # whatever the handler left running on it ends too
        if isinstance(verdict, Infrastructure) or len(rows) != 1:
            await self._roll_back(conn, claim.cursor)
            hit("rollback.after")
            return self._puzzled(claim, verdict, rows)
        envelope, attempt = envelope_of(rows[0]), rows[0][ATTEMPT]
        self._signals.emit(Failed(self.handler.name, envelope, attempt, failure.seconds * 1000, verdict, failure.error))
        self._armed = None
        counts = isinstance(verdict, Dead) or verdict.counted
        breaker = self.handler.breaker if counts else None
        spared = (
            breaker is not None and claim.outcome == "probe" and not (isinstance(verdict, Dead) and verdict.terminal)
        )
        if spared:
            verdict = Later(timedelta(0), verdict.code, verdict.message, counted=False)
        self._unsaid = _Unsaid(claim.cursor, claim.batch, envelope, attempt, verdict, failure.error, breaker, spared)
        hit("rollback.after")
        return await self._say(conn, self._unsaid) if usable(conn) else BatchResult("failed")

    def _puzzled(self, claim: Claim, verdict: Verdict, rows: Sequence[Row]) -> BatchResult:
        """Nobody's fault; or one of several is to blame, and only alone it can be found."""
        if rows and not isinstance(verdict, Infrastructure):
            self._alone = max(self._alone, len(rows))
            return BatchResult("failed")
        self.trouble += 1
        self._signals.emit(Troubled(self.handler.name, verdict.code, verdict.message, self.trouble, self.loop))
        if self.trouble >= ISOLATE_AFTER:
            self._alone = max(self._alone, len(claim.rows))
        return BatchResult("troubled", code=verdict.code)

    async def _roll_back(self, conn: Connection, cursor: int | None) -> None:
        """In good order: nobody shall take it for a death."""
        try:
            if usable(conn):
                await handler_batches.park(conn, self._parking(cursor, None, self._armed), self._schema)
                self._armed = None
                return
        except DatabaseError:
            handler_batches.end(conn)
        self._unexcused += 1

    @property
    def unfinished(self) -> bool:
        """The database must still hear of something before this tail may end."""
        return self.armed or self._unsaid is not None or self._unexcused > 0

    async def finish(self, conn: Connection) -> None:
        if self._unsaid is not None:
            await self._say(conn, self._unsaid)
        while self._unexcused:
            await handler_batches.park(conn, self._parking(self._cursor, None, self._armed), self._schema)
            self._armed = None
            self._unexcused -= 1
        if self.armed:
            await self.disarm(conn)

    async def disarm(self, conn: Connection) -> None:
        """It does not run the suspect that was counted: take the count back."""
        await handler_batches.park(conn, self._parking(None, None, self._armed), self._schema)
        self._armed = None

    async def _say(self, conn: Connection, unsaid: _Unsaid) -> BatchResult:
        """Tell the database what failed. The same may be told twice: it counts once."""
        told = await handler_batches.park(conn, self._parking(unsaid.cursor, unsaid.as_json(), None), self._schema)
        self._unsaid = None
        if unsaid.envelope.seq not in told:
            return BatchResult("failed")
        name, envelope, attempt, verdict = self.handler.name, unsaid.envelope, unsaid.attempt, unsaid.verdict
        if isinstance(verdict, Dead):
            self._signals.emit(Buried(name, envelope, attempt, verdict.code, verdict.message))
            return BatchResult("failed", buried=1, errors=(unsaid.error,))
        self._signals.emit(Parked(name, envelope, attempt, verdict.code, verdict.delay))
        return BatchResult("failed", parked=1, errors=(unsaid.error,))

    def _parking(self, cursor: int | None, failed: str | None, armed: int | None) -> Params:
        return {
            "subscription": self.handler.name,
            "cursor": cursor,
            "failed": failed,
            "armed": armed,
            "worker": self._worker,
        }

    def _judge(self, failure: Failure) -> Verdict:
        error, rows = failure.error, failure.rows
        attempt = rows[0][ATTEMPT] if rows else 1
        verdict = (
            Dead("transaction_ended", describe(error))
            if isinstance(error, TransactionEnded) or sqlstate(error) == "OR005"
            else classify(error, attempt, self.handler.retry, random.random(), ours=failure.ours)  # noqa: S311
        )
        if isinstance(verdict, Infrastructure) and len(rows) == 1:
            seq = rows[0][SEQ]
            self._troubles[seq] = self._troubles.get(seq, 0) + 1
            if self._troubles[seq] >= ALONE_AT_MOST:
                return Later(TROUBLE_DELAY, verdict.code, verdict.message, counted=False)
        return verdict


class _Details:
    """The events of a settled batch, made into values only if somebody asks."""

    __slots__ = ("_rows", "_took")

    def __init__(self, rows: Sequence[Row], took: Sequence[float]) -> None:
        self._rows = rows
        self._took = took

    def __call__(self) -> Iterator[Handled]:
        for row, seconds in zip(self._rows, self._took, strict=True):
            yield Handled(envelope_of(row), row[ATTEMPT], seconds * 1000)

    def times(self) -> Iterator[tuple[str, float, float]]:
        now = time()
        for row, seconds in zip(self._rows, self._took, strict=True):
            yield row[TYPE], now - occurred(row), seconds
