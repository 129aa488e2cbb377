"""The positions of the streams of relays and inboxes."""

from __future__ import annotations

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
