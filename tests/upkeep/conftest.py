"""A house with a migrated schema of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.upkeep.house import House, opened


@pytest.fixture
def house(whole_database: str) -> Iterator[House]:
    with opened(whole_database) as place:
        yield place
