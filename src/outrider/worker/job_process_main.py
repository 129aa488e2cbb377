"""The program that runs jobs with executor="process": one after the other, as its parent sends them."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from outrider import trace
from outrider.envelope import inherited_cause, inherited_workspace
from outrider.error_text import describe, keep_frames
from outrider.errors import Cancelled
from outrider.postgres.connection import AsyncSession, Session, transaction, transaction_sync
from outrider.postgres.jobs import Leased
from outrider.worker.job_context import JobContext, SyncJobContext, progress_json
from outrider.worker.job_processes import SIZE

_PR_SET_PDEATHSIG = 1
GONE = object()
"""Received when the parent has ended."""


class Pipe:
    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = os.fdopen(incoming, "rb")
        self._outgoing = os.fdopen(outgoing, "wb")

    def receive(self) -> Any:
        """A job; None when the parent only asks whether this process answers; or GONE."""
        head = self._incoming.read(SIZE.size)
        if len(head) < SIZE.size:
            return GONE
        return pickle.loads(self._incoming.read(SIZE.unpack(head)[0]))  # noqa: S301

    def send(self, kind: str, value: Any) -> None:
        data = pickle.dumps((kind, value))
        self._outgoing.write(SIZE.pack(len(data)) + data)
        self._outgoing.flush()


class _ReportsProgress:
    """A context that sends the progress of its job to the parent."""

    pipe: Pipe

    def progress(self, fraction: float, message: str = "") -> None:
        self.pipe.send("progress", progress_json(fraction, message))


class _ProcessJobContext(_ReportsProgress, JobContext):
    pass


class _SyncProcessJobContext(_ReportsProgress, SyncJobContext):
    pass


def main() -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for the worker
    pipe = Pipe(int(sys.argv[1]), int(sys.argv[2]))
    _ReportsProgress.pipe = pipe
    while True:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        message = _received(pipe)
        if message is GONE:
            return
        if message is None:
            pipe.send("here", None)
            continue
        try:
            kind, value = "done", run(*message)
        except BaseException as error:
            kind, value = "raised", _portable(error)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            pipe.send(kind, value)
        except Exception as error:
            failed = f"the result cannot be sent: {describe(error)}"
            pipe.send(*(("done", {"not_kept": failed}) if kind == "done" else ("raised", RuntimeError(failed))))


def run(function: Any, job: Any, row: Any, dsn: str) -> Any:
    @asynccontextmanager
    async def connect() -> AsyncIterator[AsyncSession]:
        async with transaction(dsn) as conn:
            yield conn

    @contextmanager
    def connect_sync() -> Iterator[Session]:
        with transaction_sync(dsn) as conn:
            yield conn

    if row is None:
        return function()
    leased = Leased(row, 0.0, 0.0)
    trace.inherited.set(leased.envelope.trace_context)
    inherited_workspace.set(leased.envelope.workspace_id)
    inherited_cause.set(leased.envelope.id)
    signal.signal(signal.SIGTERM, _cancel)
    takes = len(inspect.signature(function).parameters)
    if inspect.iscoroutinefunction(function):
        return asyncio.run(function(*(job, _ProcessJobContext(leased, connect))[:takes]))
    return function(*(job, _SyncProcessJobContext(leased, connect_sync))[:takes])


def _received(pipe: Pipe) -> Any:
    try:
        return pipe.receive()
    except Exception as error:  # the function or its job cannot be imported here
        failed = error

        def fail(*_: Any) -> Any:
            raise failed

        return fail, None, None, ""


def _cancel(*_: object) -> None:
    raise Cancelled


def _portable(error: BaseException) -> BaseException:
    """The error itself, if it can be pickled; else one with the same text."""
    keep_frames(error)
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))  # noqa: S301
        return error
    described = RuntimeError(describe(error)).with_traceback(error.__traceback__)
    keep_frames(described)
    return described


def _die_with_parent() -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
