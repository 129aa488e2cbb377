"""Streams of a broker, as sinks of relays and sources of inboxes, and the codecs for their entries."""

from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.lease import Lease, RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.nats_lease import NatsLease
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaChange, ReplicaCodec
from outrider.streams.stream import Appended, AppendOutcome, Codec, Moved, Page, Rejected, Sink, Source, StreamEntry
from outrider.streams.url import broker

__all__ = [
    "AppendOutcome",
    "Appended",
    "CloudEventsCodec",
    "Codec",
    "EnvelopeCodec",
    "JetStream",
    "Lease",
    "Moved",
    "NatsLease",
    "Page",
    "RedisLease",
    "RedisStreams",
    "Rejected",
    "ReplicaChange",
    "ReplicaCodec",
    "Sink",
    "Source",
    "StreamEntry",
    "broker",
]
