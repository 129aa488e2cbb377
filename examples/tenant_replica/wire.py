"""All that the two services share: where the broker is. Its URL says whether it is Redis or NATS."""

from __future__ import annotations

import os

from outrider.streams import Codec
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.url import broker

URL = os.environ.get("TENANT_REPLICA_BROKER", "redis://localhost:6379")


def stream(name: str, codec: Codec | None = None) -> RedisStreams | JetStream:
    return broker(URL, stream=name, codec=codec, create=True)
