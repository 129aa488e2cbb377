"""Processes for jobs that keep a CPU busy (executor="process"): started when first needed, reused, killed with their job.

A process runs one job at a time, so its death is known to be caused by that job.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import sys
from asyncio.subprocess import DEVNULL, Process
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from outrider.errors import DeclarationError, Died
from outrider.postgres.jobs import Leased

if TYPE_CHECKING:
    from outrider.worker.job_handler import JobHandler

KILL_AFTER = 5.0
"""Seconds for a job to stop after SIGTERM. Then its process is killed."""
SIZE = struct.Struct("!Q")
"""Each message begins with its number of bytes."""


class JobProcesses:
    """The processes that run the jobs of a worker."""

    def __init__(self) -> None:
        self._free: list[_Child] = []
        self._all: set[_Child] = set()
        self._ending: set[asyncio.Task[int]] = set()
        self._progress: dict[int, str] = {}
        """The latest progress of each job, by delivery."""

    async def call(self, handler: JobHandler, job: Any, leased: Leased, dsn: str) -> Any:
        child = await self._child()
        finished = False
        try:
            await child.send((handler.function, job, leased.row, dsn))
            while True:
                kind, value = await child.receive()
                if kind == "progress":
                    self._progress[leased.delivery] = value
                    continue
                finished = True
                if kind == "raised":
                    raise value
                return value
        except asyncio.CancelledError:
            await child.stop()
            raise
        finally:
            self._progress.pop(leased.delivery, None)
            if finished and child.alive:
                self._free.append(child)
            else:
                self._end(child)

    async def _child(self) -> _Child:
        """A free process that answers, or a new one. The death of an idle process is no crash of a job."""
        while self._free:
            child, answers = self._free.pop(), False
            try:
                if answers := await child.answers():
                    return child
            finally:
                if not answers:
                    self._end(child)
        child = await _Child.start()
        self._all.add(child)
        return child

    def progress(self, delivery: int) -> str | None:
        """The progress that the job has reported since the last call."""
        return self._progress.pop(delivery, None)

    def close(self) -> None:
        for child in list(self._all):
            self._end(child)
        self._free.clear()

    async def ended(self) -> None:
        """Waits until the processes that were killed have ended."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, child: _Child) -> None:
        if child in self._all:
            self._all.discard(child)
            child.kill()
            ending = asyncio.create_task(child.gone())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class _Child:
    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: int, transport: Any) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._transport = transport

    @classmethod
    async def start(cls) -> _Child:
        """Messages go through two pipes, so that the output of jobs goes where that of the worker goes."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        with ExitStack() as ours, ExitStack() as its:
            inner_read, outer_write = os.pipe()
            its.callback(os.close, inner_read)
            ours.callback(os.close, outer_write)
            outer_read, inner_write = os.pipe()
            its.callback(os.close, inner_write)
            incoming = ours.enter_context(os.fdopen(outer_read, "rb", buffering=0))
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
            ours.callback(transport.close)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "outrider.worker.job_process_main", str(inner_read), str(inner_write)),
                pass_fds=(inner_read, inner_write),
                stdin=DEVNULL,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))},
            )
            ours.pop_all()
        return cls(process, reader, outer_write, transport)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def send(self, message: Any) -> None:
        try:
            data = pickle.dumps(message)
        except Exception as error:
            raise DeclarationError(f"the job cannot be sent to its process: {error}") from error
        try:
            await asyncio.to_thread(_write, self._writer, SIZE.pack(len(data)) + data)
        except OSError as error:
            raise await self._death() from error

    async def receive(self) -> tuple[str, Any]:
        try:
            (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
            kind, value = pickle.loads(await self._reader.readexactly(size))  # noqa: S301
        except asyncio.IncompleteReadError as error:
            raise await self._death() from error
        return kind, value

    async def answers(self) -> bool:
        try:
            await self.send(None)
            return await self.receive() == ("here", None)
        except Died:
            return False

    async def stop(self) -> None:
        """Tell the job to stop, and give it time to clean up."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError, Died):
            async with asyncio.timeout(KILL_AFTER):
                while (await self.receive())[0] == "progress":
                    pass

    async def _death(self) -> Died:
        code = await self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Died(f"the process that ran it ended with {how}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        os.close(self._writer)
        self._writer = -1
        self._transport.close()

    async def gone(self) -> int:
        return await self._process.wait()


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]
