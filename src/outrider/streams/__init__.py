"""Streams of a broker, as sinks of relays and sources of inboxes; how events are written into them."""

from outrider.errors import BrokerUnavailable, StreamMissing, StreamOccupied
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.lease import Lease, RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import Change, ReplicaCodec, read_change
from outrider.streams.stream import Appended, Codec, Entry, Moved, Outcome, Page, Rejected, Sink, Source, Streams
from outrider.streams.url import broker

__all__ = [
    "Appended",
    "BrokerUnavailable",
    "Change",
    "CloudEventsCodec",
    "Codec",
    "Entry",
    "EnvelopeCodec",
    "JetStream",
    "Lease",
    "Moved",
    "Outcome",
    "Page",
    "RedisLease",
    "RedisStreams",
    "Rejected",
    "ReplicaCodec",
    "Sink",
    "Source",
    "StreamMissing",
    "StreamOccupied",
    "Streams",
    "broker",
    "read_change",
]
