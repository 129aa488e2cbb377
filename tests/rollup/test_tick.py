"""A tick: what is due becomes events, once each; what is wrong is set aside or undone, and said."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.rollup.archive import NAME, NOTE, Archive, DocumentImported, PieceAdded, figures

from outrider import HandlerContext, Outrider
from outrider.postgres import connection, rollups
from outrider.rollup import Notification
from outrider.signals import Settled
from outrider.testing import expect

pytestmark = pytest.mark.also_on(15)

SECRET = "select count(*) from outrider.outbox where payload::text ~ 'secret'"


def enter(archive: Archive, setting: str, value: str | None) -> None:
    archive.ask("update outrider.setting set entered = %s where name = %s", value, f"rollup.{NAME}.{setting}")


# What is due


def test_what_is_due_becomes_events(archive: Archive) -> None:
    assert figures(archive.tick()) == ("idle", 0, 0, 0, 0, 0)
    ids = archive.add("b", "a", "b", None, "b", author="ada")
    archive.add("b", author="bob")
    archive.add(None, author="bob", batch="b")
    archive.add(None, author="bob")
    tick = archive.tick()
    assert (figures(tick), tick["pending_pre"], tick["pending_post"]) == (("idle", 0, 0, 0, 0, 0), 8, 8), "too recent"
    archive.age()
    tick = archive.tick()
    assert figures(tick) == ("processed", 1, 3, 0, 8, 0)
    assert (tick["pending_pre"], tick["pending_post"], tick["error_count"], tick["error_text"]) == (8, 0, 0, None)
    assert tick["rollup"] == NAME
    assert tick["duration_ms"] >= 0
    # In the order of their first rows; the second column of the key stands in for the first.
    assert archive.emitted() == [
        ("document_imported", "b", 5),
        ("piece_added", "a", None),
        *[("piece_added", None, None)] * 2,
    ]
    events = archive.ask("select * from outrider.outbox order by seq")
    whole, single, keyless, _ = (row["payload"] for row in events)
    assert whole.keys() == {"key", "piece_count", "first_at", "last_at"}, "they agree neither on id nor on author"
    assert whole["first_at"] < whole["last_at"]
    assert (single, keyless) == ({"id": ids[1], "author": "ada"}, {"id": ids[3], "author": "ada"})
    assert archive.one(SECRET) == 0
    staged = archive.ask("select * from outrider.rollup_pending order by id")
    assert [row["idempotency_key"] for row in events] == [f"{NAME}:{staged[n]['id']}" for n in (0, 1, 3, 7)]
    parts = {row["id"]: [each["id"] for each in staged if each["event_id"] == row["id"]] for row in events}
    first = staged[0]["id"]
    assert [[part - first for part in each] for each in parts.values()] == [[0, 2, 4, 5, 6], [1], [3], [7]]
    assert {(row["source"], row["event_version"], row["workspace_id"]) for row in events} == {("archive", 1, None)}
    assert archive.tick()["result"] == "idle"
    logged = archive.ask("select * from outrider.rollup_log order by id")
    assert [row["result"] for row in logged] == ["idle", "idle", "processed", "idle"]
    assert {name: tick[name] for name in tick if name != "run_at"} == {
        name: value for name, value in logged[2].items() if name not in ("id", "run_at")
    }
    assert archive.locks() == []
    archive.exact()
    # The same document again is another group; what its pieces agree on is in the event.
    archive.add("b", "b", author="ada")
    archive.age()
    archive.tick()
    again = archive.ask("select payload from outrider.outbox order by seq")[-1]["payload"]
    assert (again["piece_count"], again["author"]) == (2, "ada")
    assert "id" not in again


def test_the_debounce_time_and_the_longest_wait(archive: Archive) -> None:
    """A group is as old as its newest row, until its oldest has waited for long enough."""
    archive.add("quiet", "quiet", "busy")
    archive.age("100 seconds")
    archive.add("busy")
    archive.age("60 seconds", "group_key = 'busy'")
    assert figures(archive.tick()) == ("processed", 1, 0, 0, 2, 0)
    assert archive.staged() == ["busy", "busy"], "its newest row is 60 s old"
    for _ in range(2):  # every three minutes another one, for ten minutes
        archive.age("3 minutes")
        archive.add("busy")
        assert archive.tick()["result"] == "idle"
    archive.age("2 minutes", "id = (select min(id) from outrider.rollup_pending where processed_at is null)")
    assert figures(archive.tick()) == ("processed", 1, 0, 0, 4, 0), "all of it, the newest too"
    assert archive.emitted() == [("document_imported", "quiet", 2), ("document_imported", "busy", 4)]
    archive.add("now")
    assert figures(archive.tick(flush=True)) == ("processed", 0, 1, 0, 1, 0)


def test_settings_are_read_at_each_tick(archive: Archive) -> None:
    """Clamped, and what is no number is the default; both are said, and everything goes on."""
    archive.add("a", "a", "b", "b", "b")
    archive.age("70 seconds")
    assert archive.tick()["result"] == "idle"
    enter(archive, "debounce_seconds", " 65 ")
    enter(archive, "batch_threshold", "3")
    tick = archive.tick()
    assert (figures(tick), tick["error_count"]) == (("processed", 1, 2, 0, 5, 0), 0)
    # 1 is too short for the one, too few for the other
    enter(archive, "debounce_seconds", "1")
    enter(archive, "batch_threshold", "1")
    archive.add("c")
    archive.age("30 seconds")
    tick = archive.tick()
    assert (tick["result"], tick["error_count"]) == ("idle", 2)
    assert (
        f"the setting rollup.{NAME}.debounce_seconds is 1: 60 is used, the limits are 60 and 300" in tick["error_text"]
    )
    archive.age("31 seconds")
    assert figures(archive.tick()) == ("processed", 0, 1, 0, 1, 0), "a threshold of 2"
    enter(archive, "debounce_seconds", "9" * 18)
    enter(archive, "batch_threshold", "51")
    archive.add(*["d"] * 50, *["e"] * 49)
    archive.age("270 seconds")
    assert archive.tick()["result"] == "idle"
    archive.age("31 seconds")
    assert figures(archive.tick()) == ("processed", 1, 49, 0, 99, 0)
    for wrong in ("soon", "", "1e3", "90.5", "9" * 30, "'; drop table piece; --", "٣"):
        enter(archive, "debounce_seconds", wrong)
        enter(archive, "batch_threshold", None)
        archive.add("f", "f")
        archive.age("91 seconds")
        tick = archive.tick()
        assert (figures(tick), tick["error_count"]) == (("processed", 1, 0, 0, 2, 0), 1), wrong
        assert "is no whole number: the default, 90, is used" in tick["error_text"]
    enter(archive, "debounce_seconds", None)
    enter(archive, "max_wait_seconds", "120")
    archive.add("g")
    archive.age("121 seconds")
    archive.add("g")
    assert figures(archive.tick()) == ("processed", 1, 0, 0, 2, 0)
    with pytest.raises(psycopg.errors.CheckViolation):
        archive.ask("update outrider.setting set value = 1 where name = %s", f"rollup.{NAME}.debounce_seconds")
    # Without its rows in setting: what every rollup has.
    archive.ask("delete from outrider.setting where name ~ '^rollup'")
    archive.add("h", "h")
    archive.age("91 seconds")
    assert figures(archive.tick()) == ("processed", 1, 0, 0, 2, 0)
    archive.exact()


def test_what_was_declared_holds(bare: Archive) -> None:
    bare.install(debounce="2m", threshold=3, max_wait="5m")
    bare.add("a", "a", "b", "b", "b")
    bare.age("95 seconds")
    assert bare.tick()["result"] == "idle"
    bare.age("26 seconds")
    assert figures(bare.tick()) == ("processed", 1, 2, 0, 5, 0)


async def test_clocks_and_sessions(archive: Archive, database: str) -> None:
    archive.ask("update outrider.rollup set ticked_at = now() + interval '300 days'")
    async with await connection.connect(database, autocommit=True) as conn:
        await conn.execute("set default_transaction_isolation = 'repeatable read'")
        state = (await rollups.states(conn, {NAME: {}}, "outrider"))[NAME]
        assert state.due_in <= 120
        archive.add("a", "a")
        archive.ask("update outrider.rollup_pending set staged_at = staged_at + interval '300 days'")
        assert (await rollups.tick(conn, NAME, "outrider")).groups_emitted == 1


def test_tenants_never_share_a_group(bare: Archive) -> None:
    """By the session's app.workspace_id, or by a column."""
    bare.install()
    for tenant in ("acme", "globex", ""):
        bare.ask("select set_config('app.workspace_id', %s, false)", tenant)
        bare.add("a", "a", batch="x")
    bare.age()
    assert figures(bare.tick()) == ("processed", 3, 0, 0, 6, 0)
    assert bare.column("select workspace_id from outrider.outbox order by seq") == ["acme", "globex", None]
    bare.ask("reset app.workspace_id")
    bare.install(workspace="new.tenant")
    bare.add("a", tenant="acme")
    bare.add("a", tenant="globex")
    bare.add("a", "a")
    bare.age()
    assert figures(bare.tick()) == ("processed", 1, 2, 0, 4, 0)
    assert bare.column("select workspace_id from outrider.outbox order by seq")[3:] == ["acme", "globex", None]
    # Nor does one hold up the other.
    bare.add("a", tenant="acme")
    bare.age()
    bare.add("a", tenant="globex")
    assert figures(bare.tick()) == ("processed", 0, 1, 0, 1, 0)
    bare.exact()


