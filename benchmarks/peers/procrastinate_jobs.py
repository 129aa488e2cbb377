"""procrastinate, 24 jobs at a time, as its documentation recommends for asynchronous tasks."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate
from peer import Entered, Peer, main, payload

logging.disable(logging.CRITICAL)


class Procrastinate(Peer):
    async def open(self) -> None:
        self.entered: Entered = lambda _: None
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=""))

        @self.app.task(name="noop")
        async def noop(customer: str, n: int, note: str) -> None:
            self.entered(n)

        self.noop = noop
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def install(self) -> None:
        await self.app.schema_manager.apply_schema_async()

    async def send(self, number: int) -> None:
        await self.noop.defer_async(**payload(number))

    async def send_many(self, numbers: range) -> None:
        await self.noop.batch_defer_async(*(payload(number) for number in numbers))

    async def drain(self, count: int) -> None:
        await self.app.run_worker_async(wait=False, concurrency=24, install_signal_handlers=False)

    @asynccontextmanager
    async def working(self, entered: Entered) -> AsyncIterator[None]:
        self.entered = entered
        worker = asyncio.create_task(self.app.run_worker_async(concurrency=24, install_signal_handlers=False))
        await asyncio.sleep(1)
        yield
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    main(Procrastinate)
