"""The pytest plugin, in pytest runs of its own, as a user's project has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outrider import Event, Outrider

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
    def run(
        tests: str,
        conftest: str = "",
        *arguments: str,
        embedded: bool = False,
        env: Mapping[str, str] | None = None,
        **wanted: int,
    ) -> str:
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_mine.py").write_text(tests)
        inherited = {each: value for each, value in os.environ.items() if not each.startswith(("OUTRIDER_", "PYTEST_"))}
        env = inherited | dict(env or {})
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
            timeout=200,
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


SHOP = """
import asyncio
import psycopg
import pytest
from outrider import Event, Outrider

class Placed(Event, type="mine.placed"):
    n: int

app = Outrider(context="mine")
handled = []

@app.handler(Placed, name="mine.note")
async def note(event: Placed) -> None:
    handled.append(event.n)

async def drain():
    async with app:
        return await app.drain()

async def publish_and_drain(app):
    async with app:
        async with app.connect() as conn:
            await app.publish(conn, Placed(n=1))
        return await app.drain()
"""


@pytest.fixture
async def real(database: str) -> str:
    """A database as it is in production: the app is registered, and an event waits."""

    class Placed(Event, type="mine.placed"):
        n: int

    app = Outrider(context="mine", dsn=database)
    app.reader(name="mine.other")
    app.handler(Placed, name="mine.note")(print)
    async with app, app.connect() as conn:
        await app.migrate()
        await app.publish(conn, Placed(n=7))
    return database


def receipts(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        [(count,)] = conn.execute("select count(*) from outrider.event_handled").fetchall()
        return int(count)


def test_an_app_whose_database_is_not_that_of_the_test_is_refused(run: Run, real: str) -> None:
    tests = SHOP + "def test_mine(outrider_database): asyncio.run(drain())\n"
    told = run(tests, env={"OUTRIDER_DSN": real}, failed=1)
    assert receipts(real) == 0
    assert f"the database '{psycopg.conninfo.conninfo_to_dict(real)['dbname']}'" in told
    assert "outrider_relocate(app)" in told
    assert "@pytest.mark.outrider_any_database" in told
    assert "outrider_any_database = true" in told


def test_an_app_that_would_start_the_embedded_server_of_the_project_is_refused(run: Run, tmp_path: Path) -> None:
    tests = SHOP + "def test_mine(outrider_database): asyncio.run(drain())\n"
    told = run(tests, env={"OUTRIDER_EMBEDDED": "1"}, failed=1)
    assert "the embedded Postgres in .outrider/pg" in told
    assert not (tmp_path / ".outrider").exists()


def test_a_declared_app_is_pointed_at_the_database_of_the_test(run: Run, real: str) -> None:
    tests = """
def test_mine(outrider_relocate):
    assert asyncio.run(publish_and_drain(outrider_relocate(app))).handled == 1
    assert handled.pop() == 1

test_again = test_mine

def test_after_it():
    import os
    assert app.settings.dsn == os.environ["OUTRIDER_DSN"]

def test_with_another_app(outrider_database, outrider_relocate):
    asyncio.run(publish_and_drain(outrider_relocate(app)))
    other = Outrider(context="mine", dsn=outrider_database)
    other.reader(name="mine.late", start="beginning")
    async def look():
        async with other:
            return [each.outcome for each in await other.migrate()]
    assert asyncio.run(look()) == ["created"]
"""
    run(SHOP + tests, env={"OUTRIDER_DSN": real}, passed=4)
    assert receipts(real) == 0


def test_pokes_after_the_commit_do_not_leave_the_databases_of_the_tests(run: Run, real: str) -> None:
    tests = """
def test_mine(outrider_database):
    with psycopg.connect(outrider_database) as conn:
        app.publish_sync(conn, Placed(n=1))
    app._notifier.notify([("outbox_default", "mine.placed")])
    app._notifier.close()
    assert app._notifier.sent == 0
"""
    run(SHOP + tests, env={"OUTRIDER_DSN": real, "OUTRIDER_NOTIFY": "after_commit"}, passed=1)


@pytest.mark.parametrize("how", ["marker", "option"])
def test_another_database_can_be_allowed(run: Run, real: str, how: str) -> None:
    marker = "@pytest.mark.outrider_any_database\n" if how == "marker" else ""
    arguments = ("--strict-markers", "--strict-config") + (
        ("-o", "outrider_any_database=true") if how == "option" else ()
    )
    tests = marker + "def test_mine(): assert asyncio.run(drain()).handled == 1\n"
    tests += "def test_other(): asyncio.run(drain())\n"
    outcomes = {"passed": 2} if how == "option" else {"passed": 1, "failed": 1}
    run(SHOP + tests, "", *arguments, env={"OUTRIDER_DSN": real}, **outcomes)
    assert receipts(real) == 1


def test_an_app_that_is_left_open_is_told(run: Run) -> None:
    tests = "def test_mine(outrider_relocate): asyncio.run(outrider_relocate(app).__aenter__())\n"
    told = run(SHOP + tests, passed=1, error=1)
    assert "the test left the app open" in told


def test_an_app_with_another_schema_is_told(run: Run) -> None:
    tests = SHOP.replace('Outrider(context="mine")', 'Outrider(context="mine", schema="events")')
    told = run(tests + "def test_mine(outrider_relocate): outrider_relocate(app)\n", failed=1)
    assert "outrider_schema" in told
