"""An upgrade in two phases: what is applied beside older workers, what waits for them, and what code does without it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.postgres.test_migrate import connected, record, rows
from tests.worker.shop import Placed, Shop

from outrider import Outrider
from outrider.errors import MigrationRefused, SchemaMismatch
from outrider.postgres import heartbeat
from outrider.postgres.schema import migrate
from outrider.postgres.schema.migrate import Migration
from outrider.postgres.schema.phases import Phase
from outrider.signals import WorkerUp

KNOWN = migrate.known()
NEWEST = KNOWN[-1].version
ADD = Migration(NEWEST + 1, "add", False, "-", "create table /*schema*/added ();")
BREAK = Migration(NEWEST + 2, "break", True, "-", "create table /*schema*/broken ();")
STOP = Migration(NEWEST + 2, "stop", True, "-", "create table /*schema*/stopped ();", stop=True)

Know = Callable[..., None]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """From now on this code is of a release with these migrations too."""

    def add(*steps: Migration) -> None:
        for module in (migrate, heartbeat):
            monkeypatch.setattr(module, "known", lambda: (*KNOWN, *steps))

    return add


async def run(dsn: str, **options: Any) -> list[str]:
    async with connected(dsn) as conn:
        return [step.name for step in await migrate.migrate(conn, "outrider", "tests", **options)]


async def versions(dsn: str) -> list[int]:
    async with connected(dsn) as conn:
        return [row.version for row in await migrate.applied(conn, "outrider")]


async def seen(dsn: str, pid: int, knows: int | None, ago: str = "-50 s", version: str = "outrider 0.0.9") -> None:
    """A worker, as its heartbeat leaves it; by default seen 50 s ahead, so that it counts as alive for the longest time."""
    async with connected(dsn) as conn:
        await conn.execute(
            """insert into outrider.worker (id, host, pid, version, generation, subscriptions, schema_version, seen_at)
               values (%s, 'db-7', %s, %s, 0, '{}', %s, clock_timestamp() - %s::interval)""",
            [uuid4(), pid, version, knows, ago],
        )


# What belongs to which phase


async def test_the_pre_phase_leaves_the_breaking_steps_to_the_post_phase(database: str, know: Know) -> None:
    know(ADD, BREAK)
    assert await run(database, phase=Phase.pre) == ["add"]
    assert await run(database, phase=Phase.pre) == []
    assert await run(database) == ["break"]
    assert await versions(database) == list(range(1, NEWEST + 3))


async def test_without_a_phase_both_are_applied(database: str, know: Know) -> None:
    know(ADD, BREAK)
    assert await run(database) == ["add", "break"]


async def test_an_empty_schema_has_nobody_to_break(empty_database: str, know: Know) -> None:
    know(ADD, BREAK)
    assert await run(empty_database, phase=Phase.pre) == [*(step.name for step in KNOWN), "add", "break"]


async def test_a_breaking_step_of_an_earlier_release_belongs_to_the_pre_phase(database: str, know: Know) -> None:
    """What comes after it needs it."""
    later = Migration(NEWEST + 3, "later", False, "-", "create table /*schema*/later ();")
    last = Migration(NEWEST + 4, "last", True, "-", "create table /*schema*/last ();")
    know(ADD, BREAK, later, last)
    assert await run(database, phase=Phase.pre) == ["add", "break", "later"]


async def test_a_step_that_new_code_needs_and_old_code_does_not_bear(database: str, know: Know) -> None:
    """It is in the pre phase, and waits for the workers to stop."""
    know(ADD, STOP)
    await seen(database, 41, NEWEST)
    with pytest.raises(MigrationRefused) as refused:
        await run(database, phase=Phase.pre)
    assert "stop has to wait" in str(refused.value)
    assert "--phase pre" not in str(refused.value)
    assert await versions(database) == list(range(1, NEWEST + 1)), "half an upgrade"
    async with connected(database) as conn:
        with pytest.raises(SchemaMismatch, match=f"needs version {NEWEST + 2}: .*; when older workers are stopped"):
            await migrate.check_needed(conn, "outrider")
        await conn.execute("delete from outrider.worker")
        assert await run(database, phase=Phase.pre) == ["add", "stop"]
        await migrate.check_needed(conn, "outrider")


async def has_settle(dsn: str) -> bool:
    async with connected(dsn) as conn:
        found = await rows(conn, "select exists (select from pg_proc where proname = 'settle' and proacl is not null)")
        return found == [(True,)]


@pytest.mark.parametrize("phase", list(Phase))
async def test_each_phase_brings_the_functions(database: str, know: Know, phase: Phase) -> None:
    know(ADD, BREAK)
    if phase is Phase.post:
        await run(database, phase=Phase.pre)
    async with connected(database) as conn:
        await conn.execute("drop function outrider.settle")
    assert await run(database, phase=phase)
    assert await has_settle(database)


async def test_nobody_sees_new_tables_with_old_functions(database: str, know: Know) -> None:
    """What a step drops comes back with the last one: both are one transaction."""
    drop = Migration(NEWEST + 1, "drop", False, "-", "drop function /*schema*/settle;")
    know(drop, Migration(NEWEST + 2, "add", False, "-", ""))
    assert await run(database) == ["drop", "add"]
    async with connected(database) as conn:
        query = "select count(distinct xmin::text) from outrider.migration where version > %s"
        assert await (await conn.execute(query, [NEWEST])).fetchone() == (1,)
    assert await has_settle(database)


async def test_a_worker_that_comes_in_between_leaves_the_pre_phase_whole(database: str, know: Know) -> None:
    """The step before the breaking one has been applied by then: its functions must be there."""
    coming = """insert into /*schema*/worker (id, host, pid, version, generation, subscriptions)
                values ('00000000-0000-0000-0000-000000000001', 'db-7', 1, 'outrider 0.0.9', 0, '{}');"""
    know(Migration(NEWEST + 1, "add", False, "-", coming), BREAK)
    async with connected(database) as conn:
        await conn.execute("drop function outrider.settle")
    with pytest.raises(MigrationRefused, match="break has to wait"):
        await run(database)
    assert await versions(database) == list(range(1, NEWEST + 2))
    assert await has_settle(database)


async def test_a_function_of_the_post_phase_is_not_for_everyone(database: str, know: Know) -> None:
    text = "create function /*schema*/late() returns int language sql set search_path = pg_catalog as 'select 1';"
    know(ADD, Migration(NEWEST + 2, "break", True, "-", text))
    assert await run(database, phase=Phase.pre) == ["add"]
    assert await run(database) == ["break"]
    async with connected(database) as conn:
        assert await rows(conn, "select has_function_privilege('public', 'outrider.late()', 'execute')") == [(False,)]


# Who holds up a breaking step


@pytest.mark.parametrize(
    ("knows", "ago", "refused"),
    [
        (None, "-50 s", True),
        (NEWEST, "10 s", True),
        (NEWEST + 1, "-50 s", True),
        (NEWEST + 2, "-50 s", False),
        (NEWEST + 7, "-50 s", False),
        (NEWEST, "31 s", False),
        (NEWEST, "-1 h", False),
        (None, "1 h", False),
    ],
)
async def test_a_live_worker_that_does_not_know_it(
    database: str, know: Know, knows: int | None, ago: str, refused: bool
) -> None:
    know(ADD, BREAK)
    await seen(database, 41, knows, ago)
    if not refused:
        assert await run(database) == ["add", "break"]
        return
    with pytest.raises(MigrationRefused):
        await run(database)
    assert await versions(database) == list(range(1, NEWEST + 1)), "half an upgrade"
    assert await run(database, phase=Phase.pre) == ["add"]
    with pytest.raises(MigrationRefused):
        await run(database)
    assert await run(database, force=True) == ["break"]


async def test_the_refusal_names_them_and_what_to_do(database: str, know: Know) -> None:
    know(ADD, BREAK)
    await seen(database, 41, None)
    await seen(database, 42, NEWEST, version="outrider 0.1.0")
    await seen(database, 43, NEWEST + 2)
    with pytest.raises(MigrationRefused) as refused:
        await run(database)
    said = str(refused.value)
    assert f"migration {NEWEST + 2:04} break has to wait" in said
    assert "db-7:41 (outrider 0.0.9, which knows version 0); db-7:42 (outrider 0.1.0, which knows" in said
    assert "db-7:43" not in said
    assert "stop them" in said
    assert "run `outrider migrate --phase pre` now, replace them, and then run `outrider migrate`. --force" in said
    await run(database, phase=Phase.pre)
    with pytest.raises(MigrationRefused) as refused:
        await run(database)
    assert "--phase pre" not in str(refused.value)


async def test_a_breaking_step_in_the_midst_is_refused_in_the_pre_phase_too(database: str, know: Know) -> None:
    know(ADD, BREAK, Migration(NEWEST + 3, "later", False, "-", "create table /*schema*/later ();"))
    await seen(database, 41, NEWEST)
    with pytest.raises(MigrationRefused) as refused:
        await run(database, phase=Phase.pre)
    assert "stop them" in str(refused.value)
    assert "--phase pre" not in str(refused.value)
    assert await versions(database) == list(range(1, NEWEST + 1))


async def test_what_breaks_nothing_is_applied_beside_anybody(database: str, know: Know) -> None:
    know(ADD)
    await seen(database, 41, None)
    assert await run(database) == ["add"]


async def test_a_worker_of_this_code_says_what_it_knows(database: str, know: Know) -> None:
    """From its heartbeat to the refusal, and gone when it has ended."""
    app = Outrider(context="shop", dsn=database)
    shop = Shop(app, database)
    app.handler(Placed, name="shop.effect")(shop.effect)
    async with app:
        await app.migrate()
        async with app.worker() as worker:
            await until(lambda: beating(database))
            know(ADD, BREAK)
            with pytest.raises(MigrationRefused, match=f"{worker.identity.pid} .*, which knows version {NEWEST}\\)"):
                await app.migrate()
            assert await run(database, phase=Phase.pre) == ["add"]
        assert await run(database) == ["break"]
        later = Migration(NEWEST + 3, "later", True, "-", "create table /*schema*/later ();")
        know(ADD, BREAK, later)
        async with app.worker():
            await until(lambda: beating(database))
            assert await run(database) == ["later"]


async def beating(dsn: str) -> bool:
    async with connected(dsn) as conn:
        return await migrate.live_workers(conn, "outrider") != []


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Locks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "PATIENCE", "50ms")
    monkeypatch.setattr(migrate, "TRIES", 10_000)
    monkeypatch.setattr(migrate, "PAUSE", 0.01)


ALTER = Migration(NEWEST + 1, "alter", False, "-", "alter table /*schema*/outbox add column more int;")


async def waits(dsn: str) -> bool:
    async with connected(dsn) as conn:
        waiting = """select exists (select from pg_locks where relation = 'outrider.outbox'::regclass and not granted
                     and mode = 'AccessExclusiveLock')"""
        return await rows(conn, waiting) == [(True,)]


async def test_publishers_do_not_wait_long_behind_a_migration(database: str, know: Know, impatient: None) -> None:
    """One transaction that stays open holds up the migration, and nobody else."""
    know(ALTER)
    publish = "select outrider.publish('a.b', '{}')"
    async with connected(database) as held, connected(database) as other:
        async with held.transaction():
            await held.execute(publish)
            migrating = asyncio.create_task(run(database))
            for _ in range(3):
                await until(lambda: waits(database))
                await other.execute(publish)
            assert not migrating.done()
        assert await migrating == ["alter"]


async def test_a_migration_that_never_gets_its_lock(
    database: str, know: Know, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(ALTER)
    monkeypatch.setattr(migrate, "TRIES", 2)
    async with connected(database, application_name="nightly report") as held:
        async with held.transaction():
            await held.execute("select count(*) from outrider.outbox")
            with pytest.raises(MigrationRefused) as refused:
                await run(database)
        assert f"process {held.info.backend_pid} (nightly report, idle in transaction)" in str(refused.value)
    assert await versions(database) == list(range(1, NEWEST + 1))
    assert await run(database) == ["alter"]


# As a script


async def execute(dsn: str, script: str) -> None:
    async with connected(dsn) as conn:
        try:
            await conn.execute(script.encode())
        finally:
            await conn.execute("rollback")


async def test_the_script_of_a_phase(database: str, know: Know) -> None:
    know(ADD, BREAK)
    await execute(database, migrate.script("outrider", after=NEWEST, phase=Phase.pre))
    assert await versions(database) == list(range(1, NEWEST + 2))
    nothing = migrate.script("outrider", after=NEWEST + 1, phase=Phase.pre)
    assert nothing == f"-- nothing to do: this Outrider knows no migration of the pre phase after {NEWEST + 1}\n"
    await execute(database, migrate.script("outrider", after=NEWEST + 1))
    assert await versions(database) == list(range(1, NEWEST + 3))
    assert await run(database) == []


async def test_the_script_is_refused_by_live_workers_too(database: str, know: Know) -> None:
    know(ADD, BREAK)
    await seen(database, 41, NEWEST)
    with pytest.raises(psycopg.errors.RaiseException, match=r"breaks code .*: db-7:41 \(outrider 0.0.9\)"):
        await execute(database, migrate.script("outrider", after=NEWEST))
    assert await versions(database) == list(range(1, NEWEST + 1))
    async with connected(database) as conn:
        await conn.execute("update outrider.worker set schema_version = %s", [NEWEST + 2])
    await execute(database, migrate.script("outrider", after=NEWEST))
    assert await versions(database) == list(range(1, NEWEST + 3))


# Code on a schema that lacks something


async def test_a_worker_without_what_its_code_needs_does_not_start(database: str, know: Know) -> None:
    know(ADD, BREAK)
    app = Outrider(context="shop", dsn=database)
    shop = Shop(app, database)
    app.handler(Placed, name="shop.effect")(shop.effect)
    up: list[WorkerUp] = []
    app.signals.listen(lambda signal: up.append(signal) if isinstance(signal, WorkerUp) else None)
    needs = f"is at version {NEWEST}, and this Outrider needs version {NEWEST + 1}: run outrider migrate"
    async with app:
        with pytest.raises(SchemaMismatch, match=re.escape(needs)):
            async with app.worker():
                pass
        assert up == []
        await run(database, phase=Phase.pre)
        async with app.worker():
            assert len(up) == 1, "what breaks older code is not needed"


async def test_a_web_process_publishes_before_anybody_has_migrated(database: str, know: Know) -> None:
    know(ADD, BREAK)
    app = Outrider(context="shop", dsn=database)
    async with app, app.connect() as conn:
        await app.publish(conn, Placed(customer="a"))
        await app.publish_many(conn, [Placed(customer="b"), Placed(customer="c")])
        await conn.commit()
    async with connected(database) as other:
        assert await rows(other, "select count(*) from outrider.outbox") == [(3,)]


async def test_a_worker_on_a_schema_that_is_ahead_of_it(database: str) -> None:
    """After the pre phase of the next release it goes on, after the post phase it says what to install."""
    app = Outrider(context="shop", dsn=database)
    shop = Shop(app, database)
    app.handler(Placed, name="shop.effect")(shop.effect)
    await record(database, NEWEST + 1, False)
    async with app, app.worker():
        pass
    await record(database, NEWEST + 2, True)
    with pytest.raises(SchemaMismatch, match="Upgrade outrider to the release that migrated it"):
        async with app:
            pass
