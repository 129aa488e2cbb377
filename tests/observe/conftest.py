"""One redis-server and one nats-server for all tests of a worker that do not harm them."""

from __future__ import annotations

from tests.cli.conftest import outrider, start
from tests.streams.conftest import name, nats_server, redis_server

__all__ = ["name", "nats_server", "outrider", "redis_server", "start"]
