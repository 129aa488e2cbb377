"""The hub as its users know it, in SQL. Nobody waits for a debounce time: what was staged is made older."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from examples.knowledge_hub import hub
from examples.knowledge_hub.hub import DocumentImported, app
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from outrider import HandlerContext, Outrider
from outrider.config import Settings
from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "knowledge_hub"
NOTHING = {"groups_emitted": 0, "pieces_emitted": 0, "conflicts_skipped": 0, "rows_marked": 0, "set_aside": 0}
LOCKS = """select objid from pg_locks as l join pg_database as d on d.oid = l.database
           where l.locktype = 'advisory' and d.datname = current_database()"""

Row = dict[str, Any]


class Hub:
    """A hub in a database of its own, with its rollup installed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.desk = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)

    def ask(self, query: str, *params: Any) -> list[Row]:
        return self.desk.execute(query.encode(), params or None).fetchall()

    def save(self, address: str, document: str | None = None, batch: str | None = None, actor: str = "ada") -> UUID:
        query = "select unit from fn_iu_save(%s, 'A secret body.', %s, %s, %s)"
        unit = self.ask(query, address, actor, document, batch)[0]["unit"]
        assert isinstance(unit, UUID)
        return unit

    def age(self, by: str = "5 minutes", **where: str) -> None:
        """What waits was staged earlier than it was."""
        query = "update outrider.rollup_pending set staged_at = staged_at - %s::interval where processed_at is null"
        for column, value in where.items():
            query += f" and carried ->> '{column}' = '{value}'"
        self.desk.execute(query.encode(), [by])

    def tick(self, *, flush: bool = False) -> Row:
        found = self.ask("select outrider.rollup_tick(%s, %s) as done", hub.NAME, flush)[0]["done"]
        assert isinstance(found, dict)
        return found

    def log(self) -> list[tuple[str, Row]]:
        """Type and payload of every event, in their order."""
        query = "select event_type, payload from outrider.outbox order by seq"
        return [(row["event_type"], row["payload"]) for row in self.ask(query)]

    def told(self) -> list[str]:
        return [kind for kind, _ in self.log()]

    def board(self, actor: str = "nobody") -> list[tuple[Any, ...]]:
        query = """select event_type, event_stream, canonical_address, (payload ->> 'piece_count')::int as pieces, actor_ref,
                          read_as from fn_iu_notification_board(%s)"""
        return [tuple(row.values()) for row in self.ask(query, actor)]

    def staged(self) -> list[str]:
        """The addresses of the units that wait."""
        query = """select carried ->> 'canonical_address' as address from outrider.rollup_pending
                   where processed_at is null order by id"""
        return [row["address"] for row in self.ask(query)]


@pytest.fixture
def house(database: str) -> Iterator[Hub]:
    """Nothing that was staged is left behind, and no lock."""
    place = Hub(database)
    try:
        place.desk.execute(hub.TABLES.encode())
        install(place)
        yield place
        assert place.tick(flush=True)["result"] in ("idle", "processed")
        assert place.staged() == []
        assert place.ask(LOCKS) == []
    finally:
        place.desk.close()


def install(place: Hub) -> Row:
    [declared] = app.rollups
    found = place.ask("select outrider.rollup_install(%s) as done", Jsonb(declared.spec()))[0]["done"]
    assert isinstance(found, dict)
    return found


def figures(done: Row, **expected: Any) -> None:
    """Those of a tick, all of them; what is not named is nothing."""
    assert {name: done[name] for name in NOTHING} == NOTHING | expected
    assert (done["error_count"], done["error_text"]) == (0, None)


# Births


