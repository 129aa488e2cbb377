"""One redis-server and one nats-server for the pages that speak of them."""

from __future__ import annotations

from tests.streams.conftest import nats_server, redis_server

__all__ = ["nats_server", "redis_server"]
