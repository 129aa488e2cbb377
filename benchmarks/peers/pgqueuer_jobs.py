"""PgQueuer on asyncpg, batches of 500, as fast as its documentation says it can be."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from peer import BUSINESS, Entered, Peer, main, payload
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

logging.disable(logging.CRITICAL)


class Queuer(Peer):
    async def open(self) -> None:
        self.conn = await asyncpg.connect()
        self.queries = Queries(AsyncpgDriver(self.conn))

    async def close(self) -> None:
        await self.conn.close()

    async def install(self) -> None:
        await self.queries.install()
        await self.conn.execute(BUSINESS)

    async def send(self, number: int) -> None:
        await self.queries.enqueue("noop", json.dumps(payload(number)).encode())

    async def send_within(self, number: int) -> float:
        async with self.conn.transaction():
            await self.conn.execute("insert into business (note) values ($1)", f"order {number}")
            begun = time.perf_counter()
            await self.send(number)
            return time.perf_counter() - begun

    async def send_many(self, numbers: range) -> None:
        bodies = [json.dumps(payload(number)).encode() for number in numbers]
        await self.queries.enqueue(["noop"] * len(bodies), bodies, [0] * len(bodies))

    async def drain(self, count: int) -> None:
        conn = await asyncpg.connect()
        await self._queuer(conn, lambda _: None).run(batch_size=500, mode=QueueExecutionMode.drain)
        await conn.close()

    def _queuer(self, conn: asyncpg.Connection, entered: Entered) -> PgQueuer:
        queuer = PgQueuer(AsyncpgDriver(conn))

        @queuer.entrypoint("noop")
        async def noop(job) -> None:
            entered(json.loads(job.payload)["n"])

        return queuer

    @asynccontextmanager
    async def working(self, entered: Entered) -> AsyncIterator[None]:
        conn = await asyncpg.connect()
        queuer = self._queuer(conn, entered)
        worker = asyncio.create_task(queuer.run(batch_size=500, dequeue_timeout=timedelta(seconds=30)))
        await asyncio.sleep(1)
        yield
        queuer.shutdown.set()
        await asyncio.wait([worker], timeout=10)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await conn.close()


if __name__ == "__main__":
    main(Queuer)
