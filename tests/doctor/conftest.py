"""A server to be broken: its queue of notifications is small, nothing is vacuumed, and its roles are its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.clusters import SETTINGS, WHOLE, migrated
from tests.conftest import _database
from tests.streams.conftest import name, nats_server, redis_server

from outrider.postgres.embedded import Embedded

__all__ = ["name", "nats_server", "redis_server"]

FRAGILE = SETTINGS | {"max_notify_queue_pages": "64", "wal_level": "logical", "autovacuum": "off"}


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[str]:
    with Embedded.temporary(settings=FRAGILE) as server:
        asyncio.run(migrated(server, WHOLE))
        yield server.dsn()


@pytest.fixture
def fragile(fragile_server: str) -> Iterator[str]:
    """The DSN of a fresh database there."""
    yield from _database(fragile_server, WHOLE)