def test_who_may_not_tick_and_what(archive: Archive) -> None:
    for name in ("archive.others", "", None):
        with pytest.raises(psycopg.Error, match="there is no rollup") as error:
            archive.ask("select outrider.rollup_tick(%s)", name)
        assert error.value.sqlstate == "OR007"
    archive.add("a")
    archive.age()
    for level in ("repeatable read", "serializable"):
        archive.ask(f"begin isolation level {level}")
        with pytest.raises(psycopg.Error, match=f"READ COMMITTED transaction, this one is {level}"):
            archive.tick()
        archive.ask("rollback")
    # Within a transaction of the caller's it is as good as that transaction.
    with archive.conn.transaction(force_rollback=True):
        assert archive.tick()["pieces_emitted"] == 1
        assert archive.tick()["result"] == "idle"
    assert (archive.emitted(), archive.staged()) == ([], ["a"])


def test_what_is_done_is_purged(archive: Archive) -> None:
    archive.add("a", "a", "b")
    archive.age()
    archive.tick()
    archive.ask("update outrider.rollup_pending set processed_at = now() - interval '6 days 23 hours'")
    archive.ask("update outrider.rollup_log set run_at = now() - interval '29 days'")
    archive.tick()
    assert archive.one("select count(*) from outrider.rollup_pending") == 3
    assert archive.one("select count(*) from outrider.rollup_log") == 2
    archive.add("waits")
    archive.age("30 days", "false")
    archive.ask(
        "update outrider.rollup_pending set processed_at = now() - interval '8 days' where processed_at is not null"
    )
    archive.ask("update outrider.rollup_log set run_at = now() - interval '31 days'")
    archive.tick()
    assert archive.one("select count(*) from outrider.rollup_pending") == 1
    assert archive.column("select result from outrider.rollup_log") == ["idle"]


