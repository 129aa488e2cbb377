"""The trigger on the source table: for every producer, whatever its rights and its session, at the same small cost."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.rollup.archive import NAME, Archive, figures, opened

TOUCHED = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::int as read,
           coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid)), 0)::int as fetched,
           coalesce(sum(pg_stat_get_xact_tuples_inserted(c.oid)), 0)::int as written,
           coalesce(sum(pg_stat_get_xact_numscans(c.oid)), 0)::int as scans
    from pg_class as c where c.relnamespace = 'outrider'::regnamespace or c.relname ~ '^shelf'
"""


def touched(archive: Archive, rows: int) -> dict[str, int]:
    """By one statement that inserts these rows, in our schema and on the shelf."""
    with archive.conn.transaction():
        [before] = archive.ask(TOUCHED)
        archive.ask("insert into piece (document) select '7' from generate_series(1, %s)", rows)
        [after] = archive.ask(TOUCHED)
    return {name: after[name] - before[name] for name in after}


@pytest.mark.verify
@pytest.mark.parametrize("looks_up", [False, True], ids=["columns", "a look-up"])
def test_its_cost_does_not_grow(bare: Archive, looks_up: bool) -> None:
    """With nothing waiting, with 50,000 rows waiting, with as many done: the same work for a row, by the counters."""
    bare.ask(
        "create table shelf (id int primary key, name text); insert into shelf select n, n from generate_series(1, 5000) n"
    )
    bare.ask("analyze shelf")
    key: Any = "(select s.name from public.shelf as s where s.id = new.document::int)" if looks_up else ["document"]
    bare.install(key=key)
    look_ups = {"read": 1, "fetched": 1, "scans": 1} if looks_up else {"read": 0, "fetched": 0, "scans": 0}
    # Index scans return one entry and fetch one row; the first insert of a session also fills caches, which is not counted.
    touched(bare, 1)
    assert touched(bare, 1) == {"written": 1, **look_ups}
    many = touched(bare, 100)
    assert many == {name: value * 100 for name, value in {"written": 1, **look_ups}.items()}
    bare.ask("insert into piece (document) select '7' from generate_series(1, 50000)")
    assert touched(bare, 100) == many
    bare.age()
    assert bare.tick()["rows_marked"] == 50_202
    assert touched(bare, 100) == many
    bare.ask("insert into piece (document) select n::text from generate_series(1, 5000) as n; analyze")
    assert touched(bare, 100) == many
    assert bare.staged()[0] == "7"
    [plan] = bare.ask("explain (analyze, format json, costs off) insert into piece (document) values ('7')")
    [root] = plan["QUERY PLAN"] if isinstance(plan["QUERY PLAN"], list) else json.loads(plan["QUERY PLAN"])
    assert [(each["Trigger Name"], each["Calls"]) for each in root["Triggers"]] == [
        ("outrider_rollup_archive_imports", 1)
    ]
    # Its own statement: one insert, and the look-up.
    source = bare.one("select prosrc from pg_proc where proname = 'rollup_stage_archive_imports'")
    assert source.count("insert into") == 1
    assert "perform" not in source
    assert "loop" not in source
    found = re.search(r"outrider_key := (.*);\n", source)
    assert found
    statement = "select " + found[1].replace("new.", "n.")
    for setting in ("on", "off"):
        bare.ask(f"set enable_seqscan = {setting}")
        [plan] = bare.ask(f"explain (format json) {statement} from public.piece as n where n.id = 1")
        nodes = list(nodes_of(plan["QUERY PLAN"][0]["Plan"]))
        inside = [node for node in nodes if node.get("Parent Relationship") in ("SubPlan", "InitPlan")]
        assert [node.get("Index Name") for node in inside] == (["shelf_pkey"] if looks_up else [])
        assert not {"Aggregate", "Nested Loop", "Hash Join", "Merge Join", "Sort"} & {
            node["Node Type"] for node in nodes
        }


def nodes_of(plan: dict[str, Any]) -> Any:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes_of(each)