def test_t1_one_birth_is_told_as_one_piece(house: Hub) -> None:
    unit = house.save("handbook/1", "handbook.pdf")
    assert (house.told(), house.board(), house.staged()) == ([], [], ["handbook/1"])
    house.age()
    done = house.tick()
    figures(done, pieces_emitted=1, rows_marked=1)
    assert (done["result"], done["pending_pre"], done["pending_post"]) == ("processed", 1, 0)
    [version] = house.ask("select id from unit_version")
    piece = {
        "unit_id": str(unit),
        "canonical_address": "handbook/1",
        "ref_id": str(version["id"]),
        "actor_ref": "ada",
        "source_document_ref": "handbook.pdf",
        "import_batch_ref": None,
    }
    assert house.log() == [("hub.new_piece_created", piece)], "what is carried, and no body"
    assert house.board() == [("new_piece_created", "update", "handbook/1", None, "ada", None)]
    assert house.ask("select unit_id, ref_id, source, payload from iu_notification_event") == [
        {"unit_id": unit, "ref_id": version["id"], "source": "worker", "payload": None}
    ]
    assert house.tick()["result"] == "idle"
    assert len(house.log()) == len(house.board()) == 1


def test_t2_three_of_one_document_are_told_as_the_document(house: Hub) -> None:
    units = [house.save(f"handbook/{number}", "handbook.pdf", f"batch-{number}") for number in (3, 1, 2)]
    house.age()
    figures(house.tick(), groups_emitted=1, rows_marked=3)
    [(kind, payload)] = house.log()
    assert kind == "hub.document_imported"
    event = DocumentImported.model_validate(payload)
    assert (event.key, event.piece_count, event.actor_ref) == ("handbook.pdf", 3, "ada")
    [version] = house.ask("select id from unit_version where unit_id = %s", units[0])
    assert (event.first_unit_id, event.first_address) == (units[0], "handbook/3"), "of the first that came"
    assert (event.first_ref_id, event.first_actor) == (version["id"], "ada")
    assert (event.source_document_ref, event.import_batch_ref) == ("handbook.pdf", None), "they agree on the one only"
    assert event.first_at < event.last_at
    assert "secret" not in json.dumps(payload)
    assert house.board() == [("document_imported", "update", "handbook/3", 3, "ada", None)]
    assert house.ask("select unit_id, ref_id, source, payload from iu_notification_event") == [
        {"unit_id": units[0], "ref_id": version["id"], "source": "worker", "payload": {"piece_count": 3}}
    ]
    [row] = house.ask("select aggregate_id, source, idempotency_key from outrider.outbox")
    assert (row["aggregate_id"], row["source"]) == ("handbook.pdf", "hub")
    assert re.fullmatch(r"hub\.imports:\d+", row["idempotency_key"])
    parts = house.ask(
        "select distinct event_id = (select id from outrider.outbox) as same from outrider.rollup_pending"
    )
    assert parts == [{"same": True}]


def test_t2_a_document_of_two_authors_is_told_as_the_first_ones(house: Hub) -> None:
    """actor_ref must not be null, and they do not agree on one. A batch groups what has no document."""
    house.save("wiki/1", batch="night", actor="zoe")
    house.save("wiki/2", batch="night", actor="bob")
    house.age()
    figures(house.tick(), groups_emitted=1, rows_marked=2)
    [(_, payload)] = house.log()
    assert (payload["key"], payload["first_actor"], "actor_ref" in payload) == ("night", "zoe", False)
    assert house.board("zoe") == [("document_imported", "update", "wiki/1", 2, "zoe", "implicit_self")]
    assert house.board("bob")[0][5] is None


def test_t3_three_documents_are_three_pieces(house: Hub) -> None:
    for name in ("a", "b", "c"):
        house.save(f"{name}/1", f"{name}.pdf")
    house.age()
    figures(house.tick(), pieces_emitted=3, rows_marked=3)
    assert house.told() == ["hub.new_piece_created"] * 3
    assert [row[2] for row in house.board()] == ["a/1", "b/1", "c/1"]


