"""The public interface of the embedded Postgres. Its only state is the registration of this process."""

from __future__ import annotations

import atexit
import logging
import shlex
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psycopg
from psycopg import errors, sql

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import supervise
from outrider.postgres.embedded.account import server_account
from outrider.postgres.embedded.binaries import chosen, locate
from outrider.postgres.embedded.cluster import Cluster
from outrider.postgres.embedded.home import settle, settle_temporary
from outrider.postgres.embedded.launch import RESERVED
from outrider.postgres.embedded.sweep import sweep

SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Embedded:
    """A Postgres server in a folder, shared by all processes that name the same folder.

    The first to start it decides its `settings` (`-c name=value`); later ones join the running server as it is.
    It stops when the last process has left, by `stop()` or by ending in any way, kill -9 included. A forked child
    counts as a user of its own until it ends. All calls block: async code runs them in a thread.

    `version` is a major one: 18 unless OUTRIDER_EMBEDDED_VERSION says otherwise. 16 and 18 are in the wheel, others are
    taken from /usr/lib/postgresql.
    """

    def __init__(
        self,
        folder: Path | str = ".outrider/pg",
        *,
        version: int | None = None,
        settings: Mapping[str, str] | None = None,
        temporary: bool = False,
    ) -> None:
        self._folder = Path(folder).resolve()
        self._settings = dict(settings or {})
        self._temporary = temporary
        self._version = chosen(version)
        self._cluster: Cluster | None = None
        self._mutex = threading.RLock()
        if fixed := RESERVED & self._settings.keys():
            raise EmbeddedError(f"{', '.join(sorted(fixed))} cannot be set: the embedded Postgres decides that itself.")

    @classmethod
    def temporary(cls, *, version: int | None = None, settings: Mapping[str, str] | None = None) -> Self:
        """A server in a new folder, without fsync. The folder is removed when the last user has left."""
        return cls(version=version, settings=settings, temporary=True)

    def start(self) -> None:
        """Register this process as a user and wait until the server accepts connections. Repeating it is harmless."""
        with self._mutex:
            if self._cluster is not None and not self._cluster.home.folder.exists():
                self._leave(wait=False)
            cluster = self._cluster or self._settle()
            try:
                cluster.join()
            except BaseException:
                if self._temporary and not cluster.joined:
                    shutil.rmtree(cluster.home.folder, ignore_errors=True)
                raise
            if self._cluster is None:
                self._cluster = cluster
                atexit.register(self._leave, wait=False)

    def open(self, database: str) -> None:
        """Start, and create the database if it is missing. Logs where it is if this process has started it."""
        self.start()
        self.ensure_database(database)
        if self.launched:
            logging.getLogger("outrider").info(self.describe(database))

    def stop(self) -> None:
        """Leaves. If this process was the last user, returns when the server is down and a temporary folder is removed."""
        self._leave(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def home(self) -> Path:
        return self._joined().home.folder

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        pid = supervise.postmaster(self._joined().home.data)
        if pid is None:
            raise EmbeddedError(f"The server in {self.home} has died; call start() to start it again.")
        return pid

    @property
    def launched(self) -> bool:
        """Whether this process has started the server, or found it running."""
        return self._joined().launched

    @property
    def bin(self) -> Path:
        """The folder with psql, pg_dump and the other programs of this version."""
        return locate(self._version).bin

    def dsn(self, database: str = "postgres") -> str:
        return self._joined().dsn(database)

    def ensure_database(self, name: str) -> None:
        """Creates the database if it is missing. Safe if several processes do it at once."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is not None:
                return
            try:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            except (errors.DuplicateDatabase, errors.UniqueViolation):
                return

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Restarts the server while others use it. All registrations stay. "immediate" simulates a crash."""
        with self._mutex:
            self._joined().restart(SIGNALS[mode])

    def describe(self, database: str = "postgres") -> str:
        """Where the data is, how to connect, and when the server stops, for people."""
        home = self._joined().home
        psql = "psql" if shutil.which("psql") else str(self.bin / "psql")
        lines = [f"Embedded Postgres {self._version} in {home.folder}"]
        if home.moved:
            lines.append(f"  not in {home.asked}: {home.moved}")
        lines += [
            f"  data     {home.data}" + (" (temporary: removed at the end)" if self._temporary else ""),
            f"  log      {home.folder / 'server.log'}",
            f"  connect  {shlex.join([psql, self.dsn(database)])}",
            "  stops    when the last process that uses it has ended",
        ]
        return "\n".join(lines)

    def _settle(self) -> Cluster:
        install = locate(self._version)
        account = server_account()
        if self._temporary:
            home = settle_temporary(account)
            sweep(home.folder, account)
        else:
            home = settle(self._folder, account)
        return Cluster(home, install, account, self._settings, self._temporary)

    def _joined(self) -> Cluster:
        if self._cluster is None:
            raise EmbeddedError("The embedded Postgres is not started; call start() first.")
        return self._cluster

    def _leave(self, *, wait: bool) -> None:
        with self._mutex:
            cluster, self._cluster = self._cluster, None
            atexit.unregister(self._leave)
            if cluster is not None:
                cluster.leave(wait=wait)
