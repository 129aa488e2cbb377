"""`make bench PEERS=1`: Outrider and its peers on one server, in turn, several times over.

Every trial starts on a fresh copy of a database that was seeded for it, in a process of its own. A run beside which other
programs used more than a tenth of a core is not reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich import box
from rich.console import Console
from rich.table import Table
from tests.proxy import Proxy

from benchmarks.counters import Cost, Meter
from benchmarks.dispatch import database, describe
from benchmarks.peers.environments import Unavailable, node, ours, theirs
from benchmarks.trial import SETTINGS, fresh, polish, tell
from outrider.postgres.embedded import Embedded

SYSTEMS: dict[str, Callable[[], list[str]]] = {
    "Outrider events": lambda: ours("outrider_events"),
    "Outrider events, 4 partitions": lambda: ours("outrider_events_4"),
    "Outrider jobs": lambda: ours("outrider_jobs"),
    "Graphile Worker 0.18": node,
    "PgQueuer 1.6": lambda: theirs("pgqueuer_jobs"),
    "procrastinate 3.10": lambda: theirs("procrastinate_jobs"),
    "bare SQL": lambda: ours("bare"),
}
YARDSTICK = "Graphile Worker 0.18"
NOISE = 0.1
"""Cores that other programs may use, as the median of all trials."""
SLOW = {"procrastinate 3.10": 0.1}
"""Which share of the drain a slow system gets, so that a run ends."""


@dataclass(frozen=True)
class Part:
    mode: str
    title: str
    count: int
    seeded: bool = False
    paced: bool = False


@dataclass
class Row:
    system: str
    count: int
    said: list[dict[str, Any]] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    round_trips: float | None = None


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="append", choices=("drain", "publish", "bulk", "pickup", "paced"))
    parser.add_argument(
        "--system", action="append", choices=tuple(SYSTEMS), help="some of the systems; can be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, once: to see that it works")
    parser.add_argument("--noisy", action="store_true", help="report a noisy run, too, and say that it was")
    options = parser.parse_args(arguments)
    scale = 0.02 if options.quick else 1
    parts = [
        Part("drain", "drain of no-op jobs or events", int(100_000 * scale), seeded=True),
        Part("publish", "publish or enqueue, one per commit", int(3_000 * scale)),
        Part("bulk", "the same, 1,000 a call", max(2_000, int(50_000 * scale))),
        Part("pickup", "pickup by an idle worker", max(20, int(300 * scale)), paced=True),
        Part("paced", "500 per second", max(200, int(5_000 * scale)), paced=True),
    ]
    parts = [part for part in parts if not options.only or part.mode in options.only]
    commands = {}
    for name in options.system or SYSTEMS:
        try:
            commands[name] = SYSTEMS[name]()
        except Unavailable as reason:
            tell(f"  without {name}: {reason}")
    with Embedded.temporary(settings=SETTINGS) as server:
        report(server, commands, parts, 1 if options.quick else options.repeats, noisy=options.noisy or options.quick)


def report(server: Embedded, commands: dict[str, list[str]], parts: list[Part], repeats: int, *, noisy: bool) -> None:
    tables, noises = [], []
    for part in parts:
        rows = [
            Row(name, max(1, int(part.count * SLOW.get(name, 1))) if part.seeded else part.count) for name in commands
        ]
        for row in rows:
            seed(server, row, commands[row.system], part)
        for number in range(repeats):
            for row in rows:
                tell(f"  {number + 1}/{repeats} {part.title}: {row.system}")
                trial(server, row, commands[row.system], part)
        for row in rows:
            count_round_trips(server, row, commands[row.system], part)
        noises += [noise for row in rows for noise in row.noise]
        tables.append((latencies if part.paced else rates)(part, rows))
    noise = statistics.median(noises)
    if noise > NOISE and not noisy:
        sys.exit(f"Not reported: other programs used {noise:.2f} cores (median of all trials); the limit is {NOISE}.")
    console = Console(width=200)
    console.print(
        describe(server), f"; {repeats} repeats; other programs used {noise:.2f} cores", sep="", highlight=False
    )
    for table in tables:
        console.print(table)


def seed(server: Embedded, row: Row, command: list[str], part: Part) -> None:
    dsn = database(server, seeded(row, part))
    call(dsn, command, "install", 0)
    if part.seeded:
        call(dsn, command, "seed", row.count)
    polish(dsn)


def seeded(row: Row, part: Part) -> str:
    return f"seed_{part.mode}_{list(SYSTEMS).index(row.system)}"


def trial(server: Embedded, row: Row, command: list[str], part: Part) -> None:
    with fresh(server, "bench_run", seeded(row, part)) as dsn, psycopg.connect(dsn, autocommit=True) as admin:
        meter = Meter(admin)
        busy, children = busy_seconds(), os.times()
        before = meter.begin()
        row.said.append(call(dsn, command, part.mode, row.count))
        cost = meter.end() - before
        now = os.times()
        used = now.children_user - children.children_user + now.children_system - children.children_system
        row.costs.append(Cost(cost.seconds, used, cost.server_cpu, cost.wal, cost.tuples))
        own = now.user - children.user + now.system - children.system
        foreign = busy_seconds() - busy - used - own - cost.server_cpu
        row.noise.append(max(0.0, foreign / cost.seconds))


def count_round_trips(server: Embedded, row: Row, command: list[str], part: Part) -> None:
    with fresh(server, "bench_run", seeded(row, part)) as dsn, Proxy(dsn) as proxy:
        call(proxy.dsn, command, part.mode, row.count)
        row.round_trips = proxy.round_trips / row.count


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def call(dsn: str, command: list[str], mode: str, count: int) -> dict[str, Any]:
    parts = conninfo_to_dict(dsn)
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname", "PGPASSWORD": "password"}
    known = {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}  # the proxy that counts reads the plain protocol
    known |= {name: str(parts[part]) for name, part in names.items() if parts.get(part) is not None}
    done = subprocess.run(
        [*command, mode, str(count)], env={**os.environ, **known, "BENCH_DSN": dsn},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} {mode} {count} failed: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rates(part: Part, rows: list[Row]) -> Table:
    table = _table(f"{part.title}, {part.count:,}", "per second", "spread", "ratio", *COUNTS)
    found = {row.system: [row.count / said["seconds"] for said in row.said] for row in rows}
    for row in rows:
        each = found[row.system]
        table.add_row(
            row.system,
            f"{statistics.median(each):,.0f}",
            f"{min(each):,.0f} – {max(each):,.0f}",
            _ratio(statistics.median(each), [statistics.median(found[YARDSTICK])] if YARDSTICK in found else []),
            *_counts(row, statistics.median(said["cpu"] for said in row.said)),
        )
    return table


def latencies(part: Part, rows: list[Row]) -> Table:
    title = f"{part.title}, {part.count:,} (milliseconds)"
    table = _table(title, "p50", "of each round", "p99", "ratio of p50", "rate", *COUNTS)
    pooled = {row.system: sorted(each for said in row.said for each in said["latencies"]) for row in rows}
    for row in rows:
        each, rounds = pooled[row.system], [statistics.median(said["latencies"]) for said in row.said]
        held = [said["rate"] for said in row.said if "rate" in said]
        table.add_row(
            row.system,
            f"{statistics.median(each) * 1000:.2f}",
            f"{min(rounds) * 1000:.2f} – {max(rounds) * 1000:.2f}",
            f"{each[int(len(each) * 0.99)] * 1000:.2f}",
            _ratio(statistics.median(each), [statistics.median(pooled[YARDSTICK])] if YARDSTICK in pooled else []),
            f"{statistics.median(held):,.0f}" if held else "",
            *_counts(row, statistics.median(cost.client_cpu for cost in row.costs)),
        )
    return table


COUNTS = ("round trips each", "client CPU s/10k", "Postgres CPU s/10k", "WAL B each", "tuples each")


def _counts(row: Row, client: float) -> list[str]:
    def each(what: Callable[[Cost], float]) -> float:
        return statistics.median(what(cost) for cost in row.costs) / row.count

    return [
        f"{row.round_trips:.3f}" if row.round_trips is not None else "",
        f"{client / row.count * 10_000:.2f}",
        f"{each(lambda cost: cost.server_cpu) * 10_000:.2f}",
        f"{each(lambda cost: cost.wal):,.0f}",
        f"{each(lambda cost: cost.tuples):.2f}",
    ]


def _ratio(value: float, yardstick: list[float]) -> str:
    return f"{value / yardstick[0]:.2f}" if yardstick else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    return table
