"""Runs a handler over the events of one claim, on the session that holds its transaction; says which failed, and how."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from time import monotonic as clock
from typing import Any

from pydantic import ValidationError

from outrider import trace
from outrider.envelope import Envelope, inherited_cause, inherited_workspace
from outrider.error_text import describe
from outrider.errors import SwallowedError, TerminalError, TransactionEnded, Undecodable, UnfinishedError
from outrider.event import Event, spec_of
from outrider.failpoint import hit
from outrider.postgres import handler_batches
from outrider.postgres.handler_batches import Connection, Row
from outrider.postgres.log import ATTEMPT, ID, PAYLOAD, TRACE, TYPE, VERSION, WORKSPACE, envelope_of
from outrider.postgres.tenant_context import home_of
from outrider.postgres.worker_sessions import abandon
from outrider.worker.deadline import Deadline
from outrider.worker.handler import Handler
from outrider.worker.handler_context import HandlerContext, SyncHandlerContext
from outrider.worker.thread import HandlerThread

ALIVE = "select 1"
SILENT = 1.0
"""Seconds after which the server hears of a batch between two events, so that it does not take the worker for stopped."""


class Failure(Exception):
    """One event of the claim, or several that were handled together, failed."""

    def __init__(self, rows: Sequence[Row], error: BaseException, seconds: float, *, ours: bool) -> None:
        super().__init__(error)
        self.rows = rows
        self.error = error
        self.seconds = seconds
        self.ours = ours
        """The error came from the worker's own session."""


