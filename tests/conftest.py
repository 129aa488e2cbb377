"""One temporary Postgres for the whole run, a database from a migrated template per test, and a search for leaks."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outrider.postgres import migrate, session
from outrider.postgres.embedded import Embedded

# Databases are made by the hundred: in memory, where there is enough of it, this takes half the time.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = str(MEMORY)

SERVER = "OUTRIDER_TEST_SERVER"
TEMPLATE = "outrider_template"
SETTINGS = {"max_connections": "300", "max_prepared_transactions": "50", "shared_buffers": "256MB"}

_server: Embedded | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the torture at full length (make faults)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The blind search for mutants takes minutes, and their deterministic tests run anyway."""
    return True if collection_path.name == "test_mutants.py" and not config.option.long else None


def pytest_configure(config: pytest.Config) -> None:
    """The controlling process owns the server; the workers of xdist find it in their environment."""
    global _server
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    _server = Embedded.temporary(settings=SETTINGS)
    _server.start()
    os.environ[SERVER] = _server.dsn()
    _server.ensure_database(TEMPLATE)
    asyncio.run(_migrate(_server.dsn(TEMPLATE)))


async def _migrate(dsn: str) -> None:
    async with await session.connect(dsn, autocommit=True) as conn:
        await migrate.migrate(conn, "outrider", "tests")


async def migrated(server: Embedded, database: str) -> None:
    """Make a migrated database on a server of the test's own."""
    await asyncio.to_thread(server.ensure_database, database)
    await _migrate(server.dsn(database))


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the run is a long one: make faults."""
    return bool(request.config.option.long)


def pytest_unconfigure() -> None:
    if _server is not None:
        _server.stop()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing may outlive the tests: no session, no prepared transaction, no database, no process."""
    if _server is None:
        return
    with psycopg.connect(_server.dsn(), autocommit=True) as conn:
        leaks = [
            f"{kind} {name}"
            for kind, name in conn.execute(
                """select 'session', format('%s in %s: %s', pid, datname, query) from pg_stat_activity
                   where backend_type = 'client backend' and pid <> pg_backend_pid()
                   union all select 'prepared transaction', gid from pg_prepared_xacts
                   union all select 'advisory lock', objid::text from pg_locks where locktype = 'advisory'
                   union all select 'database', datname from pg_database
                             where datname not in ('postgres', 'template0', 'template1', 'outrider_template')"""
            ).fetchall()
        ]
    leaks += [
        f"process {child.pid}: {' '.join(child.cmdline())}"
        for child in psutil.Process().children(recursive=True)
        if child.pid != _server.pid and "supervise" not in " ".join(child.cmdline()) and child.name() != "postgres"
    ]
    if leaks:
        print("\nLEAKED:\n  " + "\n  ".join(leaks))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def server() -> str:
    """The DSN of the server's maintenance database."""
    return os.environ[SERVER]


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    yield from _database(server, "template1")


@pytest.fixture
def database(server: str) -> Iterator[str]:
    """The DSN of a fresh database with the migrated schema."""
    yield from _database(server, TEMPLATE)


def _sessions_after_closing(conn: psycopg.Connection[Any], name: str) -> list[Any]:
    """A closed session's backend is gone a moment later: look until it is, or until it clearly stays."""
    deadline = time.monotonic() + 3
    query = "select state, query from pg_stat_activity where datname = %s and backend_type = 'client backend'"
    while (held := conn.execute(query, [name]).fetchall()) and time.monotonic() < deadline:
        pass
    return held


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[str]:
    """A server of this module's own, where no other test draws transaction ids."""
    with Embedded.temporary(settings=SETTINGS) as quiet:
        quiet.ensure_database(TEMPLATE)
        asyncio.run(_migrate(quiet.dsn(TEMPLATE)))
        yield quiet.dsn()


@pytest.fixture
def quiet_database(quiet_server: str) -> Iterator[str]:
    yield from _database(quiet_server, TEMPLATE)


def _database(server: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}".encode())
        yield make_conninfo(server, dbname=name)
        held = _sessions_after_closing(conn, name)
        prepared = conn.execute("select gid from pg_prepared_xacts where database = %s", [name]).fetchall()
        for (gid,) in prepared:
            with psycopg.connect(server, dbname=name, autocommit=True) as inside:
                inside.execute(f"rollback prepared '{gid}'".encode())
        conn.execute(f"drop database {name} with (force)".encode())
    assert not held, f"the test left sessions open: {held}"
    assert not prepared, f"the test left transactions prepared: {prepared}"
