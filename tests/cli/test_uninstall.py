"""`outrider uninstall`: what it shows, what it asks, and what it refuses until one insists."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.cli.conftest import MAIN, Run, Start
from tests.cli.test_migrate import query, schemas

from outrider.postgres.schema.migrate import known

APP = """
from outrider import Event, Outrider

class Placed(Event, type="cli.uninstalled"):
    n: int

app = Outrider(context="shop")

@app.handler(Placed, name="shop.count", start="beginning")
async def handle(event: Placed) -> None: ...
"""

HUB = """
from outrider import Outrider
from outrider.rollup import Notification

app = Outrider(context="hub")
app.rollup("hub.imports", table="piece", key=["document"], single="hub.born", rollup="hub.imported",
           notify=Notification("note", {"said": "idempotency_key"}))
"""


@pytest.fixture
def shop(outrider: Run, database: str, tmp_path: Path) -> str:
    """A database with the handler shop.count, which one event waits for."""
    (tmp_path / "shop.py").write_text(APP)
    outrider("migrate", "--app", "shop:app", "--dsn", database)
    with psycopg.connect(database) as conn:
        conn.execute("""select outrider.publish('cli.uninstalled', '{"n": 1}')""")
    return database


def test_help_teaches(outrider: Run) -> None:
    done = outrider("uninstall", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Examples", "outrider uninstall", "nothing cascades", "--dry-run"):
        assert taught in done.stdout
    assert "uninstall" in outrider("--help").stdout


@pytest.mark.verify
def test_what_is_owed_is_not_lost_without_force(outrider: Run, shop: str) -> None:
    refused = outrider("uninstall", "--dsn", shop, "--yes")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "shop.count (1 unread, 0 waiting, 0 dead letters)" in refused.stderr
    assert "events in the log: 1; receipts of handled events: 0" in refused.stdout
    answer = json.loads(outrider("uninstall", "--dsn", shop, "--yes", "--json").stdout)
    assert (answer["dropped"], len(answer["refused"])) == (False, 1)
    assert "outrider" in schemas(shop)
    done = outrider("uninstall", "--dsn", shop, "--yes", "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(
        'Outrider is removed from the schema "outrider"; lost: shop.count (1 unread, 0 waiting, 0 dead letters)\n'
    )
    assert "outrider" not in schemas(shop)


def test_json(outrider: Run, shop: str) -> None:
    wanted = {
        "schema": "outrider", "database": psycopg.conninfo.conninfo_to_dict(shop)["dbname"], "dry_run": False,
        "installed": True, "dropped": True, "refused": [], "version": known()[-1].version, "events": 1, "receipts": 0,
        "publishing": 0, "subscriptions": [{"name": "shop.count", "unread": 1, "waiting": 0, "dead": 0}], "rollups": [],
        "workers": [], "dependents": [], "strangers": [], "mentions": [],
    }  # fmt: skip
    planned = outrider("uninstall", "--dsn", shop, "--force", "--json", "--dry-run")
    assert json.loads(planned.stdout) == wanted | {"dry_run": True, "dropped": False}
    done = outrider("uninstall", "--dsn", shop, "--force", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, wanted)
    again = outrider("uninstall", "--dsn", shop, "--json")
    assert (again.returncode, json.loads(again.stdout)["installed"]) == (0, False)


def test_a_dry_run_shows_and_changes_nothing(outrider: Run, shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as conn:
        conn.execute("create view report as select * from outrider.outbox")
        conn.execute("create table outrider.mine (n int)")
        conn.execute("create function tell() returns void language sql as 'select outrider.uuid7()'")
        conn.execute("create function \"\x1b[2Jfake\"() returns void language sql as 'select outrider.uuid7()'")
        with psycopg.connect(shop) as other:
            other.execute("""select outrider.publish('cli.uninstalled', '{"n": 2}')""")
            done = outrider("uninstall", "--dsn", shop, "--dry-run", env={"COLUMNS": "120"})
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "open transactions that may have published or enqueued more: 1",
        "stays, but names the schema and may fail from then on: function tell()",
        'stays, but names the schema and may fail from then on: function "\\x1b[2Jfake"()',
        "shop.count",
        "would be refused: others depend on it: view report",
        'would be refused: the schema "outrider" holds objects that are not ours: table outrider.mine',
        "would be refused: this would be lost: shop.count (1 unread",
        "nothing was changed (dry run)",
    ):
        assert said in done.stdout
    assert query(shop, "select count(*) from outrider.outbox") == [(2,)]


@pytest.mark.verify
def test_rollups_are_taken_off_first(shop: str, tmp_path: Path) -> None:
    run = partial(inprocess.run, tmp_path)
    with psycopg.connect(shop, autocommit=True) as conn:
        conn.execute("create table piece (document text); create table note (said text unique)")
        conn.execute("update outrider.cursor set seq = 1")
        (tmp_path / "hub.py").write_text(HUB)
        assert run("rollup", "install", "--app", "hub:app", "--dsn", shop).returncode == 0
        conn.execute("insert into piece values ('a'), ('a')")
        for options in (["--force"], ["--force", "--keep-schema"], []):
            refused = run("uninstall", "--dsn", shop, "--yes", *options)
            assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
            assert (
                "rollups are installed: hub.imports (2 rows wait): remove each with outrider rollup uninstall"
                in refused.stderr
            )
            assert "outrider rollup run hub.imports --flush" in refused.stderr
            assert "not ours" not in refused.stderr, "its functions are no strangers"
        planned = run("uninstall", "--dsn", shop, "--dry-run").stdout
        assert "  rollup: hub.imports (2 rows wait)\n" in planned
        assert "names the schema" not in planned
        conn.execute("insert into piece values ('b')")

        run("rollup", "uninstall", "hub.imports", "--dsn", shop, "--yes")
        told = json.loads(run("uninstall", "--dsn", shop, "--yes", "--force", "--json").stdout)
        assert told["rollups"] == [{"name": "hub.imports", "held": True, "waiting": 3}], (
            "a function waits with its rows"
        )
        conn.execute("drop function outrider.rollup_note_hub_imports")
        refused = run("uninstall", "--dsn", shop, "--yes")
        assert (
            "rows of rollups would be lost: hub.imports (3 rows wait): emit them with outrider rollup run"
            in refused.stderr
        )
        assert "outrider" in schemas(shop)
        done = run("uninstall", "--dsn", shop, "--yes", "--force")
        assert (done.returncode, done.stderr) == (0, "")
        assert "lost: hub.imports (3 rows wait)" in done.stdout
        conn.execute("insert into piece values ('c')")


def test_nothing_installed_is_nothing_to_do(outrider: Run, empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("create schema outrider create table mine (n int)")
    done = outrider("uninstall", "--dsn", empty_database)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to do: Outrider is not installed" in done.stdout
    assert query(empty_database, "select count(*) from outrider.mine") == [(0,)]


def test_another_schema(outrider: Run, database: str) -> None:
    outrider("migrate", "--dsn", database, "--schema", "events")
    done = outrider("uninstall", "--dsn", database, "--yes", env={"OUTRIDER_SCHEMA": "events"})
    assert 'Outrider is removed from the schema "events"' in done.stdout
    assert schemas(database) == {"public", "information_schema", "outrider"}


@pytest.mark.verify
def test_the_schema_may_stay(outrider: Run, database: str) -> None:
    done = outrider("uninstall", "--dsn", database, "--yes", "--keep-schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert "outrider" in schemas(database)
    assert query(database, "select count(*) from pg_class where relnamespace = 'outrider'::regnamespace") == [(0,)]
    assert "0001 schema: applied" in outrider("migrate", "--dsn", database).stdout


def test_only_the_owner_may(outrider: Run, database: str, owner: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"grant usage on schema outrider to {owner}".encode())
        conn.execute(f"grant all on all tables in schema outrider to {owner}".encode())
        try:
            done = outrider("uninstall", "--dsn", make_conninfo(database, user=owner), "--yes")
        finally:
            conn.execute(f"drop owned by {owner}".encode())
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"and you are '{owner}': connect as its owner" in done.stderr
    assert "outrider" in schemas(database)


@pytest.mark.verify
def test_the_owner_needs_no_superuser(outrider: Run, owned_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    outrider("migrate", "--app", "shop:app", "--dsn", owned_database)
    done = outrider("uninstall", "--app", "shop:app", "--dsn", owned_database, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert schemas(owned_database) == {"public", "information_schema"}


# Asking


def at_a_terminal(dsn: str, typed: str, *options: str) -> tuple[int, str]:
    """The command with a terminal as its stdin, and what it says on stderr."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PG"))}
    command: list[Any] = [sys.executable, "-P", "-c", MAIN, "uninstall", "--dsn", dsn, *options]
    with subprocess.Popen(
        command, env=clean, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.write(ours, f"{typed}\n".encode())
        _, err = process.communicate(timeout=200)
    os.close(ours)
    os.close(theirs)
    return process.returncode, err


@pytest.mark.verify
def test_it_asks_for_the_name(database: str) -> None:
    code, err = at_a_terminal(database, "outrder")
    assert code == 1
    assert 'you typed "outrder", and the schema is "outrider"' in err
    assert "outrider" in schemas(database)
    code, err = at_a_terminal(database, "outrider")
    assert (code, 'Type "outrider" to drop it for good' in err) == (0, True)
    assert "outrider" not in schemas(database)


def test_without_a_terminal_it_wants_a_yes(outrider: Run, database: str) -> None:
    done = outrider("uninstall", "--dsn", database)
    told = json.loads(outrider("uninstall", "--dsn", database, "--json").stdout)
    assert (told["dropped"], "add --yes" in told["refused"][0]) == (False, True)
    assert (done.returncode, done.stderr) == (
        1,
        "outrider: nothing was dropped: there is no terminal to ask at; to do it, add --yes\n",
    )
    assert "outrider" in schemas(database)


@pytest.mark.verify
def test_a_worker_that_runs_keeps_its_tables(outrider: Run, start: Start, database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    worker = start("worker", "--app", "shop:app", "--dsn", database)
    seen = "select pid from outrider.worker"
    while query(database, seen) != [(worker.pid,)]:
        assert worker.poll() is None
    refused = outrider("uninstall", "--dsn", database, "--yes", "--force")
    assert (refused.returncode, f":{worker.pid} (shop.count): stop them" in refused.stderr) == (1, True)
    worker.terminate()
    worker.communicate(timeout=200)
    assert outrider("uninstall", "--dsn", database, "--yes").returncode == 0
