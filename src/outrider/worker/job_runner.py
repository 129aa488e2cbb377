"""Runs one job: on the event loop, in a thread, or in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from time import monotonic as clock
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from outrider import trace
from outrider.envelope import inherited_cause, inherited_workspace
from outrider.error_text import describe, last_frames
from outrider.errors import Cancelled, Died, TerminalError, Undecodable
from outrider.event import Declared, spec_of
from outrider.failpoint import hit
from outrider.outcome import Dead, classify
from outrider.postgres.connection import AsyncSession, Session, transaction_sync
from outrider.postgres.jobs import ID, PAYLOAD, TRACE, TYPE, VERSION, WORKSPACE, Leased, Other
from outrider.worker.call_context import run_in
from outrider.worker.deadline import Deadline, inherited
from outrider.worker.job_context import JobContext, SyncJobContext
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_processes import JobProcesses
from outrider.worker.thread import HandlerThreads

RESULT_BYTES = 8 * 1024
"""The most bytes of a result that are kept."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job in a slot."""

    leased: Leased
    task: asyncio.Task[None] | None
    """The task to cancel. None: a cancellation would not stop the job."""
    ctx: JobContext | SyncJobContext | None = None
    context: Context | None = None
    """The context variables of its call."""
    reason: str | None = None
    """Why it was told to stop: cancelled, lost or back (the worker stops, and releases it)."""

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.ctx is not None:
            self.ctx.stop()
        if self.task is not None:
            self.task.cancel()


@dataclass(slots=True, eq=False)
class EndedJob:
    """A job that has ended, until it is settled."""

    leased: Leased
    seconds: float = 0.0
    """How long it ran."""
    other: Other | None = None
    """None: it is done."""
    result: str | None = None
    """JSON"""
    error: BaseException | None = None
    sent_before: bool = False
    """A settlement of it failed, and may have been committed."""
    context: Context | None = None
    """The context variables of its call."""


