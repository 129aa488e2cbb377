"""What each system is asked to do, in a process of its own: `python X.py MODE COUNT`, the database in PG* variables.

    install   make its tables
    seed      enqueue COUNT jobs that do nothing
    drain     run them all with one worker           → seconds, cpu
    publish   enqueue COUNT, one per commit          → seconds, cpu
    within    COUNT times: begin, a business insert, enqueue, commit; only the enqueue is timed → latencies
    bulk      enqueue COUNT, 1,000 a call            → seconds, cpu
    crowd     publish on BENCH_CONNECTIONS connections at once; says "ready", then waits for a line on stdin
    pickup    COUNT times: an idle worker gets one   → latencies
    paced     COUNT at 500 per second                → latencies
    idle      a worker waits for COUNT seconds       → begun, ended
    later     enqueue COUNT jobs for next year, each in a queue of its own

A latency of pickup and paced is the time from just before the enqueue call to the entry of the handler. This module imports
nothing but the standard library: peers run in an environment without Outrider.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

CALL = 1_000
RATE = 500
PAUSE = 0.02
"""Seconds between two pickups: long enough for the worker to be idle again."""
PATIENCE = 60.0
"""Seconds for one pickup; one that takes longer counts as so long."""
BUDGET = 20.0
"""Seconds after which pickups end early."""
CALM = 3.0
"""Seconds from the start of a worker until it counts as idle."""
BUSINESS = "create table business (id bigint generated always as identity primary key, note text)"
Entered = Callable[[int], None]
"""Called by the handler with the number of its job."""


def payload(number: int) -> dict[str, Any]:
    """About 150 bytes, a thousand keys."""
    return {"customer": f"customer-{number % 1000}", "n": number, "note": "x" * 100}


class Peer(ABC):
    """One system; `open` and `close` surround everything."""

    async def open(self) -> None:  # noqa: B027
        pass

    async def close(self) -> None:  # noqa: B027
        pass

    @abstractmethod
    async def install(self) -> None: ...

    @abstractmethod
    async def send(self, number: int) -> None:
        """One job or event, committed."""

    async def send_within(self, number: int) -> float:
        """In one transaction with a business insert. Returns the seconds that the send took."""
        raise NotImplementedError

    async def send_later(self, count: int) -> None:
        """So many jobs, due in a year, each in a queue of its own."""
        raise NotImplementedError

    @abstractmethod
    async def send_many(self, numbers: range) -> None:
        """All of them in one call, committed."""

    @abstractmethod
    async def drain(self, count: int) -> None:
        """Returns when all are handled and settled."""

    @abstractmethod
    def working(self, entered: Entered) -> AbstractAsyncContextManager[None]:
        """A worker with its default settings runs inside; it is ready when the block begins."""


async def _seed(peer: Peer, count: int) -> dict[str, object]:
    for begin in range(0, count, 10_000):
        await peer.send_many(range(begin, min(begin + 10_000, count)))
    return {}


async def _drain(peer: Peer, count: int) -> dict[str, object]:
    return await _timed(lambda: peer.drain(count))


async def _publish(peer: Peer, count: int) -> dict[str, object]:
    async def run() -> None:
        for number in range(count):
            await peer.send(number)

    await peer.send(0)
    return await _timed(run)


async def _bulk(peer: Peer, count: int) -> dict[str, object]:
    async def run() -> None:
        for begin in range(0, count, CALL):
            await peer.send_many(range(begin, begin + CALL))

    await peer.send_many(range(CALL))
    return await _timed(run)


async def _within(peer: Peer, count: int) -> dict[str, object]:
    for number in range(20):
        await peer.send_within(number)
    return {"latencies": [await peer.send_within(number) for number in range(count)]}


async def _later(peer: Peer, count: int) -> dict[str, object]:
    await peer.send_later(count)
    return {}


async def _idle(peer: Peer, count: int) -> dict[str, object]:
    async with peer.working(lambda _: None):
        await asyncio.sleep(CALM)
        begun = time.time()
        await asyncio.sleep(count)
        return {"begun": begun, "ended": time.time()}


async def _crowd(peers: list[Peer], count: int) -> dict[str, object]:
    async def some(peer: Peer, number: int) -> None:
        for each in range(number, count, len(peers)):
            await peer.send(each)

    async def run() -> None:
        await asyncio.gather(*(some(peer, number) for number, peer in enumerate(peers)))

    await asyncio.gather(*(peer.send(0) for peer in peers))
    print("ready", flush=True)
    sys.stdin.readline()
    return await _timed(run)


async def _pickup(peer: Peer, count: int) -> dict[str, object]:
    latencies, arrived, at = [], asyncio.Event(), 0.0
    deadline = time.perf_counter() + BUDGET

    def entered(_: int) -> None:
        nonlocal at
        at = time.perf_counter()
        arrived.set()

    async with peer.working(entered):
        for number in range(-10, count):  # the first ten warm up
            arrived.clear()
            begun = time.perf_counter()
            await peer.send(max(number, 0))
            try:
                await asyncio.wait_for(arrived.wait(), PATIENCE)
            except TimeoutError:
                at = time.perf_counter()
            late = time.perf_counter() > deadline
            if number >= 0 or late:
                latencies.append(at - begun)
            if late:
                break
            await asyncio.sleep(PAUSE)
    return {"latencies": latencies}


async def _paced(peer: Peer, count: int) -> dict[str, object]:
    sent: dict[int, float] = {}
    latencies: list[float] = []
    done = asyncio.Event()

    def entered(number: int) -> None:
        latencies.append(time.perf_counter() - sent[number])
        if len(latencies) == count:
            done.set()

    async with peer.working(entered):
        begun = time.perf_counter()
        for number in range(count):
            due = begun + number / RATE
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent[number] = time.perf_counter()
            await peer.send(number)
        held = count / (time.perf_counter() - begun)
        await asyncio.wait_for(done.wait(), PATIENCE)
    return {"latencies": latencies, "rate": held}


async def _timed(run: Callable[[], Awaitable[None]]) -> dict[str, object]:
    cpu, begun = time.process_time(), time.perf_counter()
    await run()
    return {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}


Mode = Callable[[Any, int], Awaitable[dict[str, object]]]
MODES: dict[str, Mode] = {
    "seed": _seed, "drain": _drain, "publish": _publish, "within": _within, "bulk": _bulk, "pickup": _pickup,
    "paced": _paced, "idle": _idle, "later": _later,
}  # fmt: skip


def main(kind: type[Peer]) -> None:
    mode, count = sys.argv[1], int(sys.argv[2])
    peers = [kind() for _ in range(int(os.environ.get("BENCH_CONNECTIONS", "1")) if mode == "crowd" else 1)]

    async def run() -> dict[str, object]:
        for peer in peers:
            await peer.open()
        try:
            if mode == "install":
                await peers[0].install()
                return {}
            before = time.process_time()
            said = await (_crowd(peers, count) if mode == "crowd" else MODES[mode](peers[0], count))
            return {"cpu": time.process_time() - before} | said
        finally:
            for peer in peers:
                await peer.close()

    print(json.dumps(asyncio.run(run())))
