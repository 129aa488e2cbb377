"""Two releases, one migration or more apart: the previous one out of the history, and this tree.

As long as this tree has one migration, no release can have fewer. Then this tree is the previous release, and the next one
is this tree with the files of `next`: `rolling` adds a column and a function, and has a post phase; `stop` needs a stop.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

MIGRATIONS = "src/outrider/postgres/migrations"
SQL = "src/outrider/postgres/sql"
NEXT = Path(__file__).parent / "next"


@dataclass(frozen=True, slots=True)
class Pair:
    """The roots of two source trees."""

    old: Path
    new: Path

    @property
    def newest(self) -> int:
        return max(migrations(self.new))

    @property
    def added(self) -> dict[int, str]:
        """The migrations of the new release, each with what its header says of `breaking`."""
        return {version: breaking for version, breaking in migrations(self.new).items() if version > self.at}

    @property
    def at(self) -> int:
        """The newest migration of the old release."""
        return max(migrations(self.old))

    @property
    def needed(self) -> int:
        """The newest migration that the new release does not work without."""
        return max(version for version, breaking in self.added.items() if breaking != "yes")

    @property
    def breaks(self) -> bool:
        return set(self.added.values()) != {"no"}

    @property
    def stop(self) -> bool:
        return "stop" in self.added.values()


def migrations(tree: Path) -> dict[int, str]:
    return {
        int(file.name[:4]): re.findall(r"^-- breaking: *(\w+)$", file.read_text(), re.MULTILINE)[0]
        for file in sorted((tree / MIGRATIONS).glob("*.sql"))
    }


def from_history(root: Path, folder: Path) -> Pair:
    export(root, previous(root, max(migrations(root))), folder)
    return Pair(folder, root)


def with_next(root: Path, kind: str, folder: Path) -> Pair:
    """The tree as it is, and a copy with the migrations of `next`, numbered, and their functions."""
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for number, file in enumerate(sorted((NEXT / kind).glob("*.sql")), max(migrations(root)) + 1):
        shutil.copy(file, folder / MIGRATIONS / f"{number:04}_{file.name}")
    for file in (NEXT / kind).glob("functions/*.sql"):
        shutil.copy(file, folder / SQL / "handlers/functions")
        name = file.stem
        call = f"\nbegin\n    perform /*schema*/{name}(p_subscription);\n"
        replace(folder / SQL / "handlers/functions/take.sql", "\nbegin\n", call)
        granted = f"(values ('take', 'execute on function /*schema*/{name}'),\n"
        replace(folder / SQL / "schema/inherit_grants.sql", "(values ", granted)
    return Pair(root, folder)


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text, f"{file.name} has no {before!r}"
    file.write_text(text.replace(before, after, 1))


def git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise LookupError(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def previous(root: Path, newest: int) -> str:
    """The newest release if it has fewer migrations than today's code; else the newest commit that has."""
    # Not the commits of merged branches, which may be half of a change.
    touched = git(root, "rev-list", "--first-parent", "HEAD", "--", MIGRATIONS).decode().split()
    releases = git(root, "tag", "--list", "v*", "--merged", "HEAD", "--sort=-v:refname").decode().split()
    for candidate in (*releases[:1], "HEAD", *(f"{commit}^" for commit in touched)):
        try:
            commit = git(root, "rev-parse", "--verify", "--quiet", f"{candidate}^{{commit}}").decode().strip()
        except LookupError:  # the first commit of all, or of those that were fetched
            continue
        if 0 < newest_migration(root, commit) < newest:
            return commit
    if git(root, "rev-parse", "--is-shallow-repository").strip() == b"true":
        raise LookupError("the previous release is not in this shallow clone: git fetch --unshallow --tags")
    raise LookupError(f"no commit has fewer than {newest} migrations")


def newest_migration(root: Path, commit: str) -> int:
    names = git(root, "ls-tree", "--name-only", commit, f"{MIGRATIONS}/").decode()
    return max((int(number) for number in re.findall(r"/(\d{4})_\w+\.sql$", names, re.MULTILINE)), default=0)


def export(root: Path, commit: str, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", commit, "src"))) as archive:
        archive.extractall(folder)