class JobRunner:
    """Owns a job while it runs: calls its function, and decides what its result or its error means."""

    def __init__(
        self,
        handler: JobHandler,
        connect: Callable[[], AbstractAsyncContextManager[AsyncSession]],
        dsn: str,
        threads: HandlerThreads,
        processes: JobProcesses,
    ) -> None:
        self.handler = handler
        self._connect = connect
        self._dsn = dsn
        self._threads = threads
        self._processes = processes
        self._context = copy_context()
        """The context variables that jobs start with: the code that made the worker may have been handling an event."""
        self._context.run(inherited_workspace.set, None)
        self._context.run(trace.inherited.set, None)
        self._context.run(inherited.set, handler.name)
        # What model_validate_json calls. Calling it directly is measurably faster.
        self._validators = {kind: model.__pydantic_validator__.validate_json for kind, model in handler.models.items()}
        self._upcast = {kind for kind, model in handler.models.items() if spec_of(model).upcasters}

    async def run(self, running: RunningJob, deadline: Deadline, *, traced: bool) -> EndedJob | None:
        """Run the job in its own copy of the context variables. Returns None if its lease was lost."""
        leased, context = running.leased, self._context.copy()
        running.context = context
        deadline.restart(self.handler.name, self.handler.timeout)
        spans = context.run(self._begin_span, leased) if traced else None
        hit("run.before")
        try:
            result = await run_in(context, self._in_time(running, deadline))
            ended = EndedJob(leased, clock() - deadline.began, None, _json(result))
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError) and running.reason is None
            if cancelled and deadline.task.cancelling():  # by somebody else
                if spans is not None:
                    spans.end("back")
                raise
            ended = EndedJob(leased, clock() - deadline.began, self._settle_failed(running, error), error=error)
        ended.context = running.context
        if spans is not None:
            outcome = "lost" if running.reason == "lost" else _outcome(ended)
            spans.end(outcome, ended.error if outcome in ("failed", "dead") else None)
        hit("run.after")
        return None if running.reason == "lost" else ended

    def _begin_span(self, leased: Leased) -> trace.BatchSpans | None:
        if (spans := trace.handling(self.handler.name)) is not None:
            carrier = None if leased.row[TRACE] is None else leased.envelope.trace_context
            message = trace.TracedMessage(leased.id, leased.row[TYPE], carrier)
            spans.begin([message], leased.attempt).enter()
        return spans

    async def _in_time(self, running: RunningJob, deadline: Deadline) -> Any:
        _inherit(running.leased)
        job = self._decode(running.leased)
        try:
            result = await self._call(job, running)
        except BaseException as error:
            if not deadline.expired:
                raise
            raise deadline.error("job") from error
        if deadline.late:
            raise deadline.error("job")
        return result

    def _call(self, job: Any, running: RunningJob) -> Awaitable[Any]:
        handler = self.handler
        if handler.executor == "process":
            return self._processes.call(handler, job, running.leased.carrying(trace.current_trace()), self._dsn)
        if handler.blocking:
            running.task = None
            running.ctx = blocking = SyncJobContext(running.leased, self._connect_sync)
            running.context = copy_context()
            return self._in_thread(running.context, job, blocking)
        running.ctx = ctx = JobContext(running.leased, self._connect)
        called: Awaitable[Any] = handler.call(job, ctx)
        return called

    async def _in_thread(self, context: Context, job: Any, ctx: SyncJobContext) -> Any:
        try:
            result = await self._threads.call(context, self.handler.call, job, ctx)
        except asyncio.CancelledError:
            ctx.stop()
            raise
        if inspect.isawaitable(result) or inspect.isgenerator(result):
            if hasattr(result, "close"):
                result.close()
            raise TerminalError(
                f"the job returned a {type(result).__name__} that nobody awaits: declare it with async def"
            )
        return result

    def _settle_failed(self, running: RunningJob, error: BaseException) -> Other:
        leased = running.leased
        match running.reason, error:
            case "back", asyncio.CancelledError() | Cancelled():
                return Other(leased.delivery, leased.token, "back")
            case "cancelled", asyncio.CancelledError() | Cancelled():
                return Other(leased.delivery, leased.token, "cancelled")
            case _, Died():
                return Other(leased.delivery, leased.token, "crashed", code="worker_crash", message=str(error))
        chance, own = random.random(), self.handler.classify  # noqa: S311
        verdict = classify(error, leased.attempt, self.handler.retry, chance, ours=False, classifier=own)
        if isinstance(verdict, Dead):
            return Other(
                leased.delivery, leased.token, "dead", 0, verdict.code, verdict.message, traceback=last_frames(error)
            )
        delay = getattr(verdict, "delay", None)
        return Other(
            leased.delivery,
            leased.token,
            "later",
            0 if delay is None else delay.total_seconds(),
            verdict.code,
            verdict.message,
            getattr(verdict, "counted", True),
            last_frames(error),
        )

    def _decode(self, leased: Leased) -> Declared:
        kind = leased.row[TYPE]
        model = self.handler.models.get(kind)
        if model is None:
            raise Undecodable(f"{leased.envelope} is not of a type that {self.handler.name} knows")
        if kind in self._upcast and leased.row[VERSION] < spec_of(model).version:
            return leased.envelope.decode(model)
        try:
            decoded: Declared = self._validators[kind](leased.row[PAYLOAD], extra="ignore")
            return decoded
        except Exception as error:
            if isinstance(error, ValidationError):
                leased.envelope.decode(model)  # raises a clearer error
            raise Undecodable(f"{leased.envelope} is not a {model.__name__}: {describe(error)}") from error

    @contextmanager
    def _connect_sync(self) -> Iterator[Session]:
        with transaction_sync(self._dsn) as conn:
            yield conn


def _inherit(leased: Leased) -> None:
    """Set what the events and jobs that the job sends inherit from it."""
    row = leased.row
    inherited_cause.set(row[ID])
    if row[WORKSPACE] is not None:
        inherited_workspace.set(row[WORKSPACE])
    if row[TRACE] is not None:
        trace.inherited.set(leased.envelope.trace_context)


def _outcome(ended: EndedJob) -> str:
    """The outcome of its span."""
    if ended.other is None:
        return "success"
    return {"later": "failed", "crashed": "failed"}.get(ended.other.verdict, ended.other.verdict)


def _json(result: Any) -> str | None:
    """The result of a job as JSON. One that cannot be kept is left out, because the job itself is done."""
    if result is None:
        return None
    try:
        text = to_json(result, inf_nan_mode="null").decode()
    except Exception as error:
        return to_json({"not_kept": f"{type(result).__name__}: {describe(error)}"[:500]}).decode()
    if "\\u0000" in text or len(text) > RESULT_BYTES:
        return to_json(
            {"not_kept": f"a result of {len(text):,} bytes; {RESULT_BYTES:,} are kept, without \\u0000"}
        ).decode()
    return text
