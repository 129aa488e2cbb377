"""A worker's side process: started with it, started again when it dies, told to end with it."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from outrider.postgres import connection, lease_renewer
from outrider.postgres.statement import call

_PLACE = struct.Struct("q")
BUFFER = 16 * 2**20
PAUSE = 0.5
FAREWELL = 2.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the database said the worker holds, in a query that began `at` (time.monotonic)."""

    at: float
    held: dict[tuple[int, int], tuple[float, bool]]
    """By delivery and token: the seconds of its lease, and whether somebody wants it to stop."""


class Begun:
    """The jobs that the worker is at, in memory that its side process shares: it is still there when the worker has died."""

    def __init__(self, slots: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(slots * 8)
        self._memory = mmap.mmap(self._file.fileno(), slots * 8)
        self._free = list(range(slots))
        self._spared = False

    def begin(self, delivery: int) -> int:
        """Returns its place."""
        place = self._free.pop()
        if not self._spared:
            _PLACE.pack_into(self._memory, place * 8, delivery)
        return place

    def end(self, place: int) -> None:
        if not self._memory.closed:  # a job that was left behind may end later
            _PLACE.pack_into(self._memory, place * 8, 0)
            self._free.append(place)

    def spare(self) -> None:
        """The worker was told to leave: if it is killed before it has finished, that is no crash of its jobs."""
        self._spared = True
        if not self._memory.closed:
            self._memory[:] = bytes(len(self._memory))

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._memory.close()
        self._file.close()


class Leases:
    def __init__(
        self,
        *,
        dsn: str,
        schema: str,
        notify: str = "commit",
        worker: UUID,
        names: Sequence[str],
        every: float,
        begun: Begun,
        heard: Callable[[Report], None],
    ) -> None:
        patient = {"statement_timeout": lease_renewer.PATIENCE, **connection.quiet(notify)}
        self._told = {
            "dsn": dsn,
            "worker": str(worker),
            "names": list(names),
            "every": every,
            "parent": os.getpid(),
            "begun": begun.fileno(),
            "renew": call("renew", schema, ("worker", "names")).decode(),
            "reap": call("reap", schema, ("worker", "names", "limit", "begun")).decode(),
            "looks": [[version, connection.look(connection.pins_of(version) | patient)] for version in (170000, 0)],
            "writable": connection.WRITABLE,
        }
        self._begun = begun
        self._silence = max(15.0, 3 * every)
        self._heard = heard
        self._process: Process | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                with suppress(OSError, ValueError):  # no more processes or descriptors; half a line
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-P", lease_renewer.__file__),
                        stdin=PIPE,
                        stdout=PIPE,
                        stderr=DEVNULL,
                        limit=BUFFER,
                        pass_fds=[self._begun.fileno()],
                    )
                    await self._listen(self._process)
                await self._kill()
                await asyncio.sleep(PAUSE)
        finally:
            await self._end()

    async def _listen(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            # The DSN may hold a password: not among the arguments, which everybody can read.
            process.stdin.write(json.dumps(self._told).encode() + b"\n")
            await process.stdin.drain()
            while line := await self._line(process.stdout):
                told = json.loads(line)
                if "held" in told:
                    held = {(row[0], row[1]): (row[2], row[3]) for row in told["held"]}
                    self._heard(Report(told["at"], held))

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        """Nothing when it has ended, or said nothing for so long that it must be cut off."""
        try:
            async with asyncio.timeout(self._silence):
                return await reader.readline()
        except TimeoutError:
            return b""

    async def _kill(self) -> None:
        """And read on until its end: a pipe that nobody has seen end stays open with its transport."""
        if (process := self._process) is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(FAREWELL):
                if self._process is not None:
                    await self._process.communicate(lease_renewer.BYE)
        except (TimeoutError, asyncio.CancelledError):
            await self._kill()
