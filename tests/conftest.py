"""One temporary Postgres for the whole run, a database from a migrated template per test, and a search for leaks.

OUTRIDER_EMBEDDED_VERSION chooses its major version (make test-15, make test-16).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests import leaks, tiers
from tests.clusters import SETTINGS, TEMPLATE, WHOLE, make_templates
from tests.preloaded import Preloaded

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import Embedded
from outrider.testing import dispatched, expect

SERVER = "OUTRIDER_TEST_SERVER"
MEMORY = Path("/dev/shm")

_server: Embedded | None = None
_folder: Path | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return tiers.is_elsewhere(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select(config, items)
    if config.option.long:
        for item in items:
            item.add_marker(pytest.mark.timeout(1800), append=False)


def pytest_configure(config: pytest.Config) -> None:
    """The controlling process owns the folder and the server; the workers of xdist find both in their environment."""
    global _server, _folder
    # A shell ignores SIGINT in what it starts in the background, and programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(leaks.Started())
    if not config.option.long:  # no example is met by chance; make faults looks for others
        hypothesis.settings.register_profile("same", derandomize=True, database=None)
        hypothesis.settings.load_profile("same")
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    # Databases are made by the hundred: in memory, where there is enough of it, this takes half the time.
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30
    _folder = Path(tempfile.mkdtemp(prefix="otr-", dir=MEMORY if roomy else None))
    _folder.chmod(0o1777)
    os.environ["TMPDIR"] = tempfile.tempdir = str(_folder)
    try:
        _server = Embedded.temporary(settings=SETTINGS)
        _server.start()
    except EmbeddedError as error:
        _server = None
        shutil.rmtree(_folder, ignore_errors=True)
        raise pytest.UsageError(f"no server to test on: {error}") from error
    os.environ[SERVER] = _server.dsn()
    asyncio.run(make_templates(_server))


def pytest_report_header() -> str | None:
    if _server is None:
        return None
    with psycopg.connect(_server.dsn(), autocommit=True) as conn:
        return f"server: Postgres {conn.info.parameter_status('server_version')}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing may outlive the tests. The workers are gone by now."""
    global _server
    if _server is None or _folder is None:
        return
    found = leaks.in_server(_server.dsn())
    _server.stop()
    _server = None
    found += leaks.on_machine(_folder) + leaks.children()
    shutil.rmtree(_folder, ignore_errors=True)
    if found:
        print("\nLEAKED:\n  " + "\n  ".join(found))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _patient() -> None:
    """On a busy machine the ten seconds of a user's tests may be too short. It is less than the default poll, which would
    hide a wake-up that was lost."""
    for each in (expect, dispatched):
        inspect.unwrap(each).__kwdefaults__["timeout"] = 25.0


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    """Each worker answers for the processes that it started."""
    before = set(leaks.children())
    yield
    assert not set(leaks.children()) - before


@pytest.fixture(scope="session")
def preloaded(_no_process_left: None) -> Iterator[Preloaded]:
    with Preloaded() as found:
        yield found


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the run is a long one: make faults."""
    return bool(request.config.option.long)


@pytest.fixture(scope="session")
def server() -> str:
    """The DSN of the server's maintenance database."""
    return os.environ[SERVER]


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    yield from _database(server, "template1")


@pytest.fixture
def database(server: str) -> Iterator[str]:
    """The DSN of a fresh database with the migrated schema; its log has two segments."""
    yield from _database(server, TEMPLATE)


@pytest.fixture
def whole_database(server: str) -> Iterator[str]:
    """One with all the segments that `outrider migrate` makes, for tests of those."""
    yield from _database(server, WHOLE)


@pytest.fixture
def other_database(server: str) -> Iterator[str]:
    """A second one: of another service."""
    yield from _database(server, TEMPLATE)


def _sessions_after_closing(conn: psycopg.Connection[Any], name: str) -> list[Any]:
    """A closed session's backend is gone a moment later: look until it is, or until it clearly stays."""
    deadline = time.monotonic() + 60
    query = "select state, query from pg_stat_activity where datname = %s and backend_type = 'client backend'"
    while (held := conn.execute(query, [name]).fetchall()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return held


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[str]:
    """A server of this module's own, where no other test draws transaction ids."""
    with Embedded.temporary(settings=SETTINGS) as quiet:
        asyncio.run(make_templates(quiet))
        yield quiet.dsn()


@pytest.fixture
def quiet_database(quiet_server: str) -> Iterator[str]:
    yield from _database(quiet_server, TEMPLATE)


def _database(server: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        # Copied as files: half the time of copying through the WAL.
        conn.execute(f"create database {name} template {template} strategy file_copy".encode())
        yield make_conninfo(server, dbname=name)
        held = _sessions_after_closing(conn, name)
        prepared = conn.execute("select gid from pg_prepared_xacts where database = %s", [name]).fetchall()
        for (gid,) in prepared:
            with psycopg.connect(server, dbname=name, autocommit=True) as inside:
                inside.execute(f"rollback prepared '{gid}'".encode())
        conn.execute(f"drop database {name} with (force)".encode())
    assert not held, f"the test left sessions open: {held}"
    assert not prepared, f"the test left transactions prepared: {prepared}"
