"""An archive with its tables, and one whose rollup is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.rollup.archive import TABLES, Archive, opened


@pytest.fixture
def bare(database: str) -> Iterator[Archive]:
    with opened(database) as place:
        place.ask(TABLES)
        yield place


@pytest.fixture
def archive(bare: Archive) -> Archive:
    bare.install()
    return bare
