"""The user that the server runs as. Switches from root to an unprivileged user. Never creates a user or changes a file
outside the home folder."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import EmbeddedError

VARIABLE = "OUTRIDER_EMBEDDED_USER"
PASSED_ON = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def environment() -> dict[str, str]:
    """The environment of the server's processes, without the caller's secrets and PG* variables."""
    return {"LC_ALL": "C"} | {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def run_apart(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command without the caller's environment, folder and input, and capture its output."""
    return subprocess.run(
        command,
        cwd="/",
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        **options,
    )


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    switched: bool

    def run(self, *command: str | Path, keep: Collection[int] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command as this user. `keep` are file descriptors that it inherits."""
        return run_apart(
            command,
            pass_fds=tuple(keep),
            umask=0o077,
            user=self.uid if self.switched else None,
            group=self.gid if self.switched else None,
            extra_groups=[] if self.switched else None,
        )

    def may(self, folder: Path, *rights: str) -> bool:
        """Tests the access as this user, because file modes do not show access lists, namespaces and mounts."""
        script = " && ".join(f'test -{right} "$1"' for right in rights)
        try:
            return self.run("/bin/sh", "-c", script, "sh", folder).returncode == 0
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedError(
                f"Root could not switch to the user {self.name!r} ({error}); "
                f"set {VARIABLE} to an unprivileged user that it can switch to."
            ) from error

    def own(self, path: Path) -> None:
        if self.switched:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account:
    """The current user, or for root (as whom Postgres refuses to run) an unprivileged one."""
    if os.geteuid() != 0:
        return Account(owner_name(os.geteuid()), os.geteuid(), os.getegid(), switched=False)
    name = os.environ.get(VARIABLE) or "nobody"
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise EmbeddedError(
            f"Postgres does not run as root and there is no user {name!r}; set {VARIABLE} to an unprivileged user."
        ) from None
    if entry.pw_uid == 0:
        raise EmbeddedError(f"Postgres does not run as root; set {VARIABLE} to an unprivileged user, not {name!r}.")
    return Account(name, entry.pw_uid, entry.pw_gid, switched=True)


def owner_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
