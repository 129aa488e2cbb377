"""Starts the shop's worker processes, replaces killed ones, and stops them at the end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process

from outrider.errors import OutriderError

COMMAND = (sys.executable, "-P", "-m", "outrider.demo.worker")


class Crew:
    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self._size = size
        self._processes: list[Process] = []
        self._dismissed = False
        self.at_work: list[Process] = []
        self.complete = asyncio.Event()
        """Set once all workers have been running at the same time."""

    async def employ(self) -> None:
        """Runs one worker, and a new one whenever it is killed, until `dismiss`. No worker outlives this task."""
        while not self._dismissed:
            # A process group of its own: a terminal sends Ctrl-C to the whole group, and only the demo shall get it.
            process = await asyncio.create_subprocess_exec(
                *COMMAND, self._dsn, stdin=PIPE, stdout=PIPE, env=environment(), process_group=0
            )
            self._processes.append(process)
            try:
                code = await self._run(process)
            finally:
                self._processes.remove(process)
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if code not in (0, -signal.SIGKILL):
                raise OutriderError(f"Worker {process.pid} of the demo ended with code {code}. Its output is above.")

    async def _run(self, process: Process) -> int:
        assert process.stdout is not None
        if self._dismissed:
            close_input(process)
        if await process.stdout.readline():
            self.at_work.append(process)
            if len(self.at_work) == self._size:
                self.complete.set()
        try:
            return await process.wait()
        finally:
            if process in self.at_work:
                self.at_work.remove(process)

    def kill_one(self) -> int | None:
        """Sends SIGKILL and returns the process id. Returns None while another worker is still missing."""
        if len(self.at_work) < self._size:
            return None
        victim = random.choice(self.at_work)  # noqa: S311
        self.at_work.remove(victim)
        victim.kill()
        return victim.pid

    def dismiss(self) -> None:
        """Lets them finish what they have begun."""
        self._dismissed = True
        for process in self._processes:
            close_input(process)


def close_input(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


def environment() -> dict[str, str]:
    """Without settings of Outrider or libpq that are meant for another database."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PG"))}
