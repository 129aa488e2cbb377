"""`make bench BEFORE=<commit>`: handlers, jobs and publish of this checkout beside those of another commit, in pairs.

The other commit gets a git worktree in a temporary folder, and an environment of its own if its pinned requirements differ.
Both sides run our programs of `benchmarks/peers`, which use public names only; a commit for which they do not work runs its
own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import report, result
from benchmarks.peers.line import INSTALL, LOGGING, Line
from benchmarks.peers.parts import Part
from benchmarks.peers.run import git, measure
from benchmarks.trial import SETTINGS, tell
from outrider.postgres.embedded import Embedded

ROOT = Path(__file__).parent.parent
NOT_BELOW = 0.95
"""Of the rate before, as the median of the pairs."""
NOT_HIGHER = ("round_trips", "statements", "wal")
SLACK = 1.01
"""By which a count may be higher: how events fall into batches varies."""


@dataclass(frozen=True)
class Side:
    name: str
    python: str
    src: Path
    programs: Path
    """The checkout whose benchmarks it runs."""

    def line(self, module: str, mode: str, count: int) -> Line:
        prepare = (INSTALL, ("seed", count)) if mode == "drain" else (INSTALL,)
        command = (self.python, "-m", f"benchmarks.peers.{module}")
        env = {"PYTHONPATH": os.pathsep.join((str(self.src), str(self.programs)))}
        return Line(self.name, command, mode, count, prepare, env=env, cwd=str(self.programs))


@contextmanager
def checked_out(commit: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="outrider-before-") as folder:
        tree, environment = Path(folder) / "tree", Path(folder) / "venv"
        try:
            git("worktree", "add", "--detach", str(tree), commit, check=True)
            python = sys.executable
            pins = "requirements/dev.txt"
            if (tree / pins).read_text() != (ROOT / pins).read_text():
                tell("  other requirements: building an environment")
                subprocess.run(["sh", "requirements/setup.sh", str(environment)], cwd=tree, check=True)
                python = str(environment / "bin" / "python")
            side = Side("before", python, tree / "src", ROOT)
            yield side if _runs(side, "import benchmarks.peers.outrider_jobs") else replace(side, programs=tree)
        finally:
            git("worktree", "remove", "--force", str(tree))


def _runs(side: Side, code: str) -> bool:
    line = side.line("outrider_events", "drain", 1)
    command = [side.python, "-c", code]
    return not subprocess.run(
        command, cwd=line.cwd, env=os.environ | line.env, capture_output=True, check=False
    ).returncode


def check(side: Side) -> None:
    """Each side must import its own Outrider."""
    own = f"import outrider, pathlib; assert pathlib.Path(outrider.__file__).is_relative_to({str(side.src)!r})"
    assert _runs(side, own), f"{side.name} does not import the Outrider of {side.src}"


def parts(sides: Sequence[Side], scale: float) -> list[Part]:
    def part(key: str, title: str, module: str, mode: str, count: int) -> Part:
        return Part(key, title, "per second", [side.line(module, mode, max(100, int(count * scale))) for side in sides])

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
        sides = [before, Side("now", sys.executable, ROOT / "src", ROOT)]
        for side in sides:
            check(side)
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
