"""Pokes that are sent outside of the publishing transaction: collected in this process, at most one statement per 10 ms.

They only save the workers a moment: what cannot be sent is dropped, because workers find the events without it.
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
"""After so many seconds without a poke, its session is closed and its thread ends; the next poke makes new ones."""

PATIENCE = 5.0
"""Seconds that `close` waits for a server that does not answer."""

Poke = tuple[str, str]
"""(channel, event type)"""

_log = logging.getLogger("outrider")
_SEND = "select /*schema*/notify(channel, kind) from unnest(%s::text[], %s::text[]) as poke (channel, kind)"


class Poker:
    """Sends from a thread of its own, so that nobody's commit waits for it, or fails because of it."""

    def __init__(self, dsn: Callable[[], str | None], schema: Callable[[], str]) -> None:
        self._dsn, self._schema = dsn, schema
        self._forget()

    def _forget(self) -> None:
        """As new: also for a forked child, which has none of its parent's threads."""
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._owed: set[Poke] = set()
        self._thread: threading.Thread | None = None
        self.sent = 0
        """How many statements."""

    def poke(self, pokes: Iterable[Poke]) -> None:
        """Never raises: it is called when a transaction has committed, and must not make that look like a failure."""
        try:
            if self._process != os.getpid():
                self._forget()
            with self._changed:
                self._owed.update(pokes)
                self._changed.notify_all()
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="outrider-poke", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError as error:
            _log.warning("no thread for pokes, workers find the events without: %s", error)

    def close(self) -> None:
        """Send what is owed, then end. A poke that comes later has a thread of its own."""
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
                pokes, wanted = self._next(me)
                if pokes:
                    conn = self._send(conn, pokes)
                    time.sleep(INTERVAL)
        finally:
            if conn is not None:
                conn.close()

    def _next(self, me: threading.Thread) -> tuple[set[Poke], bool]:
        """All that is owed, as soon as something is; and whether this thread shall go on after that."""
        with self._changed:
            self._changed.wait_for(lambda: self._owed or self._thread is not me, timeout=IDLE)
            pokes, self._owed = self._owed, set()
            if not pokes and self._thread is me:
                self._thread = None
            return pokes, self._thread is me

    def _send(self, conn: connection.Session | None, pokes: set[Poke]) -> connection.Session | None:
        """A session that has died meanwhile is replaced once."""
        for _ in range(2):
            try:
                conn = conn or self._connect()
                if conn is not None:
                    send = render(_SEND, self._schema()).encode()
                    conn.execute(send, [list(column) for column in zip(*sorted(pokes), strict=True)])
                    self.sent += 1
                return conn
            except (psycopg.Error, DatabaseUnavailable) as error:
                _log.debug("a poke was not sent: %s", error)
                if conn is not None:
                    conn.close()
                conn = None
        return None

    def _connect(self) -> connection.Session | None:
        dsn = self._dsn()
        return None if dsn is None else connection.connect_sync(dsn, autocommit=True)
