"""Fixtures for pytest: a Postgres for the session, a fresh database per test.

Every pytest run in an environment with Outrider imports this: it must stay cheap and start nothing by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest


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
    from outrider.postgres import scratch

    name = scratch.make_template(outrider_server, outrider_schema, outrider_prepare)
    yield name
    scratch.drop(outrider_server, name)


@pytest.fixture
def outrider_database(outrider_server: str, outrider_template: str) -> Iterator[str]:
    """The DSN of a fresh database with Outrider's schema and your tables, dropped after the test.

    A session that is still open in it then is an error, which names it.
    """
    from outrider.postgres import scratch

    name = scratch.create(outrider_server, template=outrider_template)
    yield scratch.dsn(outrider_server, name)
    if left := scratch.drop(outrider_server, name):
        pytest.fail(
            f"the test left {len(left)} session(s) open in its database; close connections, pools and workers before "
            "it ends (`async with app:`, `with connect(...)`):\n  " + "\n  ".join(left),
            pytrace=False,
        )
