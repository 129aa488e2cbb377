"""`make bench BEFORE=<commit>`: handlers, jobs and publish of this checkout beside those of another commit, in pairs."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.checkout import ROOT, Side, checked_out
from benchmarks.peers import report, result
from benchmarks.peers.line import INSTALL, LOGGING, Line
from benchmarks.peers.parts import Part
from benchmarks.peers.run import measure
from benchmarks.trial import SETTINGS
from outrider.postgres.embedded import Embedded

NOT_BELOW = 0.95
"""Of the rate before, as the median of the pairs."""
NOT_HIGHER = ("round_trips", "statements", "wal")
SLACK = 1.01
"""By which a count may be higher: how events fall into batches varies."""


def parts(sides: Sequence[Side], scale: float) -> list[Part]:
    def part(key: str, title: str, module: str, mode: str, count: int) -> Part:
        count = max(100, int(count * scale))
        prepare = (INSTALL, ("seed", count)) if mode == "drain" else (INSTALL,)
        lines = [Line(side.name, side.program(module), mode, count, prepare) for side in sides]
        return Part(key, title, "per second", lines)

    return [
        part("handlers", "handlers: drain of no-op events", "outrider_events", "drain", 100_000),
        part("jobs", "jobs: drain of no-op jobs", "outrider_jobs", "drain", 50_000),
        part("publish", "publish, one per commit", "outrider_events", "publish", 3_000),
    ]


def verdict(part: dict[str, Any]) -> str:
    before, now = part["rows"]
    ratios = [mine / theirs for mine, theirs in zip(now["values"], before["values"], strict=True)]
    middle = statistics.median(ratios)
    higher = [name for name in NOT_HIGHER if now[name] > before[name] * SLACK]
    counts = f"higher: {', '.join(higher)}" if higher else "round trips, statements and WAL are not higher"
    slower = f" (below {NOT_BELOW})" if middle < NOT_BELOW else ""
    return f"{part['title']}: now/before {middle:.3f}{slower}, by pair {min(ratios):.3f} – {max(ratios):.3f}; {counts}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks before", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", action="append", choices=("handlers", "jobs", "publish"))
    parser.add_argument("--quick", action="store_true", help="small numbers, one pair: to see that it works")
    parser.add_argument("--force", action="store_true", help="report a noisy run too")
    options = parser.parse_args(arguments)
    with checked_out(options.commit) as before, Embedded.temporary(settings=SETTINGS | LOGGING) as server:
        now = Side("now", sys.executable, ROOT / "src", ROOT)
        now.check()
        sides = [before, now]
        wanted = [
            part for part in parts(sides, 0.02 if options.quick else 1) if not options.only or part.key in options.only
        ]
        found = measure(server, wanted, 1 if options.quick else options.pairs)
    if found["noise"]["noisy"] and not (options.force or options.quick):
        sys.exit(f"Not reported: {result.describe_noise(found['noise'])}. --force reports it as noisy.")
    for part in found["parts"]:
        print(report.table(part), end="\n\n")
    for part in found["parts"]:
        print(verdict(part))
    print(result.describe_noise(found["noise"]))