def test_t4_without_a_key_a_piece_stays_single(house: Hub) -> None:
    for number in (1, 2, 3):
        house.save(f"notes/{number}")
    house.save("notes/4", "")
    house.age()
    figures(house.tick(), pieces_emitted=4, rows_marked=4)
    assert house.told() == ["hub.new_piece_created"] * 4
    assert house.ask("select distinct aggregate_id from outrider.outbox") == [{"aggregate_id": None}]


def test_t5_what_the_creator_did_is_read_as_implicit_self(house: Hub) -> None:
    house.save("handbook/1", "handbook.pdf")
    house.save("handbook/2", "handbook.pdf")
    house.save("notes/1", actor="bob")
    house.age()
    house.tick()
    house.ask("select fn_iu_comment('notes/1', 'Why?', 'ada')")

    def read(actor: str) -> dict[str, str | None]:
        return {row[0]: row[5] for row in house.board(actor)}

    assert read("ada") == {
        "document_imported": "implicit_self",
        "new_piece_created": None,
        "comment_added": "implicit_self",
    }
    assert read("bob") == {
        "document_imported": None,
        "new_piece_created": "implicit_self",
        "comment_added": None,
    }
    house.ask("select fn_iu_mark_read(id, 'bob') from iu_notification_event where event_type = 'document_imported'")
    assert read("bob")["document_imported"] == "explicit"
    assert set(read("cleo").values()) == {None}


# What is told at once


@pytest.fixture
def settled(house: Hub) -> Hub:
    """With one unit, whose birth is told."""
    house.save("notes/1", "notes.txt")
    house.tick(flush=True)
    assert house.told() == ["hub.new_piece_created"]
    return house


def at_once(house: Hub, statement: str, *params: Any) -> Row:
    """What the statement tells, in its own transaction, and nothing of it is staged; if it rolls back, it told nothing."""
    before = (house.log(), house.board(), house.staged())
    with house.desk.transaction(force_rollback=True):
        house.desk.execute(statement.encode(), params)
        assert len(house.log()) == len(before[0]) + 1
    assert (house.log(), house.board(), house.staged()) == before
    house.desk.execute(statement.encode(), params)
    log, board = house.log(), house.board()
    assert (len(log), len(board), house.staged()) == (len(before[0]) + 1, len(before[1]) + 1, [])
    assert log[-1][0] == f"hub.{board[-1][0]}"
    assert board[-1][2:5] == ("notes/1", None, "bob")
    assert "secret" not in json.dumps(log[-1][1])
    assert house.tick()["result"] == "idle"
    [row] = house.ask("select ref_id, source from iu_notification_event order by id desc limit 1")
    assert (str(row["ref_id"]), row["source"]) == (log[-1][1]["ref_id"], "trigger")
    return {"type": board[-1][0], "stream": board[-1][1], **log[-1][1]}


def test_t6_a_comment_is_told_at_once(settled: Hub) -> None:
    said = at_once(settled, "select fn_iu_comment('notes/1', 'A secret.', 'bob')")
    assert (said["type"], said["stream"]) == ("comment_added", "comment")
    assert [str(row["id"]) for row in settled.ask("select id from unit_comment")] == [said["ref_id"]]
    with pytest.raises(psycopg.errors.NoDataFound, match="there is no unit at 'nowhere'"):
        settled.ask("select fn_iu_comment('nowhere', 'A secret.', 'bob')")


def test_t7_a_draft_is_told_at_once(settled: Hub) -> None:
    said = at_once(settled, "select fn_iu_draft('notes/1', 'A secret.', 'bob')")
    assert (said["type"], said["stream"]) == ("draft_created", "review")
    assert [str(row["id"]) for row in settled.ask("select id from unit_draft")] == [said["ref_id"]]
    assert settled.ask("select version_seq from unit_version") == [{"version_seq": 1}], "a draft is no version"


