"""Runs a handler over the events of one batch, on the session that holds its transaction."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
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
from outrider.postgres.later import MANY, LaterStatements
from outrider.postgres.log import ATTEMPT, ID, PAYLOAD, TRACE, TYPE, VERSION, WORKSPACE, envelope_of
from outrider.postgres.worker_sessions import abandon
from outrider.worker.call_context import begin_in
from outrider.worker.deadline import Deadline
from outrider.worker.handler import Handler
from outrider.worker.handler_context import HandlerContext, SyncHandlerContext
from outrider.worker.thread import HandlerThread

ALIVE = "select 1"
Call = tuple[float, Context | None]
"""The seconds that a call took, and its context variables."""
SILENT = 1.0
"""Between two events, the session sends a query after this many seconds without one, or the server would end it as idle."""


class Failure(Exception):
    """One event of the batch failed, or several that were handled together."""

    def __init__(
        self,
        rows: Sequence[Row],
        error: BaseException,
        seconds: float,
        context: Context | None = None,
        *,
        ours: bool,
        at_commit: bool = False,
    ) -> None:
        super().__init__(error)
        self.rows = rows
        self.error = error
        self.seconds = seconds
        self.context = context
        """The context variables of the call, if the handler was called."""
        self.ours = ours
        """The error came from the worker's own session."""
        self.at_commit = at_commit
        """The calls had returned."""


