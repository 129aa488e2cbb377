"""`make bench PEERS=1` still runs, stores what it found, and makes tables of it; a noisy run is recognised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers import report, result
from benchmarks.peers.line import Line

ROOT = Path(__file__).parents[1]


@pytest.mark.verify
def test_a_quick_run_yields_tables(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    command = [sys.executable, "-m", "benchmarks", "peers", "--quick", "--force", "--out", str(out)]
    command += ["--only", "publish", "--only", "bulk", "--system", "Outrider jobs", "--system", "bare SQL"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    found = json.loads(out.read_text())
    assert [part["key"] for part in found["parts"]] == ["publish", "bulk"]
    for part in found["parts"]:
        assert [row["name"] for row in part["rows"]] == ["Outrider jobs", "bare SQL"]
        assert all(row["median"] > 0 and row["wal"] > 0 and row["round_trips"] > 0 for row in part["rows"])
    text = report.tables(found)
    assert "publish or enqueue, one per commit" in text
    assert "quick run" in text


def test_medians_spread_and_ratios() -> None:
    cost = {"client_cpu": 1.0, "server_cpu": 2.0, "wal": 1_000, "tuples": 20}
    slow = result.row(Line("slow", (), "drain", 10), [{"seconds": each, **cost} for each in (1.0, 2.0, 4.0)], {})
    fast = result.row(Line("fast", (), "drain", 10), [{"seconds": 0.5, **cost}], {"round_trips": 3.0})
    result.add_ratios([slow, fast], "slow")
    assert (slow["median"], slow["low"], slow["high"], slow["wal"]) == (5.0, 2.5, 10.0, 100.0)
    assert (fast["ratio"], fast["round_trips"]) == (4.0, 3.0)


def test_latencies_are_pooled_and_rounds_are_the_spread() -> None:
    cost = {"client_cpu": 0.0, "server_cpu": 0.0, "wal": 0, "tuples": 0}
    rounds = [{"latencies": [0.001, 0.002, 0.003], **cost}, {"latencies": [0.004, 0.005, 0.006], **cost}]
    row = result.row(Line("one", (), "pickup", 3), rounds, {})
    assert (row["median"], row["low"], row["high"], row["p99"]) == (3.5, 2.0, 5.0, 6.0)


@pytest.mark.parametrize(
    ("foreign", "pace", "noisy"),
    [([0.0] * 3, [1.0] * 3, False), ([0.3] * 3, [1.0] * 3, True), ([0.0] * 3, [1, 2, 2], True)],
)
def test_noise_is_recognised(foreign: list[float], pace: list[float], noisy: bool) -> None:
    outcomes = [{"foreign": each, "pace": spun} for each, spun in zip(foreign, pace, strict=True)]
    assert result.noise(outcomes)["noisy"] is noisy
