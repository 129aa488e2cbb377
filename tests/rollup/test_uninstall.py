"""Taking a rollup off: the plan says it, nothing that waits or holds data is lost, and what was changed goes back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures
from tests.rollup.test_install import Leafed, catalog

from outrider import Check, Column, Notification

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
