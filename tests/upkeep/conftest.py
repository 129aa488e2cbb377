"""A house with a migrated schema of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.upkeep.house import House, opened


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


@pytest.fixture
def house(database: str) -> Iterator[House]:
    with opened(database) as place:
        yield place
