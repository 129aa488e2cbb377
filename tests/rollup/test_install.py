"""Installing a rollup: what it makes and changes, again and again, and what it refuses without a trace."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures, opened

from outrider import Event, Outrider
from outrider.errors import ConfigError, RollupRefused
from outrider.postgres import connection, rollups
from outrider.rollup import Check, Column, Notification

CATALOG = """
    select jsonb_build_array(
        (select jsonb_agg(pg_get_functiondef(oid) || coalesce(proacl::text, '') order by oid) from pg_proc
         where pronamespace::regnamespace::text in ('outrider', 'public')),
        (select jsonb_agg(pg_get_triggerdef(oid) || tgenabled::text order by oid) from pg_trigger where not tgisinternal),
        (select jsonb_agg(conrelid::text || conname || pg_get_constraintdef(oid) order by oid) from pg_constraint
         where connamespace::regnamespace::text <> 'outrider'),
        (select jsonb_agg(attrelid::text || attname || atttypid::text order by attrelid, attnum) from pg_attribute
         where attrelid::regclass::text in ('piece', 'note') and not attisdropped),
        (select jsonb_agg(to_jsonb(r) order by name) from outrider.rollup as r),
        (select jsonb_agg(to_jsonb(s) order by name) from outrider.setting as s),
        (select jsonb_agg(to_jsonb(p) order by id) from outrider.rollup_pending as p))
