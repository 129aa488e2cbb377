"""Outrider's jobs, default settings."""

from __future__ import annotations

import os

from benchmarks.peers.outrider_events import Events
from benchmarks.peers.peer import Entered, main, payload
from outrider import Job, Outrider
from outrider.signals import JobsCompleted


class Noop(Job, type="bench.noop"):
    customer: str
    n: int
    note: str


class Jobs(Events):
    async def open(self) -> None:
        self.entered: Entered = lambda _: None
        self.app = app = Outrider(context="bench", dsn=os.environ["BENCH_DSN"])

        @app.job(Noop)
        async def noop(job: Noop) -> None:
            self.entered(job.n)

        await app.__aenter__()
        self._connected = app.connect()
        self.conn = await self._connected.__aenter__()

    async def send(self, number: int) -> None:
        async with self.conn.transaction():
            await self.app.enqueue(self.conn, Noop.model_construct(**payload(number)))

    async def send_many(self, numbers: range) -> None:
        jobs = [Noop.model_construct(**payload(number)) for number in numbers]
        async with self.conn.transaction():
            await self.app.enqueue_many(self.conn, jobs)

    async def drain(self, count: int) -> None:
        await self._work(JobsCompleted, "jobs", count)


if __name__ == "__main__":
    main(Jobs())
