"""The tests' side of worker_program: start workers, kill them, learn how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from tests.oracle import Oracle

ROOT = Path(__file__).parents[2]
_socket: Path | None = None


@contextlib.contextmanager
def program() -> Iterator[None]:
    """The program that all nurseries of this process are forked from."""
    global _socket
    with tempfile.TemporaryDirectory(prefix="nursery-") as folder:
        _socket = Path(folder) / "socket"
        command = [sys.executable, "-m", "tests.faults.worker_program", str(_socket)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT) as process:
            try:
                while not _socket.exists():
                    assert process.poll() is None, "it did not start"
                    time.sleep(0.02)
                yield
            finally:
                process.kill()


class Nursery:
    """`async with Nursery(dsn, oracle) as nursery:` ends with every worker dead."""

    def __init__(self, dsn: str, oracle: Oracle, subject: str = "tests.faults.subject") -> None:
        self._task = {"dsn": dsn, "outside": str(oracle.outside_file), "subject": subject}
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._died: dict[int, asyncio.Future[int]] = {}

    async def __aenter__(self) -> Self:
        assert _socket is not None
        self._reader, self._writer = await asyncio.open_unix_connection(_socket)
        self._say({"environment": dict(os.environ)})
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.write_eof()
        try:
            async with asyncio.timeout(60):
                await self._reading
        finally:
            self._reading.cancel()
            self._writer.close()

    def _say(self, what: Mapping[str, object]) -> None:
        self._writer.write(json.dumps(what).encode() + b"\n")

    async def _read(self) -> None:
        async for line in self._reader:
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
        self._say(self._task | {"fail": fail} | ({"subject": subject} if subject else {}))
        async with asyncio.timeout(60):
            return await self._born.get()

    async def end_of(self, pid: int, seconds: float = 60) -> int:
        """Its exit code, once it has ended; negative for a signal."""
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._died[pid])

    def ended(self, pid: int) -> bool:
        return self._died[pid].done()

    async def kill(self, pid: int, how: signal.Signals = signal.SIGKILL) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        return await self.end_of(pid)
