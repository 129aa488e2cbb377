"""Sends notifications after the publishing transaction, collected in this process: at most one statement per 10 ms.

Notifications only wake workers sooner. One that cannot be sent is dropped, because workers also poll.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

import psycopg

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.statement import render

INTERVAL = 0.01
IDLE = 5.0
"""Seconds without a notification until the session is closed and the thread ends. The next notification starts new ones."""

PATIENCE = 5.0
"""Seconds that `close` waits for a server that does not answer."""

Wakeup = tuple[str, str]
"""(channel, event type)"""

_log = logging.getLogger("outrider")
_SEND = "select /*schema*/notify(channel, kind) from unnest(%s::text[], %s::text[]) as wakeup (channel, kind)"


class Notifier:
    """Sends from its own thread, so that no commit waits for it or fails because of it."""

    def __init__(self, dsn: Callable[[], str | None], schema: Callable[[], str]) -> None:
        self._dsn, self._schema = dsn, schema
        self._reset()

    def _reset(self) -> None:
        """Also for a forked child, which does not inherit the parent's threads."""
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._pending: set[Wakeup] = set()
        self._thread: threading.Thread | None = None
        self.sent = 0
        """The number of statements sent."""

    def notify(self, wakeups: Iterable[Wakeup]) -> None:
        """Never raises: the transaction has committed, and an error would make it look as if it had failed."""
        try:
            if self._process != os.getpid():
                self._reset()
            with self._changed:
                self._pending.update(wakeups)
                self._changed.notify_all()
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="outrider-notify", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError as error:
            _log.warning("no thread to send notifications, workers find the events by polling: %s", error)

    def close(self) -> None:
        """Sends what is pending and ends the thread. A later notification starts a new one."""
        if self._process != os.getpid():
            return
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(PATIENCE)

    def _work(self) -> None:
        conn: connection.Session | None = None
        me = threading.current_thread()
        wanted = True
        try:
            while wanted:
                wakeups, wanted = self._next(me)
                if wakeups:
                    conn = self._send(conn, wakeups)
                    time.sleep(INTERVAL)
        finally:
            if conn is not None:
                conn.close()

    def _next(self, me: threading.Thread) -> tuple[set[Wakeup], bool]:
        """Waits for pending notifications. Returns them, and whether this thread continues afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._thread is not me, timeout=IDLE)
            wakeups, self._pending = self._pending, set()
            if not wakeups and self._thread is me:
                self._thread = None
            return wakeups, self._thread is me

    def _send(self, conn: connection.Session | None, wakeups: set[Wakeup]) -> connection.Session | None:
        """A session that has died is replaced once."""
        for _ in range(2):
            try:
                conn = conn or self._connect()
                if conn is not None:
                    send = render(_SEND, self._schema()).encode()
                    conn.execute(send, [list(column) for column in zip(*sorted(wakeups), strict=True)])
                    self.sent += 1
                return conn
            except (psycopg.Error, DatabaseUnavailable) as error:
                _log.debug("a notification was not sent: %s", error)
                if conn is not None:
                    conn.close()
                conn = None
        return None

    def _connect(self) -> connection.Session | None:
        dsn = self._dsn()
        return None if dsn is None else connection.connect_sync(dsn, autocommit=True)
