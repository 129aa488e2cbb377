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
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._alone:  # free unless a suspect runs alone, or waits to
            self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Raises TimeoutError if the others do not end in time."""
        async with self._alone:
            async with asyncio.timeout(WAIT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._at_work == 0)
            yield