def test_what_it_stages(bare: Archive) -> None:
    """Only what fits the condition, of every kind of insert; neither updates nor what was rolled back."""
    bare.install(when="new.kind = 'piece' and new.document <> 'x'")
    bare.add("a")
    bare.add("b", kind="draft")
    bare.add("x", None)
    with bare.conn.transaction(force_rollback=True):
        bare.add("c")
    with bare.conn.transaction():
        bare.add("d")
        with bare.conn.transaction(force_rollback=True):
            bare.add("e")
    bare.ask("insert into piece (document) values ('f'), ('x'), ('g')")
    with bare.conn.cursor() as cursor, cursor.copy("copy piece (document, kind) from stdin") as copy:
        for document in ("h", "x", "i"):
            copy.write_row((document, "piece"))
    bare.ask("update piece set document = 'z', kind = 'piece'")
    bare.ask("delete from piece")
    bare.ask("insert into piece (id, document) overriding system value values (1000, 'j') on conflict do nothing")
    bare.ask("insert into piece (id, document) overriding system value values (1000, 'k') on conflict do nothing")
    upsert = "on conflict (id) do update set kind = 'l'"
    bare.ask(f"insert into piece (id, document) overriding system value values (1000, 'l') {upsert}")
    assert bare.staged() == ["a", "d", "f", "g", "h", "i", "j"]


def test_a_table_in_partitions(bare: Archive) -> None:
    bare.ask("""
        create table part (id bigint, document text, author text) partition by range (id);
        create table part_1 partition of part for values from (0) to (10);
        create table part_2 partition of part for values from (10) to (20);
    """)
    before = bare.ask("select tgrelid::regclass::text, tgname from pg_trigger order by 1, 2")
    bare.install(table="part", key=["document"])
    bare.install(table="part", key=["document"])
    bare.ask("create table part_3 partition of part for values from (20) to (30)")
    bare.ask("insert into part select n, 'a' from generate_series(1, 29) as n; insert into part_1 values (0, 'b')")
    assert not [row for row in bare.verified().values() if row["blocks"] and not row["passed"]]
    assert figures(bare.tick(flush=True)) == ("processed", 1, 1, 0, 30, 0)
    [step, *_] = bare.ask("select action, command from outrider.rollup_plan(%s) order by step", NAME)
    assert step == {"action": "do", "command": "drop trigger outrider_rollup_archive_imports on public.part"}
    bare.ask("select outrider.rollup_uninstall(%s)", NAME)
    assert bare.ask("select tgrelid::regclass::text, tgname from pg_trigger order by 1, 2") == before
    bare.ask("insert into part values (5, 'b')")


