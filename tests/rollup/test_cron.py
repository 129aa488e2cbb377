"""T15: the knowledge hub, with a rollup that pg_cron runs. make test-cron; no other run of the tests collects it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from examples.knowledge_hub import hub
from psycopg.types.json import Jsonb
from tests.clusters import migrated
from tests.rollup import cron
from tests.rollup.cron import Desk

from outrider import Outrider
from outrider.config import Settings
from outrider.doctor import checks
from outrider.postgres import connection
from outrider.postgres.admin import diagnostics
from outrider.postgres.embedded import Embedded
from outrider.rollup.rollup import Scheduler

pytestmark = [pytest.mark.cron, pytest.mark.timeout(400)]  # it waits for up to two full minutes

JOB = "outrider.rollup.hub.imports"
EVERY_MINUTE = {
    "jobname": JOB,
    "schedule": "* * * * *",
    "command": """select "outrider".rollup_tick('hub.imports')""",
    "database": cron.DATABASE,
    "active": True,
}


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Embedded]:
    with cron.server() as server:
        asyncio.run(migrated(server, cron.DATABASE))
        yield server


@pytest.fixture
def desk(preloaded: Embedded) -> Iterator[Desk]:
    """The hub without its rollup and without pg_cron's extension; nothing of either is left behind."""
    with cron.desk(preloaded.dsn(cron.DATABASE)) as conn:
        conn.execute(hub.TABLES.encode())
        yield conn


def declared(scheduler: Scheduler = "auto") -> Outrider:
    """The hub's rollup, every minute."""
    [known] = hub.app.rollups
    app = Outrider(context="hub")
    app.rollup(
        known.name,
        table=known.table,
        when=known.when,
        parent=known.parent,
        key=known.key,
        carry=known.carry,
        first=known.first,
        single=hub.NewPieceCreated,
        rollup=hub.DocumentImported,
        notify=known.notify,
        checks=known.checks,
        every="1m",
        scheduler=scheduler,
    )
    return app


def spec(scheduler: Scheduler) -> Jsonb:
    [rollup] = declared(scheduler).rollups
    return Jsonb(rollup.spec())


def ask(conn: Desk, query: str, *params: Any) -> list[dict[str, Any]]:
    return conn.execute(query.encode(), params or None).fetchall()


def finding(conn: Desk, scheduler: Scheduler = "auto") -> tuple[str, bool]:
    """What the preflight says of pg_cron."""
    query = "select value, passed from outrider.rollup_preflight(%s) where topic = 'pg_cron'"
    [row] = ask(conn, query, spec(scheduler))
    return row["value"], row["passed"]


def install(conn: Desk, scheduler: Scheduler = "auto") -> str:
    [row] = ask(conn, "select outrider.rollup_install(%s) ->> 'scheduler' as scheduler", spec(scheduler))
    return str(row["scheduler"])


def unsound(conn: Desk) -> list[dict[str, Any]]:
    return ask(conn, "select topic, value, detail from outrider.rollup_verify('hub.imports') where not passed")


def save(conn: Desk, address: str, document: str | None = None) -> None:
    ask(conn, "select fn_iu_save(%s, 'A body.', 'ada', %s)", address, document)


def told(conn: Desk) -> list[str]:
    return [row["event_type"] for row in ask(conn, "select event_type from outrider.outbox order by seq")]


@asynccontextmanager
async def working(dsn: str, scheduler: Scheduler = "auto") -> AsyncIterator[None]:
    """A worker that has looked at everything once, and goes on."""
    app = declared(scheduler)
    app.relocate(Settings.load(context="hub", dsn=dsn))
    async with app:
        await app.migrate()
        async with app.worker() as worker:
            await asyncio.wait_for(worker.ready.wait(), 60)
            yield


