"""The leases of a worker: a side process renews them, and reports which jobs the worker still holds."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Any
from uuid import UUID

from outrider.postgres import connection, jobs, lease_renewer
from outrider.postgres.connection import AsyncSession
from outrider.postgres.statement import call
from outrider.worker.loop import DEADLINE
from outrider.worker.site import Site

RENEWAL = 20.0
"""The longest time between two renewals, in seconds: a report is also a sign of life of the side process."""
SHORTEST_SILENCE = 15.0
"""The side process is replaced after this many seconds without a report, or after three renewals if that is longer."""
RESTART_PAUSE = 0.5
"""Seconds before a side process that has ended is replaced."""
END_SECONDS = 2.0
"""Seconds to wait for the side process to end at shutdown. Then it is killed."""
LINE_BYTES = 16 * 2**20
"""The longest line that the side process may write."""
ENTRY_BYTES = 8


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """The leases that the worker held in the database, in a query that began `at` (time.monotonic)."""

    at: float
    held: dict[tuple[int, int], tuple[float, bool]]
    """By delivery and token: the seconds of the lease, and whether somebody wants the job to stop."""

    @classmethod
    def of(cls, at: float, rows: Iterable[Sequence[Any]]) -> LeaseReport:
        return cls(at, {(delivery, token): (lease, stop) for delivery, token, lease, stop, *_ in rows})


class CrashRecord:
    """The jobs that run now, in memory that the side process shares: it reads them after the worker has died."""

    def __init__(self, slots: int) -> None:
        self._bytes = slots * ENTRY_BYTES
        self._free = list(range(slots))
        self._file: IO[bytes] | None = None
        self._memory: memoryview | None = None

    def open(self) -> int:
        """Begin to record. Returns the descriptor of the memory."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(self._bytes)
        self._memory = memoryview(mmap.mmap(self._file.fileno(), self._bytes)).cast("q")
        return self._file.fileno()

    def begin(self, delivery: int) -> int:
        """A job begins. Returns its place in the record."""
        place = self._free.pop()
        if (memory := self._memory) is not None:  # a signal handler may clear it
            memory[place] = delivery
        return place

    def end(self, place: int) -> None:
        if (memory := self._memory) is not None:
            memory[place] = 0
        self._free.append(place)

    def clear(self) -> None:
        """The worker was told to stop: whatever ends its process from now on is no crash of its jobs."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory[:] = memoryview(bytes(memory.nbytes)).cast("q")

    def close(self) -> None:
        self._memory = None
        if self._file is not None:
            self._file.close()


class Leases:
    """Renews the leases of one worker `every` so many seconds, and calls `on_report` with those that it holds."""

    def __init__(
        self,
        site: Site,
        worker: UUID,
        names: list[str],
        every: float,
        record: CrashRecord,
        *,
        on_report: Callable[[LeaseReport], None],
    ) -> None:
        self._site, self._worker, self._names, self._every = site, worker, names, every
        self._record = record
        self._on_report = on_report
        self._process: Process | None = None

    # In a side process

    async def run(self) -> None:
        """Until it is cancelled. The side process is replaced when it dies or falls silent."""
        memory = self._record.open()
        instructions = self.instructions(memory)
        try:
            while True:
                with suppress(OSError, ValueError):  # no process or descriptor is left; a line is incomplete
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-P", lease_renewer.__file__),
                        stdin=PIPE,
                        stdout=PIPE,
                        stderr=DEVNULL,
                        limit=LINE_BYTES,
                        pass_fds=[memory],
                    )
                    await self._listen(self._process, instructions)
                await self._kill()
                await asyncio.sleep(RESTART_PAUSE)
        finally:
            await self._end()
            self._record.close()

    def instructions(self, memory: int) -> bytes:
        """The first line of input of the side process. It may contain a password, so it is not passed as an argument."""
        schema, settings = self._site.settings.schema, self._site.settings
        pins = {"statement_timeout": lease_renewer.PATIENCE, **connection.quiet(settings.notify)}
        instructions = {
            "dsn": self._site.dsn,
            "worker": str(self._worker),
            "names": self._names,
            "every": self._every,
            "parent": os.getpid(),
            "begun": memory,
            "renew": call("renew", schema, ("worker", "names")).decode(),
            "reap": call("reap", schema, ("worker", "names", "limit", "begun")).decode(),
            "looks": [[version, connection.look(connection.pins_of(version) | pins)] for version in (170000, 0)],
            "writable": connection.WRITABLE,
        }
        return json.dumps(instructions).encode() + b"\n"

    async def _listen(self, process: Process, instructions: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(instructions)
            await process.stdin.drain()
            while line := await self._line(process.stdout):
                message = json.loads(line)
                if "held" in message:
                    self._on_report(LeaseReport.of(message["at"], message["held"]))

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        """Empty when the side process has ended, or was silent for too long."""
        try:
            async with asyncio.timeout(max(SHORTEST_SILENCE, 3 * self._every)):
                return await reader.readline()
        except TimeoutError:
            return b""

    async def _kill(self) -> None:
        """Kill the process and read its output to the end; otherwise asyncio keeps the pipe open."""
        if (process := self._process) is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                if self._process is not None:
                    await self._process.communicate(lease_renewer.BYE)
        except (TimeoutError, asyncio.CancelledError):
            await self._kill()

    # Without one

    async def renew_here(self) -> None:
        """Until it is cancelled. For a drain, which is short, and whose jobs may block it."""
        while True:
            await asyncio.sleep(self._every)
            async with asyncio.timeout(DEADLINE), await connection.connect(self._site.dsn, autocommit=True) as conn:
                self._on_report(await self.renew(conn))

    async def renew(self, conn: AsyncSession) -> LeaseReport:
        at = monotonic()
        return LeaseReport.of(at, await jobs.renew(conn, self._worker, self._names, self._site.settings.schema))
