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
from outrider.postgres import session

INTERVAL = 0.01
IDLE = 5.0
"""After so many seconds without a poke, its session is closed and its thread ends; the next poke makes new ones."""

Poke = tuple[str, str]
"""(channel, event type)"""

_SEND = "select pg_notify(channel, kind) from unnest(%s::text[], %s::text[]) as poke (channel, kind)"


class Poker:
    """Sends from a thread of its own, so that nobody's commit waits for it."""

    def __init__(self, dsn: Callable[[], str | None]) -> None:
        self._dsn = dsn
        self._forget()

    def _forget(self) -> None:
        """As new: also for a forked child, which has none of its parent's threads."""
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._owed: set[Poke] = set()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.sent = 0
        """How many statements."""

    def poke(self, pokes: Iterable[Poke]) -> None:
        if self._process != os.getpid():
            self._forget()
        with self._changed:
            self._owed.update(pokes)
            self._closing = False
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="outrider-poke", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Send what is owed, then end."""
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify()
        if thread is not None and self._process == os.getpid():
            thread.join()

    def _work(self) -> None:
        conn: session.Session | None = None
        try:
            while (pokes := self._next()) is not None:
                conn = self._send(conn, pokes)
                time.sleep(INTERVAL)
        finally:
            if conn is not None:
                conn.close()

    def _next(self) -> set[Poke] | None:
        """All that is owed, as soon as something is; None when there is nothing more to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._owed or self._closing, timeout=IDLE)
            if not self._owed:
                self._thread = None
                return None
            pokes, self._owed = self._owed, set()
            return pokes

    def _send(self, conn: session.Session | None, pokes: set[Poke]) -> session.Session | None:
        """A session that has died meanwhile is replaced once."""
        for _ in range(2):
            try:
                conn = conn or self._connect()
                if conn is not None:
                    conn.execute(_SEND, [list(column) for column in zip(*sorted(pokes), strict=True)])
                    self.sent += 1
                return conn
            except (psycopg.Error, DatabaseUnavailable) as error:
                logging.getLogger("outrider").debug("a poke was not sent: %s", error)
                if conn is not None:
                    conn.close()
                conn = None
        return None

    def _connect(self) -> session.Session | None:
        dsn = self._dsn()
        return None if dsn is None else session.connect_sync(dsn, autocommit=True)
