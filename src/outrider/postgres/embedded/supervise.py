"""The supervisor of one server: starts or adopts it, waits until its last user has left, then stops it.

It runs as a script without the environment's packages, so it imports only the standard library. It signals only a process
that it has started, or that is verified to be the postmaster of its data folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

READY, FAILED, BUSY, KILLED = range(4)
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOG_BYTES = 10_000_000
PAUSE = 0.01
MAP = "map=outrider"


def open_lock(path: Path, *, create: bool = True) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o644)


def try_lock(lock: int, operation: int) -> bool:
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire(lock: int, operation: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not try_lock(lock, operation):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def pid_file(data: Path) -> tuple[int, str] | None:
    """The pid and the status in postmaster.pid."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        return int(lines[0]), lines[7].strip() if len(lines) > 7 else ""
    except (OSError, ValueError, IndexError):
        return None


def command_of(pid: int) -> str:
    """The command line of a live process, else an empty string."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="surrogateescape")
        except OSError:
            return ""
    listing = subprocess.run(["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return listing.stdout.decode(errors="surrogateescape").rstrip("\n") + " "


def postmaster(data: Path) -> int | None:
    """The pid of the live postmaster of this data folder. Pids get reused, so the command line must name the folder."""
    entry = pid_file(data)
    return entry[0] if entry and f" -D {data} " in command_of(entry[0]) else None


class Adopted:
    """A postmaster that an earlier supervisor started. Has the part of Popen's interface that is used here."""

    def __init__(self, pid: int, data: Path) -> None:
        self.pid, self._data, self._handle = pid, data, -1
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._handle = os.pidfd_open(pid)

    def wait(self) -> None:
        if self._handle >= 0:
            select.select([self._handle], [], [])
        while postmaster(self._data) == self.pid:
            time.sleep(10 * PAUSE)

    def send_signal(self, number: int) -> None:
        if postmaster(self._data) == self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


Server = Adopted | subprocess.Popen[bytes]


def obtain(home: Path, command: list[str]) -> Server:
    """Adopts the running server, or starts one after an earlier one has stopped. An error contains the server's log."""
    data, deadline = home / "data", time.monotonic() + START_SECONDS
    while (pid := postmaster(data)) is not None:
        if pid_file(data) == (pid, "ready"):
            return Adopted(pid, data)
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} neither serves nor ends")
        time.sleep(PAUSE)
    discard_stale_locks(home)
    while True:
        begin = (home / "server.log").stat().st_size
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while child.poll() is None:
            if pid_file(data) == (child.pid, "ready"):
                return child
            time.sleep(PAUSE)
        said = (home / "server.log").read_bytes()[begin:].decode(errors="replace")
        # Backends of a killed postmaster need a moment to notice and release their memory.
        passing = child.returncode == -signal.SIGKILL or "pre-existing shared memory block" in said
        if not passing or time.monotonic() > deadline:
            raise RuntimeError(said[-4000:])
        time.sleep(10 * PAUSE)


def discard_stale_locks(home: Path) -> None:
    """Postgres replaces a lock file whose process is gone, but gives up if the pid now belongs to something else."""
    entry = pid_file(home / "data")
    if entry and "postgres" not in command_of(entry[0]):
        for stale in (home / "data" / "postmaster.pid", home / ".s.PGSQL.5432.lock"):
            stale.unlink(missing_ok=True)


def admit(data: Path, owner: str, *, switched: bool) -> None:
    """If the server runs as another user, admits only processes of `owner`, as any role. Without this, every process of the
    server's user could connect, because initdb trusts the socket. Rules that were added by hand stay. Before Postgres 16, a
    map must name each role, so only the role `postgres` is protected."""
    rules, names = data / "pg_hba.conf", data / "pg_ident.conf"
    given = rules.read_text()
    if MAP not in given and not switched:
        return
    all_roles = int((data / "PG_VERSION").read_text()) >= 16
    entry = f'outrider "{owner}" {"all" if all_roles else "postgres"}\n'
    if entry not in (known := names.read_text()):
        replace(names, f"{known.rstrip()}\n{entry}")
    if MAP not in given:
        closed = r"\1\2\3peer map=outrider" if all_roles else r"\1postgres\3peer map=outrider\n\g<0>"
        replace(rules, re.sub(r"(?m)^(local\s+\S+\s+)(\S+)(\s+)trust[ \t]*$", closed, given))


def replace(file: Path, text: str) -> None:
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    new.replace(file)


def watch(home: Path, server: Server, temporary: bool) -> None:
    """Returns when the server is down: stopped here after its last user has left, or ended by itself."""
    unused = threading.Event()

    def stop(*_: object) -> None:
        server.send_signal(signal.SIGINT)
        threading.Timer(STOP_SECONDS, server.send_signal, [signal.SIGQUIT]).start()

    def outlast(users: int) -> None:
        fcntl.flock(users, fcntl.LOCK_EX)
        unused.set()
        stop()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=outlast, args=[open_lock(home / "users.lock")]).start()
    server.wait()
    if temporary and unused.wait(0.1):
        shutil.rmtree(home, ignore_errors=True)


def daemon(home: Path, job: dict[str, Any], report: int) -> NoReturn:
    os.setsid()
    log = home / "server.log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(home / "server.log.1")
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    lock = os.open(home / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if not acquire(lock, fcntl.LOCK_EX, 1.0):
        os.write(report, bytes([BUSY]))
        os._exit(BUSY)
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    admit(home / "data", job["owner"], switched=job["uid"] is not None)
    server = obtain(home, job["command"])
    os.write(report, bytes([READY]))
    os.close(report)
    watch(home, server, job["temporary"])
    os._exit(0)


def main() -> None:
    """Starts the daemon and exits with its report when the server is ready or has failed."""
    job = json.loads(sys.argv[1])
    if job["uid"] is not None:
        os.setgroups([])
        os.setgid(job["gid"])
        os.setuid(job["uid"])
    os.umask(0o077)
    listen, report = os.pipe()
    if os.fork() == 0:
        os.close(listen)
        try:
            daemon(Path(job["home"]), job, report)
        except (RuntimeError, OSError) as error:
            os.write(report, bytes([FAILED]) + str(error).encode())
            os._exit(FAILED)
    os.close(report)
    with os.fdopen(listen, "rb") as stream:
        said = stream.read()
    sys.stdout.write(said[1:].decode(errors="replace"))
    sys.exit(said[0] if said else KILLED)


if __name__ == "__main__":
    main()
