"""The shop's worker processes: started, started anew when one is killed, dismissed at the end."""

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
        """All of them have been at work at the same time."""

    async def employ(self) -> None:
        """One worker after the other, until they are dismissed. They do not outlive this task."""
        while not self._dismissed:
            # In a group of its own: a terminal sends Ctrl-C to the whole group, and only the shop is meant.
            process = await asyncio.create_subprocess_exec(
                *COMMAND, self._dsn, stdin=PIPE, stdout=PIPE, env=environment(), process_group=0
            )
            self._processes.append(process)
            try:
                code = await self._last(process)
            finally:
                self._processes.remove(process)
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if code not in (0, -signal.SIGKILL):
                raise OutriderError(f"worker {process.pid} of the demo ended with code {code}; what it said is above")

    async def _last(self, process: Process) -> int:
        assert process.stdout is not None
        if self._dismissed:
            send_home(process)
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
        """Without warning; its process id. None while somebody is missing already."""
        if len(self.at_work) < self._size:
            return None
        victim = random.choice(self.at_work)  # noqa: S311
        self.at_work.remove(victim)
        victim.kill()
        return victim.pid

    def dismiss(self) -> None:
        """Let them finish what they have begun, and end."""
        self._dismissed = True
        for process in self._processes:
            send_home(process)


def send_home(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


def environment() -> dict[str, str]:
    """The DSN says all: no settings for Outrider or libpq that were meant for another database."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PG"))}
