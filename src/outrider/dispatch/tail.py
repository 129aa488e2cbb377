"""The hot path: take → handle → settle, one batch after the other, until there is nothing left.

A take locks a partition, reads the batch, writes its receipts and moves the position; then the handlers run in that same
transaction; settle commits it. When a handler fails, everything is rolled back and taken again, and this time the take
parks the failed event (or buries it) and what must wait behind it, and returns the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic as clock

from outrider.dispatch.handler import Handler
from outrider.dispatch.run import Failure, Runner, TransactionEnded
from outrider.dispatch.size import Size
from outrider.envelope import Envelope
from outrider.failpoint import hit
from outrider.outcome import Dead, Infrastructure, Later, Verdict, classify, describe, sqlstate
from outrider.postgres import handling
from outrider.postgres.handling import Claim, Connection, Row
from outrider.postgres.log import ATTEMPT, SEQ, Asked, envelope_of
from outrider.postgres.session import DatabaseError
from outrider.signals import Buried, Failed, Handled, Parked, Settled, Signals, Taken, Troubled

SCAN = 10_000
ISOLATE_AFTER = 3
"""So often in a row a batch may be rolled back for no fault of its own; then its events are taken one at a time."""
ALONE_AT_MOST = 10
"""So often in a row an event may fail alone for reasons that are not its own; then it is parked."""
UNIQUE_VIOLATION = "23505"
CAREFUL_TAKES = 100
TROUBLE_DELAY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Step:
    """What one batch came to."""

    outcome: str
    handled: int = 0
    conceded: int = 0
    parked: int = 0
    buried: int = 0
    due_in: float | None = None
    errors: tuple[BaseException, ...] = ()

    @property
    def again(self) -> bool:
        """There may be more at once."""
        return self.outcome in ("more", "done", "armed", "failed")


@dataclass(slots=True)
class _Known:
    """What this tail knows of the partition that it failed in, until a take has told the database."""

    partition: int | None = None
    cursor: int | None = None
    failures: list[tuple[Envelope, int, Later | Dead, BaseException]] = field(default_factory=list)
    rolled_back: int = 0
    armed: int | None = None
    patience: int = 50
    """So often it may find the partition held by others before it gives up telling."""

    def urgent(self) -> bool:
        """Whether there is something to tell: the database has counted a suspect as about to run, or does not know yet."""
        self.patience -= 1
        return self.patience > 0 and (self.armed is not None or bool(self.failures) or self.rolled_back > 0)


class Tail:
    """One reader of a handler's subscription."""

    def __init__(self, handler: Handler, signals: Signals, *, schema: str, generation: int, worker: str) -> None:
        self.handler = handler
        self._runner = Runner(handler)
        self._signals = signals
        self._schema = schema
        self._generation = generation
        self._worker = worker
        self._size = Size(handler.limit, handler.budget)
        self._known = _Known()
        self._alone = 0
        """So many events are to be taken one at a time, because one of them did harm and nobody knows which."""
        self._careful = 0
        """So many takes are to expect events that have a receipt already."""
        self._troubles: dict[int, int] = {}
        """How often an event, alone, was rolled back for no fault of its own."""
        self.trouble = 0
        """How often in a row; the worker waits longer each time."""

    def close(self) -> None:
        self._runner.close()

    @property
    def armed(self) -> bool:
        """Its next take runs a suspect, which may kill the process."""
        return self._known.armed is not None

    async def rest(self, conn: Connection) -> None:
        """Roll back what is open, and say that this was no death. Without it the next take does, on the same session."""
        if not handling.in_use(conn):
            return
        if await handling.give_up(conn, self._known.cursor, self._known.armed, self._schema):
            self._known.armed = None
        else:
            self._known.rolled_back += 1

    async def disarm(self, conn: Connection) -> None:
        """It ends before it has run the suspect that was counted: take the count back."""
        await handling.give_up(conn, None, self._known.armed, self._schema)
        self._known.armed = None

    @property
    def urgent(self) -> bool:
        """Its next take must not wait: it holds what the database should know."""
        return self._known.partition is not None

    async def step(self, conn: Connection) -> Step:
        """One batch, committed; or rolled back, and remembered for the next take."""
        hit("take.sent")
        try:
            claim = await handling.take(conn, self._asked(conn), self._schema)
        except DatabaseError as error:
            if self._careful or sqlstate(error) != UNIQUE_VIOLATION:
                raise
            await handling.roll_back(conn)
            self._careful = CAREFUL_TAKES
            return Step("failed")
        hit("take.done")
        self._signals.emit(Taken(self.handler.name, claim.partition, len(claim.rows), claim.outcome))
        if claim.batch is None:
            await handling.roll_back(conn)
            if claim.outcome != "busy" or not self._known.urgent():
                self._known = _Known()
            return Step(claim.outcome, due_in=claim.due_in)
        self._known.partition = claim.partition
        begun = clock()
        try:
            took = await self._runner.run(conn, claim.rows) if claim.rows else []
            handled = clock() - begun
            hit("commit.before")
            await handling.settle(conn, claim.batch, self._schema)
            hit("commit.after")
        except Failure as failure:
            return await self._failed(conn, claim, failure)
        except DatabaseError as error:
            return await self._failed(conn, claim, Failure(claim.rows, error, 0, ours=True))
        return self._settled(claim, took, handled, clock() - begun)

    def _asked(self, conn: Connection) -> Asked:
        known = self._known
        if handling.in_use(conn):  # the failed batch, which this take rolls back
            known.rolled_back += 1
        return Asked(
            subscription=self.handler.name,
            partition=known.partition,
            limit=1 if self._alone else self._size.now,
            scan=SCAN,
            generation=self._generation,
            knows=list(self.handler.models),
            failed=_as_json(known.failures),
            armed=known.armed,
            excused=known.rolled_back,
            worker=self._worker,
            careful=self._careful > 0,
        )

    def _settled(self, claim: Claim, took: list[float], handled: float, seconds: float) -> Step:
        assert claim.partition is not None
        name, events, conceded = self.handler.name, len(claim.rows), claim.conceded or 0
        self._size.learn(events, handled)
        self._alone = max(0, self._alone - max(1, events))
        self._careful = max(0, self._careful - 1)
        self._troubles.clear()
        self.trouble = 0
        told, untold = claim.told or (), claim.untold or ()
        known, self._known = self._known, _Known()
        self._known.failures = [each for each in known.failures if each[0].seq in untold]
        self._known.armed = claim.delivery
        if self._alone or self._known.failures or self._known.armed is not None:
            self._known.partition = claim.partition
        parked, buried = 0, 0
        for envelope, attempt, verdict, _ in known.failures:
            if envelope.seq not in told:
                continue
            if isinstance(verdict, Dead):
                buried += 1
                self._signals.emit(Buried(name, envelope, attempt, verdict.code, verdict.message))
            else:
                parked += 1
                self._signals.emit(Parked(name, envelope, attempt, verdict.code, verdict.delay))
        details = _Details(claim.rows, took)
        self._signals.emit(Settled(name, claim.partition, events, conceded, seconds * 1000, details))
        errors = tuple(error for envelope, _, _, error in known.failures if envelope.seq in told)
        return Step(claim.outcome, events, conceded, parked, buried, claim.due_in, errors)

    async def _failed(self, conn: Connection, claim: Claim, failure: Failure) -> Step:
        self._size.shrink()
        rows = failure.rows
        verdict = self._judge(failure)
        self._known.cursor = claim.cursor
        if isinstance(failure.error, TimeoutError) or not handling.in_use(conn):
            handling.end(conn)  # whatever the handler left running on it ends too
            self._known.rolled_back += 1
        elif isinstance(verdict, Infrastructure) or not rows:
            await self.rest(conn)
        hit("rollback.after")
        if isinstance(verdict, Infrastructure) or not rows:
            self._signals.emit(Troubled(self.handler.name, verdict.code, verdict.message))
            self.trouble += 1
            if self.trouble >= ISOLATE_AFTER:
                self._alone = max(self._alone, len(claim.rows))
            return Step("troubled")
        self._known.armed = None
        if len(rows) > 1:
            self._alone = max(self._alone, len(rows))
            return Step("failed")
        envelope, attempt = envelope_of(rows[0]), rows[0][ATTEMPT]
        self._known.failures.append((envelope, attempt, verdict, failure.error))
        self._signals.emit(Failed(self.handler.name, envelope, attempt, failure.seconds * 1000, verdict, failure.error))
        return Step("failed")

    def _judge(self, failure: Failure) -> Verdict:
        error, rows = failure.error, failure.rows
        attempt = rows[0][ATTEMPT] if rows else 1
        verdict = (
            Dead("transaction_ended", describe(error))
            if isinstance(error, TransactionEnded) or sqlstate(error) == "OR005"
            else classify(error, attempt, self.handler.policy, random.random(), ours=failure.ours)  # noqa: S311
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


def _as_json(failures: Sequence[tuple[Envelope, int, Later | Dead, BaseException]]) -> str | None:
    if not failures:
        return None
    return json.dumps(
        [
            {
                "seq": envelope.seq,
                "attempt": attempt,
                "delay": verdict.delay.total_seconds() if isinstance(verdict, Later) else 0,
                "code": verdict.code,
                "message": verdict.message,
                "counted": verdict.counted if isinstance(verdict, Later) else True,
                "dead": isinstance(verdict, Dead),
            }
            for envelope, attempt, verdict, _ in failures
        ]
    )