def test_t8_a_version_after_the_first_is_told_at_once(settled: Hub) -> None:
    saved = at_once(settled, "select fn_iu_save('notes/1', 'A secret.', 'bob', 'other.pdf')")
    assert (saved["type"], saved["stream"], saved["version_seq"]) == ("version_applied", "update", 2)
    draft = settled.ask("select fn_iu_draft('notes/1', 'A secret.', 'bob') as id")[0]["id"]
    applied = at_once(settled, "select fn_iu_apply_draft(%s, 'bob')", draft)
    assert (applied["type"], applied["version_seq"]) == ("version_applied", 3)
    with pytest.raises(psycopg.errors.NoDataFound, match="that waits"):
        settled.ask("select fn_iu_apply_draft(%s, 'bob')", draft)
    assert settled.ask("select source_document_ref from information_unit") == [{"source_document_ref": "notes.txt"}]
    [row] = settled.ask("select max(entity_version) as newest from outrider.outbox where aggregate_id = 'notes/1'")
    assert row["newest"] == 3


# The trigger

TOUCHED = """select relname, coalesce(idx_scan, 0) as idx_scan, coalesce(idx_tup_fetch, 0) as idx_tup_fetch,
                    coalesce(seq_scan, 0) as seq_scan, seq_tup_read, n_tup_ins, n_tup_upd, n_tup_del
             from pg_stat_xact_user_tables order by schemaname, relname"""
BIRTH = "insert into unit_version (unit_id, version_seq, body, created_by) values (%s, 1, 'A secret body.', 'ada')"


def touched_by_a_birth(house: Hub, address: str) -> dict[str, Row]:
    """What the first version of a unit reads and writes, table by table, and what Postgres does for it."""
    [unit] = house.ask(
        "insert into information_unit (canonical_address, created_by) values (%s, 'ada') returning id", address
    )
    with house.desk.transaction():
        before = house.ask(TOUCHED)
        house.desk.execute(BIRTH.encode(), [unit["id"]])
        after = house.ask(TOUCHED)
    changes = {
        new.pop("relname"): {name: count - old[name] for name, count in new.items() if count != old[name]}
        for old, new in zip(before, after, strict=True)
    }
    return {table: change for table, change in changes.items() if change}


def test_t9_a_birth_costs_one_insert_and_one_look_up(house: Hub) -> None:
    """By the primary key of the unit, behind any backlog. A version after the first costs nothing."""
    backlog = """insert into outrider.rollup_pending (rollup, group_key, carried)
                 select 'hub.imports', 'big.pdf', jsonb_build_object('canonical_address', 'big/' || n, 'actor_ref', 'ada',
                            'unit_id', gen_random_uuid(), 'ref_id', gen_random_uuid())
                 from generate_series(1, %s) as n"""
    many_units = """insert into information_unit (canonical_address, created_by)
                    select 'unit/' || n, 'ada' from generate_series(1, 2000) as n"""
    house.desk.execute(many_units)
    house.desk.execute("analyze information_unit")
    touched_by_a_birth(house, "first")  # this session has planned its statements
    costs = []
    for rows in (10, 20_000):
        house.desk.execute(backlog.encode(), [rows])
        house.desk.execute("analyze outrider.rollup_pending")
        costs.append(touched_by_a_birth(house, f"behind {rows}"))
    house.desk.execute("alter table unit_version disable trigger outrider_rollup_hub_imports")
    without = touched_by_a_birth(house, "without")
    house.desk.execute("alter table unit_version enable trigger outrider_rollup_hub_imports")
    for touched in costs:
        assert touched.pop("rollup_pending") == {"n_tup_ins": 1}
        found = {name: count - without["information_unit"][name] for name, count in touched["information_unit"].items()}
        assert found == {"idx_scan": 1, "idx_tup_fetch": 1}, "beside the foreign key"
        assert {name: change for name, change in touched.items() if name != "information_unit"} == {
            name: change for name, change in without.items() if name != "information_unit"
        }
    [trigger] = house.ask("select trigger from outrider.rollup")
    assert "AFTER INSERT ON public.unit_version FOR EACH ROW WHEN ((new.version_seq = 1))" in trigger["trigger"]
    [function] = house.ask("select prosrc from pg_proc where proname = 'rollup_stage_hub_imports'")
    assert len(re.findall(r"\b(select|insert|update|delete|perform|execute|loop)\b", function["prosrc"])) == 2
    [function] = house.ask(
        """select prosecdef, proconfig, has_function_privilege('public', oid, 'execute') as open
           from pg_proc where proname = 'rollup_stage_hub_imports'"""
    )
    assert function.pop("proconfig")[0] == "search_path=pg_catalog, pg_temp"
    assert function == {"prosecdef": True, "open": False}


