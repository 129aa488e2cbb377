"""Another commit of Outrider, checked out beside this one, for benchmarks that compare the two.

It gets a git worktree in a temporary folder, and an environment of its own if its pinned requirements differ. It runs our
programs of `benchmarks/peers`, which use public names only; a commit for which they do not work runs its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.trial import tell

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Side:
    name: str
    python: str
    src: Path
    programs: Path
    """The checkout whose benchmarks it runs."""

    def command(self, *arguments: str) -> list[str]:
        """Python with its Outrider and its benchmarks."""
        path = os.pathsep.join((str(self.src), str(self.programs)))
        return ["env", f"--chdir={self.programs}", f"PYTHONPATH={path}", self.python, *arguments]

    def program(self, module: str) -> list[str]:
        return self.command("-m", f"benchmarks.peers.{module}")

    def runs(self, code: str) -> bool:
        return not subprocess.run(self.command("-c", code), capture_output=True, check=False).returncode

    def check(self) -> None:
        """It must import its own Outrider."""
        own = f"import outrider, pathlib; assert pathlib.Path(outrider.__file__).is_relative_to({str(self.src)!r})"
        assert self.runs(own), f"{self.name} does not import the Outrider of {self.src}"


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
            if not side.runs("import benchmarks.peers.outrider_jobs"):
                side = replace(side, programs=tree)
            side.check()
            yield side
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str, check: bool = False) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=check, cwd=ROOT).stdout.strip()