async def test_t15_pg_cron_ticks_and_nobody_else(desk: Desk, preloaded: Embedded, database: str) -> None:
    with cron.desk(database) as elsewhere:
        elsewhere.execute(hub.TABLES.encode())
        assert finding(elsewhere) == ("NEEDS_PRELOAD", True), "a server that has the package and has not loaded it"
        assert finding(elsewhere, "pg_cron") == ("NEEDS_PRELOAD", False)
    assert finding(desk) == ("AVAILABLE", True)
    with pytest.raises(psycopg.DatabaseError, match="pg_cron"):
        install(desk, "pg_cron")
    desk.execute("create extension pg_cron")
    assert finding(desk) == ("INSTALLED", True)

    assert install(desk) == "cron"
    [first] = cron.jobs(desk)
    assert {name: first[name] for name in EVERY_MINUTE} == EVERY_MINUTE
    assert install(desk) == "cron"
    assert cron.jobs(desk) == [first], "scheduled once"
    assert unsound(desk) == []

    # In one transaction, so that a run of pg_cron finds all of it or nothing: two groups that are due, and one that is not.
    with desk.transaction():
        desk.execute("update outrider.setting set entered = '300' where name = 'rollup.hub.imports.debounce_seconds'")
        desk.execute("update outrider.rollup set ticked_at = null")
        for piece in (1, 2, 3):
            save(desk, f"handbook/{piece}", "handbook.pdf")
        save(desk, "notes/1")
        desk.execute("update outrider.rollup_pending set staged_at = staged_at - interval '1 hour'")
        save(desk, "notes/2")
        ask(desk, "select fn_iu_comment('notes/1', 'At once.', 'bob')")
    async with working(preloaded.dsn(cron.DATABASE)):
        await asyncio.to_thread(processed_by_pg_cron, preloaded.dsn(cron.DATABASE))
    assert told(desk) == ["hub.comment_added", "hub.document_imported", "hub.new_piece_created"]
    assert {(run["jobid"], run["status"]) for run in cron.runs(desk)} == {(first["jobid"], "succeeded")}
    [tick] = ask(desk, "select * from outrider.rollup_log where result = 'processed'")
    assert (tick["groups_emitted"], tick["pieces_emitted"], tick["rows_marked"], tick["pending_post"]) == (1, 1, 4, 1)
    births = "select canonical_address, payload from fn_iu_notification_board('ada') where event_stream = 'update'"
    assert ask(desk, births) == [
        {"canonical_address": "handbook/1", "payload": {"piece_count": 3}},
        {"canonical_address": "notes/1", "payload": None},
    ]
    [partial] = unsound(desk)
    assert (partial["topic"], "PARTIAL" in partial["detail"]) == ("stable key", True), "the notes have no document"

    [step, *_] = ask(desk, "select action, command from outrider.rollup_plan('hub.imports') order by step")
    assert step == {"action": "do", "command": f"select cron.unschedule({first['jobid']})"}
    assert cron.jobs(desk) == [first], "a plan changes nothing"
    ask(desk, "select outrider.rollup_uninstall('hub.imports')")
    assert cron.jobs(desk) == []

    assert install(desk) == "cron"
    assert [job["jobname"] for job in cron.jobs(desk)] == [JOB]
    assert install(desk, "worker") == "worker"
    assert cron.jobs(desk) == [], "never both"
    assert unsound(desk) == [partial]
    desk.execute(
        "update outrider.rollup_pending set staged_at = staged_at - interval '1 hour' where processed_at is null"
    )
    desk.execute("update outrider.rollup set ticked_at = null")
    async with working(preloaded.dsn(cron.DATABASE), "worker"):
        assert told(desk)[3:] == ["hub.new_piece_created"], "as soon as it may, the worker ticks"
    ask(desk, "select outrider.rollup_uninstall('hub.imports')")
    assert ask(desk, "select from outrider.rollup") == ask(desk, "select from outrider.rollup_pending") == []


def processed_by_pg_cron(dsn: str) -> None:
    """Until a run of pg_cron has emitted what was due; up to then there was no tick but of its runs.

    A run that finds the rollup locked, by what this test does, leaves no entry.
    """
    with cron.desk(dsn) as conn:
        runs, results = 0, list[str]()
        while "processed" not in results:
            run = cron.next_run(conn, runs)
            runs += 1
            ticks = ask(conn, "select result from outrider.rollup_log where run_at <= %s", run["end_time"])
            results = [tick["result"] for tick in ticks]
            assert len(results) <= runs


async def test_what_a_doctor_says_of_it() -> None:
    """Available, installed and not used, used, and gone while it should tick."""
    with cron.server() as server:
        await migrated(server, cron.DATABASE)
        dsn = server.dsn(cron.DATABASE)

        async def said() -> str:
            async with await connection.connect(dsn, autocommit=True) as conn:
                [found] = checks.judge_cron(await diagnostics.cron(conn, "outrider"))
                return f"{found.severity.name}: {found.found}"

        with cron.desk(dsn) as desk:
            desk.execute(hub.TABLES.encode())
            assert await said() == "ok: is not installed (AVAILABLE): workers tick 0 rollups"
            desk.execute("create extension pg_cron")
            assert await said() == "ok: is there, and no rollup uses it: workers tick 0 rollups"
            assert install(desk, "pg_cron") == "cron"
            assert await said() == "ok: ticks 1 of 1 rollup"
            desk.execute("drop extension pg_cron")
            assert await said() == "warning: should tick 1 rollup, but is not there (AVAILABLE): workers tick meanwhile"
