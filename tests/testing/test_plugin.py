"""The pytest plugin, in pytest runs of its own, as a user's project has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

pytestmark = [pytest.mark.xdist_group("plugin"), pytest.mark.verify]

Run = Callable[..., str]
LEFTOVERS = "select datname from pg_database where pg_get_userbyid(datdba) = %s"
COUNT = """
import psycopg

def count(dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("insert into mine values (1)")
        return conn.execute("select count(*) from mine").fetchone()[0]
"""
PREPARE = """
import psycopg, pytest

@pytest.fixture(scope="session")
def outrider_prepare():
    def prepare(dsn):
        with psycopg.connect(dsn) as conn:
            conn.execute("create table mine (n int)")
    return prepare
"""


@pytest.fixture
def developer(server: str) -> Iterator[str]:
    """A role of their own, so that what they leave behind is known from what other tests make meanwhile."""
    name = f"developer_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create role {name} superuser login")
        yield name
        conn.execute(f"drop role {name}")


@pytest.fixture
def run(tmp_path: Path, server: str, developer: str) -> Run:
    def run(tests: str, conftest: str = "", *arguments: str, embedded: bool = False, **wanted: int) -> str:
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_mine.py").write_text(tests)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PYTEST_"))}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if not embedded:
            env["OUTRIDER_TEST_DSN"] = make_conninfo(server, user=developer)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "outrider.testing.plugin",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=80,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        *_, summary = done.stdout.strip().splitlines() or [done.stderr]
        for outcome, count in wanted.items():
            assert f"{count} {outcome}" in summary, done.stdout + done.stderr
        with psycopg.connect(server) as conn:
            assert conn.execute(LEFTOVERS, [developer]).fetchall() == []
        return done.stdout

    return run


def test_every_test_has_a_fresh_copy_with_the_tables_of_the_user(run: Run) -> None:
    tests = COUNT + "def test_a(outrider_database): assert count(outrider_database) == 1\n"
    run(
        tests + "test_b = test_a\ndef test_c(outrider_database): assert count(outrider_database) == 2\n",
        PREPARE,
        passed=2,
        failed=1,
    )


def test_the_schema_is_migrated_and_may_be_prepared_by_async_code(run: Run) -> None:
    conftest = """
import pytest
from outrider import Event, Outrider

class Placed(Event, type="mine.placed"):
    n: int

@pytest.fixture(scope="session")
def outrider_schema():
    return "events"

@pytest.fixture(scope="session")
def outrider_prepare():
    async def prepare(dsn):
        app = Outrider(context="mine", dsn=dsn, schema="events")
        app.reader(name="mine.reader")
        async with app:
            assert [each.outcome for each in await app.migrate()] == ["created"]
    return prepare
"""
    tests = """
import asyncio
from conftest import Placed
from outrider import Outrider
from outrider.testing import capture, drain

def test_mine(outrider_database):
    asyncio.run(use(outrider_database))

async def use(dsn):
    app, handled = Outrider(context="mine", dsn=dsn, schema="events"), []
    app.reader(name="mine.reader")
    app.handler(Placed, name="mine.note")(lambda event: handled.append(event.n))
    async with app, app.connect() as conn:
        await app.publish(conn, Placed(n=1))
        await drain(app, conn)
        await conn.rollback()
    async with app:
        assert [each.outcome for each in await app.migrate()] == ["unchanged", "created"]
    assert handled == [1]
"""
    run(tests, conftest, passed=1)


def test_a_session_that_is_left_open_is_named(run: Run) -> None:
    tests = """
import psycopg

kept = []

def test_leaks(outrider_database):
    kept.append(psycopg.connect(outrider_database, application_name="forgotten"))
    kept[0].execute("select 'left  open'")

def test_next(outrider_database):
    pass
"""
    told = run(tests, passed=2, error=1)
    assert "the test left 1 session(s) open in its database; close connections, pools and workers" in told
    assert "(forgotten), idle in transaction: select 'left open'" in told


def test_a_prepare_that_leaves_a_session_open_is_told(run: Run) -> None:
    conftest = PREPARE.replace(
        "        with psycopg.connect(dsn) as conn:\n    ", "        global conn; conn = psycopg.connect(dsn)\n"
    )
    told = run("def test_mine(outrider_database): pass", conftest, error=1)
    assert "outrider_prepare left sessions open, and a database in use cannot be copied" in told


def test_a_user_who_may_not_create_databases(run: Run, server: str) -> None:
    conftest = f"""
import pytest
from psycopg.conninfo import make_conninfo

@pytest.fixture(scope="session")
def outrider_server():
    return make_conninfo({server!r}, user="no_creator_{os.getpid()}")
"""
    role = f"no_creator_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create role {role} login".encode())
        try:
            told = run("def test_mine(outrider_database): pass", conftest, error=1)
        finally:
            conn.execute(f"drop role {role}".encode())
    assert f'alter role "{role}" createdb' in told


def test_workers_of_xdist_share_a_server(run: Run) -> None:
    tests = COUNT + "import pytest\n@pytest.mark.parametrize('n', range(8))\n"
    tests += "def test_mine(outrider_database, n): assert count(outrider_database) == 1\n"
    run(tests, PREPARE, "-p", "xdist.plugin", "-n", "2", passed=8)


def test_an_embedded_server_comes_and_goes(run: Run) -> None:
    tests = COUNT + "def test_mine(outrider_database): assert count(outrider_database) == 1\n"
    told = run(
        tests + "def test_where(outrider_server): print('home', outrider_server)",
        PREPARE,
        "-s",
        embedded=True,
        passed=2,
    )
    [home] = [
        word for line in told.splitlines() if "home " in line for word in line.split() if word.startswith("host=")
    ]
    assert not Path(home.removeprefix("host=").strip("'")).exists()
