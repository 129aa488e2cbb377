"""Handlers, beside the plainest thing that could do their work: drain, one row per event, pickup latency, publish."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

import psutil
import psycopg

from benchmarks import drain, pickup, publish
from benchmarks.table import say, show_latencies, show_rates
from benchmarks.trial import SETTINGS, compare, tell
from outrider.postgres.embedded import Embedded

PARTS = ("drain", "write", "pickup", "publish")


@dataclass(frozen=True)
class Sizes:
    repeats: int
    drained: int
    written: int
    picked_up: int
    published: int
    """In rounds of 200."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dispatch", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; can be repeated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--events", type=int, default=100_000, help="events of the no-op drain")
    parser.add_argument("--quick", action="store_true", help="small numbers, once: to see that it works")
    options = parser.parse_args(arguments)
    sizes = Sizes(options.repeats, options.events, 20_000, 300, 2_000)
    if options.quick:
        sizes = Sizes(1, 10_000, 2_000, 40, 400)
    with Embedded.temporary(settings=SETTINGS) as server:
        asyncio.run(_run(server, sizes, options.only or PARTS))


async def _run(server: Embedded, sizes: Sizes, parts: tuple[str, ...]) -> None:
    say(describe(server))
    if "drain" in parts:
        await _drain(server, sizes)
    if "write" in parts:
        await drain.seed(database(server, "seed_write"), sizes.written)
        tell(f"one row per event: {sizes.written:,} events")
        results = await compare(server, drain.writing_cases("seed_write", sizes.written), sizes.repeats)
        show_rates(f"{sizes.written:,} events, a handler that writes one row each", results)
    if "pickup" in parts:
        await drain.seed(database(server, "seed_pickup"), 0)
        tell(f"pickup: {sizes.picked_up} events, one at a time")
        results = await compare(server, pickup.cases("seed_pickup", sizes.picked_up), sizes.repeats)
        show_latencies(f"Pickup of single events on an idle system, {sizes.picked_up} a round", results)
    if "publish" in parts:
        seeds = {subscribers: f"seed_publish_{subscribers}" for subscribers in (0, 20)}
        for subscribers, name in seeds.items():
            await publish.seed(database(server, name), subscribers)
        tell(f"publish: {sizes.published:,} events with each number of subscribers")
        results = await compare(server, publish.cases(seeds, 200), sizes.published // 200)
        show_latencies("Publish, one event per commit, in rounds of 200", results)


async def _drain(server: Embedded, sizes: Sizes) -> None:
    tell(f"no-op drain: publishing {sizes.drained:,} events")
    await drain.seed(database(server, "seed_drain"), sizes.drained)
    results = await compare(server, drain.noop_cases("seed_drain", sizes.drained), sizes.repeats)
    show_rates(f"Drain {sizes.drained:,} no-op events, one process", results)


def database(server: Embedded, name: str) -> str:
    server.ensure_database(name)
    return server.dsn(name)


def describe(server: Embedded) -> str:
    with psycopg.connect(server.dsn()) as conn:
        shown = [
            f"{name} {row[0]}"
            for name in ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
            if (row := conn.execute(f"show {name}").fetchone()) is not None
        ]
    mounts = [each for each in psutil.disk_partitions(all=True) if server.home.is_relative_to(each.mountpoint)]
    place = max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else "an unknown file system"
    return f"Postgres: {', '.join(shown)}; data on {place}; {psutil.cpu_count()} cores"