# Ticks


def test_t10_of_two_ticks_at_once_the_second_is_skipped(house: Hub) -> None:
    house.save("handbook/1", "handbook.pdf")
    house.save("handbook/2", "handbook.pdf")
    house.age()
    house.desk.execute("set lock_timeout = '20s'")
    with psycopg.connect(house.dsn) as first:
        [done] = first.execute("select outrider.rollup_tick('hub.imports')").fetchall()
        assert (done[0]["result"], done[0]["groups_emitted"]) == ("processed", 1)
        assert house.tick() == {"result": "skipped", "reason": "lock_held"}
        assert house.told() == []
        house.save("notes/1")
        assert house.staged() == ["handbook/1", "handbook/2", "notes/1"], "nobody waits for a tick"
        first.commit()
        assert house.told() == ["hub.document_imported"]
        assert house.tick()["result"] == "idle", "what the first held is free"
    assert house.staged() == ["notes/1"]


def test_t10_a_birth_that_commits_late_holds_nobody_up_and_is_told(house: Hub) -> None:
    house.save("early/1")
    with psycopg.connect(house.dsn) as late:
        late.execute("select fn_iu_save('late/1', 'A secret body.', 'bob')")
        house.save("early/2")
        done = house.tick(flush=True)
        assert (done["result"], done.get("pieces_emitted")) == ("processed", 2)
        late.commit()
    assert house.staged() == ["late/1"]
    house.age()
    assert house.tick()["pieces_emitted"] == 1
    assert [row[2] for row in house.board()] == ["early/1", "early/2", "late/1"]


def test_t11_what_is_too_recent_waits(house: Hub) -> None:
    house.save("handbook/1", "handbook.pdf")
    house.age("50 seconds")  # of 90
    done = house.tick()
    figures(done)
    assert (done["result"], done["pending_pre"], done["pending_post"]) == ("idle", 1, 1)
    house.age("5 minutes")
    house.save("handbook/2", "handbook.pdf")
    assert house.tick()["result"] == "idle", "the newest of the group is too recent"
    house.save("other/1", "other.pdf")
    house.age("5 minutes", canonical_address="other/1")
    figures(house.tick(), pieces_emitted=1, rows_marked=1)
    assert house.staged() == ["handbook/1", "handbook/2"], "a group does not wait for another"
    house.age("5 minutes", canonical_address="handbook/1")
    figures(house.tick(), groups_emitted=1, rows_marked=2)
    assert house.board()[-1][2:4] == ("handbook/1", 2), "the longest wait was over"


