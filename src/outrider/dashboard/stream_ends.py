"""Where the streams of relays end, as their brokers say. Only the app knows the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outrider.app import Outrider
from outrider.error_text import describe
from outrider.postgres.admin.status import Status
from outrider.postgres.admin.streams import Stream
from outrider.streams.stream import own_copy

PATIENCE = 2.0
"""Seconds for a broker to answer."""
KEPT = timedelta(seconds=10)
"""Brokers are not asked more often, however many pages are opened."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Where a stream ends at its broker, and whether the relay has noted the same."""

    subscription: str
    stream: str = ""
    noted: str = ""
    end: str = ""
    holds: bool = True
    """The broker still has the entry up to which the relay wrote. Otherwise, it has lost the end of the stream."""
    error: str | None = None


class StreamEnds:
    def __init__(self, app: Outrider) -> None:
        self._app = app
        self._asking = asyncio.Lock()
        self._asked_at: datetime | None = None
        self._found: list[StreamEnd] = []

    async def of(self, status: Status) -> list[StreamEnd]:
        async with self._asking:
            if self._asked_at is None or status.read_at - self._asked_at >= KEPT:
                sinks = {each.name: each.sink for each in self._app.relays}
                known = [each for each in status.subscriptions if each.name in sinks and each.streams]
                ends = await asyncio.gather(*(_ask(each.name, sinks[each.name], each.streams) for each in known))
                self._found, self._asked_at = [each for found in ends for each in found], status.read_at
            return self._found


async def _ask(name: str, sink: Any, streams: Sequence[Stream]) -> list[StreamEnd]:
    """Sinks may be anybody's: whatever they raise is shown. A relay of this process may use the sink: it is not closed."""
    ends, own = [], None
    try:
        own = own_copy(sink)
        asked = sink if own is None else own
        async with asyncio.timeout(PATIENCE):
            await asked.open()
            for each in streams:
                end, holds = await asked.end(each.name), await asked.holds(each.name, each.position)
                ends.append(StreamEnd(name, each.name, each.place, str(end).partition("@")[0], holds))
    except TimeoutError:
        ends.append(StreamEnd(name, error=f"its broker gave no answer within {PATIENCE:g} s"))
    except Exception as error:
        ends.append(StreamEnd(name, error=describe(error)))
    finally:
        if own is not None:
            with suppress(Exception):
                async with asyncio.timeout(PATIENCE):
                    await own.close()
    return ends
