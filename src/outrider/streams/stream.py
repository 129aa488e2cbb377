"""What a relay writes to and an inbox reads from: an ordered stream at a broker, with a conditional append.

Protocols and values; no I/O. A position is a text that only its adapter understands; `sort_key` makes it comparable.
A position may name the entry that is there (`<position>@<entry>`), so that a reader notices when another entry has taken its
place. Relays store such positions, and sources return them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from outrider.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Appended:
    """All events are in the stream, in order. `position` is that of the last one that is new."""

    position: str
    duplicates: frozenset[int] = frozenset()
    """Indices of events that the broker left out, because their ids were in the stream at `after` or before."""
    count: int | None = field(default=None, compare=False)
    """Entries that were ever added to the stream up to here, if the broker counts them."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The stream does not end at `after`. No entry behind `after` may be counted as sent by this call."""

    end: str
    """The position at which the stream ends."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The broker or the codec refuses one event because of its content. Those before it are in the stream, none after it."""

    index: int
    position: str
    """Position of the last event that is in the stream; `after` if there is none."""
    code: str
    message: str
    lasting: bool = False
    """It will be refused again whenever it is sent, as it is too large, for example."""


AppendOutcome = Appended | Moved | Rejected


@dataclass(frozen=True, slots=True)
class StreamEntry:
    position: str
    data: bytes
    id: UUID | None = None
    """Id of the event; None if the codec did not write this entry."""


@dataclass(frozen=True, slots=True)
class Page:
    """The result of one read of a source."""

    entries: Sequence[StreamEntry]
    position: str
    """Where to read on. It may have changed although there are no entries."""
    rewound: bool = False
    """The position belonged to another stream: this one is read from its start."""
    trimmed: bool = False
    """Entries between the given position and this page were removed, or the broker cannot rule that out."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """A setting of a broker with which it could lose what it has acknowledged."""

    found: str
    advice: str
    grave: bool = True


class Codec(Protocol):
    """Translates between an event and the data of an entry."""

    content_type: str

    def encode(self, envelope: Envelope, position: str) -> bytes:
        """`position` is that of the entry if the writer chooses it (Redis), else empty. ValueError: cannot be encoded."""
        ...

    def decode(self, data: bytes) -> Envelope:
        """Raises Undecodable if the data is no event. A codec that leaves out fields cannot decode and raises TypeError."""
        ...

    def id_of(self, data: bytes) -> UUID | None:
        """The event's id; None if this codec did not write the data."""
        ...


def event_id_in(codec: Codec, data: bytes) -> UUID | None:
    """As `codec.id_of`. If a user's codec raises, it did not write the data."""
    try:
        return codec.id_of(data)
    except Exception:
        return None


def named_position(position: str, event_id: UUID | None, count: int | None = None) -> str:
    """The position together with the id of the event that is there and the count of entries, as a relay stores it."""
    name = "" if event_id is None else f"@{event_id.hex}"
    return f"{position}{name}#{count}" if name and count is not None else position + name


def count_at(position: str) -> int | None:
    """The count of entries that the position was stored with."""
    count = position.partition("#")[2]
    return int(count) if count else None


def bare_position(position: str) -> str:
    """The position as the broker knows it and as people see it, without the name of the entry."""
    return position.partition("@")[0]


def may_name(position: str, event_id: UUID | None) -> bool:
    """False if the position names another event than this one. Unknown on either side counts as True."""
    name = position.partition("@")[2].partition("#")[0]
    return not name or event_id is None or name == event_id.hex


class StreamAdapter(Protocol):
    """What sinks and sources have in common."""

    start: str
    """The position before the first entry."""
    codec: Codec

    def sort_key(self, position: str) -> tuple[int, ...]:
        """Greater for a later entry of the same stream. Raises ValueError if the text is not a position of this broker."""
        ...

    async def open(self) -> None:
        """Connect. Safe to call again."""
        ...

    async def close(self) -> None: ...


def own_copy(adapter: Any) -> Any:
    """The same streams with connections of its own, to ask the broker something while the adapter is in use. None if the
    adapter has no `copy()`."""
    copy = getattr(adapter, "copy", None)
    return None if copy is None else copy()


class Sink(StreamAdapter, Protocol):
    """Streams to which one relay, and nobody else, writes."""

    def stream_of(self, envelope: Envelope) -> str:
        """The stream for an event: always the same one for the same event."""
        ...

    async def end(self, stream: str) -> str:
        """Position of the last entry that was ever written; `start` if there was none. Raises StreamMissing."""
        ...

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> AppendOutcome:
        """Append all events in order if the stream ends at `after`. BrokerUnavailable: nobody knows what arrived."""
        ...

    async def holds(self, stream: str, position: str) -> bool:
        """Whether the stream has the entry that the position names, or had it until the broker removed it.

        False if it is another stream, ends before the position, or has another event there. True for `start`.
        """
        ...

    def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[StreamEntry], None]:
        """The entries after a position, up to the current end, in pages."""
        ...

    async def complete(self, stream: str, after: str) -> bool:
        """Whether every entry ever appended after this position is still there, neither trimmed nor deleted.

        False if the broker does not tell.
        """
        ...


class Source(StreamAdapter, Protocol):
    """A stream that an inbox reads."""

    @property
    def stream(self) -> str: ...

    async def read(self, after: str, limit: int, wait: float) -> Page:
        """The next entries, at most `limit`; waits up to `wait` seconds for the first. StreamMissing, BrokerUnavailable."""
        ...
