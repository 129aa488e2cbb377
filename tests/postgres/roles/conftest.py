"""A database whose owner has made the roles, and a login for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.postgres.roles.house import House, opened
from tests.streams.conftest import name, redis_server


@pytest.fixture
def house(database: str) -> Iterator[House]:
    with psycopg.connect(database, autocommit=True) as owner, opened(owner) as found:
        yield found


__all__ = ["house", "name", "redis_server"]
