"""Streams of a broker, as sinks of relays and sources of inboxes; how events are written into them."""

from outrider.errors import BrokerUnavailable, StreamMissing, StreamOccupied
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.lease import Lease, RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import Change, ReplicaCodec, read_change
from outrider.streams.stream import (
    Appended,
    AppendOutcome,
    Codec,
    Moved,
    Page,
    Rejected,
    Sink,
    Source,
    StreamAdapter,
    StreamEntry,
)
from outrider.streams.url import broker

__all__ = [
    "AppendOutcome",
    "Appended",
    "BrokerUnavailable",
    "Change",
    "CloudEventsCodec",
    "Codec",
    "EnvelopeCodec",
    "JetStream",
    "Lease",
    "Moved",
    "Page",
    "RedisLease",
    "RedisStreams",
    "Rejected",
    "ReplicaCodec",
    "Sink",
    "Source",
    "StreamAdapter",
    "StreamEntry",
    "StreamMissing",
    "StreamOccupied",
    "broker",
    "read_change",
]