class Runner:
    def __init__(self, handler: Handler, thread: HandlerThread | None = None) -> None:
        self.handler = handler
        self._thread = thread or HandlerThread()
        self._context = SyncHandlerContext if handler.blocking else HandlerContext
        # What model_validate_json calls. Calling it directly is measurably faster.
        self._validators = {kind: model.__pydantic_validator__.validate_json for kind, model in handler.models.items()}
        self._upcast = {kind for kind, model in handler.models.items() if spec_of(model).upcasters}
        self.decode: Callable[[Row], Any] = self._decode_any_version if self._upcast else self._decode
        if not handler.models:
            self.decode = _decode_envelope

    async def run(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None = None) -> list[Call]:
        """Handle the events in order. Returns the call of each. Raises Failure for the first that fails."""
        workspace = inherited_workspace.set(None)  # the code that started the worker may have been handling an event
        cause = inherited_cause.set(None)
        try:
            return await (self._run_together if self.handler.batch else self._run_each)(conn, rows, spans)
        finally:
            inherited_workspace.reset(workspace)
            inherited_cause.reset(cause)

    async def _run_each(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None) -> list[Call]:
        """One call per event. For speed, all events share one deadline, and only what an event has is set for it."""
        calls: list[Call] = []
        call, decode, role = self._callable(conn), self.decode, self.handler.role
        later = LaterStatements(conn, rows)
        last_query = clock()
        with Deadline(self.handler.name, self.handler.timeout) as deadline:
            for row in rows:
                deadline.began = begun = clock()
                own = (row,)
                ctx, around, context = self._context(conn, own, role, later), None, None
                inherited_cause.set(row[ID])
                hit("handle.before")
                try:
                    if begun > last_query + SILENT:
                        await conn.execute(ALIVE)
                        deadline.began = begun = last_query = clock()
                    if spans is not None or row[TRACE] is not None or row[WORKSPACE] is not None:
                        around = _Surroundings()
                        around.enter(row, spans)
                    context = copy_context()
                    if (waiting := call(context, decode(row), ctx)) is not None:
                        await waiting
                    if ctx.lent or deadline.late:
                        self._check(conn, ctx, deadline)
                        later.forget()
                    if later.waiting and (row is rows[-1] or len(later.waiting) >= MANY):
                        deadline.began = clock()
                        await later.flush()
                        self._check(conn, ctx, deadline)
                except BaseException as error:
                    # If the tenant could not be entered, an earlier event of the batch may be the cause.
                    blamed, cause = later.blame(rows if ctx.shut_out and calls else own, error)
                    context = next((calls[n][1] for n in range(len(calls)) if rows[n] is blamed[0]), context)
                    raise self._failed(blamed, cause, deadline, begun, conn, ctx, context) from error
                finally:
                    if around is not None:
                        around.leave()
                    if ctx.lent:
                        ctx.close()
                hit("handle.after")
                calls.append((clock() - begun, context))
        later.close()
        return calls

    async def _run_together(self, conn: Connection, rows: Sequence[Row], spans: trace.BatchSpans | None) -> list[Call]:
        """One call per workspace, for a handler of whole batches. Of several events it is not known which one failed."""
        begun = clock()
        events = []
        for row in rows:
            try:
                events.append(self.decode(row))
            except Exception as error:
                if spans is not None:
                    _begin_span(spans, (row,)).leave()
                raise Failure((row,), error, clock() - begun, ours=False) from error
        by_workspace: dict[str | None, list[int]] = {}
        for index, row in enumerate(rows):
            by_workspace.setdefault(row[WORKSPACE], []).append(index)
        calls: dict[int, Call] = {}
        last_query = begun
        for indices in by_workspace.values():
            if clock() > last_query + SILENT:
                await conn.execute(ALIVE)
                last_query = clock()
            group = [rows[index] for index in indices]
            span = None if spans is None else _begin_span(spans, group, together=True)
            try:
                seconds, context = await self._run_group(conn, group, [events[index] for index in indices], rows)
            finally:
                if span is not None:
                    span.leave()
            for index in indices:
                calls[index] = seconds / len(indices), context
        return [calls[index] for index in range(len(rows))]

    async def _run_group(
        self, conn: Connection, rows: Sequence[Row], events: Sequence[Any], batch: Sequence[Row]
    ) -> Call:
        begun = clock()
        later = LaterStatements(conn, batch)
        ctx = self._context(conn, rows, self.handler.role, later)
        # The events may have different traces. What the handler publishes continues the first of them.
        traced = next((row for row in rows if row[TRACE] is not None), None)
        hit("handle.before")
        token = trace.inherited.set(None if traced is None else envelope_of(traced).trace_context)
        inherited_workspace.set(rows[0][WORKSPACE])
        inherited_cause.set(rows[0][ID] if len(rows) == 1 else None)
        with Deadline(self.handler.name, self.handler.timeout) as deadline:
            context = copy_context()
            try:
                if (waiting := self._callable(conn)(context, events, ctx)) is not None:
                    await waiting
                self._check(conn, ctx, deadline)
                if later.waiting:
                    await later.flush()
                    self._check(conn, ctx, deadline)
            except BaseException as error:
                blamed = batch if ctx.shut_out else rows
                raise self._failed(*later.blame(blamed, error), deadline, begun, conn, ctx, context) from error
            finally:
                later.close()
                ctx.close()
                trace.inherited.reset(token)
        hit("handle.after")
        return clock() - begun, context

    def _callable(self, conn: Connection) -> Callable[[Context, Any, Any], Awaitable[object] | None]:
        """The handler; a blocking one runs in its thread. It returns what is to be awaited, if anything."""
        if self.handler.blocking:
            return partial(self._in_thread, conn)
        return partial(begin_in, self.handler.call)

    def _check(self, conn: Connection, ctx: HandlerContext | SyncHandlerContext, deadline: Deadline) -> None:
        """Raises if the handler has returned too late, or has left its transaction unusable."""
        if deadline.late:
            raise deadline.error("handler")
        if ctx.lent and not handler_batches.in_transaction(conn):
            raise _unusable(conn)

    def _failed(
        self,
        rows: Sequence[Row],
        error: BaseException,
        deadline: Deadline,
        begun: float,
        conn: Connection,
        ctx: HandlerContext | SyncHandlerContext,
        context: Context | None,
    ) -> BaseException:
        """The exception to raise: a Failure, or the error itself if it cancels the worker."""
        task = asyncio.current_task()
        if deadline.absorb():
            error = deadline.error("handler")
        elif isinstance(error, KeyboardInterrupt | GeneratorExit) or (
            isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        ):
            return error
        ours = handler_batches.broken(conn) or ctx.raised(error)
        return Failure(rows, error, clock() - begun, context, ours=ours)

    async def _in_thread(self, conn: Connection, context: Context, event: Any, ctx: Any) -> None:
        thread = self._thread.call(context, self.handler.call, event, ctx)
        try:
            returned = await asyncio.shield(thread)
            if inspect.isawaitable(returned) or inspect.isgenerator(returned):
                if hasattr(returned, "close"):
                    returned.close()
                kind = type(returned).__name__
                raise TerminalError(f"the handler returned a {kind} that nobody awaits: declare it with async def")
        except asyncio.CancelledError:
            abandon(conn)
            thread.cancel()
            self._thread.leave(conn.pgconn.finish)
            raise

    def close(self) -> None:
        self._thread.leave()

    def _decode(self, row: Row) -> Event:
        """Decode one event at a time, so that a bad payload makes one dead letter and not a failed batch."""
        try:
            event: Event = self._validators[row[TYPE]](row[PAYLOAD], extra="ignore")
            return event
        except Exception as error:
            model, envelope = self.handler.models[row[TYPE]], envelope_of(row)
            if isinstance(error, ValidationError):
                envelope.decode(model)  # raises a clearer error
            raise Undecodable(f"{envelope} is not a {model.__name__}: {describe(error)}") from error

    def _decode_any_version(self, row: Row) -> Event:
        """For handlers of events that have upcasters. The others skip the check of the version."""
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