def test_t13_a_corrupt_row_is_set_aside_and_the_others_go_on(house: Hub) -> None:
    for number in (1, 2, 3):
        house.save(f"handbook/{number}", "handbook.pdf")
    house.save("notes/1")
    house.save("notes/2")
    house.age()
    corrupt = (
        "update outrider.rollup_pending set carried = {} where carried ->> 'canonical_address' = %s returning id, {}"
    )
    torn = house.ask(corrupt.format("'\"torn\"'", "1"), "handbook/2")[0]["id"]
    nameless = house.ask(corrupt.format("carried - 'actor_ref'", "2"), "notes/1")[0]["id"]
    with psycopg.connect(house.dsn, autocommit=True) as other:
        [[done]] = other.execute("select outrider.rollup_tick('hub.imports')").fetchall()
        assert house.tick()["result"] == "idle", "the lock is free while that session lives on"
    assert {name: done[name] for name in NOTHING} == NOTHING | {
        "groups_emitted": 1,
        "pieces_emitted": 1,
        "rows_marked": 3,
        "set_aside": 2,
    }
    assert (done["result"], done["pending_pre"], done["pending_post"], done["error_count"]) == ("processed", 5, 0, 1)
    assert [row[2:4] for row in house.board()] == [("handbook/1", 2), ("notes/2", None)]
    [logged] = house.ask("select * from outrider.rollup_log where set_aside > 0")
    assert (logged["set_aside"], logged["error_text"]) == (2, done["error_text"])
    aside = {
        row["id"]: row["error"]
        for row in house.ask("select id, error from outrider.rollup_pending where set_aside_at is not null")
    }
    assert set(aside) == {torn, nameless}
    assert "no JSON object" in aside[torn]
    assert "23502" in aside[nameless], "what the hub's own table refused"
    assert aside[nameless] in done["error_text"] or aside[torn] in done["error_text"]

    house.ask(
        """update outrider.rollup_pending set carried = %s || jsonb_build_object('ref_id', gen_random_uuid())
           where set_aside_at is not null returning id""",
        Jsonb({"canonical_address": "repaired", "unit_id": str(house.save("other")), "actor_ref": "ada"}),
    )
    assert house.ask("select outrider.rollup_retry('hub.imports') as rows") == [{"rows": 2}]
    figures(house.tick(), pieces_emitted=2, rows_marked=2)
    assert [row[2] for row in house.board()[2:]] == ["repaired", "repaired"]


def test_a_notification_that_is_there_already_is_counted(house: Hub) -> None:
    house.save("notes/1")
    house.save("notes/2")
    house.ask(
        """insert into iu_notification_event (
               event_type, event_stream, unit_id, canonical_address, ref_id, actor_ref, source)
           select 'new_piece_created', 'update', v.unit_id, 'by hand', v.id, 'ada', 'hand' from unit_version as v
           join information_unit as u on u.id = v.unit_id and u.canonical_address = 'notes/1' returning id"""
    )
    house.age()
    figures(house.tick(), pieces_emitted=2, rows_marked=2, conflicts_skipped=1)
    assert [row[2] for row in house.board()] == ["by hand", "notes/2"]
    assert len(house.log()) == 2, "the log has both"


# Around it

EVERYTHING = """
select 'trigger', tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
union all select 'function', oid::regprocedure::text, md5(prosrc) from pg_proc
          where pronamespace in ('outrider'::regnamespace, 'public'::regnamespace)
union all select 'constraint', conname, pg_get_constraintdef(oid) from pg_constraint
          where conrelid = 'iu_notification_event'::regclass
union all select 'rollup', name, rollup::text from outrider.rollup
union all select 'staged', id::text, rollup_pending::text from outrider.rollup_pending
union all select 'setting', name, setting::text from outrider.setting
order by 1, 2, 3
"""


STEPS = (
    "drop trigger",
    "rollup_stage_",
    "rollup_note_",
    "chk_notif_event_type_stream",
    "chk_notif_event_type",
    "rollup_pending",
)
"""In each command of the plan is one of these, the first that is."""


def plan(house: Hub, *, force: bool = False) -> dict[str, str]:
    """What uninstalling would do, or keep; what it keeps has a reason."""
    steps = house.ask("select * from outrider.rollup_plan('hub.imports', %s) order by step", force)
    assert [bool(row["why"]) for row in steps] == [row["action"] == "keep" for row in steps]
    found = {next(part for part in STEPS if part in row["command"]): row["action"] for row in steps}
    assert len(found) == len(steps)
    assert (next(iter(found)), list(found)[-1]) == (STEPS[0], STEPS[-1]), "nothing is staged while the rest goes"
    return found


