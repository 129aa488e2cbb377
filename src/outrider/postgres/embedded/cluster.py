"""The server of one home folder, as one process uses it: join, leave, restart. The order of the locks is start.lock, then
users.lock; supervisor.lock is only tested here.

A user is a process that holds users.lock shared. A forked child inherits the lock and counts as a user until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from psycopg import pq
from psycopg.conninfo import make_conninfo

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import data, supervise
from outrider.postgres.embedded.account import Account
from outrider.postgres.embedded.binaries import Install, runnable
from outrider.postgres.embedded.home import ServerHome
from outrider.postgres.embedded.launch import launch, server_command

PATIENCE = 90.0


@dataclass
class Cluster:
    home: ServerHome
    install: Install
    account: Account
    settings: Mapping[str, str]
    temporary: bool
    launched: bool = field(default=False, init=False)
    """This process has started the server."""
    _users: int | None = field(default=None, init=False)

    @property
    def joined(self) -> bool:
        return self._users is not None

    def dsn(self, database: str) -> str:
        return make_conninfo(host=str(self.home.folder), port=5432, user="postgres", dbname=database)

    def join(self) -> None:
        """Register this process as a user and see to it that the server runs."""
        with self._starting() as start:
            users = self._users if self._users is not None else self._open("users.lock")
            try:
                self._acquire(users, fcntl.LOCK_SH)
                self._ensure_data(start)
                self._ensure_server()
            except BaseException:
                if self._users is None:
                    os.close(users)
                raise
            self._users = users

    def leave(self, *, wait: bool) -> None:
        """Ends the registration of this process. With `wait`, the last process to leave returns when the server is down."""
        if self._users is None:
            return
        with contextlib.ExitStack() as registration, contextlib.suppress(FileNotFoundError):
            registration.callback(os.close, self._users)
            self._users = None
            while not self._depart(registration, wait=wait):
                pass

    def _depart(self, registration: contextlib.ExitStack, *, wait: bool) -> bool:
        """False if the supervisor was killed before it stopped the server. Creates no file, because the folder may be about
        to be removed."""
        with self._starting(create=False):
            registration.close()
            last = self._unused()
            if not self._supervised() and supervise.postmaster(self.home.data):
                self._launch()
            supervisor = self._open("supervisor.lock", create=False)
        try:
            if wait and last:
                await_end(supervisor)
        finally:
            os.close(supervisor)
        if self._supervised() or supervise.postmaster(self.home.data):
            return not (wait and last and self._unused())
        if last and self.temporary:
            shutil.rmtree(self.home.folder, ignore_errors=True)
        return True

    def restart(self, signal_number: int) -> None:
        with self._starting():
            self._ensure_server()
            pid = supervise.postmaster(self.home.data)
            if pid is None:
                raise EmbeddedError(f"The server in {self.home.folder} has died; call start() to start it again.")
            os.kill(pid, signal_number)
            deadline = time.monotonic() + PATIENCE
            while supervise.postmaster(self.home.data) == pid or self._supervised():
                self._pause(deadline)
            self._ensure_server()

    def _ensure_data(self, start_lock: int) -> None:
        if self.home.data.exists():
            data.check_version(self.home.data, self.install.version)
        else:
            install = runnable(self.install, self.account, self.home.folder)
            data.make(self.home.data, install, self.account, start_lock=start_lock, durable=not self.temporary)

    def _ensure_server(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self._supervised() and self._answers()):
            if not self._supervised():
                self._launch()
            self._pause(deadline)

    def _launch(self) -> None:
        install = runnable(self.install, self.account, self.home.folder)
        command = server_command(install, self.home, self.settings, durable=not self.temporary)
        launch(self.home, command, self.account, temporary=self.temporary, seconds=PATIENCE)
        self.launched = True

    def _answers(self) -> bool:
        conninfo = make_conninfo(self.dsn("postgres"), connect_timeout=5)
        return pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK

    @contextlib.contextmanager
    def _starting(self, *, create: bool = True) -> Iterator[int]:
        start = self._open("start.lock", create=create)
        try:
            self._acquire(start, fcntl.LOCK_EX)
            yield start
        finally:
            os.close(start)

    def _open(self, name: str, *, create: bool = True) -> int:
        lock = supervise.open_lock(self.home.folder / name, create=create)
        if create and self.account.switched:
            self._hand_over(lock, name)
        return lock

    def _hand_over(self, lock: int, name: str) -> None:
        """Gives a lock file that root has just created to the server's user, unless another file was put in its place."""
        found = os.fstat(lock)
        if found.st_uid == self.account.uid:
            return
        fresh = (
            stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid() and not found.st_size
        )
        if not fresh:
            os.close(lock)
            raise EmbeddedError(
                f"{self.home.folder / name} is not a lock file of Outrider's; look at it and remove it."
            )
        os.fchown(lock, self.account.uid, self.account.gid)

    def _acquire(self, lock: int, operation: int) -> None:
        if not supervise.acquire(lock, operation, PATIENCE):
            raise self._too_slow()

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._too_slow()
        time.sleep(supervise.PAUSE)

    def _too_slow(self) -> EmbeddedError:
        log = self.home.folder / "server.log"
        return EmbeddedError(f"The embedded Postgres was not ready after {PATIENCE:.0f} s; read {log} for the reason.")

    def _supervised(self) -> bool:
        try:
            lock = self._open("supervisor.lock", create=False)
        except FileNotFoundError:
            return False
        try:
            return not supervise.try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def _unused(self) -> bool:
        """No process uses the server: users.lock is free, or the supervisor already holds it to stop the server."""
        try:
            users = self._open("users.lock", create=False)
        except FileNotFoundError:
            return True
        try:
            return supervise.try_lock(users, fcntl.LOCK_EX) or not supervise.try_lock(users, fcntl.LOCK_SH)
        finally:
            os.close(users)


def await_end(supervisor: int) -> None:
    """Wait until the process that holds the lock has ended, even if a successor takes the lock at once."""
    pid = os.pread(supervisor, 32, 0)
    deadline = time.monotonic() + PATIENCE
    while os.pread(supervisor, 32, 0) == pid and not supervise.try_lock(supervisor, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"The embedded Postgres did not stop within {PATIENCE:.0f} s; read its server.log.")
        time.sleep(supervise.PAUSE)
