"""A server of Debian's Postgres 15 with pg_cron, and what pg_cron has to say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outrider.postgres.embedded import Embedded

VERSION = 15
DATABASE = "hub"
PRELOADED = {
    "shared_preload_libraries": "pg_cron",
    "cron.database_name": DATABASE,
    "cron.use_background_workers": "on",  # else it connects over TCP
}
TWO_RUNS = 130.0
"""A run begins on the full minute; the first may come before what it shall find."""

Desk = psycopg.Connection[dict[str, Any]]


@contextmanager
def server() -> Iterator[Embedded]:
    """pg_cron runs as soon as its database is there; the extension is not created yet."""
    with Embedded.temporary(version=VERSION, settings=PRELOADED) as preloaded:
        preloaded.ensure_database(DATABASE)
        yield preloaded


@contextmanager
def desk(dsn: str) -> Iterator[Desk]:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        yield conn


def jobs(conn: Desk) -> list[dict[str, Any]]:
    return conn.execute(
        "select jobid, jobname, schedule, command, database, active from cron.job order by jobid"
    ).fetchall()


def runs(conn: Desk) -> list[dict[str, Any]]:
    """Those that have ended."""
    query = """select jobid, status, return_message, start_time, end_time from cron.job_run_details
               where end_time is not null order by runid"""
    return conn.execute(query).fetchall()


def next_run(conn: Desk, known: int) -> dict[str, Any]:
    """The first after those that were known."""
    deadline = time.monotonic() + TWO_RUNS
    while len(found := runs(conn)) <= known:
        assert time.monotonic() < deadline, conn.execute("select * from cron.job_run_details").fetchall()
        time.sleep(0.2)  # nobody tells that pg_cron has run
    return found[known]
