"""Kills workers, and cuts the sessions in which they listen for notifications."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

from outrider import Outrider
from outrider.demo.crew import Crew
from outrider.demo.shop import pause

# The inner select picks one session: beside the limit, the function would run for all of them.
CUT = """
select pg_terminate_backend(one.pid), one.pid
from (select pid from pg_stat_activity
      where application_name = 'outrider listener' and datname = current_database()
      order by random() limit 1) as one
"""
LOOK = 0.05


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
