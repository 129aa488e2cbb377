"""`outrider migrate` against real databases: what it applies, prints, lists and leaves alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run, Start

from outrider.postgres.embedded import Embedded
from outrider.postgres.schema.migrate import Migration, known

NEWEST = known()[-1].version
APP = """
from outrider import Event, Outrider

class Placed(Event, type="cli.placed"):
    n: int

app = Outrider(context="shop")
app.reader(Placed, name="shop.audit", partitions=4)
app.reader(name="shop.all", start="beginning")
"""


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


def query(dsn: str, sql: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(sql.encode()).fetchall()


def schemas(dsn: str) -> set[str]:
    return {name for (name,) in query(dsn, "select nspname from pg_namespace where nspname !~ '^pg_'")}


def dump(dsn: str) -> list[str]:
    command = [str(Embedded().bin / "pg_dump"), "--dbname", dsn, "--schema=outrider", "--schema-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


def psql(dsn: str, script: str) -> None:
    command = [str(Embedded().bin / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--dbname", dsn]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_migrate_installs_and_then_finds_nothing_to_do(outrider: Run, empty_database: str) -> None:
    first = outrider("migrate", "--dsn", empty_database)
    assert (first.returncode, first.stderr) == (0, "")
    assert "0001 schema" in first.stdout
    assert "breaking" not in first.stdout, "no code is older than the schema"
    again = outrider("migrate", env={"OUTRIDER_DSN": empty_database})
    assert f"up to date: version {NEWEST}" in again.stdout
    assert "applied" not in again.stdout


def test_the_script_run_by_psql_gives_the_same_schema(outrider: Run, database: str, empty_database: str) -> None:
    script = outrider("migrate", "--sql")
    assert (script.returncode, script.stderr) == (0, "")
    psql(empty_database, script.stdout)
    assert dump(empty_database) == dump(database)
    for rows in (
        "select version, name, breaking from outrider.migration order by version",
        "select name, value, least, greatest from outrider.setting order by name",
    ):
        assert query(empty_database, rows) == query(database, rows)
    assert "nothing to do" in outrider("migrate", "--sql", "--after", str(NEWEST)).stdout


def test_the_script_of_an_app_registers_its_subscriptions(outrider: Run, empty_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    script = outrider("migrate", "--sql", "--app", "shop:app").stdout
    psql(empty_database, script)
    registered = "select name, event_types, partitions from outrider.subscription order by name"
    assert query(empty_database, registered) == [("shop.all", None, 1), ("shop.audit", ["cli.placed"], 4)]
    assert "shop.audit: unchanged" in outrider("migrate", "--app", "shop:app", "--dsn", empty_database).stdout


def test_a_dry_run_changes_nothing(outrider: Run, empty_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    common = ("migrate", "--app", "shop:app", "--dsn", empty_database)
    before = outrider(*common, "--dry-run")
    assert "migration     0001 schema: would be applied" in before.stdout
    assert "subscription  shop.audit: would be created, 4 partitions" in before.stdout
    assert schemas(empty_database) == {"public", "information_schema"}

    outrider("migrate", "--dsn", empty_database)
    planned = json.loads(outrider(*common, "--dry-run", "--json").stdout)
    assert (planned["dry_run"], planned["applied"]) == (True, [])
    assert [each["outcome"] for each in planned["registered"]] == ["created", "created"]
    assert query(empty_database, "select name from outrider.subscription") == []

    done = json.loads(outrider(*common, "--json").stdout)
    assert done["registered"] == planned["registered"]
    assert query(empty_database, "select count(*) from outrider.cursor") == [(5,)]


def test_status_shows_pending_and_applied(outrider: Run, empty_database: str) -> None:
    pending = json.loads(outrider("migrate", "status", "--dsn", empty_database, "--json").stdout)
    assert [row["version"] for row in pending["migrations"]] == [step.version for step in known()]
    assert {row["applied_at"] for row in pending["migrations"]} == {None}
    assert "pending" in outrider("migrate", "status", "--dsn", empty_database).stdout

    outrider("migrate", "--dsn", empty_database)
    applied = json.loads(outrider("migrate", "--dsn", empty_database, "status", "--json").stdout)
    assert all(row["applied_at"] and row["applied_by"].startswith("outrider ") for row in applied["migrations"])
    table = outrider("migrate", "status", "--dsn", empty_database).stdout
    assert "pending" not in table
    assert "\x1b" not in table


def test_another_schema(outrider: Run, empty_database: str) -> None:
    outrider("migrate", "--dsn", empty_database, "--schema", "events")
    assert schemas(empty_database) == {"public", "information_schema", "events"}
    status = outrider("migrate", "status", "--dsn", empty_database, env={"OUTRIDER_SCHEMA": "events"})
    assert "pending" not in status.stdout


@pytest.mark.verify
def test_several_migrators_at_once(start: Start, empty_database: str) -> None:
    processes = [start("migrate", "--dsn", empty_database, "--json") for _ in range(4)]
    outputs = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    waits = 'another session has held the lock of migrations of "outrider" for 2s or longer: '
    assert [line for _, err in outputs for line in err.splitlines() if not line.startswith(waits)] == []
    applied = [step["version"] for out, _ in outputs for step in json.loads(out)["applied"]]
    assert sorted(applied) == [step.version for step in known()]


def test_the_owner_of_a_database_needs_no_superuser(outrider: Run, owned_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = outrider("migrate", "--app", "shop:app", "--dsn", owned_database)
    assert (done.returncode, done.stderr) == (0, "")
    assert query(owned_database, "select count(*) from outrider.cursor") == [(5,)]


def test_usage_errors_exit_with_2(outrider: Run) -> None:
    for wrong in (
        ["--after", "1"],
        ["--sql", "--dry-run"],
        ["--dsn", "x", "--embedded"],
        ["--bogus"],
        ["--sql", "--force"],
        ["--alembic", "--force"],
        ["--phase", "later"],
    ):
        done = outrider("migrate", *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong
        assert "Traceback" not in done.stderr


# Two phases


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process are those of a release with two more migrations."""
    steps = (
        *known(),
        Migration(NEWEST + 1, "add", False, "-", "create table /*schema*/added ();"),
        Migration(NEWEST + 2, "break", True, "-", "create table /*schema*/broken ();"),
    )
    for module in ("outrider.cli.alembic", "outrider.cli.commands.migrate", "outrider.postgres.schema.migrate"):
        monkeypatch.setattr(f"{module}.known", lambda: steps)


