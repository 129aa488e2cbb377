"""`outrider rollup`: the lines of a preflight, what install and uninstall change and say, and that nothing waits in vain."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.postgres.roles.house import before

from outrider.postgres.statement import statement

TABLES = """
create table piece (id bigint generated always as identity primary key, document text, body text);
create table note (kind text constraint note_kind check (kind in ('comment')), subject text, said text unique);
"""
APP = """
from datetime import datetime
from outrider import Event, Outrider
from outrider.rollup import Check, Column, Notification

class Born(Event, type="clihub.born"):
    id: int

class Imported(Event, type="clihub.imported", key="key"):
    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime

app = Outrider(context="{context}")
"""
ROLLUP = """
app.rollup("{name}", table="piece", key=["document"], carry=["id"], single=Born, rollup=Imported, {more})
"""
NOTIFY = """columns=[Column("piece", "batch", "text")],
    checks=[Check("note", "note_kind", "kind in ('comment', 'born', 'imported')")],
    notify=Notification("note", {"kind": "split_part(event_type, '.', 2)", "subject": "key", "said": "idempotency_key"})"""
NEW = """
revoke all on outrider.rollup, outrider.rollup_pending, outrider.rollup_log from app;
revoke all on function outrider.rollup_tick, outrider.rollup_settings from app;
"""
HOSTILE = "\x1b[2J\u202e[bold]x[/]\nfake"
CATALOGUE = """
select 'column', attrelid::regclass::text, attname::text from pg_attribute where attnum > 0 and not attisdropped
union all select 'trigger', tgname, tgenabled::text from pg_trigger
union all select 'function', oid::regprocedure::text, md5(prosrc) from pg_proc
union all select 'constraint', conname, pg_get_constraintdef(oid) from pg_constraint
union all select 'rollup', name, to_jsonb(r)::text from outrider.rollup as r
union all select 'row', id::text, to_jsonb(p)::text from outrider.rollup_pending as p
union all select 'setting', name, to_jsonb(s)::text from outrider.setting as s
order by 1, 2, 3
"""


class Desk:
    """An operator of the hub."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str, folder: Path) -> None:
        self.conn = conn
        self.dsn = dsn
        self.folder = folder
        self.declare()

    def declare(self, *names: str, more: str = "", context: str = "hub") -> None:
        texts = [ROLLUP.replace("{name}", name).replace("{more}", more) for name in names or ["hub.imports"]]
        (self.folder / "hub.py").write_text("".join([APP.replace("{context}", context), *texts]))

    def rollup(self, *arguments: str, app: bool = False) -> subprocess.CompletedProcess[str]:
        return inprocess.run(self.folder, "rollup", *arguments, "--dsn", self.dsn, *(["--app", "hub:app"] * app))

    def said(self, *arguments: str, app: bool = False, code: int = 0) -> str:
        done = self.rollup(*arguments, app=app)
        assert (done.returncode, done.stderr) == (code, ""), done
        return done.stdout

    def json(self, *arguments: str, app: bool = False, code: int = 0) -> Any:
        done = self.rollup(*arguments, "--json", app=app)
        assert done.returncode == code, done
        return json.loads(done.stdout)

    def refused(self, *arguments: str, app: bool = False) -> str:
        """One sentence, and nothing has changed."""
        before = self.catalogue()
        done = self.rollup(*arguments, app=app)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
        assert self.catalogue() == before
        return done.stderr

    def sql(self, *arguments: str, app: bool = False) -> str:
        """What --sql prints; printing it changes nothing."""
        before = self.catalogue()
        said = self.said(*arguments, "--sql", app=app)
        assert self.catalogue() == before
        return said

    def execute(self, text: str) -> list[Any]:
        """As psql would; the rows of the last statement that has some."""
        cursor = self.conn.execute(text.encode())
        rows: list[Any] = []
        while True:
            rows = cursor.fetchall() if cursor.description else rows
            if not cursor.nextset():
                return rows

    def catalogue(self) -> list[Any]:
        return self.conn.execute(CATALOGUE).fetchall()

    def insert(self, *documents: str | None) -> None:
        for each in documents:
            self.conn.execute("insert into piece (document) values (%s)", [each])

    def pass_time(self) -> None:
        self.conn.execute("update outrider.rollup_pending set staged_at = staged_at - interval '5 minutes'")

    def events(self) -> list[Any]:
        query = (
            "select event_type, payload ->> 'key', (payload ->> 'piece_count')::int from outrider.outbox order by seq"
        )
        return self.conn.execute(query).fetchall()


