"""Every statement of every page reads a bounded piece of 300,000 events, 100,000 dead letters and retries, 100,000 jobs.

test_scale.py measures the time at ten million.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.dashboard.conftest import log_in
from tests.dashboard.shop import make_app
from tests.dashboard.test_contracts import board
from tests.dashboard.test_scale import FILL, REST, pages

from outrider.dashboard import ACTIONS, database

pytestmark = [pytest.mark.verify, pytest.mark.also_on(15), pytest.mark.xdist_group("dashboard plans")]

EVENTS = 300_000
SEARCH = 100_000
"""Rows that a page searches, as docs/dashboard.md says. It may look up each of some of them in a second table."""
LARGE = ("outbox_", "delivery", "job", "event_handled", "audit", "stream_refused", "rollup_pending", "rollup_log")
READ = """
select c.relname, coalesce(pg_stat_get_tuples_returned(c.oid), 0) from pg_class as c
where c.relnamespace = 'outrider'::regnamespace and c.relkind in ('r', 'i')
"""


def rows_read(conn: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows that scans of each table, and entries that scans of each index, have returned so far."""
    conn.execute("select pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
    return dict(conn.execute(READ).fetchall())


async def test_no_page_reads_a_whole_table(whole_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes 30 s: it inserts 300,000 events."""
    monkeypatch.setattr(database, "CONNECTIONS", 1)
    monkeypatch.setitem(database.READING, "statement_timeout", "0")  # on a busy machine a plan counts, not its time
    app = make_app(whole_database)
    async with app:
        await app.migrate()
    rest = REST.replace("9000000", "50000").replace("200000", "100000")
    with psycopg.connect(whole_database, autocommit=True) as conn:
        conn.execute("set session_replication_role = replica; set synchronous_commit = off")
        conn.execute(FILL.replace("{events}", str(EVENTS)), [1, EVENTS])
        conn.execute(rest.encode())
        conn.execute("analyze")
        large = {name for name in rows_read(conn) if name.startswith(LARGE) and name != "outbox_seq"}
        sizes: dict[str, int] = dict(
            conn.execute("select relname, reltuples::bigint from pg_class where relkind = 'r'").fetchall()
        )
        async with board(app, actions=ACTIONS) as client:
            await log_in(client)
            await client.get("/")
            watched = client.board.poller  # type: ignore[attr-defined]
            await watched.close()
            paths, _ = pages(whole_database, EVENTS)
            for path in paths:  # what was read before, and by the first statements of the session, is counted late
                await client.get(path)
            wasteful = {}
            for path in paths:
                before = await flushed(client.board, conn)  # type: ignore[attr-defined]
                found = await client.get(path)
                assert found.status_code == 200, (path, found.text)
                after = await flushed(client.board, conn)  # type: ignore[attr-defined]
                read = {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}
                whole = [
                    name for name in large & read.keys() if sizes.get(name, 0) > 1000 and read[name] >= sizes[name]
                ]
                if sum(read.values()) > 1.5 * SEARCH or whole:
                    wasteful[path] = read
            assert wasteful == {}


async def flushed(board: Any, conn: psycopg.Connection[Any]) -> dict[str, int]:
    async with board.database.looking(60) as one, board.database.reading() as other:  # a page may have used any
        for session in (one, other):
            await session.execute("select pg_stat_force_next_flush()")
            await session.execute("select")
    return rows_read(conn)
