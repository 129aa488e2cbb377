"""Lets a suspect run alone in its process, so that a crash can be blamed on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

WAIT_SECONDS = 1.0
"""Seconds to wait until nothing else runs."""


class Isolation:
    def __init__(self) -> None:
        self._at_work = 0
        self._alone = asyncio.Lock()
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._alone:  # free unless a suspect runs alone, or waits to
            self._at_work += 1
            self._nothing_runs.clear()
        try:
            yield
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._nothing_runs.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Raises TimeoutError if the others do not end in time."""
        async with self._alone:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._nothing_runs.wait()
            yield
