"""One program that workers are forked from, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults import nursery


@pytest.fixture(scope="session", autouse=True)
def _nurseries(_no_process_left: None) -> Iterator[None]:
    with nursery.program():
        yield
