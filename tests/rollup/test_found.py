"""What an attack on rollups has found, each as it was shown."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, declared, figures, opened

from outrider import Check, Column, Event, Notification
from outrider.postgres import rollups, session


class Leaf(Event, type="archive.leaf"):
    chapter: str


def uninstall(place: Archive, name: str = NAME, *, force: bool = False) -> dict[str, str]:
    """What was kept, and why."""
    rows = place.ask("select * from outrider.rollup_uninstall(%s, %s)", name, force)
    return {row["what"]: row["why"] for row in rows if row["action"] == "keep"}


def second(**changes: Any) -> dict[str, Any]:
    return {**declared(**changes), "name": "archive.second"}


def test_a_session_that_has_ticked_for_long(archive: Archive) -> None:
    """Its cached plans were made for one row: five thousand took most of a minute, and each tick anew."""
    archive.ask("alter table outrider.rollup_pending set (autovacuum_enabled = off)")
    archive.add("a")
    archive.ask("analyze outrider.rollup_pending; analyze outrider.outbox")
    for n in range(8):
        archive.tick(flush=True)
        archive.add(f"b{n}")
    archive.ask(
        "insert into piece (document, author) select 'c' || n, repeat('z', 300) from generate_series(1, 10000) as n"
    )
    archive.ask("set statement_timeout = '60s'")
    assert archive.tick(flush=True)["rows_marked"] == 10_001


def test_a_column_that_another_rollup_needs_stays(bare: Archive) -> None:
    shared: dict[str, Any] = {"columns": [Column("piece", "import_ref", "text")], "key": ["import_ref"]}
    bare.install(**shared)
    bare.install(second(**shared))
    kept = uninstall(bare)
    assert "outrider.rollup_stage_archive_second()" in kept["drop the column public.piece.import_ref"]
    bare.add("a")
    assert "import_ref" in str(bare.column("select attname from pg_attribute where attrelid = 'piece'::regclass"))


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
    # The condition is not evaluated with the rights of whoever inserts.
    bare.ask(
        "create function mine(text) returns boolean language sql as 'select true'; revoke all on function mine from public"
    )
    bare.install(when="public.mine(new.kind)")
    user = f"role_{bare.conn.info.dbname}"
    bare.ask(f"create role {user} login; grant insert on piece to {user}")
    try:
        with psycopg.connect(database, user=user, autocommit=True) as low:
            low.execute("insert into piece (document) values ('e')")
    finally:
        bare.ask(f"drop owned by {user}; drop role {user}")
    assert bare.staged() == ["e"]


def test_many_bad_groups_do_not_hold_up_the_good_ones(bare: Archive) -> None:
    bare.install(notify=NOTE)
    bare.ask("alter table note add check (subject !~ '^bad')")
    bare.ask("insert into piece (document) select 'bad' || n from generate_series(1, 300) as n")
    bare.add("good", "good")
    for _ in range(3):
        bare.tick(flush=True)
    assert [each for each in bare.emitted() if each[1] == "good"] == [("document_imported", "good", 2)]
    assert len(bare.aside()) == 300
    bare.exact()


@pytest.mark.parametrize(
    ("state", "raised"),
    [("P0002", "no_data_found"), ("54000", "program_limit_exceeded"), ("42501", "insufficient_privilege")],
)
def test_one_row_at_fault_whatever_its_error_is_called(bare: Archive, state: str, raised: str) -> None:
    bare.install(notify=NOTE)
    bare.ask(
        "create function no() returns trigger language plpgsql as $$ begin if new.subject = 'bad' then "
        f"raise {raised} using message = 'no'; end if; return new; end $$; "
        "create trigger no before insert on note for each row execute function no()"
    )
    bare.add("a", "a", "bad", "b")
    assert figures(bare.tick(flush=True)) == ("processed", 1, 1, 0, 3, 1)
    assert bare.aside() == [f"{state}: no"]


def waits(place: Archive, pid: int) -> None:
    while not place.one("select count(*) from pg_locks where pid = %s and not granted", pid):
        pass


@pytest.mark.parametrize("renamed", [False, True])
def test_what_an_open_producer_has_staged_survives_an_uninstall(archive: Archive, database: str, renamed: bool) -> None:
    """Also when the table has another name by now: it is found by its trigger."""
    if renamed:
        archive.ask("alter table piece rename to paper")
    with opened(database) as producer, opened(database) as operator:
        producer.ask("begin")
        producer.ask(f"insert into {'paper' if renamed else 'piece'} (document) values ('a')")
        kept: list[dict[str, str]] = []
        taking_off = threading.Thread(target=lambda: kept.append(uninstall(operator)))
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
        table=None, events=[Leaf], key=["chapter"], carry=["chapter"], single="archive.one", rollup="archive.all"
    )
    bare.ask("select outrider.publish('archive.leaf', %s)", Jsonb({"chapter": "a"}))
    stage = "select outrider.rollup_stage_archive_imports(array[1])"
    with opened(database) as worker, opened(database) as operator, opened(database) as late:
        worker.ask("begin")
        worker.ask(stage)
        kept: list[dict[str, str]] = []
        taking_off = threading.Thread(target=lambda: kept.append(uninstall(operator)))
        taking_off.start()
        waits(bare, operator.conn.info.backend_pid)
        said: list[str] = []

        def come_late() -> None:
            try:
                late.ask(stage)
            except psycopg.Error as error:
                said.append(str(error))

        coming = threading.Thread(target=come_late)
        coming.start()
        waits(bare, late.conn.info.backend_pid)
        worker.ask("commit")
        taking_off.join(30)
        coming.join(30)
    assert "delete its rows: 1 wait" in kept[0]
    assert len(said) == 1, "it is not installed any more"
    assert bare.staged() == ["a"]


def test_a_producer_that_has_read_before_is_not_the_victim(archive: Archive, database: str) -> None:
    """Uninstall raised its lock: whoever had read the table and then inserted was ended as a deadlock."""
    with opened(database) as producer, opened(database) as operator:
        producer.ask("begin")
        producer.ask("select count(*) from piece")
        taking_off = threading.Thread(target=lambda: uninstall(operator))
        taking_off.start()
        waits(archive, operator.conn.info.backend_pid)
        producer.ask("insert into piece (document) values ('a')")
        producer.ask("commit")
        taking_off.join(30)
    assert archive.staged() == ["a"]


def test_a_check_that_was_changed_since_is_left_alone(bare: Archive) -> None:
    wider = Check("note", "note_pieces_check", "pieces < 5000")
    definition = "select pg_get_constraintdef(oid) from pg_constraint where conname = 'note_pieces_check'"
    bare.install(checks=[wider])
    bare.ask(
        "alter table note drop constraint note_pieces_check, add constraint note_pieces_check check (pieces < 7000)"
    )
    assert "it was changed since" in uninstall(bare).values()
    assert "7000" in bare.one(definition)
    bare.ask("alter table note drop constraint note_pieces_check")
    bare.ask("alter table note add constraint note_pieces_check check (pieces < 1000) no inherit not valid")
    bare.install(checks=[wider])
    assert bare.one(definition) == "CHECK ((pieces < 5000)) NO INHERIT NOT VALID"
    bare.install(second(checks=[Check("note", "note_pieces_check", "pieces < 6000")]))
    assert "it was changed since" in uninstall(bare).values(), "the second one needs it"
    assert uninstall(bare, "archive.second") == {}
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
    uninstall(bare, "archive")
    assert bare.column("select entered from outrider.setting where name ~ 'debounce'") == ["300"]


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


def test_groups_do_not_depend_on_the_session(bare: Archive) -> None:
    bare.ask("alter table piece add at timestamptz, add size numeric")
    bare.install(key=["at"], carry=["id", "size"])
    for zone, size in (("UTC", "1"), ("Asia/Tokyo", "1.0")):
        bare.ask(f"set timezone = '{zone}'")
        bare.ask("insert into piece (at, size) values ('2026-01-01 00:00Z', %s)", size)
    bare.tick(flush=True)
    assert bare.column("select payload ->> 'piece_count' from outrider.outbox") == ["2"]
    assert bare.column("select (payload ->> 'size')::numeric = 1 from outrider.outbox") == [True]


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


def test_what_the_caller_owes_is_not_blamed_on_a_row(archive: Archive) -> None:
    archive.ask("create table thing (id int primary key, of int references thing deferrable initially deferred)")
    archive.add("a")
    archive.ask("begin; insert into thing values (1, 2)")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        archive.tick(flush=True)
    archive.ask("rollback")
    assert (archive.aside(), archive.staged()) == ([], ["a"])


def test_a_trigger_that_was_replaced_is_noticed(bare: Archive) -> None:
    bare.install()
    bare.ask(
        "create or replace trigger outrider_rollup_archive_imports after insert or update on piece for each row "
        "execute function outrider.rollup_stage_archive_imports()"
    )
    assert "is not as it was made" in bare.verified()["installed"]["detail"]
    bare.install()
    assert bare.verified()["installed"]["passed"]


async def test_clocks_and_sessions(archive: Archive, database: str) -> None:
    archive.ask("update outrider.rollup set ticked_at = now() + interval '300 days'")
    async with await session.connect(database, autocommit=True) as conn:
        await conn.execute("set default_transaction_isolation = 'repeatable read'")
        state = (await rollups.states(conn, {NAME: {}}, "outrider"))[NAME]
        assert state.due_in <= 120
        archive.add("a", "a")
        archive.ask("update outrider.rollup_pending set staged_at = staged_at + interval '300 days'")
        assert (await rollups.tick(conn, NAME, "outrider")).groups_emitted == 1


def test_an_index_serves_what_waits_and_no_more(archive: Archive) -> None:
    archive.ask(
        "insert into outrider.rollup_pending (rollup, carried, set_aside_at) values (%s, %s, now())", NAME, Jsonb({})
    )
    archive.ask("set enable_seqscan = off")
    [plan] = archive.ask(
        "explain (format json) select * from outrider.rollup_pending as w "
        f"where w.rollup = '{NAME}' and w.processed_at is null and w.set_aside_at is null"
    )
    assert "rollup_pending_waiting" in str(plan)
