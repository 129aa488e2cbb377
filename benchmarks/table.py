"""Results as tables: the median, the spread, the ratio to the first line, and what the clock cannot disturb."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.counters import Cost
from benchmarks.trial import Result

_CONSOLE = Console(width=200)


def show_rates(title: str, results: Sequence[Result]) -> None:
    table = _table(
        title, "events/s", "spread", "ratio", "round trips/event", "/batch", "worker CPU s/10k",
        "Postgres CPU s/10k", "WAL B/event", "tuples/event",
    )  # fmt: skip
    for result in results:
        rates = [result.case.events / seconds for seconds in _costs(result, lambda cost: cost.seconds)]
        table.add_row(
            result.case.name,
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} – {max(rates):,.0f}",
            f"{rate(result) / rate(results[0]):.2f}",
            *_round_trips(result),
            *_counts(result),
        )
    _CONSOLE.print(table)


def show_latencies(title: str, results: Sequence[Result]) -> None:
    """The first latency is the yardstick."""
    table = _table(
        title, "p50 ms", "of each round", "p95 ms", "p99 ms", "ratio of p50", "round trips/event", "client CPU s/10k",
        "Postgres CPU s/10k", "WAL B/event", "tuples/event",
    )  # fmt: skip
    yardstick = 0.0
    for result in results:
        for name in result.trials[0].latencies:
            rounds = [sorted(trial.latencies[name]) for trial in result.trials]
            pooled = sorted(each for one in rounds for each in one)
            middle = [statistics.median(one) for one in rounds]
            yardstick = yardstick or statistics.median(pooled)
            table.add_row(
                f"{result.case.name}, {name}",
                f"{statistics.median(pooled) * 1000:.2f}",
                f"{min(middle) * 1000:.2f} – {max(middle) * 1000:.2f}",
                *(f"{pooled[int(len(pooled) * share)] * 1000:.2f}" for share in (0.95, 0.99)),
                f"{statistics.median(pooled) / yardstick:.2f}",
                _round_trips(result)[0],
                *_counts(result),
            )
    _CONSOLE.print(table)


def rate(result: Result) -> float:
    return result.case.events / statistics.median(_costs(result, lambda cost: cost.seconds))


def by_round(result: Result, other: Result) -> str:
    """How far the ratio of two cases that ran one after the other varies."""
    pairs = zip(_costs(other, lambda cost: cost.seconds), _costs(result, lambda cost: cost.seconds), strict=True)
    ratios = [theirs / ours for theirs, ours in pairs]
    return f"by round: {min(ratios):.2f} – {max(ratios):.2f}"


def say(text: str) -> None:
    _CONSOLE.print(text, highlight=False)


def _round_trips(result: Result) -> tuple[str, str]:
    if (counted := result.counted) is None:
        return "", ""
    per_batch = f"{counted.round_trips / counted.batches:.2f}" if counted.batches else ""
    return f"{counted.round_trips / counted.events:.4f}", per_batch


def _counts(result: Result) -> tuple[str, str, str, str]:
    def per_event(what: Callable[[Cost], float]) -> float:
        return statistics.median(_costs(result, what)) / result.case.events

    return (
        f"{per_event(lambda cost: cost.client_cpu) * 10_000:.2f}",
        f"{per_event(lambda cost: cost.server_cpu) * 10_000:.2f}",
        f"{per_event(lambda cost: cost.wal):,.0f}",
        f"{per_event(lambda cost: cost.tuples):.3f}",
    )


def _costs(result: Result, what: Callable[[Cost], float]) -> list[float]:
    return [what(trial.cost) for trial in result.trials if trial.cost is not None]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    return table