@pytest.fixture
def desk(database: str, tmp_path: Path) -> Iterator[Desk]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
        yield Desk(conn, database, tmp_path)


@contextmanager
def role(owner: psycopg.Connection[Any], *, inherits: bool) -> Iterator[str]:
    """With the rights that an application had, or without those for rollups; then what a migration gives to such a role."""
    name = f"role_{owner.info.dbname}"
    owner.execute(f"create role {name} login".encode())
    try:
        owner.execute(re.sub(r"\bapp\b", name, before("app") + NEW * inherits).encode())
        owner.execute(statement("schema/inherit_grants", "outrider"))
        yield name
    finally:
        owner.execute(f"drop owned by {name}; drop role {name}".encode())


def lines(said: str) -> dict[str, list[str]]:
    """By topic: the verdict, the value and the detail."""
    found = re.findall(r"^(PASS|FAIL)  (\S+(?: \S+)*) {2,}(\S+) +(.*)$", said, re.MULTILINE)
    return {topic: [verdict, value, detail] for verdict, topic, value, detail in found}


def test_from_preflight_to_verify(desk: Desk) -> None:
    before = desk.catalogue()
    said = desk.said("preflight", app=True)
    assert desk.catalogue() == before
    found = lines(said)
    assert found["source"] == ["PASS", "TABLE", "public.piece"]
    assert found["trigger"][:2] == ["PASS", "ABSENT"]
    assert found["stable key"][:2] == ["FAIL", "UNKNOWN"], "worth knowing"
    assert "blocks" not in said
    assert said.endswith("hub.imports can be installed\n")
    told = desk.json("preflight", "hub.imports", app=True)
    assert told["passed"]
    assert [each["topic"] for each in told["findings"]] == list(found)

    said = desk.said("install", app=True)
    assert (
        [each for each, (verdict, *_) in lines(said).items() if verdict == "FAIL"]
        == list(lines(said))
        == ["stable key"]
    )
    assert "\nhub.imports is installed; the workers of hub tick it, every 2 min\n" in said
    assert '\n  create or replace function "outrider".rollup_stage_hub_imports() returns trigger' in said
    assert "\n  create or replace trigger outrider_rollup_hub_imports after insert on public.piece" in said

    before = desk.catalogue()
    again = desk.said("install", app=True)
    assert "nothing was changed: hub.imports is installed as it is declared; the workers of hub tick it" in again
    told = desk.json("install", app=True)
    assert (told["installed"], told["changed"], told["commands"], told["scheduler"]) == (True, False, [], "worker")
    assert desk.catalogue() == before

    desk.conn.execute("alter table piece alter document set not null")
    assert desk.said("verify", "hub.imports").endswith("hub.imports: all is well\n")
    assert "declared" not in lines(desk.said("verify", "hub.imports"))
    assert lines(desk.said("verify", "hub.imports", app=True))["declared"][:2] == ["PASS", "EQUAL"]
    desk.declare(more="debounce=120, every='10m'")
    assert lines(desk.said("verify", "hub.imports", app=True, code=1))["declared"] == [
        "FAIL",
        "CHANGED",
        "declared and installed differ in debounce, every: outrider rollup install hub.imports",
    ]
    assert "tick it, every 10 min" in desk.said("install", app=True)
    desk.declare("hub.other")
    assert lines(desk.said("verify", "hub.imports", app=True, code=1))["declared"][1] == "ABSENT"
    desk.declare("hub.other", context="elsewhere")
    assert "declared" not in lines(desk.said("verify", "hub.imports", app=True)), (
        "another team's app knows nothing of it"
    )
    told = desk.json("verify", "hub.imports", app=True)
    assert told["passed"]


