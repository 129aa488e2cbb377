"""A schema that is owned by no superuser, with policies on; and a Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres.tenants.house import House, built
from tests.streams.conftest import name, redis_server


@pytest.fixture
def house(empty_database: str) -> Iterator[House]:
    with built(empty_database) as house:
        yield house


__all__ = ["house", "name", "redis_server"]
