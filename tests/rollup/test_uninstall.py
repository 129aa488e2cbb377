"""Taking a rollup off: the plan says it, nothing that waits or holds data is lost, and what was changed goes back."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures, opened
from tests.rollup.test_install import Leafed, catalog

from outrider.rollup import Check, Column, Notification

MORE: dict[str, Any] = {
    "key": ["ref", "document"],
    "when": "new.ref is distinct from 'x'",
    "notify": Notification("note", {**NOTE.columns, "extra": "nullif(piece_count, piece_count)"}),
    "columns": [Column("piece", "ref", "text"), Column("piece", "batch", "text"), Column("note", "extra", "integer")],
    "checks": [Check("note", "note_pieces_check", "pieces < 5000")],
}
FUNCTIONS = "select proname from pg_proc where proname ~ '^rollup_(stage|note)_' order by 1"
CHECKED = "select pg_get_constraintdef(oid) from pg_constraint where conname = 'note_pieces_check'"


def plan(place: Archive, *, force: bool = False) -> list[dict[str, Any]]:
    """Which changes nothing."""
    before = catalog(place)
    found = place.ask("select * from outrider.rollup_plan(%s, %s) order by step", NAME, force)
    assert catalog(place) == before
    return found


def uninstall(place: Archive, *, force: bool = False) -> dict[str, str | None]:
    """What was kept, and why; it is what was planned."""
    planned = plan(place, force=force)
    done = place.ask("select * from outrider.rollup_uninstall(%s, %s) order by step", NAME, force)
    assert done == planned
    assert [row["step"] for row in done] == list(range(1, len(done) + 1))
    assert all((row["why"] is None) == (row["action"] == "do") for row in done)
    return {row["what"]: row["why"] for row in done if row["action"] == "keep"}


def taken_off(place: Archive, name: str = NAME) -> dict[str, str]:
    """What was kept, and why: without a plan, which could be another one while others are at work."""
    rows = place.ask("select * from outrider.rollup_uninstall(%s)", name)
    return {row["what"]: row["why"] for row in rows if row["action"] == "keep"}


def second(**changes: Any) -> dict[str, Any]:
    return {**declared(**changes), "name": "archive.second"}


def columns(place: Archive) -> set[str]:
    query = """select attname from pg_attribute
               where attrelid in ('piece'::regclass, 'note'::regclass) and attnum > 0 and not attisdropped"""
    return set(place.column(query))


def test_everything_goes_back(bare: Archive) -> None:
    bare.ask("create function other() returns trigger language plpgsql as 'begin return null; end'")
    bare.ask("create trigger other after insert on piece for each row execute function other()")
    [*before, _, settings, _] = catalog(bare)
    bare.install(**MORE)
    bare.add("a", "a")
    bare.tick(flush=True)
    bare.ask("delete from note")
    assert uninstall(bare) == {}
    [*after, rollups, still, pending] = catalog(bare)
    assert after[:2] == before[:2]
    assert [sorted(each) for each in after[2:]] == [sorted(each) for each in before[2:]]
    assert (rollups, still, pending) == (None, settings, None)
    assert bare.one("select count(*) from outrider.rollup_log") == 0
    bare.add("b")
    assert bare.one(CHECKED) == "CHECK ((pieces < 1000))"
    with pytest.raises(Exception, match="there is no rollup"):
        uninstall(bare)
    # And again from the beginning.
    bare.install(**MORE)
    bare.add("c")
    assert bare.staged() == ["c"]
    assert not [row for row in bare.verified().values() if row["blocks"] and not row["passed"]]


def test_what_waits_stays_and_can_still_be_emitted(bare: Archive) -> None:
    bare.install(**MORE)
    bare.add("a", "a", "b")
    bare.ask("update outrider.rollup_pending set set_aside_at = now(), error = 'x' where group_key = 'b'")
    kept = uninstall(bare)
    assert kept == {
        "drop the function outrider.rollup_note_archive_imports(bigint[])": "the rows that wait need it",
        "give public.note its CHECK constraint note_pieces_check back as it was": "the rows that wait may need it",
        "drop the column public.note.extra": "the rows that wait need it",
        "delete its rows: 3 wait": f"outrider rollup run {NAME} --flush emits what waits; --force deletes it",
    }
    assert bare.column(FUNCTIONS) == ["rollup_note_archive_imports"]
    assert (bare.verified()["installed"]["value"], bare.verified()["installed"]["passed"]) == ("UNINSTALLED", False)
    bare.add("c")
    assert bare.staged() == ["a", "a"], "nothing more is staged"
    assert figures(bare.tick(flush=True)) == ("processed", 1, 0, 0, 2, 0)
    assert bare.column("select subject from note") == ["a"]
    assert "delete its rows: 1 wait" in uninstall(bare), "what is set aside waits, too"
    assert bare.one("select outrider.rollup_retry(%s)", NAME) == 1
    bare.tick(flush=True)
    assert uninstall(bare) == {"drop the column public.piece.ref": "it is gone already"}
    assert (bare.column(FUNCTIONS), bare.column("select name from outrider.rollup")) == ([], [])
    assert bare.one(CHECKED) == "CHECK ((pieces < 1000))"


def test_installed_again_over_what_waits(bare: Archive) -> None:
    """What was noted at first is what goes back at last."""
    bare.install(**MORE)
    bare.add("a")
    uninstall(bare)
    assert "ref" not in columns(bare)
    bare.install(**MORE)
    assert {"ref", "extra"} <= columns(bare)
    assert bare.one("select uninstalled_at is null from outrider.rollup")
    bare.add("a")
    assert figures(bare.tick(flush=True)) == ("processed", 1, 0, 0, 2, 0)
    bare.ask("delete from note")
    assert uninstall(bare) == {}
    assert columns(bare) == {
        "id",
        "document",
        "batch",
        "author",
        "body",
        "kind",
        "tenant",
        "subject",
        "pieces",
        "about",
    }
    assert bare.one(CHECKED) == "CHECK ((pieces < 1000))"


def test_by_force_what_waits_is_deleted(bare: Archive) -> None:
    bare.install(**MORE)
    bare.install({**declared(), "name": "archive.second"})
    bare.add("a", "b")
    assert uninstall(bare, force=True) == {}
    assert bare.ask("select rollup, count(*) from outrider.rollup_pending group by 1") == [
        {"rollup": "archive.second", "count": 2}
    ]
    assert bare.column("select name from outrider.rollup") == ["archive.second"]
    assert bare.one("select count(*) from outrider.setting where name ~ 'rollup'") == 3
    bare.add("c")


def test_what_holds_data_stays(bare: Archive) -> None:
    """Columns with values, columns that something names, constraints that rows would violate; only of what it has added."""
    bare.install(**MORE)
    bare.ask("insert into piece (ref) values ('x')")
    bare.ask("insert into note (kind, pieces) values ('x', 4000)")
    bare.ask("""create function uses() returns int language plpgsql as 'begin return (select extra from note); end'""")
    kept = uninstall(bare)
    assert kept == {
        "drop the column public.piece.ref": "1 rows hold data in it",
        "drop the column public.note.extra": "functions name it: public.uses()",
        "give public.note its CHECK constraint note_pieces_check back as it was": "1 rows would violate it",
    }
    assert {"ref", "extra", "batch"} <= columns(bare)
    assert bare.one(CHECKED) == "CHECK ((pieces < 5000))"
    # What an earlier installation has left is the user's now.
    bare.ask("update piece set ref = null; drop function uses; delete from note")
    bare.install(**MORE)
    assert uninstall(bare) == {}
    assert {"ref", "extra"} <= columns(bare)
    assert bare.one(CHECKED) == "CHECK ((pieces < 5000))"


def test_what_is_needed_stays(bare: Archive) -> None:
    bare.install(**MORE)
    bare.ask("create view refs as select ref from piece")
    bare.ask("create function extras() returns bigint language sql begin atomic; select sum(extra) from note; end")
    bare.ask(
        "insert into piece (document) select 'd' || n from generate_series(1, 1200) as n; update piece set ref = 'r'"
    )
    assert uninstall(bare, force=True)["drop the column public.piece.ref"] == "1000 or more rows hold data in it"
    bare.ask("update piece set ref = null; alter table piece drop ref cascade; alter table note drop extra cascade")
    bare.install(**MORE)
    bare.ask("create view refs as select ref from piece")
    bare.ask("create function extras() returns bigint language sql begin atomic; select sum(extra) from note; end")
    kept = uninstall(bare)
    assert kept == {
        "drop the column public.piece.ref": "it is needed: rule _RETURN on view public.refs",
        "drop the column public.note.extra": "it is needed: function public.extras()",
    }
    # Columns and tables that are gone are no obstacle.
    bare.ask("drop view refs; drop function extras; alter table piece drop ref; alter table note drop extra")
    bare.install(**MORE)
    bare.ask("drop table note; alter table piece drop ref cascade")
    kept = uninstall(bare)
    assert kept == {
        "drop the column public.piece.ref": "it is gone already",
        "drop the column public.note.extra": "it is gone already",
        "give public.note its CHECK constraint note_pieces_check back as it was": "the table is gone",
    }


def test_a_column_that_another_rollup_needs_stays(bare: Archive) -> None:
    shared: dict[str, Any] = {"columns": [Column("piece", "import_ref", "text")], "key": ["import_ref"]}
    bare.install(**shared)
    bare.install(second(**shared))
    kept = taken_off(bare)
    assert "outrider.rollup_stage_archive_second()" in kept["drop the column public.piece.import_ref"]
    bare.add("a")
    assert "import_ref" in str(bare.column("select attname from pg_attribute where attrelid = 'piece'::regclass"))


def test_a_check_that_was_changed_since_is_left_alone(bare: Archive) -> None:
    wider = Check("note", "note_pieces_check", "pieces < 5000")
    definition = "select pg_get_constraintdef(oid) from pg_constraint where conname = 'note_pieces_check'"
    bare.install(checks=[wider])
    bare.ask(
        "alter table note drop constraint note_pieces_check, add constraint note_pieces_check check (pieces < 7000)"
    )
    assert "it was changed since" in taken_off(bare).values()
    assert "7000" in bare.one(definition)
    bare.ask("alter table note drop constraint note_pieces_check")
    bare.ask("alter table note add constraint note_pieces_check check (pieces < 1000) no inherit not valid")
    bare.install(checks=[wider])
    assert bare.one(definition) == "CHECK ((pieces < 5000)) NO INHERIT NOT VALID"
    bare.install(second(checks=[Check("note", "note_pieces_check", "pieces < 6000")]))
    assert "it was changed since" in taken_off(bare).values(), "the second one needs it"
    assert taken_off(bare, "archive.second") == {}
    assert bare.one(definition) == "CHECK ((pieces < 5000)) NO INHERIT NOT VALID"


def test_a_column_whose_rows_are_hidden_is_not_dropped(bare: Archive) -> None:
    bare.install(columns=[Column("note", "more", "text")])
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login; grant all on schema outrider, public to {user}")
    try:
        bare.ask("insert into note (kind, pieces, more) values ('x', 1, 'data')")
        bare.ask("alter table note enable row level security; alter table note force row level security")
        bare.ask(f"grant all on all tables in schema outrider to {user}")
        bare.ask(f"grant execute on all functions in schema outrider to {user}")
        bare.ask(f"alter table note owner to {user}; alter table piece owner to {user}")
        bare.ask(f"set role {user}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            bare.ask("select * from outrider.rollup_plan(%s)", NAME)
    finally:
        bare.ask("reset role")
        bare.ask(f"reassign owned by {user} to current_user; drop owned by {user}; drop role {user}")


def test_settings_of_a_rollup_with_a_longer_name_stay(bare: Archive) -> None:
    bare.install()
    bare.install({**declared(), "name": "archive"})
    bare.ask("update outrider.setting set entered = '300' where name = 'rollup.archive.imports.debounce_seconds'")
    taken_off(bare, "archive")
    assert bare.column("select entered from outrider.setting where name ~ 'debounce'") == ["300"]


def test_one_whose_table_is_gone(archive: Archive) -> None:
    archive.add("a")
    archive.ask("drop table piece")
    assert [row["topic"] for row in archive.verified().values() if not row["passed"]] == ["source", "installed"]
    assert "delete its rows: 1 wait" in uninstall(archive)
    assert figures(archive.tick(flush=True)) == ("processed", 0, 1, 0, 1, 0)
    assert uninstall(archive) == {}


def test_one_of_events(bare: Archive) -> None:
    bare.install(declared(table=None, events=[Leafed], key=["chapter"]))
    kept = uninstall(bare)
    assert kept == {
        f"retire the subscription {NAME}": f"take it out of the app, then outrider subscription retire {NAME}"
    }
    assert (bare.column(FUNCTIONS), bare.column("select name from outrider.rollup")) == ([], [])


# While others are at work


def waits(place: Archive, pid: int) -> None:
    while not place.one("select count(*) from pg_locks where pid = %s and not granted", pid):
        time.sleep(0.01)


@pytest.mark.parametrize("renamed", [False, True])
def test_what_an_open_producer_has_staged_survives_an_uninstall(archive: Archive, database: str, renamed: bool) -> None:
    """Also when the table has another name by now: it is found by its trigger."""
    if renamed:
        archive.ask("alter table piece rename to paper")
    with opened(database) as producer, opened(database) as operator:
        producer.ask("begin")
        producer.ask(f"insert into {'paper' if renamed else 'piece'} (document) values ('a')")
        kept: list[dict[str, str]] = []
        taking_off = threading.Thread(target=lambda: kept.append(taken_off(operator)))
        taking_off.start()
        waits(archive, operator.conn.info.backend_pid)
        producer.ask("commit")
        taking_off.join(30)
    assert archive.staged() == ["a"]
    assert "delete its rows: 1 wait" in kept[0]
    assert archive.tick(flush=True)["pieces_emitted"] == 1


def test_events_that_are_staged_while_their_rollup_is_taken_off(bare: Archive, database: str) -> None:
    """What was staged before is seen by the uninstall; who comes after it is told."""
    bare.install(
        table=None, events=[Leafed], key=["chapter"], carry=["chapter"], single="archive.one", rollup="archive.all"
    )
    bare.ask("select outrider.publish('archive.leafed', %s)", Jsonb({"chapter": "a"}))
    stage = "select outrider.rollup_stage_archive_imports(array[1])"
    with opened(database) as worker, opened(database) as operator, opened(database) as late:
        worker.ask("begin")
        worker.ask(stage)
        operator.ask("begin")
        kept: list[dict[str, str]] = []
        taking_off = threading.Thread(target=lambda: kept.append(taken_off(operator)))
        taking_off.start()
        waits(bare, operator.conn.info.backend_pid)
        worker.ask("commit")
        taking_off.join(30)
        said: list[str] = []

        def come_late() -> None:
            try:
                late.ask(stage)
            except psycopg.Error as error:
                said.append(str(error))

        coming = threading.Thread(target=come_late)
        coming.start()
        waits(bare, late.conn.info.backend_pid)
        operator.ask("commit")
        coming.join(30)
    assert "delete its rows: 1 wait" in kept[0]
    assert len(said) == 1, "it is not installed any more"
    assert bare.staged() == ["a"]


def test_a_producer_that_has_read_before_is_not_the_victim(archive: Archive, database: str) -> None:
    """Uninstall raised its lock: whoever had read the table and then inserted was ended as a deadlock."""
    with opened(database) as producer, opened(database) as operator:
        producer.ask("begin")
        producer.ask("select count(*) from piece")
        taking_off = threading.Thread(target=lambda: taken_off(operator))
        taking_off.start()
        waits(archive, operator.conn.info.backend_pid)
        producer.ask("insert into piece (document) values ('a')")
        producer.ask("commit")
        taking_off.join(30)
    assert archive.staged() == ["a"]


def test_nor_is_it_while_a_rollup_is_installed_that_alters_the_table(bare: Archive, database: str) -> None:
    """The same for install: it takes the stronger lock at once."""
    more = declared(columns=[Column("piece", "more", "text")])
    with opened(database) as producer, opened(database) as operator:
        producer.ask("begin")
        producer.ask("select count(*) from piece")
        installing = threading.Thread(target=lambda: operator.install(more))
        installing.start()
        waits(bare, operator.conn.info.backend_pid)
        producer.ask("insert into piece (document) values ('a')")
        producer.ask("commit")
        installing.join(30)
    bare.add("b")
    assert bare.staged() == ["b"]
