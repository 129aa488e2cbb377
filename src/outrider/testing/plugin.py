"""Fixtures for pytest: a Postgres for the session, a fresh database per test, and apps that open no other one.

Nothing is started before a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import pytest

from outrider.app import Outrider
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres.dsn import describe
from outrider.postgres.schema import scratch

ANY_DATABASE = "outrider_any_database"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        ANY_DATABASE, "apps may open any database, not only those of outrider_database", "bool", default=False
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{ANY_DATABASE}: apps may open any database, not only those of outrider_database"
    )
    if not config.getini(ANY_DATABASE):
        patch = pytest.MonkeyPatch()
        patch.setattr(Outrider, "_refusal", staticmethod(_refusal))
        config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker(ANY_DATABASE) is not None:
            patch.setattr(Outrider, "_refusal", staticmethod(lambda _: None))
        return (yield)


def _refusal(settings: Settings) -> str | None:
    """Why the app must not open this database; None if it is a database of the tests."""
    where = "the embedded Postgres in .outrider/pg" if settings.embedded else None
    for dsn in (settings.dsn, settings.listen_dsn):
        if where is None and dsn is not None and not scratch.is_scratch(dsn):
            where = describe(dsn)
    if where is None:
        return None
    return (
        f"the app would open {where}, which is not a database of this test. To use that of the test, take the fixture "
        "outrider_relocate and call outrider_relocate(app) before the app is opened. If the test must use this one, mark "
        f"it with @pytest.mark.{ANY_DATABASE}, or allow it to all tests with {ANY_DATABASE} = true in pytest's configuration"
    )


@pytest.fixture(scope="session")
def outrider_server() -> Iterator[str]:
    """The DSN of a server where databases may be made: OUTRIDER_TEST_DSN, else a temporary embedded Postgres.

    With xdist every worker starts one of its own, unless OUTRIDER_TEST_DSN names one for all.
    """
    if given := os.environ.get("OUTRIDER_TEST_DSN"):
        yield given
        return
    from outrider.postgres.embedded import Embedded

    with Embedded.temporary() as server:
        yield server.dsn()


@pytest.fixture(scope="session")
def outrider_schema() -> str:
    """The schema that the template has; override it when your app has another."""
    return os.environ.get("OUTRIDER_SCHEMA") or "outrider"


@pytest.fixture(scope="session")
def outrider_prepare() -> Callable[[str], object]:
    """Override it to return a function that adds your tables to the template: prepare(dsn), blocking or async.

    It is called once per session, after Outrider's own migrations, and must close its connections.
    """
    return lambda dsn: None  # noqa: ARG005


@pytest.fixture(scope="session")
def outrider_template(
    outrider_server: str, outrider_schema: str, outrider_prepare: Callable[[str], object]
) -> Iterator[str]:
    """The name of the database that every test gets a copy of."""
    name = scratch.make_template(outrider_server, outrider_schema, outrider_prepare)
    yield name
    scratch.drop(outrider_server, name)


@pytest.fixture
def outrider_database(outrider_server: str, outrider_template: str) -> Iterator[str]:
    """The DSN of a fresh database with Outrider's schema and your tables, dropped after the test.

    A session that is still open in it then is an error, which names it.
    """
    name = scratch.create(outrider_server, template=outrider_template)
    yield scratch.dsn(outrider_server, name)
    if left := scratch.drop(outrider_server, name):
        pytest.fail(
            f"the test left {len(left)} session(s) open in its database; close connections, pools and workers before "
            "it ends (`async with app:`, `with connect(...)`):\n  " + "\n  ".join(left),
            pytrace=False,
        )


@pytest.fixture
def outrider_relocate(outrider_database: str, outrider_schema: str) -> Iterator[Callable[[Outrider], Outrider]]:
    """A function that points a declared app at the test's database, registers its subscriptions there and returns it.

    When the test has ended, the app has its own settings again.
    """
    declared: list[tuple[Outrider, Settings]] = []

    def relocate(app: Outrider) -> Outrider:
        settings = app.settings
        if settings.schema != outrider_schema:
            raise ConfigError(
                f"the app uses the schema {settings.schema!r}, but the databases of the tests have {outrider_schema!r}: "
                "override the fixture outrider_schema to return app.settings.schema"
            )
        app.relocate(replace(settings, dsn=outrider_database, embedded=False, listen_dsn=None))
        declared.append((app, settings))
        scratch.run(_migrate(app))
        return app

    yield relocate
    for app, settings in reversed(declared):
        try:
            app.relocate(settings)
        except ConfigError:
            pytest.fail("the test left the app open: use it inside `async with app:`", pytrace=False)


async def _migrate(app: Outrider) -> None:
    async with app:
        await app.migrate()
