"""Decides the server's settings, starts the supervisor of a home folder, and reports whether the server is ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import supervise
from outrider.postgres.embedded.account import Account, owner_name, run_apart
from outrider.postgres.embedded.binaries import Install
from outrider.postgres.embedded.home import ServerHome

DEFAULTS = {
    "listen_addresses": "",
    "shared_buffers": "128MB",
    "max_connections": "100",
    "cluster_name": "outrider",
    "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing is left in /dev/shm by a killed server
}
CARELESS = {"fsync": "off", "full_page_writes": "off"}
RESERVED = {"port", "unix_socket_directories", "data_directory", "external_pid_file"}


def server_command(install: Install, home: ServerHome, settings: Mapping[str, str], *, durable: bool) -> list[str]:
    folder = str(home.folder).replace('"', '""')
    fixed = {"port": "5432", "unix_socket_directories": f'"{folder}"'}
    chosen = {**DEFAULTS, **({} if durable else CARELESS), **settings, **fixed}
    options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
    return [str(install.bin / "postgres"), "-D", str(home.data), *options]


def launch(home: ServerHome, command: list[str], account: Account, *, temporary: bool, seconds: float) -> None:
    """Returns when the server is ready, or when the attempt failed in a way that is worth another."""
    job = {
        "home": str(home.folder),
        "command": command,
        "temporary": temporary,
        "uid": account.uid if account.switched else None,
        "gid": account.gid,
        "owner": owner_name(os.geteuid()),
    }
    try:
        done = run_apart([sys.executable, "-IS", supervise.__file__, json.dumps(job)], timeout=seconds)
    except subprocess.TimeoutExpired:
        log = home.folder / "server.log"
        raise EmbeddedError(f"The embedded Postgres was not ready after {seconds:.0f} s; read {log}.") from None
    if done.returncode == supervise.FAILED:
        raise EmbeddedError(
            f"The embedded Postgres in {home.folder} did not start; correct what its log complains about: "
            f"{complaint(done.stdout or done.stderr)}"
        )


def complaint(said: str) -> str:
    """The lines of a log that name a cause, without their time and process."""
    marks = ("FATAL:", "PANIC:", "DETAIL:", "HINT:")
    named = [line[line.index(mark) :] for line in said.splitlines() for mark in marks if mark in line]
    return " ".join(named) or said.strip() or "nothing was logged"
