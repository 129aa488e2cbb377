"""Outrider's events and one handler, default settings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from benchmarks.peers.peer import BUSINESS, PATIENCE, Entered, Peer, main, payload
from outrider import Event, Outrider
from outrider.signals import ListenerUp, Settled, Signal


class Measured(Event, type="bench.measured", key="customer"):
    customer: str
    n: int
    note: str


class Events(Peer):
    partitions = 1
    worker: AbstractAsyncContextManager[object] | None = None
    """That of a drain: it stops when the clock has."""

    async def open(self) -> None:
        self.entered: Entered = lambda _: None
        self.app = Outrider(context="bench", dsn=os.environ["BENCH_DSN"])
        self.declare(self.app)
        await self.app.__aenter__()
        self._connected = self.app.connect()
        self.conn = await self._connected.__aenter__()
        self.app.worker()  # imports what a worker needs: no part of what is measured

    def declare(self, app: Outrider) -> None:
        @app.handler(Measured, name="bench.noop", start="beginning", partitions=self.partitions)
        async def noop(event: Measured) -> None:
            self.entered(event.n)

    async def close(self) -> None:
        if self.worker is not None:
            await self.worker.__aexit__(None, None, None)
        await self._connected.__aexit__(None, None, None)
        await self.app.__aexit__(None, None, None)

    async def install(self) -> None:
        await self.app.migrate()
        await self.conn.execute(BUSINESS)
        await self.conn.commit()

    async def send(self, number: int) -> None:
        async with self.conn.transaction():
            await self._send(number)

    async def send_within(self, number: int) -> float:
        async with self.conn.transaction():
            await self.conn.execute("insert into business (note) values (%s)", [f"order {number}"])
            begun = time.perf_counter()
            await self._send(number)
            return time.perf_counter() - begun

    async def _send(self, number: int) -> None:
        await self.app.publish(self.conn, Measured(**payload(number)))

    async def send_many(self, numbers: range) -> None:
        events = [Measured(**payload(number)) for number in numbers]
        async with self.conn.transaction():
            await self.app.publish_many(self.conn, events)

    async def drain(self, count: int) -> None:
        await self._work(Settled, "events", count)

    async def _work(self, kind: type[Signal], field: str, count: int) -> None:
        left, finished = count, asyncio.Event()

        def hear(signal: Signal) -> None:
            nonlocal left
            if isinstance(signal, kind):
                left -= getattr(signal, field)
                if left == 0:
                    finished.set()

        self.app.signals.listen(hear)
        self.worker = self.app.worker()
        await self.worker.__aenter__()
        await finished.wait()

    @asynccontextmanager
    async def working(self, entered: Entered) -> AsyncIterator[None]:
        self.entered, listening = entered, asyncio.Event()

        def hear(signal: Signal) -> None:
            if isinstance(signal, ListenerUp):
                listening.set()

        self.app.signals.listen(hear)
        async with self.app.worker():
            await asyncio.wait_for(listening.wait(), PATIENCE)
            yield


if __name__ == "__main__":
    main(Events)
