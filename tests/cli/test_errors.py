"""Whatever goes wrong: one sentence on stderr, exit code 1, no traceback, no password."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli.conftest import Run, Start

from outrider.postgres.embedded import Embedded


@pytest.fixture
def password_server() -> Iterator[str]:
    """A server that asks the role `locked` for its password."""
    with Embedded.temporary() as server:
        hba = server.home / "data" / "pg_hba.conf"
        hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create role locked login password 'right'")
            conn.execute("select pg_reload_conf()")
        yield make_conninfo(server.dsn(), user="locked")


def sentence(outrider: Run, *arguments: str) -> str:
    done = outrider(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("outrider: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.verify
def test_no_database_named(outrider: Run) -> None:
    assert "--dsn" in sentence(outrider, "migrate")


def test_unreachable_host(outrider: Run) -> None:
    assert "nothing listens at 127.0.0.1:1" in sentence(outrider, "migrate", "--dsn", "postgresql://127.0.0.1:1/x")


@pytest.mark.verify
def test_unknown_host(outrider: Run) -> None:
    assert "unknown" in sentence(outrider, "migrate", "status", "--dsn", "postgresql://nowhere.invalid/x")


@pytest.mark.verify
def test_not_a_dsn(outrider: Run) -> None:
    assert "write it like postgresql://" in sentence(outrider, "migrate", "--dsn", "nonsense")


def test_missing_database(outrider: Run, server: str) -> None:
    missing = make_conninfo(server, dbname="nowhere")
    assert "has no database 'nowhere'" in sentence(outrider, "migrate", "--dsn", missing)


def test_wrong_password(outrider: Run, password_server: str) -> None:
    said = sentence(outrider, "migrate", "--dsn", make_conninfo(password_server, password="secret-guess"))
    assert "refused the password of user 'locked'" in said
    assert "secret-guess" not in said


def test_a_role_that_may_not_create_the_schema(outrider: Run, owner: str, empty_database: str) -> None:
    said = sentence(outrider, "migrate", "--dsn", make_conninfo(empty_database, user=owner))
    assert "may not create the schema" in said


def test_an_error_of_the_database_itself(outrider: Run, owner: str, database: str) -> None:
    said = sentence(outrider, "migrate", "status", "--dsn", make_conninfo(database, user=owner))
    assert "permission denied" in said


def test_a_newer_schema_that_breaks_this_code(outrider: Run, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("insert into outrider.migration values (9999, 'future', true, now(), 'outrider 9.0')")
    for command in (["migrate"], ["migrate", "--dry-run"]):
        assert "Upgrade outrider" in sentence(outrider, *command, "--dsn", database)


def test_ctrl_c_ends_without_a_traceback(start: Start, empty_database: str) -> None:
    """While it waits for another migrator, so that it is surely in the middle of things."""
    waiting = "select exists (select from pg_locks where locktype = 'advisory' and not granted and database = %s::oid)"
    with psycopg.connect(empty_database) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('outrider.migrate.outrider', 0))")
        [(database,)] = other.execute("select oid from pg_database where datname = current_database()").fetchall()
        process = start("migrate", "--dsn", empty_database)
        while other.execute(waiting, [database]).fetchone() != (True,):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    assert (process.returncode, out, err) == (130, "", "")
