"""`outrider doctor`: a page for people, JSON for programs, an exit code for monitoring."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.cli.conftest import Run

from outrider.postgres import dsn
from outrider.postgres.embedded import Embedded


@pytest.mark.verify
def test_exit_codes_and_the_page(outrider: Run, tmp_path: Path) -> None:
    """On a server of its own, where nobody has roles and transactions; with a password, which the listener needs too."""
    with Embedded.temporary() as server:
        hba = server.home / "data" / "pg_hba.conf"
        hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create role locked login superuser password 'hunter2'")
            conn.execute("select pg_reload_conf()")
        dsn = make_conninfo(server.dsn(), user="locked", password="hunter2")
        file = tmp_path / "dsn"
        file.write_text(f"{dsn}\n")
        env = {"OUTRIDER_DSN_FILE": str(file)}
        missing = outrider("doctor", env=env)
        assert missing.returncode == 2
        assert 'there is no Outrider in the schema "outrider"' in missing.stdout
        assert outrider("migrate", env=env).returncode == 0
        well = outrider("doctor", env=env)
        assert (well.returncode, well.stderr) == (0, ""), well.stdout
        assert "ok       listener      a notification arrives\n" in well.stdout
        assert well.stdout.splitlines()[-1].endswith(": 0 critical, 0 warnings, 0 notes")
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("grant select on outrider.outbox to public")
        warned = inprocess.run(tmp_path, "doctor", "--dsn", dsn, "--json")
        told = json.loads(warned.stdout)
        assert (warned.returncode, told["severity"], told["schema"]) == (1, "warning", "outrider")
        [wrong] = [each for each in told["findings"] if each["severity"] != "ok"]
        assert (wrong["check"], wrong["found"]) == (
            "privileges",
            "PUBLIC may select on outbox: granted to everybody who can connect",
        )
    down = inprocess.run(tmp_path, "doctor", "--dsn", dsn)
    assert (down.returncode, down.stdout.split()[:2]) == (2, ["critical", "server"])
    assert "nothing listens at" in down.stdout
    assert "hunter2" not in missing.stdout + well.stdout + warned.stdout + down.stdout


def test_a_server_that_is_too_old(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsn, "OLDEST", 99)
    done = inprocess.run(tmp_path, "doctor", "--dsn", database, "--json")
    [found] = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["check"], found["severity"]) == (2, "server", "critical")
    assert "Outrider needs 99 or newer" in found["found"]


def test_a_role_without_any_right(database: str, owner: str, tmp_path: Path) -> None:
    done = inprocess.run(tmp_path, "doctor", "--dsn", make_conninfo(database, user=owner), "--json")
    [found] = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["check"]) == (2, "schema")
    assert "outrider roles" in found["found"]


def test_no_database_is_named(tmp_path: Path) -> None:
    done = inprocess.run(tmp_path, "doctor")
    assert (done.returncode, "no database: give --dsn" in done.stdout) == (2, True)
