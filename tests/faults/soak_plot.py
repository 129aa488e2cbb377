"""Draws a soak: one small panel for each thing that could grow, the time of the old snapshot shaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import use
from PIL import Image
from tests.faults.soak import HELD, Record, Sample

use("Agg")

MIB = 2.0**20
Lines = Mapping[str, Callable[[Sample], float]]
TABLES = ("event_handled", "delivery", "cursor")
SIZES = ("log", "receipts", "delivery", "cursor")


def _dead(name: str) -> Callable[[Sample], float]:
    return lambda each: each.dead.get(name, 0)


def _size(name: str) -> Callable[[Sample], float]:
    return lambda each: each.bytes.get(name, 0) / MIB


PANELS: dict[str, Lines] = {
    "not handled: unread events, retries, jobs": {"": lambda each: each.depth},
    "oldest unread event, s": {"": lambda each: each.lag},
    "publishing transaction, p95, ms": {"": lambda each: each.publish_ms},
    "dead rows": {name: _dead(name) for name in TABLES},
    "size with indexes, MiB": {name: _size(name) for name in SIZES},
    "segments": {"in the log": lambda each: each.segments, "detached": lambda each: each.detached},
    "a worker's own memory, MiB": {"": lambda each: each.workers / MIB},
    "memory of the workers' sessions, MiB": {"": lambda each: each.backends / MIB},
}
COLOURS = ("#1f5fa8", "#c8591b", "#3c8d40", "#7b4ea3")
INK, GRID, SHADE = "#333333", "#e3e3e3", "#f3ead2"


def draw(record: Record, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=100, layout="constrained", facecolor="white")
    axes = figure.subplots(3, 3, sharex=True).flatten()
    minutes = [each.at / 60 for each in record.samples]
    for axis, (title, lines) in zip(axes, PANELS.items(), strict=False):
        _panel(axis, record, title)
        for colour, (name, of) in zip(COLOURS, lines.items(), strict=False):
            axis.plot(minutes, [of(each) for each in record.samples], color=colour, linewidth=1.2, label=name)
        if len(lines) > 1:
            axis.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
    _panel(axes[-1], record, "WAL, KiB/s")
    steps = [(one.at, (two.wal - one.wal) / (two.at - one.at) / 1024) for one, two in pairwise(record.samples)]
    axes[-1].plot([at / 60 for at, _ in steps], [rate for _, rate in steps], color=COLOURS[0], linewidth=1.2)
    for axis in axes:
        axis.set_ylim(bottom=0, top=axis.get_ylim()[1] * (1.2 if axis.get_legend() else 1))
    for axis in axes[-3:]:
        axis.set_xlabel("minutes", fontsize=9, color=INK)
    figure.suptitle(
        f"{record.published:,} events in {record.seconds / 60:.0f} minutes; "
        f"{record.upkept.get('dropped', 0)} segments dropped; shaded: an old snapshot is held",
        fontsize=11,
        color=INK,
    )
    figure.savefig(path)
    Image.open(path).quantize(96).save(path, optimize=True)


def _panel(axis: Any, record: Record, title: str) -> None:
    axis.set_title(title, fontsize=10, loc="left", color=INK)
    axis.axvspan(*(part * record.seconds / 60 for part in HELD), color=SHADE, linewidth=0)
    axis.grid(color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.margins(x=0.01)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