@pytest.mark.verify
def test_install_repairs_what_is_broken(desk: Desk) -> None:
    desk.declare(more='columns=[Column("piece", "batch", "text")]')
    assert "\n  alter table public.piece add column batch text\n" in desk.said("install", app=True)
    for broken in (
        "alter table piece disable trigger outrider_rollup_hub_imports",
        "drop trigger outrider_rollup_hub_imports on piece",
        "grant execute on function outrider.rollup_stage_hub_imports to public",
        "alter table piece drop column batch",
        "create trigger another before update on piece for each row execute function suppress_redundant_updates_trigger()",
    ):
        desk.conn.execute(broken)
        assert "hub.imports is installed; the workers" in desk.said("install", app=True), broken
        assert "nothing was changed" in desk.said("install", app=True), broken
    desk.insert("a")
    assert desk.conn.execute("select group_key from outrider.rollup_pending").fetchall() == [("a",)]


def test_what_blocks_is_marked_and_refused(desk: Desk) -> None:
    desk.declare(more="""when="new.colour = 'red'" """)
    said = desk.said("preflight", app=True, code=1)
    assert lines(said)["expressions"][:2] == ["FAIL", "INVALID"]
    assert lines(said)["expressions"][2].startswith("blocks: column new.colour does not exist")
    assert said.endswith("hub.imports cannot be installed: expressions\n")
    assert not lines(said)["stable key"][2].startswith("blocks")
    refused = desk.refused("install", app=True)
    assert refused == "outrider: nothing was changed: hub.imports cannot be installed: expressions\n"
    told = desk.json("install", app=True, code=1)
    assert (told["installed"], told["changed"], told["scheduler"]) == (False, False, None)
    assert not desk.json("preflight", app=True, code=1)["passed"]


@pytest.mark.verify
def test_which_rollup(desk: Desk) -> None:
    assert "no app" in desk.refused("preflight")
    desk.declare("hub.imports", "hub.others")
    for verb in ("preflight", "install"):
        assert "name one; it declares: hub.imports, hub.others" in desk.refused(verb, app=True)
        assert "'hub.no' is no rollup of the app; it declares: hub.imports" in desk.refused(verb, "hub.no", app=True)
    (desk.folder / "hub.py").write_text(APP.replace("{context}", "hub"))
    assert "the app declares no rollup" in desk.refused("install", app=True)
    for verb in ("verify", "run", "uninstall"):
        assert "there is no rollup 'hub.imports'" in desk.refused(verb, "hub.imports")
    assert desk.said("status") == "no rollups\n"
    assert "there is no rollup 'hub.imports'; there are: none" in desk.refused("status", "hub.imports")
    assert desk.rollup("status", "--json", "--sql").returncode == 2


def test_a_tick(desk: Desk) -> None:
    desk.declare(more=NOTIFY)
    desk.said("install", app=True)
    desk.insert("a", "a", "a", "b", None)
    assert re.fullmatch(r"hub\.imports: idle: nothing is due, 5 rows wait; \d+ ms\n", desk.said("run", "hub.imports"))
    with psycopg.connect(desk.dsn) as other:
        other.execute("select outrider.rollup_tick('hub.imports')")
        said = desk.said("run", "hub.imports", "--flush")
        assert said == "hub.imports: skipped: another tick runs; nothing was done\n"
        assert desk.json("run", "hub.imports")["result"] == "skipped"
    desk.pass_time()
    desk.insert("c")
    assert re.fullmatch(
        r"hub\.imports: processed: 1 rollup event and 2 single events of 5 rows, 0 set aside, 1 left waiting; \d+ ms\n",
        desk.said("run", "hub.imports"),
    )
    assert desk.events() == [("clihub.imported", "a", 3), ("clihub.born", None, None), ("clihub.born", None, None)]
    told = desk.json("run", "hub.imports", "--flush")
    assert (told["result"], told["pieces_emitted"], told["pending_post"], told["retried"]) == ("processed", 1, 0, None)

    desk.conn.execute("alter table note rename to elsewhere")
    desk.insert("d")
    said = desk.said("run", "hub.imports", "--flush", code=1)
    assert re.match(r"hub\.imports: error: nothing was emitted, 1 row waits on; \d+ ms\n  42P01: ", said)
    assert desk.json("run", "hub.imports", "--flush", code=1)["result"] == "error"
    assert "last run    error 2" in desk.said("status")
    desk.conn.execute("alter table elsewhere rename to note")
    assert "1 single event of 1 row" in desk.said("run", "hub.imports", "--flush")


