"""The tests' side of worker_program: start workers, kill them, learn how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Self

from tests.oracle import Oracle

ROOT = Path(__file__).parents[2]


class Nursery:
    """`async with Nursery(dsn, oracle) as nursery:` ends with every worker dead."""

    def __init__(self, dsn: str, oracle: Oracle, subject: str = "tests.faults.subject") -> None:
        self._task = {"dsn": dsn, "outside": str(oracle.outside_file), "subject": subject}
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._died: dict[int, asyncio.Future[int]] = {}

    async def __aenter__(self) -> Self:
        self._process: Process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.worker_program", stdin=PIPE, stdout=PIPE, cwd=ROOT, env=dict(os.environ)
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
                await self._reading
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._reading.cancel()
            raise

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            fact = json.loads(line)
            if "born" in fact:
                self._death_of(fact["born"])
                self._born.put_nowait(fact["born"])
            else:
                self._death_of(fact["died"]).set_result(fact["code"])

    def _death_of(self, pid: int) -> asyncio.Future[int]:
        return self._died.setdefault(pid, asyncio.get_running_loop().create_future())

    async def start(self, fail: str = "", subject: str = "") -> int:
        """A new worker, of another subject where one is named; its process id."""
        assert self._process.stdin is not None
        task = self._task | {"fail": fail} | ({"subject": subject} if subject else {})
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        async with asyncio.timeout(10):
            return await self._born.get()

    async def end_of(self, pid: int, seconds: float = 15) -> int:
        """Its exit code, once it has ended; negative for a signal."""
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._died[pid])

    def ended(self, pid: int) -> bool:
        return self._died[pid].done()

    async def kill(self, pid: int, how: signal.Signals = signal.SIGKILL) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        return await self.end_of(pid)