class Runner:
    def __init__(self, handler: Handler, thread: HandlerThread | None = None) -> None:
        self.handler = handler
        self._thread = thread or HandlerThread()
        # What model_validate_json calls; at thousands a second the step between them shows.
        self._validators = {kind: model.__pydantic_validator__.validate_json for kind, model in handler.models.items()}
        self._upcast = {kind for kind, model in handler.models.items() if spec_of(model).upcasters}
        self.decode: Callable[[Row], Any] = self._decode_any_version if self._upcast else self._decode
        if not handler.models:
            self.decode = _readable

    async def run(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None = None) -> list[float]:
        """Handle the events in their order; how many seconds each took. Raises Failure for the first that fails."""
        nobody = inherited_workspace.set(None)  # whoever started the worker may have been handling an event
        before = inherited_cause.set(None)
        try:
            return await (self._run_together if self.handler.batch else self._run_each)(conn, rows, spans)
        finally:
            inherited_workspace.reset(nobody)
            inherited_cause.reset(before)

    async def _run_each(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None) -> list[float]:
        took: list[float] = []
        call, blocking, decode, role = self.handler.call, self.handler.blocking, self.decode, self.handler.role
        context = SyncHandlerContext if blocking else HandlerContext
        enters = self._enters(conn, rows)
        spoke = clock()
        with Deadline(self.handler.name, self.handler.timeout) as deadline:
            for row in rows:
                deadline.began = begun = clock()
                ctx = context(conn, (row,), role, enters=enters)
                token = tenant = span = None
                inherited_cause.set(row[ID])
                hit("handle.before")
                try:
                    if begun > spoke + SILENT:
                        await conn.execute(ALIVE)
                        deadline.began = begun = spoke = clock()
                    if row[TRACE] is not None:
                        token = trace.inherited.set(envelope_of(row).trace_context)
                    if row[WORKSPACE] is not None:
                        tenant = inherited_workspace.set(row[WORKSPACE])
                    if spans is not None:
                        span = _begin(spans, (row,))
                    event = decode(row)
                    if blocking:
                        await self._in_thread(conn, event, ctx)
                    else:
                        await call(event, ctx)
                    if deadline.late:
                        raise self._late()
                    if ctx.lent and not handler_batches.in_transaction(conn):
                        raise _unusable(conn)
                except BaseException as error:
                    blamed = rows if ctx.shut_out and took else (row,)  # one of those before it may have seen to that
                    raise self._failed(blamed, error, deadline, begun, conn, ctx) from error
                finally:
                    if span is not None:
                        span.leave()
                    if ctx.lent:
                        ctx.close()
                    if token is not None:
                        trace.inherited.reset(token)
                    if tenant is not None:
                        inherited_workspace.reset(tenant)
                hit("handle.after")
                took.append(clock() - begun)
        return took

    def _enters(self, conn: Connection, rows: Sequence[Row]) -> bool:
        return home_of(conn).has_tenants(self.handler.role, (row[WORKSPACE] for row in rows))

    async def _run_together(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None) -> list[float]:
        """A handler of whole batches: one call for each workspace. Only a batch of one says which event failed."""
        begun = clock()
        events = []
        for row in rows:
            try:
                events.append(self.decode(row))
            except Exception as error:
                if spans is not None:
                    _begin(spans, (row,)).leave()
                raise Failure((row,), error, clock() - begun, ours=False) from error
        places: dict[str | None, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row[WORKSPACE], []).append(place)
        enters = self._enters(conn, rows)
        took, spoke = [0.0] * len(rows), begun
        for own in places.values():
            if clock() > spoke + SILENT:
                await conn.execute(ALIVE)
                spoke = clock()
            group = [rows[each] for each in own]
            span = None if spans is None else _begin(spans, group, together=True)
            try:
                seconds = await self._run_group(conn, group, [events[each] for each in own], rows, enters=enters)
            finally:
                if span is not None:
                    span.leave()
            for place in own:
                took[place] = seconds / len(own)
        return took

    async def _run_group(
        self, conn: Connection, rows: Sequence[Row], events: Sequence[Any], batch: Sequence[Row], *, enters: bool
    ) -> float:
        begun = clock()
        context = SyncHandlerContext if self.handler.blocking else HandlerContext
        ctx = context(conn, rows, self.handler.role, enters=enters)
        # A batch may come from many traces; what it publishes carries on the first of them.
        traced = next((row for row in rows if row[TRACE] is not None), None)
        hit("handle.before")
        token = trace.inherited.set(None if traced is None else envelope_of(traced).trace_context)
        inherited_workspace.set(rows[0][WORKSPACE])
        inherited_cause.set(rows[0][ID] if len(rows) == 1 else None)
        with Deadline(self.handler.name, self.handler.timeout) as deadline:
            try:
                if self.handler.blocking:
                    await self._in_thread(conn, events, ctx)
                else:
                    await self.handler.call(events, ctx)
                if deadline.late:
                    raise self._late()
                if not handler_batches.in_transaction(conn):
                    raise _unusable(conn)
            except BaseException as error:
                blamed = batch if ctx.shut_out else rows
                raise self._failed(blamed, error, deadline, begun, conn, ctx) from error
            finally:
                ctx.close()
                trace.inherited.reset(token)
        hit("handle.after")
        return clock() - begun

    def _failed(
        self,
        rows: Sequence[Row],
        error: BaseException,
        deadline: Deadline,
        begun: float,
        conn: Connection,
        ctx: HandlerContext | SyncHandlerContext,
    ) -> BaseException:
        """What the handler raised is its failure, whatever it is; unless the worker itself is being ended."""
        task = asyncio.current_task()
        if deadline.absorb():
            error = self._late()
        elif isinstance(error, KeyboardInterrupt | GeneratorExit) or (
            isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        ):
            return error
        return Failure(rows, error, clock() - begun, ours=handler_batches.broken(conn) or ctx.raised(error))

    def _late(self) -> TimeoutError:
        return TimeoutError(f"the handler did not return within {self.handler.timeout:g} s")

    async def _in_thread(self, conn: Connection, event: Any, ctx: Any) -> None:
        thread = self._thread.call(self.handler.call, event, ctx)
        try:
            returned = await asyncio.shield(thread)
            if inspect.isawaitable(returned) or inspect.isgenerator(returned):
                if hasattr(returned, "close"):
                    returned.close()
                kind = type(returned).__name__
                raise TerminalError(f"the handler returned a {kind} that nobody runs: declare it with async def")
        except asyncio.CancelledError:
            abandon(conn)
            thread.cancel()
            self._thread.leave(conn.pgconn.finish)
            raise

    def close(self) -> None:
        self._thread.leave()

    def _decode(self, row: Row) -> Event:
        """From text, one by one: one bad payload is one dead letter, never a dead batch."""
        try:
            event: Event = self._validators[row[TYPE]](row[PAYLOAD], extra="ignore")
            return event
        except Exception as error:
            model, envelope = self.handler.models[row[TYPE]], envelope_of(row)
            if isinstance(error, ValidationError):
                envelope.decode(model)  # says it better
            raise Undecodable(f"{envelope} is not a {model.__name__}: {describe(error)}") from error

    def _decode_any_version(self, row: Row) -> Event:
        """For handlers of events that have upcasters; the others do not pay for the question."""
        model = self.handler.models[row[TYPE]]
        if row[TYPE] not in self._upcast or row[VERSION] >= spec_of(model).version:
            return self._decode(row)
        envelope = envelope_of(row)
        try:
            return envelope.decode(model)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{envelope} is not a {model.__name__}: {describe(error)}") from error


def _readable(row: Row) -> Envelope:
    envelope = envelope_of(row)
    envelope.refuse_unreadable()
    return envelope


def _begin(spans: trace.BatchSpans, rows: Sequence[Row], *, together: bool = False) -> trace.EventSpan:
    envelopes = [envelope_of(row) for row in rows]
    messages = [trace.TracedMessage(each.id, each.event_type, each.trace_context) for each in envelopes]
    span = spans.begin(messages, rows[0][ATTEMPT], together=together)
    span.enter()
    return span


def _unusable(conn: Connection) -> Exception:
    if handler_batches.in_pipeline(conn):
        handler_batches.end(conn)
        return TerminalError("the handler left a pipeline open on ctx.tx: use it as `async with ctx.tx.pipeline():`")
    if handler_batches.active(conn):
        handler_batches.end(conn)
        return UnfinishedError(
            "the handler returned while a task of its own still used its transaction: await what it has started"
        )
    if handler_batches.in_error(conn):
        return SwallowedError(
            "the handler caught a database error and went on; by then its transaction was undone: "
            "let the error through, or wrap the statement in `async with ctx.tx.transaction():`"
        )
    if handler_batches.broken(conn):
        return handler_batches.Lost("the session was lost while the handler ran")
    return TransactionEnded(
        "the handler ended its transaction with a COMMIT or ROLLBACK of its own: its effects and its receipt can then "
        "not commit together; let it return instead"
    )
