"""Repeat, take the median and the spread, and count what the clock cannot disturb: WAL bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

Conn = psycopg.Connection[Any]
Cases = dict[str, tuple[int, Callable[[], None]]]
"""By name: how many events a run handles, and the run."""


@dataclass
class Result:
    name: str
    events: int
    seconds: list[float] = field(default_factory=list)
    wal: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.events / statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        return f"{self.events / max(self.seconds):,.0f} – {self.events / min(self.seconds):,.0f}"


def wal_position(admin: Conn) -> int:
    row = admin.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def compare(admin: Conn, cases: Cases, repeats: int) -> list[Result]:
    """Run all cases in turn, `repeats` times over, so that a noisy moment hits all of them alike."""
    results = {name: Result(name, events) for name, (events, _) in cases.items()}
    for _ in range(repeats):
        for name, (_, run) in cases.items():
            before, cpu, start = wal_position(admin), time.process_time(), time.perf_counter()
            run()
            results[name].seconds.append(time.perf_counter() - start)
            results[name].cpu.append(time.process_time() - cpu)
            results[name].wal.append(wal_position(admin) - before)
    return list(results.values())


def show(title: str, results: list[Result]) -> None:
    """The first result is the yardstick."""
    table = Table(title=title, title_justify="left")
    columns = ("", "events/s (median)", "spread", "ratio", "WAL B/event", "client CPU µs/event")
    for column in columns:
        table.add_column(column, justify="left" if not column else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.rate:,.0f}",
            result.spread,
            f"{result.rate / results[0].rate:.2f}",
            f"{statistics.median(result.wal) / result.events:,.0f}",
            f"{statistics.median(result.cpu) / result.events * 1e6:.1f}",
        )
    Console(width=140).print(table)
