"""What a run costs: the clock, the CPU of both sides, and the server's own counts, which a busy machine cannot change."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.measure import Conn, wal_position

PATIENCE = 3.0
REAPING = 0.05
"""Until the postmaster has counted the CPU of a session that is gone."""
_SESSIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
)
_TUPLES = "select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_user_tables"


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    client_cpu: float
    server_cpu: float
    wal: int
    tuples: int

    def __sub__(self, before: Cost) -> Cost:
        return Cost(
            self.seconds - before.seconds,
            self.client_cpu - before.client_cpu,
            self.server_cpu - before.server_cpu,
            self.wal - before.wal,
            self.tuples - before.tuples,
        )


class Meter:
    """Reads the counters of one database and its server; `admin` is an autocommit session of its own."""

    def __init__(self, admin: Conn) -> None:
        self._admin = admin
        backend = psutil.Process(admin.info.backend_pid)
        postmaster = backend.parent()
        assert postmaster is not None
        self._postmaster = postmaster

    def begin(self) -> Cost:
        self._sessions = self._number(_SESSIONS)
        wal, tuples, server_cpu = wal_position(self._admin), self._number(_TUPLES), self._server_cpu()
        return Cost(time.perf_counter(), time.process_time(), server_cpu, wal, tuples)

    def end(self) -> Cost:
        seconds, client_cpu = time.perf_counter(), time.process_time()
        self._await_counts()
        return Cost(seconds, client_cpu, self._server_cpu(), wal_position(self._admin), self._number(_TUPLES))

    def _await_counts(self) -> None:
        """A session reports its tuples at the latest when it ends: wait until those of the run are gone."""
        deadline = time.monotonic() + PATIENCE
        while self._number(_SESSIONS) > self._sessions and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(REAPING)

    def _server_cpu(self) -> float:
        """Of the postmaster, of its children, and of those that have ended."""
        total = sum(self._postmaster.cpu_times()[:4])
        for child in self._postmaster.children():
            with suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:2])
        return total

    def _number(self, query: str) -> int:
        row = self._admin.execute(query).fetchone()
        assert row is not None
        return int(row[0])