def test_t12_the_rollback_plan_is_verified_and_not_executed(house: Hub) -> None:
    everything = dict.fromkeys(STEPS, "do")
    before = house.ask(EVERYTHING)
    assert plan(house) == everything, "nothing was told yet: all goes back"

    house.save("handbook/1", "handbook.pdf")
    house.save("handbook/2", "handbook.pdf")
    checks = {"chk_notif_event_type_stream": "keep", "chk_notif_event_type": "keep"}
    assert plan(house) == everything | checks | {"rollup_note_": "keep", "rollup_pending": "keep"}, "two rows wait"
    assert plan(house, force=True) == everything

    house.tick(flush=True)
    assert plan(house) == everything | checks, "the board has a row that they would refuse"
    assert plan(house, force=True) == everything | checks, "whoever says so"

    house.ask("delete from iu_notification_event returning id")
    house.ask("delete from outrider.rollup_pending returning id")
    house.ask("update outrider.rollup set ticked_at = null returning name")
    assert house.ask(EVERYTHING) == before, "no plan has changed anything"
    with house.desk.transaction(force_rollback=True):
        for step in house.ask(
            "select command from outrider.rollup_plan('hub.imports') where action = 'do' order by step"
        ):
            house.desk.execute(step["command"].encode())
        house.save("handbook/3")
        assert house.ask("select from outrider.rollup_pending") == [], "each of its commands is one that works"
        with pytest.raises(psycopg.errors.CheckViolation), house.desk.transaction():
            house.ask(
                """insert into iu_notification_event (
                       event_type, event_stream, unit_id, canonical_address, ref_id, actor_ref, source)
                   select 'document_imported', 'update', id, canonical_address, id, 'ada', 'hand' from information_unit
                   returning id"""
            )
    assert house.ask(EVERYTHING) == before
    house.save("handbook/4")
    assert house.staged() == ["handbook/4"], "it works on"