# The notification table


def test_notifications_and_conflicts(bare: Archive) -> None:
    bare.install(notify=NOTE)
    bare.add("a", "a", "b", "c")
    staged = bare.column("select id from outrider.rollup_pending order by id")
    bare.ask("insert into note (kind, pieces, about) values ('mine', 1, %s)", f"{NAME}:{staged[2]}")
    bare.age()
    tick = bare.tick()
    assert (figures(tick), tick["error_count"]) == (("processed", 1, 2, 1, 4, 0), 0)
    assert [tuple(row.values())[1:4] for row in bare.ask("select * from note order by id")] == [
        ("mine", None, 1),
        ("archive.document_imported", "a", 2),
        ("archive.piece_added", "c", 1),
    ]
    assert len(bare.emitted()) == 3, "the log has what the table had already"


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
def test_what_the_notification_table_refuses(bare: Archive, deferred: bool) -> None:
    """One row, one group: set aside with the reason, and the rest goes through."""
    bare.ask("create table subject (name text primary key); insert into subject values ('good'), ('fine'), ('many')")
    if deferred:
        bare.ask("alter table note add foreign key (subject) references subject deferrable initially deferred")
        refused, reason = "evil", "23503"
    else:
        bare.ask("alter table note add check (subject <> 'evil'), add check (pieces <> 3)")
        refused, reason = "evil", "23514"
    bare.install(notify=NOTE)
    bare.add("good", "good", "evil", "fine", "evil", "many", "many", "many")
    bare.age()
    tick = bare.tick()
    if deferred:
        assert figures(tick) == ("processed", 2, 1, 0, 6, 2)
        assert bare.staged() == []
    else:
        assert figures(tick) == ("processed", 1, 1, 0, 3, 5), "both refused groups"
    assert tick["error_count"] == 1
    assert "rows were set aside, the newest: 235" in tick["error_text"].replace("23503", "235").replace("23514", "235")
    assert all(each.startswith(reason) for each in bare.aside())
    assert tick["pending_post"] == 0
    bare.exact()
    assert bare.tick()["result"] == "idle", "set aside is set aside"
    if deferred:
        bare.ask("insert into subject values (%s)", refused)
    else:
        bare.ask("alter table note drop constraint note_subject_check, drop constraint note_pieces_check1")
    assert bare.one("select outrider.rollup_retry(%s)", NAME) == (2 if deferred else 5)
    tick = bare.tick()
    assert (tick["result"], tick["groups_emitted"], tick["set_aside"]) == ("processed", 1 if deferred else 2, 0)
    assert bare.aside() == []
    assert bare.one("select sum(pieces) from note") == 8
    bare.exact()


