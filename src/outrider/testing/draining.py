"""`drain`: runs the declared handlers inside the test's own transaction, so that a rollback undoes everything.

Nothing here commits, and nothing is stored about failed events. Cursors are not used: they see only committed events. Jobs
are not run: workers claim only committed jobs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypedDict, Unpack

from outrider.app import Outrider
from outrider.errors import ConfigError, OutriderError, TransactionEnded
from outrider.integrations.connections import under, under_sync
from outrider.outcome import Dead, Infrastructure, classify
from outrider.postgres import handler_batches, uncommitted
from outrider.postgres.handler_batches import Connection, Row
from outrider.postgres.log import ATTEMPT, SEQ, envelope_of
from outrider.postgres.tenant_context import capture, home_of
from outrider.postgres.worker_sessions import usable
from outrider.worker.batch_runner import Failure, Runner
from outrider.worker.drain import Drained
from outrider.worker.handler import Handler
from outrider.worker.handler_reader import BatchResult
from outrider.worker.thread import HandlerThread, work

MOST_CAUSED = 10_000
"""Events that handlers may publish themselves in one drain, before it is taken for an endless loop."""
LETTING_GO = 5.0
"""Seconds that a blocking handler may still use the connection after its timeout."""


class DrainOptions(TypedDict, total=False):
    handlers: Iterable[str]
    """Names, or patterns like `billing.*`; default: all."""
    exclude: Iterable[str]
    raise_on_failure: bool
    """Raise the first error of a handler (the default), or count it and go on."""


async def drain(app: Outrider, conn: object, **options: Unpack[DrainOptions]) -> Drained:
    """Run the app's handlers on what was published in the open transaction of `conn`, on that connection.

    Each call of a handler runs in a savepoint, together with its receipt. Events that handlers publish are handled too. A
    failed call is rolled back to its savepoint. With raise_on_failure=False it is counted as waiting for a retry or as a
    dead letter, events that must wait behind it are left out, and the next drain tries it again, as attempt 1. Only the
    signals Published and JobEnqueued are sent. The app need not be open.

    Jobs are not run: assert_enqueued_in sees enqueued jobs, and app.drain() runs committed ones.
    """
    session, thread = uncommitted.checked(await under(conn), "drain"), HandlerThread()
    try:
        return await _drain(app, session, thread, **options)
    finally:
        thread.leave()


def drain_sync(app: Outrider, conn: object, **options: Unpack[DrainOptions]) -> Drained:
    """The same on a blocking connection. Blocking handlers run in the caller's thread, async ones on an event loop in
    another thread."""
    session, here = uncommitted.view(uncommitted.checked_sync(under_sync(conn), "drain_sync")), _CallersThread()
    with ThreadPoolExecutor(1, "outrider-drain") as apart:
        drained = apart.submit(copy_context().run, asyncio.run, _drain(app, session, here, **options))
        drained.add_done_callback(lambda _: here.leave())
        try:
            here.serve()
        finally:
            here.leave()
    return drained.result()


async def _drain(app: Outrider, conn: Connection, thread: HandlerThread, **options: Unpack[DrainOptions]) -> Drained:
    chosen = app.chosen(options.get("handlers", ()), options.get("exclude", ()))
    if not chosen.handlers and chosen.jobs:
        raise ConfigError(
            f"nothing to drain in this transaction: {chosen.jobs[0].name} is a job, and jobs run when they are committed; "
            "assert_enqueued_in looks at what was enqueued, app.drain() runs it after a commit"
        )
    raising = options.get("raise_on_failure", True)
    await capture(conn, local=True)
    drains = [_HandlerDrain(each, conn, thread, app.settings.schema, raising=raising) for each in chosen.handlers]
    total, caused = Drained(), 0
    events = await _one_round(drains, total)
    while events:
        events = await _one_round(drains, total)
        caused += events
        if caused > MOST_CAUSED:
            raise OutriderError(_endless(total, caused))
    return total


async def _one_round(drains: Sequence[_HandlerDrain], total: Drained) -> int:
    return sum([await each.step(total) for each in drains])


class _HandlerDrain:
    """One handler, and its position in the events of the transaction."""

    def __init__(
        self, handler: Handler, conn: Connection, thread: HandlerThread, schema: str, *, raising: bool
    ) -> None:
        self._handler = handler
        self._runner = Runner(handler, thread)
        self._conn = conn
        self._schema = schema
        self._raising = raising
        self._after = 0
        self._waiting: set[str] = set()
        """The ordering keys whose events wait for a failed one."""

    async def step(self, total: Drained) -> int:
        """Handle all new events for it; returns their number."""
        rows = await uncommitted.read(self._conn, self._schema, after=self._after, wanted_by=self._handler.subscription)
        if rows:
            self._after = rows[-1][SEQ]
        size = self._handler.limit if self._handler.batch else 1
        for start in range(0, len(rows), size):
            await self._handle(rows[start : start + size], total)
        return len(rows)

    async def _handle(self, rows: Sequence[Row], total: Drained) -> None:
        rows = [row for row in rows if self._waits_by(row) not in self._waiting]
        if not rows:
            return
        try:
            async with self._conn.transaction():
                won = await uncommitted.write_receipts(self._conn, self._handler.name, rows, self._schema)
                if won:
                    await self._run(won)
        except Failure as failure:
            failed = failure
        else:
            total.add(self._handler.name, BatchResult("done", handled=len(won), duplicates=len(rows) - len(won)))
            return
        if self._raising:
            raise failed.error
        if len(failed.rows) > 1:
            for row in rows:
                await self._handle([row], total)
            return
        total.add(self._handler.name, self._judge(failed))
        await self._handle([row for row in rows if row[SEQ] != failed.rows[0][SEQ]], total)

    async def _run(self, rows: Sequence[Row]) -> None:
        home = home_of(self._conn)
        try:
            await self._runner.run(self._conn, rows)
            if home.away:
                await self._conn.execute(home.back)
                home.away = False
        except Failure:
            until = monotonic() + LETTING_GO
            while hasattr(self._conn, "abandoned") and not self._conn.closed and monotonic() < until:  # noqa: ASYNC110 (its thread tells nobody)
                await asyncio.sleep(0.01)
            raise

    def _judge(self, failed: Failure) -> BatchResult:
        """Counts the failure as a worker would. An error that breaks the session or the transaction is raised."""
        row, handler = failed.rows[0], self._handler
        chance = random.random()  # noqa: S311
        verdict = classify(
            failed.error, row[ATTEMPT], handler.retry, chance, ours=failed.ours, classifier=handler.classify
        )
        lost = not usable(self._conn) or handler_batches.broken(self._conn)
        if lost or isinstance(failed.error, TransactionEnded) or isinstance(verdict, Infrastructure):
            raise failed.error
        if isinstance(verdict, Dead):
            return BatchResult("done", buried=1)
        if (key := self._waits_by(row)) is not None:
            self._waiting.add(key)
        return BatchResult("done", to_retry=1)

    def _waits_by(self, row: Row) -> str | None:
        match self._handler.subscription.order:
            case "none":
                return None
            case "total":
                return ""
            case "key":
                return envelope_of(row).key


class _CallersThread(HandlerThread):
    """Runs blocking handlers in the caller's thread, which has the caller's thread-locals and no event loop."""

    def __init__(self) -> None:
        self._served: SimpleQueue[Any] = SimpleQueue()
        self._tasks = self._served

    def serve(self) -> None:
        """Run tasks until `leave` is called."""
        work(self._served)


def _endless(total: Drained, caused: int) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in total.by_handler.items())
    return (
        f"the handlers have published {caused:,} events, and there are still new ones (handled: {counts}): does a handler "
        "handle the events that it publishes itself?"
    )