def psql(dsn: str, *arguments: str) -> list[str]:
    """By somebody who has no Python."""
    command = [str(Embedded().bin / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--tuples-only"]
    ran = subprocess.run(
        [*command, "--no-align", "--dbname", dsn, *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_t14_callers_that_pass_no_reference_still_work(database: str) -> None:
    """Before the rollup is there, and after; from psql alone."""
    psql(database, "--file", str(EXAMPLE / "hub.sql"))
    by_place, by_name = (
        "select version from fn_iu_save('{}', 'body', 'ada')",
        "select version from fn_iu_save(p_actor => 'bob', p_body => 'body', p_canonical_address => '{}')",
    )
    assert psql(database, "--command", by_place.format("old/1")) == ["1"]
    assert psql(database, "--command", by_name.format("old/1")) == ["2"]
    [declared] = app.rollups
    spec = json.dumps(declared.spec()).replace("'", "''")
    psql(database, "--command", f"select outrider.rollup_install('{spec}')")
    staged = (
        "select carried ->> 'canonical_address' from outrider.rollup_pending where processed_at is null order by id"
    )
    assert psql(database, "--command", staged) == [], "what was there before is not staged"
    assert psql(database, "--command", by_place.format("new/1")) == ["1"]
    assert psql(database, "--command", by_name.format("new/2")) == ["1"]
    assert psql(database, "--command", by_name.format("old/1")) == ["3"]
    assert psql(database, "--command", staged) == ["new/1", "new/2"]
    psql(database, "--command", "select outrider.rollup_tick('hub.imports', true)")
    told = "select event_type, canonical_address, actor_ref from fn_iu_notification_board('cleo')"
    assert psql(database, "--command", told) == [
        "version_applied|old/1|bob",
        "version_applied|old/1|bob",
        "new_piece_created|new/1|ada",
        "new_piece_created|new/2|bob",
    ]
    assert psql(database, "--command", staged) == []


def test_installing_twice_changes_nothing(house: Hub) -> None:
    house.save("handbook/1", "handbook.pdf")
    before = house.ask(EVERYTHING)
    install(house)
    installed = {"rollup"}  # says when
    assert [row for row in house.ask(EVERYTHING) if row["?column?"] not in installed] == [
        row for row in before if row["?column?"] not in installed
    ]
    house.save("handbook/2", "handbook.pdf")
    assert house.staged() == ["handbook/1", "handbook/2"]
    failed = house.ask("select topic, detail from outrider.rollup_verify('hub.imports') where not passed")
    assert failed == []


def test_preflight_before_and_verify_after(database: str) -> None:
    place = Hub(database)
    try:
        place.desk.execute(hub.TABLES.encode())
        [declared] = app.rollups
        checks = {
            row["topic"]: row
            for row in place.ask("select * from outrider.rollup_preflight(%s)", Jsonb(declared.spec()))
        }
        assert {topic for topic, row in checks.items() if not row["passed"]} == set()
        assert checks["trigger"]["value"] == checks["staging"]["value"] == "ABSENT"
        assert (checks["stable key"]["value"], "fn_iu_save" in checks["stable key"]["detail"]) == ("BEFORE", True)
        assert checks["other triggers"]["detail"] == "1 others, left alone", "it tells of later versions"
        assert checks["trigger cost"]["detail"] == "one insert, 1 look-ups by a unique key"
        install(place)
        assert [
            row for row in place.ask("select * from outrider.rollup_verify('hub.imports')") if not row["passed"]
        ] == []
        place.ask("select outrider.rollup_uninstall('hub.imports')")
        place.desk.execute("alter table iu_notification_event rename constraint chk_notif_event_type to other")
        with pytest.raises(
            psycopg.DatabaseError, match="iu_notification_event has no CHECK constraint chk_notif_event_type "
        ):
            install(place)
        assert place.ask("select from outrider.rollup") == []
    finally:
        place.desk.close()


async def test_a_handler_gets_the_typed_event(house: Hub) -> None:
    seen: list[DocumentImported] = []
    reader = Outrider(context="reader", dsn=house.dsn)

    @reader.handler(DocumentImported, name="reader.see")
    async def see(event: DocumentImported, ctx: HandlerContext) -> None:
        seen.append(event)

    before = app.settings
    app.relocate(Settings.load(context="hub", dsn=house.dsn))
    try:
        async with app, reader:
            await app.migrate()
            await reader.migrate()
            for number in (1, 2, 3):
                house.save(f"handbook/{number}", "handbook.pdf")
            house.age()
            done = await app.tick(hub.NAME)
            assert (done.result, done.groups_emitted, done.rows_marked) == ("processed", 1, 3)
            for actor in ("bob", "ada"):
                house.save(f"handbook/of {actor}", "handbook.pdf", actor=actor)
            await app.tick(hub.NAME, flush=True)
            await app.drain(raise_on_failure=True)
            await reader.drain(raise_on_failure=True)
    finally:
        app.relocate(before)
    assert [(type(event), event.key, event.piece_count, event.first_actor, event.actor_ref) for event in seen] == [
        (DocumentImported, "handbook.pdf", 3, "ada", "ada"),
        (DocumentImported, "handbook.pdf", 2, "bob", None),
    ]
    assert seen[0].first_at.tzinfo is not None
    assert house.ask("select document_ref, pieces, first_actor from imported_document") == [
        {"document_ref": "handbook.pdf", "pieces": 5, "first_actor": "ada"}
    ]


def test_it_runs_again_and_its_readme_is_true(database: str) -> None:
    readme = (EXAMPLE / "README.md").read_text()
    shown = "".join(re.findall(r"^```\n(\d\..*?)^```", readme, re.DOTALL | re.MULTILINE)).splitlines()
    assert len(shown) > 20
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-m", "examples.knowledge_hub", database],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert sorted(ran.stdout.splitlines()) == sorted(shown)  # constraints may go back in either order
