"""What Outrider uses of psycopg beyond its documented interface is as it was when somebody last checked it.

When a test of this file fails after an upgrade of psycopg:

1. Read what has changed in the functions that it names, and compare it with postgres/psycopg_private.py.
2. Run tests/worker/test_tenants.py (the tenant travels with the first statement; takes are prepared again after DEALLOCATE
   ALL), tests/worker/test_later.py (statements in a raw pipeline), tests/postgres/test_session.py, test_lanes.py (settings
   behind a pooler; an idle transaction is ended after a pipeline), tests/integrations (twins of a connection), each with
   `--tier verify` too.
3. Put the new fingerprints here, and raise the upper bound of psycopg in pyproject.toml.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg._connection_base import BaseConnection
from psycopg._cursor_base import BaseCursor
from psycopg._pipeline_base import BasePipeline
from psycopg._preparing import PrepareManager
from psycopg._queries import PostgresQuery

ROOT = Path(__file__).parents[2]
CHECKED = "3.3"
"""The release whose functions have these fingerprints."""
LOWEST = "3.2.10"
"""The oldest release on which the tests of point 2 have passed. In 3.2.9 the module psycopg._pipeline_base is missing."""
FUNCTIONS: dict[Callable[..., Any], str] = {
    BaseConnection.__init__: "fcf75dfaf799",
    BaseConnection._exec_command: "fb1d5546c144",
    BaseConnection._get_tx_start_command: "f4e861eac48f",
    BaseConnection._start_query: "bf3d90efd129",
    BaseConnection.__del__: "48256aae84c1",
    BaseCursor._execute_gen: "d4128fe2e220",
    BaseCursor._maybe_prepare_gen: "86dc8e74d068",
    BaseCursor._execute_send: "2e4b180e6286",
    BaseCursor._send_query_prepared: "b93f0ec6a1ac",
    BasePipeline._exit_gen: "fd7793ca0482",
    BasePipeline._enqueue_sync: "976a6bf02bf2",
    BasePipeline._communicate_gen: "e1b241de73fc",
    BasePipeline._fetch_gen: "c2bcdf56de27",
    PrepareManager.__init__: "c0266a0bf8e4",
    PrepareManager.get: "92bd48792422",
    PrepareManager.maybe_add_to_cache: "cc8322856abe",
    PrepareManager.validate: "76c655be05ed",
    PrepareManager.maintain_gen: "d5192fdb4082",
    PostgresQuery.__init__: "4cee6cbd2418",
    PostgresQuery.convert: "6238407fdcea",
    PostgresQuery.dump: "5f1575fab909",
}
PRIVATE = re.compile(
    r"psycopg\._|\._(pipeline|prepared|adapters|pool|autocommit|exec_command|get_tx_start_command|notice_handlers|"
    r"notify_handlers|exit_gen|enqueue_sync|communicate_gen|fetch_gen|execute_gen|execute_send|maybe_prepare_gen|"
    r"send_query_prepared)\b"
)
OUR_OWN = {"self._pool", "self._adapters"}


@pytest.mark.skipif(not psycopg.__version__.startswith(CHECKED), reason="an older psycopg that is supported too")
def test_the_functions_are_those_that_were_checked() -> None:
    found = {each.__qualname__: _fingerprint(each) for each in FUNCTIONS}
    assert found == {each.__qualname__: known for each, known in FUNCTIONS.items()}, "see the docstring of this file"


async def test_a_connection_keeps_its_state_where_a_twin_looks_for_it(database: str) -> None:
    with psycopg.connect(database) as blocking:
        async with await psycopg.AsyncConnection.connect(database) as conn:
            for each in (blocking, conn):
                wanted = {"pgconn", "_autocommit", "_prepared", "_pipeline", "_notice_handlers", "_notify_handlers"}
                assert wanted <= set(vars(each))


def test_no_release_is_installed_unchecked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for names in project["optional-dependencies"].values() for each in names]
    wanted = [each for each in [*project["dependencies"], *extras] if each.startswith("psycopg[")]
    major, minor = map(int, CHECKED.split("."))
    assert wanted
    assert all(each.endswith(f"]>={LOWEST},<{major}.{minor + 1}") for each in wanted), wanted


def test_no_other_module_uses_private_names() -> None:
    for file in (ROOT / "src/outrider").rglob("*.py"):
        for line in file.read_text().splitlines():
            used = PRIVATE.search(line)
            own = any(each in line for each in OUR_OWN)
            assert used is None or own or file.name == "psycopg_private.py", f"{file}: {line}"


def _fingerprint(function: Callable[..., Any]) -> str:
    return sha256(inspect.getsource(function).encode()).hexdigest()[:12]
