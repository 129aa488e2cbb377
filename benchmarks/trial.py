"""One case, once: on a fresh copy of a seeded database, with its costs; then all cases in turn, several times over."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from tests.proxy import Proxy

from benchmarks.counters import Cost, Meter
from outrider.postgres.embedded import Embedded

SETTINGS = {
    "fsync": "on",  # a temporary server has these two off
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",  # no checkpoint but ours, so that WAL bytes compare
    "checkpoint_timeout": "1h",
}
RUN = "bench_run"


@dataclass
class Trial:
    """What a case gets: where to connect, and a window to put around what is measured."""

    dsn: str
    direct: str
    """Past the proxy, if there is one."""
    events: int
    meter: Meter
    proxy: Proxy | None = None
    batches: int = 0
    round_trips: int = 0
    cost: Cost | None = None
    latencies: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def window(self) -> Iterator[Window]:
        window = Window()
        trips = self.proxy.round_trips if self.proxy else 0
        before = self.meter.begin()
        yield window
        cost = self.meter.end() - before
        if self.proxy:
            self.round_trips = self.proxy.round_trips - trips
        self.cost = window.correct(cost, before)


@dataclass
class Window:
    """`stop` ends the clock earlier than the rest; another process says itself what it took."""

    stopped: float | None = None
    elsewhere: tuple[float, float] | None = None

    def stop(self, at: float) -> None:
        self.stopped = at

    def correct(self, cost: Cost, before: Cost) -> Cost:
        seconds, cpu = cost.seconds, cost.client_cpu
        if self.stopped is not None:
            seconds = self.stopped - before.seconds
        if self.elsewhere is not None:
            seconds, cpu = self.elsewhere
        return Cost(seconds, cpu, cost.server_cpu, cost.wal, cost.tuples)


@dataclass(frozen=True)
class Case:
    name: str
    seed: str
    """The database that it starts from."""
    events: int
    run: Callable[[Trial], Awaitable[None]]
    proxied: bool = True
    """Whether its round trips can be counted."""


@dataclass
class Result:
    case: Case
    trials: list[Trial] = field(default_factory=list)
    counted: Trial | None = None
    """The pass through the proxy: it counts round trips, and its times mean nothing."""


async def compare(server: Embedded, cases: Sequence[Case], repeats: int) -> list[Result]:
    """All cases in turn, `repeats` times over, so that a noisy moment hits all of them alike."""
    results = [Result(case) for case in cases]
    for number in range(repeats):
        for result in results:
            trial = await try_once(server, result.case)
            result.trials.append(trial)
            assert trial.cost is not None
            rate = result.case.events / trial.cost.seconds
            tell(f"  {number + 1}/{repeats} {result.case.name}: {rate:,.0f} events/s")
    for result in results:
        if result.case.proxied:
            tell(f"  round trips of {result.case.name}")
            result.counted = await try_once(server, result.case, proxied=True)
    return results


async def try_once(server: Embedded, case: Case, *, proxied: bool = False) -> Trial:
    with fresh(server, RUN, case.seed) as dsn, psycopg.connect(dsn, autocommit=True) as admin:
        if not proxied:
            trial = Trial(dsn, dsn, case.events, Meter(admin))
            await case.run(trial)
            return trial
        with Proxy(dsn) as proxy:
            trial = Trial(proxy.dsn, dsn, case.events, Meter(admin), proxy)
            await case.run(trial)
            return trial


@contextmanager
def fresh(server: Embedded, name: str, seed: str) -> Iterator[str]:
    """A copy of a database, through shared buffers and so warm; then a checkpoint."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"drop database if exists {name} with (force)")
        admin.execute(f"create database {name} template {seed}")
        admin.execute("checkpoint")
        try:
            yield server.dsn(name)
        finally:
            admin.execute(f"drop database if exists {name} with (force)")


def polish(dsn: str) -> None:
    """Leave nothing for the first reader to mark: with checksums each page that it marks is logged whole."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("vacuum analyze")
        admin.execute("vacuum freeze")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
