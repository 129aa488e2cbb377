"""Pages that quote the benchmark of the peers say what benchmarks/README.md says: after a new run, they follow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEED = ("Outrider events", "Outrider jobs", "Graphile Worker 0.18", "PgQueuer 1.6", "procrastinate 3.10")
REPORT = (ROOT / "benchmarks/README.md").read_text()

Table = dict[str, dict[str, str]]


def table(page: str, after: str) -> Table:
    """The first table after these words: each line by its first cell, its other cells by their columns."""
    found = re.search(r"(?:^\|.*\|\n)+", page[page.index(after) :], re.MULTILINE)
    assert found is not None
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines())
    return {label.removeprefix("at "): dict(zip(head[1:], cells, strict=True)) for label, *cells in lines}


def line(rows: Table, words: str) -> dict[str, str]:
    [found] = [row for label, row in rows.items() if label.startswith(words)]
    return found


SUMMARY = table(REPORT, "<!-- peers: begin -->")


@pytest.mark.parametrize(
    "words",
    [
        "drain of no-op",
        "publish or enqueue, one per commit",
        "added to a business transaction",
        "publish or enqueue, 1,000 a call",
        "pickup by an idle worker",
        "500 per second",
    ],
)
def test_the_comparison(words: str) -> None:
    said = line(table((ROOT / "docs/comparison.md").read_text(), "\n## Speed\n"), words)
    found = line(SUMMARY, words)
    if words.startswith("added"):  # the p50 alone
        found = {name: cell.partition(" / ")[0] for name, cell in found.items()}
    assert said == {name: found[name] for name in SPEED}


def test_the_front_page() -> None:
    said = re.findall(r"handles ([\d,]+) no-op events or ([\d,]+) no-op jobs", (ROOT / "README.md").read_text())
    row = line(SUMMARY, "drain of no-op")
    assert said == [tuple(f"{round(int(row[name].replace(',', '')), -3):,}" for name in SPEED[:2])]


def test_many_publishers() -> None:
    rows = table(REPORT, "| 16 publishers at once, one per commit | number |")
    rates = {name: row["per second"] for name, row in rows.items()}
    capacity = " ".join((ROOT / "docs/capacity.md").read_text().split())
    assert (
        f"`commit` {rates['Outrider events']}/s, `after_commit` {rates['Outrider events, notify=after_commit']}/s, "
        f"a bare insert {rates['bare SQL']}/s, Graphile Worker {rates['Graphile Worker 0.18']}/s"
    ) in capacity
    assert (
        f"16 publishers reach {rates['Outrider events, notify=after_commit']} events per second with it and "
        f"{rates['Outrider events']} by default"
    ) in " ".join(REPORT.split())