def test_of_a_group_only_the_rows_to_blame(bare: Archive) -> None:
    """A row that fails by itself, if the others do without it."""
    bare.ask(
        "create function odd(text) returns text language plpgsql immutable as "
        "$$ begin if $1 = 'eve' then raise 'not %', $1; end if; return $1; end $$"
    )
    columns = {**NOTE.columns, "subject": "public.odd(payload ->> 'author')"}
    bare.install(notify=Notification("note", columns))
    bare.add("a", "a", author="ada")
    bare.add("a", author="eve")
    bare.add("b", author="eve")
    bare.add("c", "c", author="eve")
    bare.age()
    # Of a they do not agree on an author, so it passes as a group; b fails by itself; c as a group and by each row.
    assert figures(bare.tick()) == ("processed", 1, 0, 0, 3, 3)
    assert bare.aside() == ["P0001: not eve"] * 3
    bare.ask("alter table note add check (subject <> 'eve')")
    bare.install(notify=Notification("note", {**columns, "subject": "coalesce(payload ->> 'author', 'eve')"}))
    bare.add("d", author="ada")
    bare.add("d", author="eve")
    bare.add("e", "e", author="bob")
    bare.age()
    # As a group d fails, for they do not agree; ada's row passes by itself.
    told = bare.tick()
    assert figures(told) == ("processed", 1, 1, 0, 3, 1), told
    assert bare.emitted()[1:] == [("piece_added", "d", None), ("document_imported", "e", 2)]
    bare.exact()


def test_when_everything_is_refused_the_rows_are_not_to_blame(bare: Archive) -> None:
    bare.install(notify=NOTE)
    bare.ask("alter table note add constraint none check (kind = 'x')")
    bare.add(*(f"d{n}" for n in range(11)), "d0")
    bare.age()
    tick = bare.tick()
    assert figures(tick) == ("error", 0, 0, 0, 0, 0)
    assert (tick["pending_pre"], tick["pending_post"], tick["error_count"]) == (12, 12, 1)
    assert "nothing could be emitted, so the rows are not to blame: 23514" in tick["error_text"]
    assert (bare.aside(), bare.emitted(), bare.locks()) == ([], [], [])
    bare.ask("alter table note drop constraint none")
    assert figures(bare.tick()) == ("processed", 1, 10, 0, 12, 0)
    bare.exact()


