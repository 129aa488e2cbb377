"""Starts the shop's worker processes, replaces killed ones, and stops them at the end. `TroubleMaker` kills them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

from outrider import Outrider
from outrider.demo.shop import pause
from outrider.errors import OutriderError

COMMAND = (sys.executable, "-P", "-m", "outrider.demo.worker")
# The inner select picks one session: beside the limit, the function would run for all of them.
CUT = """
select pg_terminate_backend(one.pid), one.pid
from (select pid from pg_stat_activity
      where application_name = 'outrider listener' and datname = current_database()
      order by random() limit 1) as one
"""
LOOK = 0.05


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


class TroubleMaker:
    def __init__(self, app: Outrider, crew: Crew, tell: Callable[[str], None]) -> None:
        self._app = app
        self._crew = crew
        self._tell = tell
        self.killed = 0
        self.cut = 0

    async def make(self, closing: asyncio.Event) -> None:
        """Every second or two, in turn, until the shop closes; each at least once."""
        for act in itertools.cycle([self.kill_worker, self.cut_listener]):
            await pause(closing, random.uniform(0.8, 2.2))  # noqa: S311
            if closing.is_set() and self.killed and self.cut:
                return
            await act()

    async def kill_worker(self) -> None:
        """Postgres rolls back what it had begun, and another worker handles it."""
        while (pid := self._crew.kill_one()) is None:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(LOOK)
        self.killed += 1
        self._tell(f"killed worker {pid}; a new one starts")

    async def cut_listener(self) -> None:
        """Its worker gets no notifications until it listens again. Then it looks for what it missed."""
        while True:
            async with self._app.connect() as conn:
                cursor = await conn.execute(CUT)
                for _, pid in await cursor.fetchall():
                    self.cut += 1
                    self._tell(f"cut the listening session {pid}; its worker reconnects")
                    return
            await asyncio.sleep(LOOK)
