"""Reads of a Redis stream that notice when the stream was replaced or trimmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from outrider.streams.redis_connection import RedisConnection
from outrider.streams.redis_positions import START, RedisId, RedisPositions, RedisStreamState, entry_name
from outrider.streams.stream import Page, StreamEntry, bare_position


class RedisReader:
    def __init__(self, connection: RedisConnection, positions: RedisPositions) -> None:
        self._connection = connection
        self._positions = positions
        self._caught_up = (START, 0)
        """An end of the stream that was read, and the number of entries ever added up to it."""

    async def read(self, stream: str, after: str, limit: int, wait: float) -> Page:
        deadline = time.monotonic() + wait
        while True:
            page = await self._page(stream, after, limit)
            left = deadline - time.monotonic()
            if page.entries or page.rewound or page.trimmed or left <= 0:
                return page
            async with self._connection.client(left + self._connection.timeout) as redis:
                # This only waits. The next page shows whether it is still the same stream.
                found = await redis.xread({stream: bare_position(after)}, count=1, block=max(1, int(left * 1000)))
            if not found:
                return page

    async def _page(self, stream: str, after: str, limit: int) -> Page:
        known, name = RedisId.parse(after), after.partition("@")[2]
        at = (str(known), str(known), None)
        state, [here, entries] = await self._positions.look_up(stream, at, (f"({known}", "+", limit))
        if _is_replaced(state, here, known, name):
            _, [entries] = await self._positions.look_up(stream, ("-", "+", limit))
            entries = _named(entries)
            return Page(entries, entries[-1].position if entries else str(START), rewound=True)
        entries, here = _named(entries), _named(here)
        trimmed = self._is_trimmed(state, known, entries)
        if entries:
            position = entries[-1].position
        elif trimmed:
            position = str(state.last)  # nothing is left to read
        elif here and not name:
            position = here[0].position
        else:
            position = after
        if RedisId.parse(position) == state.last:
            self._caught_up = (state.last, state.added)
        return Page(entries, position, trimmed=trimmed)

    def _is_trimmed(self, state: RedisStreamState, after: RedisId, entries: Sequence[StreamEntry]) -> bool:
        """Whether an entry between `after` and the end of the page is gone.

        Redis tells the number of entries ever added and the last one deleted, but not where trimming stopped. If `after` is
        gone too, only the number tells that no entry came in between.
        """
        if state.last <= after:
            return False
        if entries and after < state.last_deleted <= RedisId.parse(entries[-1].position):
            return True
        if state.reaches_back_to(after):
            return False
        end, added = (START, 0) if after == START else self._caught_up
        return end != after or state.added - added > state.length


def _is_replaced(state: RedisStreamState, here: Sequence[StreamEntry], after: RedisId, name: str) -> bool:
    """Whether this is not the stream that had the entry `after`. A stream that was trimmed beyond it may be that stream."""
    if after == START:
        return False
    if state.last < after:
        return True
    if here:
        return bool(name) and name != entry_name(here[0])
    return state.first is not None and state.first < after


def _named(entries: Sequence[StreamEntry]) -> list[StreamEntry]:
    return [replace(entry, position=f"{entry.position}@{entry_name(entry)}") for entry in entries]