OLD_WORKER = f"""
insert into outrider.worker (id, host, pid, version, generation, subscriptions, schema_version, seen_at)
values ('00000000-0000-0000-0000-000000000001', 'db-7', 41, 'outrider 0.0.9', 0, '{{}}', {NEWEST}, now() + interval '50 s')
"""


@pytest.fixture
def old_worker(database: str) -> None:
    psql(database, OLD_WORKER)


def ledger(dsn: str) -> int:
    [(newest,)] = query(dsn, "select max(version) from outrider.migration")
    return int(newest)


@pytest.mark.verify
@pytest.mark.usefixtures("next_release", "old_worker")
def test_an_upgrade_beside_an_old_worker(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(tmp_path, "migrate", *arguments, "--dsn", database)

    refused = run()
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "db-7:41 (outrider 0.0.9, which knows version" in refused.stderr
    assert "run `outrider migrate --phase pre` now" in refused.stderr
    assert ledger(database) == NEWEST

    planned = run("--dry-run")
    assert planned.returncode == 0
    assert f"{NEWEST + 2:04} break: would be applied (breaking" in planned.stdout
    assert f"would be refused: migration {NEWEST + 2:04} break has to wait" in planned.stdout
    assert "would be refused" not in run("--dry-run", "--force").stdout
    assert "would be refused" not in run("--dry-run", "--phase", "pre").stdout
    before = run("status").stdout
    assert "blocked by db-7:41" in " ".join(before.replace("│", " ").split())
    assert before.splitlines()[-1].startswith("next: outrider migrate; beside workers of the previous release: ")
    assert ledger(database) == NEWEST

    pre = run("--phase", "pre", "--app", "shop:app")
    assert f"{NEWEST + 1:04} add: applied" in pre.stdout
    assert f"{NEWEST + 2:04} break: not applied yet; run outrider migrate when no older code runs" in pre.stdout
    assert "shop.audit: created" in pre.stdout
    again = json.loads(run("--phase", "pre", "--json").stdout)
    assert (again["applied"], [(each["name"], each["phase"]) for each in again["left"]]) == ([], [("break", "post")])
    assert "up to date" not in run("--phase", "pre").stdout
    rows = json.loads(run("status", "--json").stdout)["migrations"]
    assert [row["phase"] for row in rows[-2:]] == ["pre", "post"]
    held = {"place": "db-7:41", "code": "outrider 0.0.9", "knows": NEWEST}
    assert [row["held_up_by"] for row in rows[-3:]] == [[], [], [held]]
    assert run("status").stdout.splitlines()[-1] == "next: outrider migrate, when those workers have ended"

    psql(database, "delete from outrider.worker")
    assert run("status").stdout.splitlines()[-1] == "next: outrider migrate"
    assert f"{NEWEST + 2:04} break: applied" in run().stdout
    assert f"up to date: version {NEWEST + 2}" in run("--phase", "pre").stdout
    assert "next:" not in run("status").stdout


@pytest.mark.usefixtures("next_release", "old_worker")
def test_force_breaks_an_old_worker(database: str, tmp_path: Path) -> None:
    done = inprocess.run(tmp_path, "migrate", "--force", "--dsn", database)
    assert (done.returncode, ledger(database)) == (0, NEWEST + 2)


@pytest.mark.usefixtures("next_release")
def test_the_script_of_a_phase(database: str, tmp_path: Path) -> None:
    pre = inprocess.run(tmp_path, "migrate", "--sql", "--after", str(NEWEST), "--phase", "pre").stdout
    psql(database, pre)
    assert ledger(database) == NEWEST + 1
    post = inprocess.run(tmp_path, "migrate", "--sql", "--after", str(NEWEST + 1)).stdout
    psql(database, post)
    assert ledger(database) == NEWEST + 2
