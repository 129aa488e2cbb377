"""Outrider with more of everything: events that were handled long ago, handlers, jobs and a relay.

BENCH_HANDLERS   how many; the first handles the events of the benchmark, the others another event
BENCH_JOBS       how many types of jobs
BENCH_REDIS      the server of a relay; none without
history COUNT    a mode beside those of peer.py: COUNT events, published before any handler exists
"""

from __future__ import annotations

import os

from benchmarks.peers.outrider_events import Events, Measured
from benchmarks.peers.peer import MODES, main
from outrider import Event, Job, Outrider
from outrider.streams import broker


class Other(Event, type="bench.other"):
    pass


class Grown(Events):
    def declare(self, app: Outrider) -> None:
        @app.handler(Measured, name="bench.noop")
        async def noop(event: Measured) -> None:
            self.entered(event.n)

        async def other(event: Other) -> None: ...

        for number in range(1, int(os.environ.get("BENCH_HANDLERS", "1"))):
            app.handler(Other, name=f"bench.other_{number}")(other)
        for number in range(int(os.environ.get("BENCH_JOBS", "0"))):
            app.job(type("Work", (Job,), {"__module__": __name__}, type=f"bench.work_{number}"))(_work)
        if "BENCH_REDIS" in os.environ:
            app.relay("bench.out", broker(os.environ["BENCH_REDIS"], stream="bench"), events=[Measured])

    async def history(self, count: int) -> None:
        bare = Outrider(context="bench", dsn=os.environ["BENCH_DSN"])
        async with bare:
            await bare.migrate()
        for begin in range(0, count, 10_000):
            await self.send_many(range(begin, min(begin + 10_000, count)))


async def _work(job: Job) -> None: ...


async def _history(peer: Grown, count: int) -> dict[str, object]:
    await peer.history(count)
    return {}


MODES["history"] = _history

if __name__ == "__main__":
    main(Grown)