@pytest.mark.verify
def test_many_culprits_are_sifted_in_turns(bare: Archive) -> None:
    """Two hundred at a time; nobody who is innocent is set aside."""
    bare.ask("alter table note add check (subject !~ '[05]$')")
    bare.install(notify=NOTE)
    bare.ask("insert into piece (document) select 'd' || n from generate_series(1, 1100) as n")
    bare.age()
    tick = bare.tick()
    assert tick["set_aside"] == 200
    assert tick["rows_marked"] > 0
    assert tick["pending_post"] == 1100 - tick["rows_marked"] - 200
    assert figures(bare.tick())[0] == "processed"
    assert (len(bare.aside()), bare.staged()) == (220, [])
    assert bare.column(
        "select distinct right(group_key, 1) from outrider.rollup_pending where set_aside_at is not null order by 1"
    ) == ["0", "5"]
    bare.exact()


@pytest.mark.verify
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


# What is wrong


@pytest.mark.verify
def test_a_row_that_nobody_can_print_is_set_aside(archive: Archive) -> None:
    """Takes 2 s: the server finds out by trying to print more than 1 GiB."""
    archive.add("a", "a", "b")
    archive.age()
    numbers = """('{"id": [' || repeat('1e131071,', 8300) || '1]}')::jsonb"""
    archive.ask(f"update outrider.rollup_pending set carried = {numbers} where group_key = 'b'")
    assert figures(archive.tick()) == ("processed", 1, 0, 0, 2, 1)
    assert archive.aside() == ["it carries more than 134217728 bytes, the limit is 262144"]


def test_corrupt_rows_are_set_aside(archive: Archive) -> None:
    """Whatever kind of harm was done to a row, it harms nobody else."""
    harm = {
        "carried = '[1]'": "no JSON object",
        "carried = 'null'": "no JSON object",
        "carried = jsonb_build_object('id', repeat('x', 300000))": "it carries 300010 bytes, the limit is 262144",
        "group_key = ''": "its key has 0 bytes",
        "group_key = repeat('ä', 257)": "its key has 514 bytes, 1 to 512 are allowed",
        "workspace_id = ''": "its workspace has 0 bytes",
        "workspace_id = repeat('w', 256)": "its workspace has 256 bytes, 1 to 255 are allowed",
        "staged_at = 'infinity'": "staged at infinity",
        "staged_at = '-infinity'": "staged at -infinity",
    }
    archive.add("a", *["a"] * len(harm), "a", "b")
    archive.age()
    ids = archive.column("select id from outrider.rollup_pending order by id")
    for row, change in zip(ids[1:], harm, strict=False):
        archive.ask(f"update outrider.rollup_pending set {change} where id = %s", row)
    tick = archive.tick()
    assert figures(tick) == ("processed", 1, 1, 0, 3, len(harm))
    assert (tick["pending_post"], tick["error_count"]) == (0, 1)
    assert f"{len(harm)} rows were set aside" in tick["error_text"]
    for found, reason in zip(archive.aside(), harm.values(), strict=True):
        assert reason in found
    assert archive.emitted() == [("document_imported", "a", 2), ("piece_added", "b", None)]
    archive.exact()
    archive.ask(
        "update outrider.rollup_pending set carried = '{}', group_key = 'a', workspace_id = null, "
        "staged_at = now() where set_aside_at is not null"
    )
    assert archive.one("select outrider.rollup_retry(%s)", NAME) == len(harm)
    assert archive.one("select outrider.rollup_retry(%s)", NAME) == 0
    assert archive.tick(flush=True)["groups_emitted"] == 1
    assert archive.aside() == []
    archive.exact()


