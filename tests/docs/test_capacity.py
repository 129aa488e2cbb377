"""What docs/capacity.md says of connections, and docs/managed-postgres.md of rights, is so."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.oracle import until

from outrider import Event, HandlerContext, Job, Outrider
from outrider.signals import JobsCompleted
from outrider.testing import expect

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "capacity.md").read_text()
MANAGED = (DOCS / "managed-postgres.md").read_text()
SESSIONS = """select coalesce(nullif(application_name, ''), 'the app') from pg_stat_activity
              where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
                and application_name <> 'a producer'"""


class Counted(Event, type="page.counted", key="n"):
    n: int


class Errand(Job, type="page.errand"):
    n: int


@pytest.mark.parametrize("jobs", [False, True], ids=["handlers", "with jobs"])
async def test_as_many_sessions_as_the_page_says(database: str, jobs: bool) -> None:
    """Looked at while every session that can be is at work."""
    found = re.search(r"with handlers alone holds (\d+), with jobs (\d+)", PAGE)
    assert found is not None
    app, all_at_work, enough = Outrider(context="page", dsn=database), asyncio.Barrier(5), asyncio.Event()

    @app.handler(Counted, name="page.counts", partitions=8)
    async def counts(_: Counted, ctx: HandlerContext) -> None:
        if not enough.is_set():
            await all_at_work.wait()
            await enough.wait()

    if jobs:

        @app.job(Errand)
        async def errand(_: Errand) -> None: ...

    async with app:
        await app.migrate()
        async with app.worker():
            async with await psycopg.AsyncConnection.connect(database, application_name="a producer") as conn:
                await app.publish_many(conn, [Counted(n=n) for n in range(200)])
            if jobs:
                async with (
                    expect(app, JobsCompleted),
                    await psycopg.AsyncConnection.connect(database, application_name="a producer") as conn,
                ):
                    await app.enqueue_many(conn, [Errand(n=n) for n in range(50)])
                    await conn.commit()
            await all_at_work.wait()
            with psycopg.connect(database, autocommit=True) as looking:
                if jobs:  # a process of its own, which comes up beside the worker
                    until(lambda: ("outrider leases",) in looking.execute(SESSIONS).fetchall())
                sessions = Counter(name for (name,) in looking.execute(SESSIONS))
            enough.set()
    assert sessions["outrider worker"] == 4
    assert sessions["outrider listener"] in (1, 2)
    assert sessions["outrider leases"] == jobs
    assert sessions["outrider jobs"] <= 2 * jobs
    assert sum(sessions.values()) - (sessions["outrider listener"] - 1) <= int(found.group(2 if jobs else 1))


def test_a_plain_role_may_ask_what_it_must(database: str) -> None:
    [asked] = re.findall(r"^```sql\n(select.*?)^```", MANAGED, re.DOTALL | re.MULTILINE)
    with psycopg.connect(database, autocommit=True) as owner:
        role = f"plain_{owner.info.dbname}"
        owner.execute(f"create role {role} login; grant usage on schema outrider to {role}".encode())
        try:
            with psycopg.connect(make_conninfo(database, user=role), autocommit=True) as conn:
                assert conn.execute(asked.encode()).fetchone() == (True, True, "read committed", False)
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}".encode())