def test_what_is_set_aside_is_shown_and_tried_again(desk: Desk) -> None:
    desk.declare(more=NOTIFY)
    desk.said("install", app=True)
    desk.conn.execute("alter table note add constraint no_x check (subject <> 'x')")
    desk.insert("a", "a", "x")
    assert "0 single events of 2 rows, 1 set aside, 0 left waiting" in desk.said("run", "hub.imports", "--flush")
    said = desk.said("status")
    assert "  set aside   1; to retry: outrider rollup run hub.imports --retry\n" in said
    assert re.search(r"^    3 \(key x, 2.*\): 23514: .*no_x", said, re.MULTILINE)
    [told] = desk.json("status", "hub.imports")["rollups"]
    assert ([each["id"] for each in told["newest_set_aside"]], told["set_aside"]) == ([3], 1)
    desk.conn.execute("alter table note drop constraint no_x")
    said = desk.said("run", "hub.imports", "--retry", "--flush")
    assert said.startswith("hub.imports: of what was set aside 1 row waits again\nhub.imports: processed: 0 rollup")
    assert desk.json("run", "hub.imports", "--retry")["retried"] == 0


def test_the_status(desk: Desk) -> None:
    desk.said("install", app=True)
    said = desk.said("status", "hub.imports")
    assert said.startswith("hub.imports on public.piece, installed 2")
    assert "\n  who         the workers of hub tick it, every 2 min; last not yet\n  waiting     0\n" in said
    assert "\n  settings    debounce 90 s, threshold 2, longest wait 10 min\n" in said
    assert said.endswith("\n  last run    none that found something to do\n")
    desk.insert("a", "a")
    desk.pass_time()
    assert "  waiting     2, the oldest for 5 min\n" in desk.said("status")
    desk.said("run", "hub.imports")
    desk.said("run", "hub.imports")
    said = desk.said("status")
    assert re.search(r"last run    processed 2.*: 1 rollup event and 0 single events of 2 rows, 0 set", said), said
    [told] = desk.json("status")["rollups"]
    assert (told["every"], told["debounce"], told["max_wait"], told["source"]) == (120.0, 90.0, 600.0, "public.piece")
    assert told["last_run"]["groups_emitted"] == 1


def test_of_events(desk: Desk) -> None:
    text = (
        ROLLUP.replace("{name}", "hub.imports")
        .replace('table="piece"', "events=[Touched, Moved]")
        .replace("{more}", "")
    )
    classes = "".join(
        f'class {each}(Event, type="clihub.{each.lower()}"):\n    id: int\n\n' for each in ("Touched", "Moved")
    )
    (desk.folder / "hub.py").write_text(APP.replace("{context}", "hub") + classes + text)
    assert lines(desk.said("preflight", app=True))["source"][:2] == ["PASS", "EVENTS"]
    assert "hub.imports is installed" in desk.said("install", app=True)
    assert "nothing was changed" in desk.said("install", app=True)
    assert desk.said("status").startswith("hub.imports on clihub.moved, clihub.touched, installed ")
    assert lines(desk.said("verify", "hub.imports", app=True))["declared"][0] == "PASS"
    said = desk.said("uninstall", "hub.imports", "--yes")
    assert (
        "retire the subscription hub.imports: stays: take it out of the app, then outrider subscription retire" in said
    )
    assert desk.said("status") == "no rollups\n"