"""
CHECK = Check("note", "note_pieces_check", "pieces < 5000")


def catalog(place: Archive) -> list[Any]:
    """All that installing could change."""
    found = place.one(CATALOG)
    assert isinstance(found, list)
    return found


def refused(place: Archive, spec: dict[str, Any] | None = None, *, topic: str = "", **changes: Any) -> str:
    """Why; and nothing is changed."""
    before = catalog(place)
    with pytest.raises(psycopg.Error) as error:
        place.install(spec, **changes)
    assert catalog(place) == before
    if topic:
        assert error.value.sqlstate == "OR007"
        found = place.findings(spec, **changes)[topic]
        assert (found["passed"], found["blocks"]) == (False, True)
        assert f"{topic}: {found['detail']}" in str(error.value)
    return str(error.value)


# What it does


def test_it_stages_what_comes_and_nothing_that_was(bare: Archive) -> None:
    bare.add("a", "a")
    commands = bare.column("select command from outrider.rollup_commands(%s)", Jsonb(declared()))
    told = bare.install()
    assert told == {"name": NAME, "scheduler": "worker", "commands": commands}
    assert bare.staged() == []
    with bare.conn.transaction(force_rollback=True):
        bare.add("a")
    bare.add("b")
    assert bare.staged() == ["b"], "and what was rolled back is not"
    # Again: the same.
    kept = "others - 'x', undo, spec, slug, context, scheduler, every"
    before = bare.ask(f"select {kept} from outrider.rollup")
    functions = "select oid, prosrc from pg_proc where proname ~ '^rollup_(stage|note)'"
    made = bare.ask(functions)
    assert bare.install() == told
    assert bare.ask(f"select {kept} from outrider.rollup") == before
    assert bare.ask(functions) == made
    assert bare.column("select tgname from pg_trigger where tgrelid = 'piece'::regclass") == [
        "outrider_rollup_archive_imports"
    ]
    assert bare.staged() == ["b"]
    [settings] = bare.ask("select jsonb_object_agg(name, value) as them from outrider.setting where name ~ '^rollup'")
    assert settings["them"] == {
        f"rollup.{NAME}.debounce_seconds": 90,
        f"rollup.{NAME}.batch_threshold": 2,
        f"rollup.{NAME}.max_wait_seconds": 600,
    }


def test_a_changed_declaration_replaces_the_old_one(bare: Archive) -> None:
    """What waits is kept, what an operator has entered too."""
    bare.install(when="new.kind = 'piece'")
    bare.add("a", author="ada")
    bare.add("a", author="ada", kind="draft")
    bare.ask("update outrider.setting set entered = '4' where name ~ 'threshold'")
    bare.install(
        when="new.kind = 'draft'", carry=["id", "author", "kind"], key="lower(new.document)", threshold=3, notify=NOTE
    )
    bare.add("A", author="ada")
    bare.add("A", author="ada", kind="draft")
    assert bare.staged() == ["a", "a"]
    assert bare.ask("select value, entered from outrider.setting where name ~ 'threshold'") == [
        {"value": 3, "entered": "4"}
    ]
    bare.ask("update outrider.setting set entered = null")
    bare.install(when="new.kind = 'draft'", carry=["id", "author", "kind"], key=["document"], notify=NOTE)
    assert figures(bare.tick(flush=True)) == ("processed", 1, 0, 0, 2, 0)
    [payload] = bare.column("select payload from outrider.outbox")
    assert payload["author"] == "ada"
    assert "kind" not in payload, "one of them has none"
    assert bare.one("select count(*) from note") == 1
    # Another table: nothing of it is left on the first.
    bare.ask("create table leaf (id bigint generated always as identity, chapter text)")
    moved = declared(table="leaf", key=["chapter"], carry=["id"])
    assert any(
        "drop trigger" in each for each in bare.column("select command from outrider.rollup_commands(%s)", Jsonb(moved))
    )
    bare.install(moved)
    bare.add("a", kind="draft")
    bare.ask("insert into leaf (chapter) values ('one')")
    assert bare.staged() == ["one"]
    assert bare.one("select count(*) from pg_trigger where tgrelid = 'piece'::regclass") == 0
    # And events instead of a table.
    bare.install(declared(table=None, events=[Leafed], key=["chapter"], carry=["id"]))
    bare.ask("insert into leaf (chapter) values ('two')")
    assert bare.staged() == ["one"]
    assert bare.column("select pg_get_function_arguments(oid) from pg_proc where proname ~ '^rollup_stage'") == [
        "p_seqs bigint[]"
    ]
    assert not [row for row in bare.verified().values() if not row["passed"]]


class Leafed(Event, type="archive.leafed"):
    chapter: str


def test_columns_and_checks(bare: Archive) -> None:
    """Added, replaced, and noted once as they were."""
    new = Column("piece", "Source Ref", "text")
    before = bare.one("select pg_get_expr(conbin, conrelid) from pg_constraint where conname = 'note_pieces_check'")
    options: dict[str, Any] = {
        "key": ["Source Ref"],
        "columns": [new, Column("piece", "batch", "text")],
        "checks": [CHECK],
    }
    assert bare.findings(**options)["constraints"]["value"] == "AS_EXPECTED"
    assert bare.findings(**options)["constraints"]["detail"] == "CHECK constraints to replace: 1, columns to add: 1"
    bare.install(**options)
    bare.ask("""insert into piece ("Source Ref") values ('x')""")
    assert bare.staged() == ["x"]
    undo = [
        {"kind": "column", "table": "public.piece", "name": "Source Ref", "type": "text"},
        {
            "kind": "check",
            "table": "public.note",
            "name": "note_pieces_check",
            "check": "pieces < 5000",
            "before": before,
        },
    ]
    noted = """select (select jsonb_agg(e - 'oid' - 'definition' - 'after') from jsonb_array_elements(undo) as e)
               from outrider.rollup"""
    assert bare.one(noted) == undo, "batch was there before"
    bare.ask("insert into note (kind, pieces) values ('x', 4000)")
    assert bare.install(**options)["commands"] == bare.install(**options)["commands"]
    assert not [each for each in bare.install(**options)["commands"] if each.startswith("alter table")]
    options["checks"] = [Check("note", "note_pieces_check", "pieces < 6000")]
    [altered] = [each for each in bare.install(**options)["commands"] if each.startswith("alter table")]
    assert "pieces < 6000" in altered
    undo[1]["check"] = "pieces < 6000"
    assert bare.one(noted) == undo, "as it was before the first time"
    # What somebody else has made of it is repaired.
    bare.ask(
        "alter table note drop constraint note_pieces_check, add constraint note_pieces_check check (pieces < 9999)"
    )
    assert "note_pieces_check of public.note is not as it was made" in bare.verified()["installed"]["detail"]
    bare.install(**options)
    assert bare.verified()["installed"]["passed"]
    assert bare.findings(**options)["constraints"]["value"] == "IN_PLACE"


def test_a_session_that_speaks_sql_only(bare: Archive) -> None:
    """Every argument a literal, as psql would send it."""
    spec = rollups.call_in_sql(
        "rollup_install", declared(key="coalesce(new.document, 'it''s %')", notify=NOTE), "outrider"
    )
    bare.conn.execute(spec.encode())
    bare.add("a", None)
    assert bare.staged() == ["a", "it's %"]
    [verify] = [rollups.call_in_sql("rollup_verify", NAME, "outrider")]
    assert all(row["passed"] for row in bare.ask(verify) if row["blocks"])
    assert bare.ask("select outrider.rollup_tick('archive.imports', p_flush => true) ->> 'result' as result") == [
        {"result": "processed"}
    ]
    for name in (None, "", "Archive", "a b", 'a"b', "x" * 48, "a'b"):
        wrong = refused(bare, {**declared(), "name": name}, topic="source")
        assert "lower-case words joined by dots, of at most 47 bytes" in wrong
    with pytest.raises(psycopg.Error):
        bare.install({**declared(), "name": "archive.other", "table": "public.piece; drop table note"})
    assert bare.one("select count(*) from note") == 2


# Names and texts


def test_strange_names(bare: Archive) -> None:
    """Quotes, capitals, blanks, signs, letters beyond ASCII, in every place where a name can stand."""
    bare.ask("""
        create schema "My ""Schema";
        create table "My ""Schema"."Stücke (neu)" (
            id bigint generated always as identity, "Doc ""Ref" text, "select" text, "größe %s" int, "a(b" text, "x'y" text);
        create table "My ""Schema"."No'te" ("K%y" text unique, "a b" text, n int constraint "n ""ck" check (n < 9));
        create function "My ""Schema"."insért (x)"() returns void language sql as
            $$ insert into "My ""Schema"."Stücke (neu)" ("a(b") values ('f') $$;
    """)
    columns = {
        "K%y": "idempotency_key || '%s' || '%1$I'",
        "a b": "'''; drop table note; --' || key",
        "n": "piece_count",
    }
    spec = declared(
        table='"My ""Schema"."Stücke (neu)"',
        key=['Doc "Ref', "a(b", "x'y", "neu [1]"],
        carry=["id", "select", "größe %s", 'Doc "Ref'],
        when="""new."select" is distinct from 'it''s 100% %s %I $1 \\ '""",
        workspace="""'w%' || new."select" """,
        single="a.single",
        rollup="a.rollup",
        notify=Notification('"My ""Schema"."No\'te"', columns),
        columns=[Column('"My ""Schema"."Stücke (neu)"', "neu [1]", "character varying(20)")],
        checks=[Check('"My ""Schema"."No\'te"', 'n "ck', "n < 99 and '%s' <> '''; drop table note; --'")],
    )
    assert {
        row["topic"]: row["detail"] for row in bare.findings(spec).values() if row["blocks"] and not row["passed"]
    } == {}
    assert bare.findings(spec)["stable key"]["value"] == "BEFORE", "the function inserts it"
    bare.install(spec)
    bare.install(spec)
    assert {row["topic"]: row["detail"] for row in bare.verified().values() if not row["passed"]} == {}
    query = """insert into "My ""Schema"."Stücke (neu)" ("Doc ""Ref", "select", "größe %s", "neu [1]") values ({})"""
    for values in (
        "'a%s', 's', 7, null",
        "'a%s', 's', 7, null",
        "null, null, null, 'v'",
        "'q', 'it''s 100% %s %I $1 \\ ', 1, 'n'",
    ):
        bare.ask(query.format(values))
    assert bare.staged() == ["a%s", "a%s", "v"]
    assert figures(bare.tick(flush=True)) == ("processed", 1, 1, 0, 3, 0)
    whole, single = bare.ask("select workspace_id, payload from outrider.outbox order by seq")
    assert whole["workspace_id"] == "w%s"
    assert whole["payload"].items() >= {"select": "s", "größe %s": 7, 'Doc "Ref': "a%s"}.items()
    assert single == {"workspace_id": None, "payload": {"id": 3, "select": None, "größe %s": None, 'Doc "Ref': None}}
    notes = bare.ask("""select * from "My ""Schema"."No'te" order by n desc""")
    assert [(row["a b"], row["n"]) for row in notes] == [
        ("'; drop table note; --a%s", 2),
        ("'; drop table note; --v", 1),
    ]
    assert notes[0]["K%y"].endswith("%s%1$I")
    assert bare.one("select count(*) from note") == 0
    bare.ask("""update "My ""Schema"."Stücke (neu)" set "neu [1]" = null""")
    bare.ask("""delete from "My ""Schema"."No'te" """)
    kept = bare.ask("select what from outrider.rollup_uninstall(%s) where action = 'keep'", NAME)
    assert kept == []
    assert bare.one("select count(*) from pg_attribute where attname = 'neu [1]'") == 0
    assert bare.one("select count(*) from pg_trigger where tgname ~ 'outrider'") == 0


EVIL = "1); drop table note; --"
HOSTILE: dict[str, dict[str, Any]] = {
    "key": {"key": EVIL},
    "two expressions as key": {"key": "1)::text, (2"},
    "when": {"when": "true); drop table note; --"},
    "a condition and more": {"when": "true limit 1"},
    "a condition and a comment": {"when": "true --"},
    "workspace": {"workspace": EVIL},
    "notify": {"notify": Notification("note", {**NOTE.columns, "subject": EVIL})},
    "notify's table": {"notify": Notification('"note; drop table piece"', {"kind": "'x'"})},
    "a second statement": {"key": "1)::text; drop table note; select (1"},
    "a type": {"columns": [Column("note", "more", "text; drop table note")]},
    "a type of the source": {"columns": [Column("piece", "more", "text; drop table note; --")]},
    "a type and more": {"columns": [Column("note", "more", "text, drop column kind")]},
    "a check": {"checks": [Check("note", "note_pieces_check", "true); drop table piece; --")]},
    "a check and more": {"checks": [Check("note", "note_pieces_check", "true), drop column kind, add check (true")]},
    "a write": {"key": "(with gone as (delete from public.note returning 1) select 1 from gone)"},
}


@pytest.mark.parametrize("given", HOSTILE)
def test_hostile_sql_runs_nowhere(bare: Archive, given: str) -> None:
    bare.ask("insert into note (kind, pieces) values ('x', 1)")
    refused(bare, topic="expressions", **HOSTILE[given])
    assert bare.findings(**HOSTILE[given])["expressions"]["value"] == "INVALID"
    assert bare.one("select count(*) from note") == 1


# What it refuses


@pytest.mark.verify
def test_refusals(bare: Archive) -> None:
    bare.ask(
        "create view paper as select * from piece; create table shelf (a int, b int, name text, primary key (a, b))"
    )
    assert "there is no table public.nothing" in refused(bare, topic="source", table="nothing")
    assert "is no table" in refused(bare, topic="source", table="paper")
    assert "it has: note_pieces_check" in refused(
        bare, topic="constraints", checks=[Check("note", "note_check", "true")]
    )
    assert "it has: none" in refused(bare, topic="constraints", checks=[Check("piece", "piece_pkey", "true")])
    assert "there is no table public.gone" in refused(bare, topic="constraints", columns=[Column("gone", "a", "text")])
    assert "author is text, not int" in refused(bare, topic="constraints", columns=[Column("piece", "author", "int")])
    for wrong in ("new.nothing", "nothing", "select", "count_of(new.id)", "piece.id", ")"):
        refused(bare, topic="expressions", key=wrong)
    refused(bare, topic="expressions", key=["nothing"])
    refused(bare, topic="expressions", carry=["id", "nothing"])
    refused(bare, topic="expressions", when="new.nothing")
    refused(bare, topic="expressions", workspace="nothing()")
    refused(bare, topic="expressions", notify=Notification("note", {"nothing": "1"}))
    refused(bare, topic="expressions", notify=Notification("note", {"kind": "body"}))
    refused(bare, topic="expressions", notify=Notification("nowhere", {"kind": "key"}))
    refused(bare, topic="expressions", columns=[Column("piece", "more", "serial")])
    more = [Column("note", "more", "integer")]
    refused(bare, topic="expressions", columns=more, notify=Notification("note", {**NOTE.columns, "more": "body"}))
    refused(bare, topic="expressions", columns=more, notify=Notification("note", {"more": "body"}))
    assert bare.findings(columns=more, notify=Notification("note", {"more": "piece_count"}))["expressions"]["passed"]
    checked = Check("note", "note_pieces_check", "more > 1 or note.pieces > 1")
    assert bare.findings(columns=more, checks=[checked])["expressions"]["passed"]
    refused(bare, topic="expressions", checks=[Check("note", "note_pieces_check", "nothing > 1")])
    counting = "exists (select from public.note where pieces = new.id)"
    assert "when is the WHEN of a trigger, which takes no subquery" in refused(bare, topic="expressions", when=counting)
    assert "more than one insert and one look-up" in refused(bare, topic="trigger cost", key=counting)
    bare.ask("insert into note (kind, pieces) values ('x', 7)")
    assert "is violated by some row" in refused(bare, checks=[Check("note", "note_pieces_check", "pieces < 5")])
    refused(bare, topic="pg_cron", scheduler="pg_cron")
    bare.ask("create function mine() returns trigger language plpgsql as 'begin return null; end'")
    bare.ask(
        "create trigger outrider_rollup_archive_imports after insert on piece for each row execute function mine()"
    )
    assert "that no installed rollup knows" in refused(bare, topic="trigger")
    assert bare.findings()["trigger"]["value"] == "FOREIGN"
    bare.ask("drop trigger outrider_rollup_archive_imports on piece")
    bare.install()
    assert "the same short name" in refused(bare, {**declared(), "name": "archive_imports"}, topic="trigger")


def test_the_rollup_of_another_context_is_refused(bare: Archive) -> None:
    bare.install()
    theirs = declared(Outrider(context="library"))
    told = refused(bare, theirs, topic="trigger")
    assert "the context archive has installed a rollup of this name: choose another name, or uninstall" in told
    bare.ask("select * from outrider.rollup_uninstall(%s)", NAME)
    bare.install(theirs)
    assert bare.one("select context from outrider.rollup") == "library"
    assert "the context library has installed" in refused(bare, topic="trigger")


def test_what_would_feed_itself_or_never_fit_is_refused(bare: Archive) -> None:
    assert bare.findings({**declared(), "table": "outrider.outbox"})["source"]["value"] == "OURS"
    own = {**declared(), "notify": {"table": 'public."piece"', "columns": {"document": "key"}}}
    found = bare.findings(own)["notification"]
    assert (found["blocks"], found["value"], found["detail"]) == (
        True,
        "UNFIT",
        'public."piece" would feed the rollup itself',
    )
    left_out = bare.findings(notify=Notification("note", {"kind": "event_type"}))["notification"]
    assert (left_out["blocks"], left_out["value"]) == (True, "UNFIT")
    assert "pieces" in left_out["detail"]
    bare.ask("alter table note drop constraint note_about_key, add unique (about) deferrable")
    deferred = bare.findings(notify=NOTE)["notification"]
    assert (deferred["blocks"], deferred["value"]) == (True, "UNFIT")
    assert "can be deferred, which ON CONFLICT does not take" in deferred["detail"]
    with pytest.raises(psycopg.Error, match="there is no rollup 'nothing'"):
        bare.ask("select outrider.rollup_retry('nothing')")


LOOKUPS = {
    "(select s.name from public.shelf as s where s.a = new.id and s.b = 7)": True,
    "(select s.name from public.shelf as s where s.b = new.id::int and s.a = 1)": True,
    "(select c.title from public.code as c where c.code = new.document)": True,
    "coalesce(new.document, (select p.author from public.piece as p where p.id = new.id))": True,
    "(select s.name from public.shelf as s where s.a = new.id limit 1)": False,
    "(select s.name from public.shelf as s where s.a = new.id)": False,
    "(select s.a from public.shelf as s where s.a + s.b = new.id)": False,
    "(select s.name from public.shelf as s where s.a > new.id and s.b > 0)": False,
    "(select s.name from public.shelf as s where s.a = new.id and (s.b = 1 or s.b = 2))": False,
    "(select c.title from public.code as c where c.code = any (array[new.document, new.batch]))": False,
    "(select s.b from public.shelf as s where s.a = new.id and s.b > 7)": False,
    "(select max(p.id)::text from public.piece as p)": False,
    "(select count(*) from public.piece as p where p.document = new.document)": False,
    "(select p.author from public.piece as p where p.document = new.document)": False,
    "(select string_agg(n.kind, '') from public.note as n)": False,
    "(select s.name from public.shelf as s join public.piece as p on p.id = s.a where s.a = new.id and s.b = 1)": False,
    "(select a.name from public.shelf as a where (a.a, a.b) = (1, 1)) || (select kind from public.note where id = 1)": False,
    "(select d.name from other.dup as d where d.x = new.id)": False,
    "exists (select from public.note as n where n.kind = new.kind)": False,
}


def test_the_trigger_costs_no_more_than_one_look_up(bare: Archive) -> None:
    """Whether the tables hold much, little or nothing, and whatever the planner knows of them."""
    bare.ask("""
        create table shelf (a int, b int, name text, primary key (a, b));
        create table code (code varchar(20) primary key, title text);
        create schema other;
        create table dup (x int constraint dup_x unique);
        create table other.dup (x int, name text);
        create index dup_x on other.dup (x);
    """)
    for fill in ("select", "insert into shelf select n, 1, 'x' from generate_series(1, 3000) as n; analyze"):
        bare.ask(fill)
        for key, passes in LOOKUPS.items():
            found = bare.findings(key=key)
            assert found["expressions"]["passed"], (key, found["expressions"])
            assert (found["trigger cost"]["passed"], found["trigger cost"]["value"]) == (
                (True, "O(1)") if passes else (False, "GROWS")
            ), (key, found["trigger cost"])
    refused(bare, topic="trigger cost", key="(select max(p.id)::text from public.piece as p)")


def test_other_rollups_and_other_triggers(bare: Archive) -> None:
    """They stay as they are, and are known by their fingerprints."""
    bare.ask("""
        create function quick() returns trigger language plpgsql as 'begin return null; end';
        create function slow() returns trigger language plpgsql as
            'begin perform count ( * ) from public.piece; return null; end';
        create trigger quick after insert on piece for each row execute function quick();
    """)
    assert bare.findings()["other triggers"]["value"] == "UNTOUCHED"
    bare.install()
    bare.install({**declared(), "name": "archive.second"})
    assert bare.one("select count(*) from outrider.rollup where others ? 'quick' and others - 'quick' = '{}'") == 2
    bare.add("a")
    assert bare.ask("select rollup from outrider.rollup_pending order by 1") == [
        {"rollup": NAME},
        {"rollup": "archive.second"},
    ]
    assert bare.verified()["other triggers"] == {
        "topic": "other triggers",
        "passed": True,
        "value": "UNTOUCHED",
        "detail": "1 others, left alone",
        "blocks": False,
    }
    for change in (
        "create trigger late after insert on piece for each row execute function quick()",
        "drop trigger late on piece; alter table piece disable trigger quick",
        """alter table piece enable trigger quick;
           create or replace function quick() returns trigger language plpgsql as 'begin return new; end'""",
        "drop trigger quick on piece",
    ):
        bare.ask(change)
        found = bare.verified()["other triggers"]
        assert (found["passed"], found["value"]) == (False, "CHANGED"), change
        assert ("late" if change.endswith("quick()") else "quick") in found["detail"]
    bare.ask("create trigger slow before insert on piece for each row execute function slow()")
    bare.install()
    found = bare.verified()["other triggers"]
    assert (found["passed"], found["value"], found["blocks"]) == (False, "COSTLY", False)
    assert "slow (public.slow)" in found["detail"]
    bare.ask("drop trigger slow on piece")
    bare.ask("create trigger slow after insert on piece for each statement execute function slow()")
    bare.install()
    assert bare.verified()["other triggers"]["value"] == "UNTOUCHED", "once per statement is nothing per row"


async def test_a_writer_that_stays_is_not_waited_for(bare: Archive, database: str) -> None:
    bare.ask("alter function outrider.rollup_install(jsonb) set lock_timeout = '200ms'")
    bare.ask("alter function outrider.rollup_uninstall(text, boolean) set lock_timeout = '200ms'")
    async with await connection.connect(database, autocommit=True) as conn:
        with psycopg.connect(database) as writer:
            writer.execute("insert into piece (document) values ('a')")
            before = catalog(bare)
            with pytest.raises(RollupRefused, match="nothing was changed: the table was in use"):
                await rollups.install(conn, declared(), "outrider")
            assert catalog(bare) == before
        await rollups.install(conn, declared(), "outrider")
        with psycopg.connect(database) as writer:
            writer.execute("insert into piece (document) values ('a')")
            before = catalog(bare)
            with pytest.raises(RollupRefused, match="nothing was changed"):
                await rollups.uninstall(conn, NAME, "outrider")
            assert catalog(bare) == before
            writer.commit()
        assert bare.staged() == ["a"]
        with pytest.raises(RollupRefused, match=f"{NAME} was not installed: source: there is no table"):
            await rollups.install(conn, declared(table="gone"), "outrider")
        for call in (rollups.verify, rollups.plan, rollups.uninstall, rollups.tick):
            with pytest.raises(RollupRefused, match=r"there is no rollup 'archive\.nothing'"):
                await call(conn, "archive.nothing", "outrider")
        assert [each.topic for each in await rollups.preflight(conn, declared(), "outrider")]
        assert await rollups.commands(conn, declared(), "outrider")
        assert (await rollups.installed_spec(conn, NAME, "outrider")) == declared()
        assert await rollups.installed_spec(conn, "archive.nothing", "outrider") is None
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            await rollups.tick(conn, NAME, "nowhere")


async def test_the_app_installs_what_it_declares(bare: Archive, database: str) -> None:
    app = Outrider(context="archive", dsn=database)
    async with app:
        await app.migrate()
        with pytest.raises(ConfigError, match="the app declares no rollup"):
            await app.install_rollup()
        declared(app, notify=NOTE)
        done = await app.install_rollup()
        assert (done.scheduler, done.commands is not None) == ("worker", True)
        assert {each.topic for each in done.findings if not each.passed} == {"stable key"}
        again = await app.install_rollup(NAME)
        assert (again.scheduler, again.commands) == ("worker", None), "it is installed as declared"
        with pytest.raises(
            ConfigError, match=r"'archive\.other' is no rollup of the app; it declares: archive\.imports"
        ):
            await app.install_rollup("archive.other")
        app.rollup("archive.more", table="gone", key=["a"], single="archive.a", rollup="archive.b")
        with pytest.raises(ConfigError, match=r"name one; it declares: archive\.imports, archive\.more"):
            await app.install_rollup()
        with pytest.raises(
            RollupRefused, match=r"archive\.more was not installed: source: there is no table public\.gone"
        ):
            await app.install_rollup("archive.more")
    bare.add("a")
    assert bare.staged() == ["a"]


def test_who_may_not_install(bare: Archive, database: str) -> None:
    """A role without rights on the table, and one without rights on our schema."""
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login")
    try:
        before = catalog(bare)
        with opened(make_conninfo(database, user=user)) as low:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                low.install()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                low.findings()
            bare.ask(
                f"grant usage, create on schema outrider to {user}; grant select on all tables in schema outrider to {user}"
            )
            bare.ask(f"grant execute on all functions in schema outrider to {user}")
            bare.ask(
                f"grant insert, update, delete on outrider.rollup, outrider.setting, outrider.rollup_pending to {user}"
            )
            found = low.findings(checks=[CHECK])
            assert (found["source"]["value"], found["source"]["passed"]) == ("FORBIDDEN", False)
            assert f"user {user} may not make a trigger on public.piece" in found["source"]["detail"]
            assert f"user {user} does not own public.note" in found["constraints"]["detail"]
            with pytest.raises(psycopg.Error, match="may not make a trigger") as error:
                low.install()
            assert error.value.sqlstate == "OR007"
            bare.ask(f"revoke all on all functions in schema outrider from {user}")
            assert catalog(bare) == before
            # The owner of the tables, with rights on our schema: what it makes must be of use to whoever owns the tick.
            bare.ask(f"grant execute on all functions in schema outrider to {user}; alter table piece owner to {user}")
            bare.ask(f"alter table note owner to {user}")
            low.install(notify=NOTE)
            owner = f"owner_{bare.conn.info.dbname}"
            bare.ask(f"create role {owner}")
            bare.ask(f"alter function outrider.rollup_tick(text, boolean) owner to {owner}")
            low.install(notify=NOTE)
            assert bare.one(
                f"select has_function_privilege('{owner}', 'outrider.rollup_note_archive_imports(bigint[])', 'execute')"
            )
            bare.ask("alter function outrider.rollup_tick(text, boolean) owner to current_user")
            bare.ask(f"drop owned by {owner}; drop role {owner}")
            bare.add("a", "a")
            assert bare.tick(flush=True)["groups_emitted"] == 1
    finally:
        bare.ask(f"drop owned by {user} cascade; drop role {user}")


def test_who_installs_lends_its_rights(bare: Archive) -> None:
    """A superuser's functions over another's table would make that one a superuser."""
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user}; alter table note owner to {user}")
    try:
        found = bare.findings(notify=NOTE)["rights"]
        assert (found["passed"], found["value"], found["blocks"]) == (False, "ANOTHERS", True)
        assert f"public.note belongs to {user}" in found["detail"]
        with pytest.raises(psycopg.Error, match="install as the owner"):
            bare.install(notify=NOTE)
        assert bare.findings()["rights"]["passed"]
    finally:
        bare.ask(f"alter table note owner to current_user; drop role {user}")
    bare.ask(f"create role {user}; grant usage, create on schema outrider to {user}")
    try:
        bare.ask(f"grant execute on all functions in schema outrider to {user}; alter table piece owner to {user}")
        bare.ask(f"grant select on all tables in schema outrider to {user}; set role {user}")
        found = bare.findings()["rights"]
        assert (found["value"], found["blocks"]) == ("MISSING", True)
        assert "may not insert into rollup_pending" in found["detail"]
    finally:
        bare.ask("reset role")
        bare.ask(f"reassign owned by {user} to current_user; drop owned by {user}; drop role {user}")


# What is told


def test_preflight(bare: Archive) -> None:
    found = bare.findings(notify=NOTE)
    assert list(found) == [
        "source", "rights", "pg_cron", "staging", "trigger", "other triggers", "settings", "constraints", "expressions",
        "trigger cost", "stable key", "notification",
    ]  # fmt: skip
    assert {topic: row["value"] for topic, row in found.items() if topic != "pg_cron"} == {
        "source": "TABLE",
        "rights": "OWNER",
        "staging": "ABSENT",
        "trigger": "ABSENT",
        "other triggers": "NONE",
        "settings": "OK",
        "constraints": "AS_EXPECTED",
        "expressions": "VALID",
        "trigger cost": "O(1)",
        "stable key": "UNKNOWN",
        "notification": "UNIQUE",
    }
    assert found["pg_cron"]["value"] in ("NOT_AVAILABLE", "NEEDS_PRELOAD")
    assert {topic for topic, row in found.items() if not row["passed"]} == {"stable key"}
    assert {topic for topic, row in found.items() if row["blocks"]} == {
        "source", "pg_cron", "trigger", "constraints", "expressions", "trigger cost"
    }  # fmt: skip
    assert found["settings"]["detail"] == "debounce 90 s, threshold 2, longest wait 600 s"
    assert bare.findings(table=None, events=[Leafed], key=["chapter"])["source"]["value"] == "EVENTS"
    bare.ask("alter table note drop constraint note_about_key")
    assert bare.findings(notify=NOTE)["notification"]["value"] == "NO_UNIQUE_KEY"
    bare.install(notify=NOTE)
    bare.add("a", "a", "b")
    bare.ask("update outrider.setting set entered = 'x' where name ~ 'debounce'")
    bare.ask("alter table piece disable trigger outrider_rollup_archive_imports")
    bare.ask("update outrider.rollup_pending set set_aside_at = now(), error = 'x' where group_key = 'b'")
    found = bare.findings(notify=NOTE)
    assert (found["staging"]["value"], found["staging"]["passed"]) == ("PRESENT", False)
    assert found["staging"]["detail"].startswith("2 rows wait, 1 are set aside: see why")
    assert (found["trigger"]["value"], found["settings"]["value"]) == ("DISABLED", "ADJUSTED")
    assert not found["settings"]["passed"]
    assert "the default, 90, is used" in found["settings"]["detail"]


def test_when_the_key_is_there(bare: Archive) -> None:
    def key(**changes: Any) -> tuple[bool, str, str]:
        found = bare.findings(**changes)["stable key"]
        return found["passed"], found["value"], found["detail"]

    assert key()[:2] == (False, "UNKNOWN")
    assert "grouping is PARTIAL: rows without it stay single" in key()[2]
    assert key(key=["document", "kind"]) == (True, "BEFORE", "a column of it is always set; grouping is FULL")
    assert key(key="upper(NEW.kind)")[:2] == (True, "BEFORE")
    assert key(key=["body"])[:2] == (True, "BEFORE"), "it has a default"
    assert key(table=None, events=[Leafed], key=["chapter"])[:2] == (True, "BEFORE")
    bare.ask("""create function late(text) returns void language plpgsql as $$ begin
                insert into piece (author) values ($1); update piece set document = $1; end $$""")
    assert key()[:2] == (False, "SAME_CALL")
    assert "late(text) sets it only after it has inserted the row" in key()[2]
    bare.ask(
        "drop function late; create function early(text) returns void language sql as "
        "'insert into public.piece (author, document) values ($1, $1)'"
    )
    assert key()[:2] == (True, "BEFORE")
    assert "early(text) inserts it" in key()[2]
    bare.install()
    bare.add("a", None, None)
    assert key()[:2] == (False, "BEFORE")
    assert "grouping is PARTIAL: 2 of the last 3 rows had none, and stay single" in key()[2]


BROKEN = {
    "drop trigger outrider_rollup_archive_imports on piece": ("installed", "BROKEN", "is missing or disabled"),
    "alter table piece disable trigger outrider_rollup_archive_imports": ("installed", "BROKEN", "or disabled"),
    "alter table piece enable replica trigger outrider_rollup_archive_imports": ("installed", "BROKEN", "or disabled"),
    "drop function outrider.rollup_note_archive_imports": ("installed", "BROKEN", "note_archive_imports is missing"),
    "create or replace function outrider.rollup_note_archive_imports(p_seqs bigint[]) returns bigint language plpgsql "
    "security definer set search_path = pg_catalog, pg_temp as 'begin return 0; end'": (
        "installed", "BROKEN", "rollup_note_archive_imports is not as it was made"),
    "grant execute on function outrider.rollup_stage_archive_imports to public": ("functions", "OPEN", "by everybody"),
    "alter function outrider.rollup_stage_archive_imports security invoker": ("functions", "OPEN", "not SECURITY DEFINER"),
    "alter function outrider.rollup_note_archive_imports reset search_path": ("functions", "OPEN", "no pinned search_path"),
}  # fmt: skip


def test_verify_sees_what_is_broken_and_install_mends_it(bare: Archive) -> None:
    bare.ask("alter table piece alter document set default 'none'")
    bare.install(notify=NOTE)
    found = bare.verified()
    assert [topic for topic, row in found.items() if not row["passed"]] == []
    assert [(row["topic"], row["value"]) for row in found.values()][-3:] == [
        ("installed", "COMPLETE"), ("functions", "PINNED"), ("schedule", "WORKER")
    ]  # fmt: skip
    for harm, (topic, value, detail) in BROKEN.items():
        bare.ask(harm)
        row = bare.verified()[topic]
        assert (row["passed"], row["value"]) == (False, value), harm
        assert detail in row["detail"]
        assert row["detail"].endswith("run outrider rollup install")
        bare.install(notify=NOTE)
        assert {row["topic"]: row["detail"] for row in bare.verified().values() if not row["passed"]} == {}, harm


def test_a_trigger_that_was_replaced_is_noticed(bare: Archive) -> None:
    bare.install()
    bare.ask(
        "create or replace trigger outrider_rollup_archive_imports after insert or update on piece for each row "
        "execute function outrider.rollup_stage_archive_imports()"
    )
    assert "is not as it was made" in bare.verified()["installed"]["detail"]
    bare.install()
    assert bare.verified()["installed"]["passed"]


@pytest.mark.parametrize("events", [False, True])
def test_two_who_install_it_first(bare: Archive, database: str, events: bool) -> None:
    spec = declared(table=None, events=[Leafed], key=["chapter"]) if events else declared()
    with opened(database) as first, opened(database) as second:
        first.ask("begin")
        first.install(spec)
        going = threading.Thread(target=second.install, args=[spec])
        going.start()
        while not bare.one(
            "select count(*) from pg_locks where pid = %s and not granted", second.conn.info.backend_pid
        ):
            pass
        first.ask("commit")
        going.join(30)
        assert not going.is_alive()
    assert bare.one("select spec from outrider.rollup") == spec
    assert all(row["passed"] for row in bare.verified().values() if row["topic"] == "installed")