def test_a_producer_without_rights(archive: Archive, database: str) -> None:
    """It may insert into the table and knows nothing of our schema; what it puts before it changes nothing."""
    user = f"role_{archive.conn.info.dbname}"
    archive.ask(f"create role {user} login; grant insert on piece to {user}; grant create on schema public to {user}")
    try:
        with opened(make_conninfo(database, user=user)) as low:
            low.ask("insert into piece (document, author) values ('a', 'low')")
            for call in (
                "select outrider.rollup_stage_archive_imports()",
                "select count(*) from outrider.rollup_pending",
                "insert into outrider.rollup_pending (rollup, carried) values ('archive.imports', '{}')",
                f"select outrider.rollup_tick('{NAME}')",
                "create trigger mine after insert on piece execute function outrider.rollup_stage_archive_imports()",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    low.ask(call)
            low.ask("""
                create temporary table rollup_pending (rollup text, workspace_id text, group_key text, carried jsonb);
                create temporary table piece (document text);
                create function pg_temp.jsonb_build_object(text, bigint, text, text) returns jsonb language sql
                    as $$ select '{"stolen": true}'::jsonb $$;
                create function public.jsonb_build_object(text, bigint, text, text) returns jsonb language sql
                    as $$ select '{"stolen": true}'::jsonb $$;
                create function public.current_setting(text, boolean) returns text language sql as $$ select 'stolen' $$;
            """)
            low.ask("set search_path = pg_temp, public, pg_catalog")
            low.ask("insert into public.piece (document, author) values ('b', 'low')")
            assert low.one("select count(*) from pg_temp.rollup_pending") == 0
        assert archive.staged() == ["a", "b"]
        assert archive.column("select carried - 'id' from outrider.rollup_pending") == [{"author": "low"}] * 2
        assert archive.column("select workspace_id from outrider.rollup_pending") == [None, None]
        [made] = archive.ask(
            "select prosecdef, proconfig, proacl::text from pg_proc where proname = 'rollup_stage_archive_imports'"
        )
        assert (made["prosecdef"], made["proconfig"]) == (True, [
            "search_path=pg_catalog, pg_temp", "TimeZone=UTC", "DateStyle=ISO", "IntervalStyle=postgres",
            "extra_float_digits=1", "bytea_output=hex",
        ])  # fmt: skip
        assert not made["proacl"].startswith("{=")
        # Who ticks with such a session in front of it fares no worse.
        archive.ask("create temporary table rollup_pending (x int); create temporary table outbox (x int)")
        archive.ask("set search_path = pg_temp, public")
        assert figures(archive.tick(flush=True)) == ("processed", 0, 2, 0, 2, 0)
    finally:
        archive.ask("reset search_path")
        archive.ask(f"drop owned by {user}; drop role {user}")


def test_an_insert_never_fails_for_its_rollup(bare: Archive, database: str) -> None:
    """The row is set aside instead: whatever the expressions do, and whatever becomes of the columns."""
    bare.install(key="new.document::int")
    bare.add("1", "1", "x")
    assert bare.aside() == ['22P02: invalid input syntax for type integer: "x"']
    bare.install(key=["document"])
    bare.ask("alter table piece rename author to writer")
    bare.add("b")
    assert 'record "new" has no field "author"' in bare.aside()[-1]
    bare.ask("alter table piece rename writer to author")
    bare.ask("create table doc (id text primary key, found text); insert into doc values ('c', 'd')")
    bare.install(key="(select found from public.doc as d where d.id = new.document)")
    bare.add("c")
    assert bare.staged()[-1] == "d", "a column that is called like a variable of PL/pgSQL"
    # Tried again as it is, it is set aside again; repaired, it goes.
    assert bare.one("select outrider.rollup_retry(%s)", NAME) == 2
    assert bare.tick(flush=True)["set_aside"] == 2
    bare.ask(
        """update outrider.rollup_pending set carried = '{"id": 7}', group_key = null where set_aside_at is not null"""
    )
    bare.ask("select outrider.rollup_retry(%s)", NAME)
    assert bare.tick(flush=True)["pieces_emitted"] == 2


@pytest.mark.also_on(15)
def test_the_condition_is_the_triggers_own(bare: Archive, database: str) -> None:
    """Rows that do not meet it call no function. It has the rights of whoever inserts, and its errors fail the insert."""
    bare.install(when="new.kind = 'piece'")
    assert "WHEN ((new.kind = 'piece'::text))" in bare.one("select trigger from outrider.rollup")
    assert "kind" not in bare.one("select prosrc from pg_proc where proname = 'rollup_stage_archive_imports'")
    calls = "explain (analyze, format json, costs off, timing off) insert into piece (document, kind) values ('a', %s)"
    for kind, called in (("draft", []), ("piece", [1])):
        [root] = bare.one(calls, kind)
        assert [each["Calls"] for each in root.get("Triggers", [])] == called
    assert bare.staged() == ["a"]
    # A column that it names cannot be dropped, and may be renamed.
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        bare.ask("alter table piece drop kind")
    bare.ask(
        "alter table piece rename kind to sort; insert into piece (document, sort) values ('b', 'piece'), ('c', 'x')"
    )
    assert bare.staged() == ["a", "b"]
    assert "is not as it was made" in bare.verified()["installed"]["detail"]
    bare.ask("alter table piece rename sort to kind")
    # Another declaration replaces it, or takes it away.
    bare.install(when="new.kind <> 'piece'")
    bare.add("d")
    bare.install()
    bare.add("e", kind="draft")
    assert bare.staged() == ["a", "b", "e"]
    assert "WHEN" not in bare.one("select trigger from outrider.rollup")
    bare.install(when="new.document::int > 0")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        bare.add("x")
    bare.ask(
        "create function mine(text) returns boolean language sql as 'select true'; revoke all on function mine from public"
    )
    bare.install(when="public.mine(new.kind)")
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login; grant insert on piece to {user}")
    try:
        with psycopg.connect(database, user=user, autocommit=True) as low:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                low.execute("insert into piece (document) values ('f')")
            bare.ask(f"grant execute on function mine to {user}")
            low.execute("insert into piece (document) values ('f')")
    finally:
        bare.ask(f"drop owned by {user}; drop role {user}")
    assert bare.staged() == ["a", "b", "e", "f"]


def test_groups_do_not_depend_on_the_session(bare: Archive) -> None:
    bare.ask("alter table piece add at timestamptz, add size numeric")
    bare.install(key=["at"], carry=["id", "size"])
    for zone, size in (("UTC", "1"), ("Asia/Tokyo", "1.0")):
        bare.ask(f"set timezone = '{zone}'")
        bare.ask("insert into piece (at, size) values ('2026-01-01 00:00Z', %s)", size)
    bare.tick(flush=True)
    assert bare.column("select payload ->> 'piece_count' from outrider.outbox") == ["2"]
    assert bare.column("select (payload ->> 'size')::numeric = 1 from outrider.outbox") == [True]
