"""Runs one job: on the event loop, in a thread, or in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Coroutine, Generator, Iterator
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
from outrider.postgres.jobs import PAYLOAD, TRACE, TYPE, VERSION, WORKSPACE, JobDone, Leased, Other
from outrider.worker.deadline import Deadline
from outrider.worker.job_context import JobContext, SyncJobContext
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_processes import JobProcesses
from outrider.worker.thread import HandlerThread

RESULT_BYTES = 8 * 1024
"""The most bytes of a result that are kept."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job in a slot."""

    leased: Leased
    began: float
    """By time.monotonic."""
    task: asyncio.Task[None] | None = None
    """The task to cancel. None: a cancellation would not stop the job."""
    ctx: JobContext | SyncJobContext | None = None
    reason: str | None = None
    """Why it was told to stop: cancelled, lost or back (the worker stops, and releases it)."""
    cancels: int = 0
    """How often we have cancelled the task."""

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.ctx is not None:
            self.ctx.stop()
        if self.task is not None:
            self.cancels += 1
            self.task.cancel()

    def absorb(self) -> None:
        """Take our cancellations back: the task will run other jobs."""
        while self.cancels and self.task is not None:
            self.cancels -= 1
            self.task.uncancel()


@dataclass(slots=True)
class EndedJob:
    """A job that has ended, until it is settled."""

    leased: Leased
    seconds: float
    """How long it ran."""
    settle: JobDone | Other | None
    """None: its lease was lost, there is nothing to settle."""
    error: BaseException | None = None
    sent_before: bool = False
    """A settlement of it failed, and may have been committed."""


class JobRunner:
    """Owns a job while it runs: calls its function, and decides what its result or its error means."""

    def __init__(
        self,
        handler: JobHandler,
        connect: Callable[[], AbstractAsyncContextManager[AsyncSession]],
        dsn: str,
        processes: JobProcesses,
    ) -> None:
        self.handler = handler
        self._connect = connect
        self._dsn = dsn
        self._processes = processes
        self._context = copy_context()
        """The context variables that jobs start with: the code that made the worker may have been handling an event."""
        self._context.run(inherited_workspace.set, None)
        self._context.run(trace.inherited.set, None)
        # What model_validate_json calls. Calling it directly is measurably faster.
        self._validators = {kind: model.__pydantic_validator__.validate_json for kind, model in handler.models.items()}
        self._upcast = {kind for kind, model in handler.models.items() if spec_of(model).upcasters}

    async def run(self, running: RunningJob, thread: HandlerThread) -> EndedJob:
        """Run the job in its own copy of the context variables."""
        leased, row = running.leased, running.leased.row
        context = self._context.copy()
        context.run(inherited_cause.set, leased.id)
        if row[WORKSPACE] is not None:
            context.run(inherited_workspace.set, row[WORKSPACE])
        if row[TRACE] is not None:
            context.run(trace.inherited.set, leased.envelope.trace_context)
        if (spans := trace.handling(self.handler.name)) is not None:
            message = trace.TracedMessage(leased.id, row[TYPE], context.run(trace.inherited.get))
            context.run(spans.begin([message], leased.attempt).enter)
        error: BaseException | None = None
        hit("run.before")
        try:
            job = self._decode(leased)
            result = await self._in_time(job, running, thread, context)
            settle: JobDone | Other = JobDone(leased.delivery, leased.token, _json(result))
        except BaseException as raised:
            running.absorb()
            error, task = raised, asyncio.current_task()
            if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
                if spans is not None:
                    spans.end("back")
                raise
            settle = self._settle_failed(running, raised)
        finally:
            running.absorb()
        if spans is not None:
            outcome = "lost" if running.reason == "lost" else _outcome(settle)
            spans.end(outcome, error if outcome in ("failed", "dead") else None)
        hit("run.after")
        return EndedJob(leased, clock() - running.began, None if running.reason == "lost" else settle, error)

    async def _in_time(self, job: Any, running: RunningJob, thread: HandlerThread, context: Context) -> Any:
        with Deadline(self.handler.name, self.handler.timeout) as deadline:
            try:
                result = await self._call(job, running, thread, context)
                late = deadline.late
            except BaseException as error:
                if not deadline.absorb():
                    raise
                raise self._late() from error
        if late:
            deadline.absorb()
            raise self._late()
        return result

    def _late(self) -> TimeoutError:
        return TimeoutError(f"the job did not return within {self.handler.timeout:g} s")

    async def _call(self, job: Any, running: RunningJob, thread: HandlerThread, context: Context) -> Any:
        handler = self.handler
        if handler.executor == "process":
            running.task = asyncio.current_task()
            leased = running.leased.carrying(context.run(trace.current_trace))
            return await self._processes.call(handler, job, leased, self._dsn)
        if handler.blocking:
            ctx = SyncJobContext(running.leased, self._connect_sync)
            running.ctx = ctx
            return await self._in_thread(job, ctx, thread, context)
        running.ctx = JobContext(running.leased, self._connect)
        running.task = asyncio.current_task()
        return await _InContext(context, context.run(handler.call, job, running.ctx))

    async def _in_thread(self, job: Any, ctx: SyncJobContext, thread: HandlerThread, context: Context) -> Any:
        """A thread cannot be cancelled. After a timeout, or at the end of the worker, it is left behind."""
        calling = context.run(thread.call, self.handler.call, job, ctx)
        try:
            result = await asyncio.shield(calling)
        except asyncio.CancelledError:
            ctx.stop()
            calling.cancel()
            thread.leave()
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
        verdict = classify(error, leased.attempt, self.handler.retry, random.random(), ours=False)  # noqa: S311
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


def _outcome(settle: JobDone | Other) -> str:
    """The outcome of its span."""
    if isinstance(settle, JobDone):
        return "success"
    return {"later": "failed", "crashed": "failed"}.get(settle.verdict, settle.verdict)


class _InContext:
    """Runs a coroutine in a context, in the task that awaits it."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, context: Context, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._context = context
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine = self._context.run, self._coroutine
        step: Callable[..., Any] = coroutine.send
        given: Any = None
        while True:
            try:
                awaited = run(step, given)
            except StopIteration as ended:
                return ended.value
            try:
                step, given = coroutine.send, (yield awaited)
            except BaseException as raised:
                step, given = coroutine.throw, raised


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