def test_nothing_that_is_stored_is_obeyed_by_the_terminal(desk: Desk) -> None:
    desk.said("install", app=True)
    desk.conn.execute(
        """insert into outrider.rollup_pending (rollup, group_key, carried, set_aside_at, error)
           values ('hub.imports', %(text)s, '{}', now(), %(text)s)""",
        {"text": HOSTILE},
    )
    desk.conn.execute("update outrider.setting set entered = %s where name ~ 'debounce'", [HOSTILE])
    desk.conn.execute(
        """insert into outrider.rollup_log (rollup, result, pending_pre, pending_post, duration_ms, error_text)
           values ('hub.imports', 'error', 0, 0, 0, %s)""",
        [HOSTILE],
    )
    shown = r"\x1b[2J\u202e[bold]x[/]"
    everything = [
        desk.said("status"),
        desk.said("preflight", app=True),
        desk.said("verify", "hub.imports", code=1),
        desk.said("run", "hub.imports", "--flush"),
        inprocess.run(desk.folder, "status", "--dsn", desk.dsn).stdout,
    ]
    for said in everything:
        assert not {"\x1b", "\u202e"} & set(said)
        assert "\nfake" not in said
    assert everything[0].count(shown) == 4
    assert all(shown in said for said in everything[:4])


@pytest.mark.verify
def test_uninstall(desk: Desk) -> None:
    before = desk.conn.execute(
        "select pg_get_constraintdef(oid) from pg_constraint where conname = 'note_kind'"
    ).fetchall()
    desk.declare(more=NOTIFY)
    desk.said("install", app=True)
    desk.insert("a", "a")
    installed = desk.catalogue()
    said = desk.said("uninstall", "hub.imports", "--dry-run")
    assert "1. drop the trigger on public.piece\n   drop trigger outrider_rollup_hub_imports on public.piece\n" in said
    assert "drop the function outrider.rollup_note_hub_imports(bigint[]): stays: the rows that wait need it\n" in said
    assert "delete its rows: 2 wait: stays: outrider rollup run hub.imports --flush emits what waits" in said
    assert said.endswith("all objects of the plan exist; nothing was changed (dry run)\n")
    told = desk.json("uninstall", "hub.imports", "--dry-run")
    assert (told["dry_run"], told["uninstalled"], told["missing"]) == (True, False, [])
    assert desk.catalogue() == installed
    refused = desk.refused("uninstall", "hub.imports", "--force")
    assert "nothing was changed: there is no terminal to ask at" in refused
    assert "Remove hub.imports and delete its rows: 2 wait?" in refused

    said = desk.said("uninstall", "hub.imports", "--yes")
    assert re.search(r"\nhub\.imports is removed; \d of \d steps were skipped \(see above\)\n$", said)
    desk.insert("a")
    status = desk.said("status")
    assert "uninstalled 2" in status
    assert "waiting     2," in status, "its trigger is gone, what waited is there"
    assert lines(desk.said("verify", "hub.imports", code=1))["installed"][1] == "UNINSTALLED"
    assert "1 rollup event and 0 single events of 2 rows" in desk.said("run", "hub.imports", "--flush")
    desk.conn.execute("delete from note")
    told = desk.json("uninstall", "hub.imports", "--yes")
    kept = [each["why"] for each in told["steps"] if each["action"] == "keep"]
    assert (told["uninstalled"], kept) == (True, ["it is gone already"])
    assert desk.said("status") == "no rollups\n"
    query = "select pg_get_constraintdef(oid) from pg_constraint where conname = 'note_kind'"
    assert desk.conn.execute(query).fetchall() == before
    assert desk.events() == [("clihub.imported", "a", 2)], "events stay"

    desk.said("install", app=True)
    desk.insert("a", "a")
    assert "hub.imports is removed\n" in desk.said("uninstall", "hub.imports", "--yes", "--force")
    assert desk.conn.execute("select from outrider.rollup_pending").rowcount == 0


