"""What a relay writes to and an inbox reads from: an ordered log, kept elsewhere, with conditional append.

Protocols, values and errors; no I/O. A position is a text that only its adapter understands; `place` makes it comparable.
What a source gives, and what a relay stores, also names the entry that is there (`<place>@<which>`), so that it is noticed
when there is another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from outrider.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Appended:
    """All of them are in the stream, in their order; `position` is that of the last that is new."""

    position: str
    repeated: frozenset[int] = frozenset()
    """Which of them the broker takes for repeated, since it had their ids at `after` or before: it has kept them out."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The stream does not end where it should: nothing that follows `after` may be taken for sent by this call."""

    end: str
    """Where it ends."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The broker, or the codec, refuses one message for what it is. Those before it are in the stream, none after it."""

    index: int
    position: str
    """Of the last that is in the stream; `after` when there is none."""
    code: str
    message: str


Outcome = Appended | Moved | Rejected


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream."""

    position: str
    data: bytes
    id: UUID | None = None
    """Of the event; None = the entry is not one that this codec writes."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a source has read."""

    entries: Sequence[Entry]
    position: str
    """Where to go on; also without entries it may be another one than before."""
    rewound: bool = False
    """The stream is not the one that the position was of: it is read anew from its start."""
    trimmed: bool = False
    """Entries between the position that was given and this page's were removed, or that cannot be ruled out."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """Something about a broker through which it could lose what it has acknowledged."""

    found: str
    advice: str
    grave: bool = True


class Codec(Protocol):
    """How an event is written into one entry."""

    content_type: str

    def encode(self, envelope: Envelope, position: str) -> bytes:
        """`position` is that of the entry, where the broker lets the writer choose it; else empty.

        ValueError for what cannot be written.
        """
        ...

    def decode(self, data: bytes) -> Envelope:
        """Undecodable for what is no event. A codec that loses fields cannot decode: it raises TypeError."""
        ...

    def id_of(self, data: bytes) -> UUID | None:
        """The event's id; None for what this codec has not written."""
        ...


def id_in(codec: Codec, data: bytes) -> UUID | None:
    """The codec may be anybody's: what it stumbles over is not what it has written."""
    try:
        return codec.id_of(data)
    except Exception:
        return None


class Streams(Protocol):
    """What sinks and sources have in common."""

    start: str
    """The position before the first entry."""
    codec: Codec

    def place(self, position: str) -> tuple[int, ...]:
        """Comparable: a later entry of the same stream has a greater one. ValueError for what is no position."""
        ...

    async def open(self) -> None:
        """Connect. Safe to call again."""
        ...

    async def close(self) -> None: ...


def named(position: str, event_id: UUID | None) -> str:
    """A position that says which event is there, as a relay stores it."""
    return position if event_id is None else f"{position}@{event_id.hex}"


def bare(position: str) -> str:
    """Without what names the entry: as the broker has it, and for people."""
    return position.partition("@")[0]


def is_named(position: str, event_id: UUID | None) -> bool:
    """Whether this event may be the one that the position names: it is, or one of the two is not known."""
    which = position.partition("@")[2]
    return not which or event_id is None or which == event_id.hex


class Sink(Streams, Protocol):
    """Streams that one relay alone writes to."""

    def stream_of(self, envelope: Envelope) -> str:
        """The stream that an event goes to: always the same for the same event."""
        ...

    async def end(self, stream: str) -> str:
        """Where the stream ends; `start` when nothing was ever written. StreamMissing when it is not there and must be."""
        ...

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> Outcome:
        """Append all, in their order, if the stream ends at `after`. BrokerUnavailable when nobody knows what arrived."""
        ...

    async def holds(self, stream: str, position: str) -> bool:
        """Whether the stream has the entry that the position names, or had it until the broker removed it.

        False: the stream is another one, or it ends before, or another event is there. True for `start`.
        """
        ...

    def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[Entry], None]:
        """What is in the stream after a position, to its end as of now, in pages."""
        ...

    async def complete(self, stream: str, after: str) -> bool:
        """Whether everything that was ever appended after this position is still there: nothing trimmed, nothing deleted.

        False also where the broker does not say so.
        """
        ...


class Source(Streams, Protocol):
    """A stream that an inbox reads."""

    @property
    def stream(self) -> str: ...

    async def read(self, after: str, limit: int, wait: float) -> Page:
        """The next entries, at most `limit`; waits up to `wait` seconds for the first. StreamMissing, BrokerUnavailable."""
        ...
