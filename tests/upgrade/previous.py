"""The code of the release before this one, out of the repository's history."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

MIGRATIONS = "src/outrider/postgres/migrations"


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
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", commit, "src", "docs"))) as archive:
        archive.extractall(folder)
