"""The positions of the streams of relays and inboxes, and what relays owe by topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from outrider.errors import SubscriptionRefused
from outrider.postgres.errors import wrong_connection
from outrider.postgres.statement import fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of a relay or of an inbox."""

    name: str
    position: str
    """The last entry that the relay has written, or that the inbox has read."""
    events: int
    """How many events were written or read."""
    moved_at: datetime
    refused: int = 0
    """Entries that an inbox could not turn into events. They are kept. Up to MOST."""

    @property
    def place(self) -> str:
        """The position for people, without the id of its entry."""
        return self.position.partition("@")[0]


TOPICS, OTHER = 200, "other"
"""The most topics of a relay that are told apart. The others are one topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What a relay owes of one event type."""

    name: str
    """The event type; OTHER stands for those beyond TOPICS."""
    depth: int
    """Events that it has yet to send."""
    oldest_at: datetime | None
    """When the oldest of them occurred."""
    rejected: int
    """How many of them the broker has rejected, or were dead letters: they are sent when their retry is due."""
    dead: int
    """Dead letters."""


def topics_of(unread: Iterable[Sequence[Any]], letters: Iterable[Sequence[Any]]) -> tuple[Topic, ...]:
    """`unread`: type, number, oldest. `letters`: type, number that wait, their oldest, number of dead ones."""
    rows = [(name, events, datetime.fromisoformat(at), 0, 0) for name, events, at in unread]
    rows += [(name, waiting, at, waiting, dead) for name, waiting, at, dead in letters]
    found = sorted(_joined(rows), key=lambda each: (-each.depth, -each.dead, each.name))
    others = [(OTHER, each.depth, each.oldest_at, each.rejected, each.dead) for each in found[TOPICS:]]
    return (*found[:TOPICS], *_joined(others))


def _joined(rows: Iterable[tuple[str, int, datetime | None, int, int]]) -> list[Topic]:
    found: dict[str, Topic] = {}
    for name, depth, at, rejected, dead in rows:
        known = found.get(name)
        if known is not None:
            depth, rejected, dead = known.depth + depth, known.rejected + rejected, known.dead + dead
            at = min((each for each in (known.oldest_at, at) if each is not None), default=None)
        found[name] = Topic(name=name, depth=depth, oldest_at=at, rejected=rejected, dead=dead)
    return list(found.values())


async def high_water_mark(conn: object, stream: str, relay: str | None, start: str | None, schema: str) -> str:
    """`start`: the position of an empty stream; None = unknown."""
    if not isinstance(conn, AsyncConnection):
        raise TypeError(wrong_connection(conn, "AsyncConnection", "current_hwm"))
    found = await _written(conn, stream, relay, schema)
    if len(found) == 1:
        return str(found[0][3]).partition("@")[0]
    of = "" if relay is None else f" of {relay}"
    if not found and start is not None:
        return start
    if not found:
        raise SubscriptionRefused(
            f"no relay{of} has written to the stream {stream!r} yet: its first event makes it known"
        )
    names = ", ".join(sorted(row[0] for row in found))
    raise SubscriptionRefused(f"several relays write to streams called {stream!r}, {names}: say which with relay=")


async def _written(conn: AsyncConnection[Any], stream: str, relay: str | None, schema: str) -> list[Any]:
    return await fetch(conn, "streams/streams", schema, {"subscription": relay, "name": stream, "kind": "relay"})
