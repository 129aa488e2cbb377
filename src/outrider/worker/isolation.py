"""Suspects run alone in their process: if it dies, nobody else can have done it, and nobody else is blamed for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PATIENCE = 1.0


class Isolation:
    def __init__(self) -> None:
        self._at_work = 0
        self._alone = asyncio.Lock()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._alone:  # passed at once, unless somebody is alone or waits to be
            self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """TimeoutError when the others do not come to an end."""
        async with self._alone:
            async with asyncio.timeout(PATIENCE), self._changed:
                await self._changed.wait_for(lambda: self._at_work == 0)
            yield
