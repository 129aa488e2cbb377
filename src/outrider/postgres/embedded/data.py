"""Creates the data folder. initdb writes to another name, which is then renamed: a data folder that exists is complete."""

from __future__ import annotations

import shutil
from pathlib import Path

from outrider.errors import EmbeddedError
from outrider.postgres.embedded.account import Account
from outrider.postgres.embedded.binaries import VARIABLE, Install

OPTIONS = ("--username=postgres", "--encoding=UTF8", "--auth-local=trust", "--auth-host=reject", "--no-instructions")
LOCALE = ("--locale=C",)
BUILTIN_LOCALE = (*LOCALE, "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
FIRST_WITH_BUILTIN = 17


def check_version(data: Path, wanted: int) -> None:
    try:
        found = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise EmbeddedError(f"{data} is not a Postgres data folder; move it away or choose another folder.") from None
    if found != str(wanted):
        raise EmbeddedError(
            f"{data} was made by Postgres {found} and Postgres {wanted} was asked for; use version={found} "
            f"({VARIABLE}={found}), choose another folder, or dump it with version {found}, remove it and restore it "
            f"with {wanted}."
        )


def make(data: Path, install: Install, account: Account, *, start_lock: int, durable: bool) -> None:
    """Runs initdb. It inherits start.lock, so that if this process is killed, the next one waits until initdb has ended."""
    if account.name == str(account.uid):
        raise EmbeddedError(f"initdb needs a name for the user id {account.uid}; add one to /etc/passwd.")
    new = data.with_name(data.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    locale = BUILTIN_LOCALE if install.version >= FIRST_WITH_BUILTIN else LOCALE
    options = (*OPTIONS, *locale, *(() if durable else ("--no-sync",)))
    done = account.run(install.bin / "initdb", "-D", new, *options, keep=[start_lock])
    if done.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        said = (done.stderr or done.stdout).strip()
        raise EmbeddedError(f"initdb could not make {data}; remove what stands in its way and start again: {said}")
    new.rename(data)
