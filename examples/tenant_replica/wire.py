"""All that the two services share: where the broker is. Its URL says whether it is Redis or NATS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from outrider import Envelope
from outrider.streams import Codec, Lease, Sink
from outrider.streams.lease import RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.nats_lease import NatsLease
from outrider.streams.redis import RedisStreams
from outrider.streams.url import REDIS, broker

URL = os.environ.get("TENANT_REPLICA_BROKER", "redis://localhost:6379")
IS_REDIS = URL.partition(":")[0] in REDIS
SECONDS = 5
"""Of a lease: so long another process waits after a crash."""


def stream(name: str, codec: Codec | None = None) -> RedisStreams | JetStream:
    return broker(URL, stream=name, codec=codec, create=True)


def lease(name: str) -> Lease:
    if IS_REDIS:
        return RedisLease(URL, f"lock:outbox:{name}", ttl=SECONDS)
    return NatsLease(URL, f"outbox_{name}", ttl=SECONDS)


def routed(prefix: str, tenants: Sequence[str], codec: Codec) -> Iterator[tuple[str, str | None, Sink]]:
    """A stream for each tenant: the name of a relay, the only tenant that it sends, and its sink.

    With Redis one relay writes to all of them, also to those of tenants that are yet to come. A JetStream is one stream, so
    with NATS each tenant has a relay.
    """

    def stream_of(envelope: Envelope) -> str:
        return f"{prefix}_{envelope.workspace_id or 'nobody'}"

    if IS_REDIS:
        yield prefix, None, RedisStreams(URL, stream_for=stream_of, codec=codec)
        return
    for tenant in tenants:
        name = f"{prefix}_{tenant}"
        yield name, tenant, JetStream(URL, stream=name, codec=codec, create=True)
