"""A worker's rights are enough to tick and to stage, and for nothing else: those of today, and those of before."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from tests.postgres.roles.house import before
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures, opened
from tests.rollup.test_worker import Shelved, app_of

from outrider.postgres.admin import roles
from outrider.postgres.statement import functions, render, statement

pytestmark = pytest.mark.also_on(15, 16)

NEW = """
revoke all on outrider.rollup, outrider.rollup_pending, outrider.rollup_log from app;
revoke all on function outrider.rollup_tick, outrider.rollup_settings from app;
"""
ALLOWED = ("rollup_tick", "rollup_work", "rollup_settings")
INHERITED = ("rollup_run",)
"""Whoever could tick before may do so by hand, as before."""
CALLS = [
    "select outrider.rollup_tick('archive.imports')",
    "select outrider.rollup_work('archive.imports', false)",
    "select outrider.rollup_work_noted('archive.imports', false, null, null)",
    "select outrider.rollup_run('archive.imports')",
    "select outrider.rollup_retry('archive.imports')",
    "select * from outrider.rollup_settings('archive.imports')",
    "select * from outrider.rollup_plan('archive.imports')",
    "select * from outrider.rollup_uninstall('archive.imports')",
    "select * from outrider.rollup_verify('archive.imports')",
    "select outrider.rollup_note_archive_imports('{1}')",
    "select outrider.rollup_others('public.piece')",
    "select outrider.rollup_is_outage('40001')",
    *(
        f"select outrider.rollup_{each}('{{}}'::jsonb)"
        for each in ("install", "preflight", "check_sql", "check_key", "commands", "parts", "lock")
    ),
    "select outrider.rollup_undo('{}', '[]')",
    "select outrider.rollup_undo_made('{}', '[]')",
    "select outrider.rollup_rows('{1}', '{1}', 1, 1)",
    *(
        f"select outrider.rollup_{each}(null::outrider.rollup, '{{1}}', {more})"
        for each, more in (
            ("emit", "2"),
            ("fault", "2"),
            ("sift", "'{1}', 2"),
            ("faulty_groups", "'{1}', 2"),
            ("faulty_rows", "2"),
        )
    ),
]
WRITES = [
    "insert into outrider.rollup_pending (rollup, carried) values ('archive.imports', '{}')",
    "update outrider.rollup_pending set processed_at = now()",
    "delete from outrider.rollup_pending",
    "update outrider.rollup set ticked_at = null",
    "delete from outrider.rollup",
    "insert into outrider.rollup_log (rollup, result, duration_ms) values ('archive.imports', 'idle', 0)",
    "delete from outrider.rollup_log",
    "update outrider.setting set entered = '1'",
]


@pytest.mark.parametrize("made_before", [False, True], ids=["made by roles", "made before"])
async def test_a_worker_of_a_role_of_its_own(bare: Archive, database: str, made_before: bool) -> None:
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login")
    prefix = f"{bare.conn.info.dbname}_"
    try:
        if made_before:
            bare.ask(re.sub(r"\bapp\b", user, before("app") + NEW))
            bare.conn.execute(statement("schema/inherit_grants", "outrider"))
        else:
            bare.ask(roles.script("outrider", prefix))
            bare.ask(f"grant {prefix}worker to {user}")
        bare.install(notify=NOTE)
        stages: dict[str, Any] = {"table": None, "events": [Shelved], "key": ["document"], "carry": ["author"]}
        app, owning = (
            app_of(dsn, **stages, single="archive.one") for dsn in (make_conninfo(database, user=user), database)
        )
        with opened(make_conninfo(database, user=user)) as low:
            bare.add("a", "a")
            assert figures(low.tick(flush=True)) == ("processed", 1, 0, 0, 2, 0)
            allowed = ALLOWED + INHERITED * made_before
            for call in [each for each in CALLS if not any(name in each for name in allowed)] + WRITES:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    low.ask(call)
        bare.ask("select outrider.rollup_uninstall(%s)", NAME)
        bare.install(app.rollups[0].spec())
        async with owning:
            await owning.migrate()
        async with app:
            async with app.worker():
                pass
            async with app.connect() as conn, conn.transaction():
                await app.publish(conn, Shelved(document="a"))
                await app.publish(conn, Shelved(document="a"))
            await app.drain()
            assert bare.staged() == ["a", "a"]
            assert (await app.tick(NAME, flush=True)).groups_emitted == 1
    finally:
        made = [] if made_before else roles.named("outrider", prefix).values()
        for each in (user, *made):
            bare.ask(f"drop owned by {each}; drop role {each}")


def test_a_function_that_is_made_anew_keeps_its_callers(bare: Archive) -> None:
    """Migration 16 drops rollup_parts, which operators need for a preflight. Install calls more functions than before."""
    prefix, owner = f"{bare.conn.info.dbname}_", f"role_{bare.conn.info.dbname}"
    bare.ask(roles.script("outrider", prefix))
    bare.ask(f"create role {owner}; grant execute on function outrider.rollup_install to {owner}")
    try:
        bare.ask("drop function outrider.rollup_parts(jsonb)")
        [text] = [text for name, text in functions() if name == "rollup_parts"]
        bare.ask(render(text, "outrider"))
        bare.ask("revoke all on function outrider.rollup_parts from public")
        bare.conn.execute(statement("schema/inherit_grants", "outrider"))
        callers = """select rolname from pg_roles where has_function_privilege(oid, %s, 'execute') and rolname ~ %s
                     order by 1"""
        made = roles.named("outrider", prefix)
        assert set(bare.column(callers, "outrider.rollup_parts(jsonb)", bare.conn.info.dbname)) == {
            made["operator"],
            made["dashboard"],
            owner,
        }
        for function in ("rollup_lock(jsonb)", "rollup_undo(jsonb, jsonb)", "rollup_undo_made(jsonb, jsonb)"):
            assert bare.column(callers, f"outrider.{function}", bare.conn.info.dbname) == [owner]
    finally:
        for each in (owner, *roles.named("outrider", prefix).values()):
            bare.ask(f"drop owned by {each}; drop role {each}")


def test_a_low_role_may_call_nothing(bare: Archive, database: str) -> None:
    """Even one that may use the schema: every function of rollups is closed."""
    bare.install(notify=NOTE)
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login; grant usage on schema outrider to {user}")
    try:
        with opened(make_conninfo(database, user=user)) as low:
            for call in CALLS + WRITES:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    low.ask(call)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                low.ask("select outrider.rollup_install(%s)", Jsonb(declared()))
        query = """select proname from pg_proc where pronamespace = 'outrider'::regnamespace and proname ~ '^rollup_'
                   and has_function_privilege(%s, oid, 'execute')"""
        assert bare.column(query, user) == []
        called = {re.findall(r"rollup_\w+", call)[0] for call in CALLS}
        assert called | {"rollup_stage_archive_imports"} == set(
            bare.column(
                "select proname from pg_proc where pronamespace = 'outrider'::regnamespace and proname ~ '^rollup_'"
            )
        )
    finally:
        bare.ask(f"drop owned by {user}; drop role {user}")


def test_a_deferred_trigger_of_the_caller_runs_as_the_caller(bare: Archive, database: str) -> None:
    """Before 18, SET CONSTRAINTS in a function of the owner would run it as the owner."""
    bare.install(notify=NOTE)
    prefix, user = f"{bare.conn.info.dbname}_", f"role_{bare.conn.info.dbname}"
    bare.ask(roles.script("outrider", prefix))
    bare.ask(f"create role {user} login in role {prefix}cron, {prefix}operator")
    try:
        for call in ("rollup_tick", "rollup_run"):
            with opened(make_conninfo(database, user=user)) as low:
                low.ask("create temp table mine (who text); create temp table bait (n int)")
                low.ask("""create function pg_temp.spring() returns trigger language plpgsql
                           as 'begin insert into mine values (current_user); return null; end'""")
                low.ask("grant insert on mine to public")
                low.ask("""create constraint trigger spring after insert on bait deferrable initially deferred
                           for each row execute function pg_temp.spring()""")
                with low.conn.transaction():
                    low.ask("insert into bait values (1)")
                    low.ask(f"select outrider.{call}('archive.imports')")
                assert low.conn.execute("select who from mine").fetchall() == [{"who": user}]
    finally:
        for each in (user, *roles.named("outrider", prefix).values()):
            bare.ask(f"drop owned by {each}; drop role {each}")