def test_an_error_loses_nothing_and_leaves_no_lock(bare: Archive) -> None:
    bare.install(notify=NOTE)
    bare.add("a", "a", "b")
    bare.age()
    bare.ask("alter table note rename to gone")
    bare.ask("update outrider.setting set entered = 'x' where name ~ 'debounce'")
    bare.ask("update outrider.rollup_pending set group_key = '' where group_key = 'b'")
    tick = bare.tick()
    assert figures(tick) == ("error", 0, 0, 0, 0, 0)
    assert (tick["pending_pre"], tick["pending_post"], tick["error_count"]) == (3, 3, 2)
    assert "the default, 90, is used; 42P01: relation" in tick["error_text"]
    [logged] = bare.ask("select result, error_text from outrider.rollup_log")
    assert logged == {"result": "error", "error_text": tick["error_text"]}
    assert (bare.emitted(), bare.aside(), bare.locks()) == ([], [], [])
    assert bare.one("select ticked_at is not null from outrider.rollup"), "it is not tried again at once"
    bare.ask("alter table gone rename to note")
    assert figures(bare.tick()) == ("processed", 1, 0, 0, 2, 1)
    bare.exact()


def test_what_the_caller_owes_is_not_blamed_on_a_row(archive: Archive) -> None:
    archive.ask("create table thing (id int primary key, of int references thing deferrable initially deferred)")
    archive.add("a")
    archive.ask("begin; insert into thing values (1, 2)")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        archive.tick(flush=True)
    archive.ask("rollback")
    assert (archive.aside(), archive.staged()) == ([], ["a"])


@pytest.mark.verify
def test_a_hundred_thousand_rows_in_one_tick(bare: Archive) -> None:
    bare.install(notify=NOTE)
    bare.ask("alter table note drop constraint note_pieces_check")
    bare.ask("""insert into piece (document, author)
                select case when n % 10 = 0 then 'x' || n when n % 2 = 0 then 'big' else 'd' || n % 1000 end, 'ada'
                from generate_series(1, 100000) as n""")
    bare.age()
    scans = "select sum(pg_stat_get_xact_numscans(oid)) from pg_class where relname ~ '^(rollup_pending|outbox_s0)'"
    with bare.conn.transaction():
        tick = bare.tick()
        assert bare.one(scans) < 500, "by statements over all of them, not row by row"
    assert figures(tick) == ("processed", 501, 10_000, 0, 100_000, 0)
    assert tick["pending_post"] == 0
    assert bare.one("select max((payload ->> 'piece_count')::int) from outrider.outbox") == 40_000
    assert bare.one("select sum(pieces) from note") == 100_000
    bare.exact()


@pytest.mark.verify
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


# What reads the events


async def test_a_handler_of_its_event_is_woken(database: str, bare: Archive) -> None:
    """Polling is for an hour: only the notification brings it."""
    app = Outrider(context="archive", dsn=database, poll="1h")
    bare.install()
    told: list[Any] = []

    @app.handler(DocumentImported, name="archive.documents")
    async def document(event: DocumentImported, ctx: HandlerContext) -> None:
        told.append(event)

    @app.handler(PieceAdded, name="archive.pieces")
    async def piece(event: PieceAdded, ctx: HandlerContext) -> None:
        told.append(event)

    async with app:
        await app.migrate()
        async with app.worker() as worker:
            await asyncio.wait_for(worker.ready.wait(), 60)
            while not worker.listening:  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0)
            ids = bare.add("a", "a", "b", author="ada")
            bare.age()
            async with expect(app, Settled, lambda each: each.events, times=2, timeout=60):
                tick = await app.tick(NAME)
    assert (tick.result, tick.groups_emitted, tick.pieces_emitted) == ("processed", 1, 1)
    [imported] = [each for each in told if isinstance(each, DocumentImported)]
    assert (imported.key, imported.piece_count, imported.author) == ("a", 2, "ada")
    assert [each for each in told if isinstance(each, PieceAdded)] == [PieceAdded(id=ids[2], author="ada")]
