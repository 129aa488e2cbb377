"""Migrations: fresh, repeated, at once, by roles with few rights, ahead of this code, and as a script."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from outrider import Outrider
from outrider.cli import alembic
from outrider.errors import MigrationRefused, RolesRefused, SchemaMismatch, UninstallRefused
from outrider.postgres import connection
from outrider.postgres.admin import roles
from outrider.postgres.embedded import Embedded
from outrider.postgres.schema import migrate, uninstall
from outrider.postgres.schema.phases import Phase
from outrider.testing.cases import Placed

pytestmark = pytest.mark.also_on(15, 16)

KNOWN = migrate.known()
NEWEST = KNOWN[-1].version
DEFINERS = {
    "open_generation", "fold_generation", "rollup_work", "rollup_retry", "rollup_work_noted", "enqueue_onto", "relay_take",
    "relay_hold", "relay_open", "relay_settle", "relay_reject", "relay_rewind", "relay_ahead", "note_adoption", "pause",
    "pause_all", "resume", "resume_all", "narrow", "rename", "retire", "set_setting", "replay", "outbox_replay", "discard",
    "withdraw", "cancel", "run_now", "move_generation", "overdue_rollups", "attach_segment", "upkeep_begin",
    "upkeep_segments", "upkeep_log", "upkeep_receipts", "upkeep_dead_letters", "upkeep_traces", "upkeep_reap", "erase",
    "tenant_page", "note_export", "count_take", "log_home", "accept_event", "hold_limits", "forget_workers",
    "allow_content_class",
    "canary_begin", "canary_send", "canary_end",
    "pause_schedule", "resume_schedule", "run_schedule", "change_jobs", "sample_due", "keep_sample", "replace_closed",
}  # fmt: skip


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


@asynccontextmanager
async def connected(dsn: str, **options: Any) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(dsn, autocommit=True, row_factory=tuple_row, **options) as conn:
        yield conn


async def rows(conn: AsyncConnection[Any], query: str, *params: object) -> list[Any]:
    return await (await conn.execute(query.encode(), params)).fetchall()


async def run(dsn: str, schema: str = "outrider", by: str = "tests") -> list[int]:
    async with await connection.connect(dsn, autocommit=True) as conn:
        return [migration.version for migration in await migrate.migrate(conn, schema, by)]


async def publish_and_take(dsn: str, schema: str = "outrider") -> list[str]:
    """The whole path as whoever the DSN names."""
    app = Outrider(context="shop", dsn=dsn, schema=schema)
    reader = app.reader(Placed, name="shop.reader", start="beginning")
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish(conn, Placed(order_id="1"))
            await app.publish_many(conn, [Placed(order_id="2"), Placed(order_id="3")])
        async with app.connect() as conn, conn.transaction():
            return [envelope.decode(Placed).order_id for envelope in (await reader.take(conn)).events]


async def test_a_fresh_database(empty_database: str) -> None:
    async with connected(empty_database) as conn:
        assert await migrate.applied(conn, "outrider") == []
        done = await migrate.migrate(conn, "outrider", "tests 1.2")
        have = await migrate.applied(conn, "outrider")
        await migrate.check_newer(conn, "outrider")
    assert [migration.version for migration in done] == [migration.version for migration in migrate.known()]
    assert [(row.version, row.name, row.breaking, row.applied_by) for row in have] == [
        (migration.version, migration.name, migration.breaking, "tests 1.2") for migration in migrate.known()
    ]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrate.known()] == list(range(1, NEWEST + 1))


async def test_again_changes_nothing(empty_database: str) -> None:
    assert await run(empty_database) != []
    async with connected(empty_database) as conn:
        before = await migrate.applied(conn, "outrider")
        assert await run(empty_database, by="another") == []
        assert await migrate.applied(conn, "outrider") == before


async def test_eight_at_once(empty_database: str) -> None:
    done = await asyncio.gather(*(run(empty_database, by=f"tests {n}") for n in range(8)))
    applied = sorted(version for versions in done for version in versions)
    assert applied == [migration.version for migration in migrate.known()]
    assert await publish_and_take(empty_database) == ["1", "2", "3"]


async def test_who_keeps_migrations_waiting_is_named(
    database: str, role: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can connect can hold the lock. So the wait has an end, and says after the first try whom it waits for."""
    for module in (migrate, roles, uninstall, alembic):
        monkeypatch.setattr(module, "PATIENCE", "20ms")
    monkeypatch.setattr(migrate, "TRIES", 3)
    monkeypatch.setattr(migrate, "PAUSE", 0.01)
    async with (
        connected(make_conninfo(database, user=role, application_name="curious")) as low,
        connected(database) as conn,
    ):
        await low.execute("select pg_advisory_lock(hashtextextended('outrider.migrate.outrider', 0))")
        held = rf"has held the lock .* process {low.info.backend_pid} .user {role}, curious, idle since \d{{4}}-.*"
        with pytest.raises(MigrationRefused, match=f"nothing was changed: .*{held}pg_terminate_backend"):
            await run(database)
        assert len(re.findall(held, caplog.text)) == 1, "told once while it waits"
        with pytest.raises(RolesRefused, match=f"nothing was changed: .*{held}pg_terminate_backend"):
            await roles.make(conn, "outrider", f"{conn.info.dbname}_")
        with pytest.raises(UninstallRefused, match=f"nothing was dropped: .*{held}pg_terminate_backend"):
            await uninstall.uninstall(conn, "outrider")
        for text in (
            roles.grants("outrider", f"{conn.info.dbname}_"),
            uninstall.script("outrider"),
            alembic._schema_values("outrider", 0, KNOWN, Phase.post)["upgrade"].split('"""')[1],
        ):
            with pytest.raises(psycopg.errors.LockNotAvailable, match=held):
                await conn.execute(text.encode())
        await low.execute("select pg_advisory_unlock_all()")
        async with conn.transaction():
            await conn.execute("set local lock_timeout = '7s'")
            await conn.execute(migrate.hold("outrider", "20ms").encode())
            assert await rows(conn, "show lock_timeout") == [("7s",)]
            async with connected(database) as other:
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    await other.execute(migrate.hold("outrider", "20ms").encode())
                await other.execute(migrate.hold("another", "20ms").encode())


