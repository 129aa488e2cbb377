from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import TEMPLATE, _database


@pytest.fixture(scope="module")
def shared_database(server: str) -> Iterator[str]:
    """One for the tests of a module that run in this process."""
    yield from _database(server, TEMPLATE)
