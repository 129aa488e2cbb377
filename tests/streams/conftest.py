"""One redis-server and one nats-server for all tests of a worker that do not harm them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.brokers import NatsServer, RedisServer


@pytest.fixture(scope="session")
def redis_server(_no_process_left: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(_no_process_left: None) -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def name() -> str:
    """Of a stream that no other test uses."""
    return f"s{uuid.uuid4().hex[:12]}"
