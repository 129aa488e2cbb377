"""Outcomes of trials as numbers that can be stored: medians, spread, ratios, cost of each; and how noisy they were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.line import Line, Outcome

FOREIGN = 0.1
"""Cores that other programs may use, as the median of all trials."""
PACE = 1.15
"""How much slower than the fastest the same piece of Python may be, as the median of all trials."""


def row(line: Line, outcomes: Sequence[Outcome], counted: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": line.name, "count": line.count}
    if "per_second" in outcomes[0]:
        return found | _spread([each["per_second"] for each in outcomes])
    if "latencies" in outcomes[0]:
        pooled = sorted(each for outcome in outcomes for each in outcome["latencies"])
        rounds = _spread([statistics.median(outcome["latencies"]) * 1000 for outcome in outcomes])
        found |= rounds | {"median": statistics.median(pooled) * 1000, "p99": pooled[int(len(pooled) * 0.99)] * 1000}
        held = [outcome["rate"] for outcome in outcomes if "rate" in outcome]
        found |= {"rate": statistics.median(held)} if held else {}
    else:
        found |= _spread([line.count / outcome["seconds"] for outcome in outcomes])
    for name, scale in (("client_cpu", 10_000), ("server_cpu", 10_000), ("wal", 1), ("tuples", 1)):
        found[name] = statistics.median(outcome[name] for outcome in outcomes) / line.count * scale
    return found | counted


def _spread(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "values": values}


def add_ratios(rows: Sequence[dict[str, Any]], yardstick: str | None) -> None:
    """To the yardstick, or to the first line if there is none or it did not run."""
    base = next((each for each in rows if each["name"] == yardstick), rows[0])
    for each in rows:
        each["ratio"] = each["median"] / base["median"] if base["median"] else None
        if "p99" in each:
            each["ratio_p99"] = each["p99"] / base["p99"]


def noise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    foreign = statistics.median(each["foreign"] for each in outcomes)
    paces = [each["pace"] for each in outcomes]
    pace = statistics.median(paces) / min(paces)
    return {"foreign_cores": foreign, "pace": pace, "noisy": foreign > FOREIGN or pace > PACE}


def describe_noise(noise: dict[str, Any]) -> str:
    return (
        f"other programs used {noise['foreign_cores']:.2f} cores (limit {FOREIGN}); "
        f"a fixed piece of Python took {noise['pace']:.2f} times its fastest (limit {PACE})"
    )