def test_a_plan_that_could_not_be_carried_out_is_noticed(desk: Desk) -> None:
    desk.said("install", app=True)
    for command in (
        "drop function outrider.rollup_stage_hub_nothing()",
        "drop trigger outrider_rollup_hub_nothing on public.piece",
        "alter table public.nothing drop column batch",
    ):
        desk.conn.execute(
            f"""create or replace function outrider.rollup_plan(p_name text, p_force boolean default false)
                returns table (step integer, action text, what text, command text, why text) language sql stable
                as $$select 7, 'do', 'the impossible', '{command}', null$$""".encode()
        )
        said = desk.said("uninstall", "hub.imports", "--dry-run", code=1)
        assert said.endswith("missing: step 7, the impossible; nothing was changed (dry run)\n")
        assert desk.json("uninstall", "hub.imports", "--dry-run", code=1)["missing"] == ["step 7, the impossible"]


@pytest.mark.verify
def test_the_same_in_sql(desk: Desk) -> None:
    desk.declare(more=NOTIFY.replace('"subject": "key"', """"subject": "'100% it''s ' || key" """))
    rows = desk.execute(desk.sql("preflight", app=True))
    assert [row[0] for row in rows] == [each["topic"] for each in desk.json("preflight", app=True)["findings"]]
    text = desk.sql("install", app=True)
    assert "-- alter table public.piece add column batch text;\n" in text
    live = [line for line in text.splitlines() if not line.startswith("-- ")]
    assert (len(live), live[0].partition("(")[0]) == (1, 'select * from "outrider".rollup_install')
    desk.execute(text)
    assert "nothing was changed" in desk.said("install", app=True)
    assert len(desk.execute(desk.sql("verify", "hub.imports"))) == len(desk.json("verify", "hub.imports")["findings"])
    desk.insert("a", "b", "b")
    desk.conn.execute("update outrider.rollup_pending set set_aside_at = now(), error = 'x' where group_key = 'a'")
    [row] = desk.execute(desk.sql("status"))
    assert row[0] == "hub.imports"
    [row] = desk.execute(desk.sql("status", "hub.imports"))
    assert (row[0], row[2], row[5]) == (1, "a", "x")
    [[idle]] = desk.execute(desk.sql("run", "hub.imports"))
    assert idle["result"] == "idle"
    [[ticked]] = desk.execute(desk.sql("run", "hub.imports", "--flush", "--retry"))
    assert (ticked["groups_emitted"], ticked["pieces_emitted"]) == (1, 1)
    assert desk.conn.execute("select subject from note order by 1").fetchall() == [("100% it's a",), ("100% it's b",)]
    desk.insert("c")
    text = desk.sql("uninstall", "hub.imports")
    assert "-- 1. drop the trigger on public.piece\n" in text
    assert re.search(r"^-- \d\. delete its rows: 1 wait: stays: ", text, re.MULTILINE)
    assert text.splitlines()[-1] == """select * from "outrider".rollup_uninstall('hub.imports');"""
    forced = desk.sql("uninstall", "hub.imports", "--force")
    assert forced.splitlines()[-1] == """select * from "outrider".rollup_uninstall('hub.imports', p_force => true);"""
    desk.insert("d")
    desk.execute(text)
    assert desk.conn.execute("select count(*) from outrider.rollup_pending where processed_at is null").fetchall() == [
        (2,)
    ]
    desk.execute(forced)
    assert desk.said("status") == "no rollups\n"


@pytest.mark.parametrize("inherits", [False, True], ids=["with rollups", "without"])
def test_the_role_of_a_worker_may_look_and_tick_and_no_more(desk: Desk, inherits: bool) -> None:
    desk.said("install", app=True)
    desk.insert("a", "a")
    with role(desk.conn, inherits=inherits) as name:
        owner, desk.dsn = desk.dsn, make_conninfo(desk.dsn, user=name)
        assert "waiting     2," in desk.said("status")
        assert "1 rollup event" in desk.said("run", "hub.imports", "--flush")
        assert "hub.imports" in inprocess.run(desk.folder, "status", "--dsn", desk.dsn).stdout
        for arguments in (["install", "--app", "hub:app"], ["uninstall", "hub.imports", "--yes"]):
            assert "permission denied for function rollup_" in desk.refused(*arguments)
        desk.dsn = owner


def test_its_help(outrider: Run) -> None:
    assert "outrider rollup" in outrider("rollup").stdout
    assert "│ rollup " in outrider("--help").stdout
