"""A stored result as Markdown tables and a plot, put into benchmarks/README.md between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import result
from benchmarks.peers.parts import NAMES
from benchmarks.trial import tell

README = Path(__file__).parent.parent / "README.md"
PLOT = README.parent / "peers.svg"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
PLOTTED = ("drain", "publish", "bulk", "crowd", "pickup", "paced")
COLUMNS = {
    "ratio": ("ratio", "{:.2f}"),
    "p99": ("p99", "{:,.2f}"),
    "ratio_p99": ("ratio of p99", "{:.2f}"),
    "rate": ("rate held/s", "{:,.0f}"),
    "round_trips": ("round trips each", "{:,.3f}"),
    "statements": ("statements each", "{:,.3f}"),
    "client_cpu": ("client CPU s/10k", "{:,.2f}"),
    "server_cpu": ("Postgres CPU s/10k", "{:,.2f}"),
    "wal": ("WAL B each", "{:,.0f}"),
    "tuples": ("tuples each", "{:,.2f}"),
}


def write(found: dict[str, Any]) -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    plot(found)
    picture = f"![Medians of each system, with the lowest and the highest of the repeats]({PLOT.name})"
    README.write_text(f"{before}{BEGIN}\n{tables(found)}\n\n{picture}\n{END}{after}")
    tell(f"written: {README}, {PLOT}")


def tables(found: dict[str, Any]) -> str:
    about, noise = found["about"], found["noise"]
    mark = "**A noisy run: the times mean little.** " if noise["noisy"] else ""
    small = "**A quick run with small numbers.** " if found["quick"] else ""
    first = (
        f"{mark}{small}The run of {about['date']} at commit {about['commit']}: {about['server']}; Python {about['python']}; "
        f"repeats: {found['repeats']}, in {found['seconds'] / 60:.0f} minutes; {result.describe_noise(noise)}."
    )
    first += f" *Before* is commit {about['before']}." if "before" in about else ""
    first += f" Left out, because a program failed: {'; '.join(found['missing'])}." if found["missing"] else ""
    return "\n\n".join([first, *summary(found["parts"]), *(table(part) for part in found["parts"])])


def summary(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The medians of all systems on one page."""
    compared = [part for part in parts if any(row["name"] in NAMES for row in part["rows"])]
    names = [name for name in NAMES if any(row["name"] == name for part in compared for row in part["rows"])]
    lines = [["median", *names], ["---", *["---:"] * len(names)]]
    for part in compared:
        found = {row["name"]: row for row in part["rows"]}
        cells = [_summary_cell(found[name]) if name in found else "" for name in names]
        lines.append([f"{part['title']}, {_unit(part)}", *cells])
    return ["\n".join(f"| {' | '.join(cells)} |" for cells in lines)] if compared else []


def _summary_cell(row: dict[str, Any]) -> str:
    return _number(row["median"]) + (f" / {_number(row['p99'])}" if "p99" in row else "")


def _unit(part: dict[str, Any]) -> str:
    return "p50 / p99 ms" if part["unit"] == "ms" else str(part["unit"])


def table(part: dict[str, Any]) -> str:
    rows, unit = part["rows"], part["unit"]
    shown = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    middle = "p50 ms" if unit == "ms" else unit
    heads = [part["title"], "number", middle, "of each repeat", *(COLUMNS[name][0] for name in shown)]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows:
        cells = [
            row["name"],
            f"{row['count']:,}",
            _number(row["median"]),
            f"{_number(row['low'])} – {_number(row['high'])}",
        ]
        cells += ["" if row.get(name) is None else COLUMNS[name][1].format(row[name]) for name in shown]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def plot(found: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "peers", "font.size": 9}
    from matplotlib import pyplot

    parts = [part for part in found["parts"] if part["key"] in PLOTTED]
    if not parts:
        return
    rows = -(-len(parts) // 2)
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 2.4 * rows), squeeze=False)
    for axes, part in zip(grid.flat, parts, strict=False):
        lines = part["rows"][::-1]
        middle = [row["median"] for row in lines]
        error = [[row["median"] - min(row["low"], row["median"]) for row in lines],
                 [max(row["high"], row["median"]) - row["median"] for row in lines]]  # fmt: skip
        colours = ["#2a6f97" if row["name"].startswith("Outrider") else "#b0b0b0" for row in lines]
        axes.barh([row["name"] for row in lines], middle, xerr=error, color=colours, ecolor="#444444", capsize=2)
        axes.set_title(
            f"{part['title']} ({'p50 ms' if part['unit'] == 'ms' else part['unit']})", fontsize=10, loc="right"
        )
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(parts) :]:
        axes.remove()
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})
    pyplot.close(figure)