async def test_a_migration_that_fails_leaves_nothing_behind(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = migrate.Migration(NEWEST + 1, "broken", False, "-", "create table /*schema*/half (); select 1 / 0;")
    monkeypatch.setattr(migrate, "known", lambda: (*KNOWN, broken))
    with pytest.raises(psycopg.errors.DivisionByZero):
        await run(empty_database)
    async with connected(empty_database) as conn:
        assert await rows(conn, "select from pg_namespace where nspname = 'outrider'") == []


async def test_a_transaction_is_refused(empty_database: str) -> None:
    async with await connection.connect(empty_database) as conn:
        with pytest.raises(ValueError, match="migrate needs an autocommit connection"):
            await migrate.migrate(conn, "outrider", "tests")


async def test_another_schema(empty_database: str) -> None:
    assert await run(empty_database, "other_log") != []
    async with connected(empty_database) as conn:
        assert await rows(conn, "select to_regnamespace('outrider')::text") == [(None,)]
        await migrate.check_newer(conn, "other_log")
    assert await publish_and_take(empty_database, "other_log") == ["1", "2", "3"]


# Who may


@pytest.fixture
def role(server: str, empty_database: str) -> Iterator[str]:
    """A login without any right of its own; what it owns goes with the database."""
    name = "role_" + str(psycopg.conninfo.conninfo_to_dict(empty_database)["dbname"])
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create role {name} login nosuperuser nocreatedb nocreaterole".encode())
        yield name
        with psycopg.connect(empty_database, autocommit=True) as inside:
            inside.execute(f"drop owned by {name} cascade".encode())
            inside.execute(b"drop schema if exists outrider cascade")
        conn.execute(f"drop role {name}".encode())


async def test_no_superuser_is_needed(empty_database: str, role: str) -> None:
    async with connected(empty_database) as conn:
        database = psycopg.conninfo.conninfo_to_dict(empty_database)["dbname"]
        await conn.execute(f"grant create on database {database} to {role}".encode())
    assert await publish_and_take(make_conninfo(empty_database, user=role)) == ["1", "2", "3"]


async def test_a_schema_made_by_the_owner_is_enough(empty_database: str, role: str) -> None:
    async with connected(empty_database) as conn:
        await conn.execute(f"create schema outrider authorization {role}".encode())
    assert await publish_and_take(make_conninfo(empty_database, user=role)) == ["1", "2", "3"]


async def test_a_role_that_may_not_create_the_schema_is_told_what_the_owner_does(
    empty_database: str, role: str
) -> None:
    advice = f'let the owner run: create schema "outrider" authorization "{role}"'
    with pytest.raises(SchemaMismatch, match=re.escape(advice)):
        await run(make_conninfo(empty_database, user=role))
    async with connected(empty_database) as conn:
        await conn.execute(advice.partition("run: ")[2].encode())
    assert await run(make_conninfo(empty_database, user=role)) != []


async def test_functions_belong_to_nobody_else_and_look_nowhere_else(database: str) -> None:
    async with connected(database) as conn:
        functions = await rows(
            conn,
            """select p.proname, p.proconfig,
                      exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) where grantee = 0),
                      p.prosecdef, p.prosqlbody is not null
               from pg_proc as p where p.pronamespace = 'outrider'::regnamespace order by 1""",
        )
    assert {"publish", "take", "register", "uuid7"} <= {name for name, *_ in functions}
    for name, config, public, definer, parsed in functions:
        # One that was parsed when it was made looks nothing up later.
        assert parsed or "search_path=pg_catalog, pg_temp" in (config or []), f"{name} has no pinned search_path"
        assert not public, f"{name} may be called by anyone"
        assert definer == (name in DEFINERS), f"{name} runs with its owner's rights"


async def test_tables_are_not_for_everyone(database: str) -> None:
    async with connected(database) as conn:
        granted = """select relname from pg_class, aclexplode(relacl)
                     where grantee = 0 and relnamespace = 'outrider'::regnamespace"""
        assert await rows(conn, granted) == []
        assert await rows(conn, "select has_schema_privilege('public', 'outrider', 'usage')") == [(False,)]


# Newer and older than this code


async def record(dsn: str, version: int, breaking: bool) -> None:
    async with connected(dsn) as conn:
        await conn.execute(
            "insert into outrider.migration (version, name, breaking, applied_by) values (%s, 'later', %s, 'outrider 9.9')",
            [version, breaking],
        )


async def test_a_newer_schema_that_breaks_nothing_is_accepted(database: str) -> None:
    await record(database, NEWEST + 1, False)
    async with connected(database) as conn:
        await migrate.check_newer(conn, "outrider")
        assert await migrate.migrate(conn, "outrider", "tests") == []
    assert await publish_and_take(database) == ["1", "2", "3"]


async def test_a_newer_schema_that_breaks_older_code_is_refused(database: str) -> None:
    await record(database, NEWEST + 1, True)
    await record(database, NEWEST + 2, False)
    message = re.escape(
        f'the schema "outrider" is at version {NEWEST + 2}, and this Outrider knows versions up to {NEWEST} only: version '
        f"{NEWEST + 1} (later) breaks older code. Upgrade outrider to the release that migrated it (outrider 9.9)"
    )
    async with connected(database) as conn:
        with pytest.raises(SchemaMismatch, match=message):
            await migrate.check_newer(conn, "outrider")
        with pytest.raises(SchemaMismatch, match=message):
            await migrate.migrate(conn, "outrider", "tests")
        assert len(await migrate.applied(conn, "outrider")) == NEWEST + 2


async def test_an_older_schema_is_brought_up_to_date(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = migrate.Migration(NEWEST + 1, "newer", False, "-", "create table /*schema*/newer ();")
    monkeypatch.setattr(migrate, "known", lambda: (*KNOWN, newer))
    async with connected(database) as conn:
        assert await migrate.migrate(conn, "outrider", "tests") == [newer]
        await migrate.check_newer(conn, "outrider")
        assert await rows(conn, "select to_regclass('outrider.newer')::text") == [("outrider.newer",)]


async def test_a_schema_from_before_the_first_release_says_what_to_do(database: str) -> None:
    async with connected(database) as conn:
        await conn.execute("update outrider.migration set name = 'log' where version = 1")
        for version in range(2, 17):
            await record(database, version, False)
        for refuse in (migrate.check_newer, migrate.check_needed, migrate.migrate, uninstall.survey):
            with pytest.raises(SchemaMismatch, match=r'before the first release .* drop schema "outrider" cascade'):
                await refuse(conn, "outrider")


# As a script


def dump(dsn: str) -> str:
    """The schema as pg_dump writes it, without the random token that protects its restore."""
    command = [str(Embedded().bin / "pg_dump"), "--schema-only", "--no-owner", dsn]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("schema", ["outrider", "other_log"])
async def test_the_script_gives_the_same_schema(database: str, empty_database: str, schema: str) -> None:
    async with connected(empty_database) as conn:
        await conn.execute(migrate.script(schema, "a script").encode())
        await migrate.check_newer(conn, schema)
        assert {row.applied_by for row in await migrate.applied(conn, schema)} == {"a script"}
    if schema == "outrider":
        assert dump(empty_database) == dump(database)
    assert await publish_and_take(empty_database, schema) == ["1", "2", "3"]


async def test_the_script_fails_as_a_whole(empty_database: str) -> None:
    async with connected(empty_database) as conn:
        script = migrate.script("outrider", "a script").replace("commit;", "select 1 / 0; commit;")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await conn.execute(script.encode())
        await conn.execute("rollback")
        assert await rows(conn, "select to_regnamespace('outrider')::text") == [(None,)]


def test_a_script_after_the_newest_says_that_there_is_nothing_to_do() -> None:
    assert migrate.script("outrider", "tests", after=NEWEST).startswith("-- nothing to do")


async def test_the_script_quotes_who_applied_it(empty_database: str) -> None:
    async with connected(empty_database) as conn:
        await conn.execute(migrate.script("outrider", "o'brien").encode())
        assert {row.applied_by for row in await migrate.applied(conn, "outrider")} == {"o'brien"}


# Segments


async def test_segments_are_made_ahead_and_none_is_a_default(database: str) -> None:
    async with connected(database) as conn:
        bounds = await rows(
            conn,
            """select pg_get_expr(c.relpartbound, c.oid) from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
               where i.inhparent = 'outrider.outbox'::regclass""",
        )
    texts = [text for (text,) in bounds]
    assert len(texts) == 17
    assert "DEFAULT" not in texts
    assert sum("TO (MAXVALUE)" in text for text in texts) == 1
    assert sum("FROM (MINVALUE)" in text for text in texts) == 1


@pytest.mark.parametrize("number", [999_998, 15_999_998, 20_000_000, 2**62])
async def test_publish_never_runs_out_of_segments(database: str, number: int) -> None:
    """Across the border of two segments, across the last border, and far beyond all that have one."""
    async with connected(database) as conn:
        await conn.execute("select setval('outrider.outbox_seq', %s)", [number])
    assert await publish_and_take(database) == ["1", "2", "3"]
    async with connected(database) as conn:
        assert await rows(conn, "select array_agg(seq order by seq) from outrider.outbox") == [
            ([number + 1, number + 2, number + 3],)
        ]


async def test_other_functions_of_a_shared_schema_keep_their_rights(empty_database: str) -> None:
    async with connected(empty_database) as conn:
        await conn.execute("create function public.mine() returns int language sql as 'select 1'")
        await migrate.migrate(conn, "public", "tests")
        assert await rows(conn, "select proacl from pg_proc where proname = 'mine'") == [(None,)]


# Whose objects


@pytest.mark.parametrize("trap", ["function", "table", "schema"])
async def test_what_belongs_to_somebody_else_is_not_trusted(empty_database: str, trap: str) -> None:
    """Their functions would run with our rights."""
    async with connected(empty_database) as conn:
        role = f"stranger_{conn.info.dbname}"
        await conn.execute(f"create role {role}".encode())
        try:
            owner = role if trap == "schema" else "postgres"
            await conn.execute(f"create schema outrider authorization {owner}".encode())
            if trap == "function":
                await conn.execute("create function outrider.foreign_floor(pg_snapshot) returns bigint return 0")
                await conn.execute(f"alter function outrider.foreign_floor owner to {role}".encode())
            if trap == "table":
                await conn.execute("create table outrider.migration ()")
                await conn.execute(f"alter table outrider.migration owner to {role}".encode())
            with pytest.raises(SchemaMismatch, match=f"the {trap} .* belongs to '{role}'"):
                await migrate.migrate(conn, "outrider", "tests")
        finally:
            await conn.execute(f"drop owned by {role} cascade; drop role {role}".encode())
