"""`make bench PEERS=1`: Outrider and its peers on one server, in turn, several times over; then Outrider as things grow.

Every trial is a process of its own on a fresh copy of a database that was prepared for it. A noisy run is not reported:
one beside which other programs used the cores, or in which a fixed piece of Python was slower than at its fastest.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.brokers import BrokerMissing, RedisServer

from benchmarks.checkout import checked_out, git
from benchmarks.dispatch import describe
from benchmarks.peers import line, parts, report, result
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.line import Line, Outcome
from benchmarks.peers.parts import Part
from benchmarks.trial import SETTINGS, tell
from outrider.postgres.embedded import Embedded

OUT = Path(__file__).parent / "peers.json"
COUNTED = {"publish": 200, "within": 200, "bulk": 2_000, "pickup": 30, "paced": 100}
"""How many are enough to count the messages of each."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", metavar="COMMIT", help="Outrider of another commit too")
    parser.add_argument(
        "--only", action="append", metavar="PART", help="a part, or the beginning of several: drain, log, …"
    )
    parser.add_argument("--system", action="append", choices=tuple(parts.SYSTEMS), help="some of them; can be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small numbers, once: to see that it works")
    size.add_argument("--full", action="store_true", help="grow the log to ten million events")
    parser.add_argument("--force", action="store_true", help="report a noisy run too, marked as noisy")
    parser.add_argument("--out", type=Path, default=OUT, help="the result as JSON (default: %(default)s)")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="no run: a result's tables and plot, into the README"
    )
    options = parser.parse_args(arguments)
    if options.report:
        report.write(json.loads(options.report.read_text()))
        return
    sizes = parts.QUICK if options.quick else parts.FULL if options.full else parts.Sizes()
    commands = available(options.system or list(parts.SYSTEMS))
    with ExitStack() as stack:
        if options.before:
            before = stack.enter_context(checked_out(options.before))
            commands |= {name: before.program(module) for name, module in parts.BEFORE.items()}
        server = stack.enter_context(Embedded.temporary(settings=SETTINGS | line.LOGGING))
        redis = None
        try:
            redis = stack.enter_context(RedisServer()).url
        except BrokerMissing as missing:
            tell(f"  without a relay: {missing}")
        wanted = [*parts.table(commands, sizes, redis), *parts.growth(commands, sizes)]
        if options.only:
            wanted = [part for part in wanted if part.key.startswith(tuple(options.only))]
        found = measure(server, wanted, 1 if options.quick else options.repeats)
        found |= {
            "about": about(server, options.before),
            "repeats": 1 if options.quick else options.repeats,
            "quick": options.quick,
        }
    text = json.dumps(found, indent=1) + "\n"
    if found["noise"]["noisy"] and not options.force:
        kept = options.out.with_suffix(".noisy.json")
        kept.write_text(text)
        sys.exit(f"Not reported: {result.describe_noise(found['noise'])}. Kept as {kept}; --report shows it as noisy.")
    options.out.write_text(text)
    print(report.tables(found))
    tell(f"written: {options.out}; python -m benchmarks peers --report {options.out} puts it into the README")


def available(names: Sequence[str]) -> dict[str, list[str]]:
    commands = {}
    for name in names:
        try:
            commands[name] = parts.SYSTEMS[name]()
        except Unavailable as reason:
            tell(f"  without {name}: {reason}")
    return commands


def measure(server: Embedded, wanted: Sequence[Part], repeats: int) -> dict[str, Any]:
    begun, everything, found = time.monotonic(), [], []
    seeds, missing = Seeds(server), list[str]()

    def progress(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        tell(f"  {minutes:02}:{seconds:02} {text}")

    for number, part in enumerate(wanted, 1):
        if part.lines:
            progress(f"{number}/{len(wanted)} {part.title}")
            try:
                rows, outcomes = _part(seeds, part, part.repeats or repeats, progress)
            except line.Failed as failed:
                progress(f"    left out: {failed}")
                missing.append(part.title)
                continue
            everything += outcomes
            found.append({"key": part.key, "title": part.title, "unit": part.unit, "rows": rows})
    if not found:
        sys.exit("Not reported: nothing was measured.")
    return {"parts": found, "missing": missing, "noise": result.noise(everything), "seconds": time.monotonic() - begun}


class Seeds:
    """The prepared databases. Lines that are prepared alike share one."""

    def __init__(self, server: Embedded) -> None:
        self.server = server
        self._names: dict[object, str] = {}

    def of(self, each: Line) -> str:
        alike = (*each.command, *each.prepare, *each.env.items(), each.cwd)
        if (name := self._names.get(alike)) is None:
            name = self._names[alike] = f"seed_{len(self._names)}"
            line.prepare(self.server, each, name)
        return name


def _part(
    seeds: Seeds, part: Part, repeats: int, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """All lines in turn, so that a noisy moment hits all of them alike."""
    outcomes: dict[str, list[Outcome]] = {each.name: [] for each in part.lines}
    counted: dict[str, dict[str, float]] = {}
    for each in part.lines:
        seeds.of(each)
    for number in range(repeats):
        for each in part.lines if number % 2 == 0 else part.lines[::-1]:
            run = line.count_idle if part.unit == "statements/s" else line.trial
            outcomes[each.name].append(run(seeds.server, each, seeds.of(each)))
            now = result.row(each, outcomes[each.name][-1:], {})["median"]
            progress(f"    {number + 1}/{repeats} {each.name}: {now:,.4g} {part.unit}")
    for each in part.lines:
        if part.messages:
            counted[each.name] = line.count_messages(seeds.server, each, seeds.of(each), _counted(each))
    rows = [result.row(each, outcomes[each.name], counted.get(each.name, {})) for each in part.lines]
    result.add_ratios(rows, part.yardstick)
    return rows, [outcome for each in outcomes.values() for outcome in each]


def _counted(line: Line) -> int:
    return min(line.count, COUNTED.get(line.mode, line.count))


def about(server: Embedded, before: str | None) -> dict[str, str]:
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return {
        "server": describe(server),
        "python": platform.python_version(),
        "commit": git("rev-parse", "--short", "HEAD") + changed,
        "date": datetime.now(UTC).date().isoformat(),
    } | ({"before": git("rev-parse", "--short", before)} if before else {})