def _decode_envelope(row: Row) -> Envelope:
    envelope = envelope_of(row)
    envelope.refuse_unreadable()
    return envelope


class _Surroundings:
    """What the code of a handler finds around it: the trace and the workspace of its event, and a span."""

    def __init__(self) -> None:
        self._resets: list[Callable[[], object]] = []

    def enter(self, row: Row, spans: trace.BatchSpans | None) -> None:
        if row[TRACE] is not None:
            token = trace.inherited.set(envelope_of(row).trace_context)
            self._resets.append(partial(trace.inherited.reset, token))
        if row[WORKSPACE] is not None:
            self._resets.append(partial(inherited_workspace.reset, inherited_workspace.set(row[WORKSPACE])))
        if spans is not None:
            self._resets.append(_begin_span(spans, (row,)).leave)

    def leave(self) -> None:
        for reset in reversed(self._resets):
            reset()


def _begin_span(spans: trace.BatchSpans, rows: Sequence[Row], *, together: bool = False) -> trace.EventSpan:
    envelopes = [envelope_of(row) for row in rows]
    messages = [trace.TracedMessage(each.id, each.event_type, each.trace_context) for each in envelopes]
    span = spans.begin(messages, rows[0][ATTEMPT], together=together)
    span.enter()
    return span


def _unusable(conn: Connection) -> Exception:
    """Why the transaction cannot be committed after the handler has returned."""
    if handler_batches.in_pipeline(conn):
        handler_batches.end(conn)
        return TerminalError("the handler left a pipeline open on ctx.tx: use it as `async with ctx.tx.pipeline():`")
    if handler_batches.active(conn):
        handler_batches.end(conn)
        return UnfinishedError(
            "the handler returned while one of its tasks still used its transaction: await the tasks that it starts"
        )
    if handler_batches.in_error(conn):
        return SwallowedError(
            "the handler caught a database error and went on, but the error had aborted its transaction: "
            "let the error through, or wrap the statement in `async with ctx.tx.transaction():`"
        )
    if handler_batches.broken(conn):
        return handler_batches.Lost("the session was lost while the handler ran")
    return TransactionEnded(
        "the handler ended its transaction with a COMMIT or ROLLBACK of its own, so its effects and its receipt cannot "
        "commit together: let it return instead"
    )
