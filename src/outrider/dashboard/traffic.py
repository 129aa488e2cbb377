"""How many events of each type come per second, from which source; how many each subscription reads, and how many go through
each stream. In memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice

from outrider.postgres.admin.activity import Flow
from outrider.postgres.admin.status import Status

MOST = 1000
"""Events that one look reads. If more have come, their types are estimated from the newest."""
FIRST = 20_000
"""Events that the first look reads, to know who publishes what."""
WINDOW = timedelta(seconds=60)
TYPES, SOURCES = 500, 20
"""Event types, and publishers of each type, that are counted by name. All others are counted as OTHER."""
OTHER = "other"
Key = tuple[str, ...]


class Traffic:
    def __init__(self) -> None:
        self.after: int | None = None
        """The newest log position that was counted. None: before the first look."""
        self.publishers: dict[str, dict[tuple[str, str | None], datetime]] = {}
        """By event type: the contexts that published it, each with the inbox that brought it, and when that was seen."""
        self._samples: deque[tuple[datetime, Mapping[Key, float]]] = deque()
        """The events of each look within the window."""
        self._streams: dict[Key, int] = {}
        self._cursors: dict[Key, int] = {}
        self._mix: Mapping[str, float] = {}
        """The share of each event type among the newest events."""

    def add(self, status: Status, flows: Sequence[Flow]) -> None:
        """`flows`: the newest events above `after`, at most MOST, or FIRST at the first look."""
        self._make_room(status.read_at)
        came: defaultdict[Key, float] = defaultdict(float)
        counted = sum(each.events for each in flows)
        share = max(1.0, (status.seq - (self.after or 0)) / counted) if counted == MOST else 1.0
        for flow in flows:
            name, who = self._publisher(flow, status.read_at)
            if self.after is not None:
                for key in ((), (name,), (name, who)):
                    came[key] += flow.events * share
        if counted:
            self._mix = _shares(flows, counted)
        self.after = status.seq
        read, self._cursors = self._cursors, {}
        for each in status.subscriptions:
            for place in each.positions:
                cursor = ("cursor", each.name, str(place.generation))
                self._cursors[cursor] = place.seq
                passed = place.seq - read.get(cursor, place.seq)
                came["read", each.name, ""] = max(came["read", each.name, ""], passed)
        before, self._streams = self._streams, {}
        for subscription in status.subscriptions:
            for stream in subscription.streams:
                moved = ("stream", subscription.name, stream.name)
                self._streams[moved] = stream.events
                came[moved] = stream.events - before.get(moved, stream.events)
        self._samples.append((status.read_at, came))
        while self._samples[0][0] < status.read_at - WINDOW:
            self._samples.popleft()

    def published(self, event_type: str | None = None, source: str | None = None) -> float | None:
        """Events per second in the last minute: all, of a type, or of a type from a context or an inbox."""
        return self._rate(tuple(part for part in (event_type, source) if part is not None))

    def moved(self, subscription: str, stream: str) -> float | None:
        """Events per second that a relay has written into a stream, or an inbox has read from it."""
        return self._rate(("stream", subscription, stream))

    def read(self, subscription: str, event_type: str | None = None) -> float | None:
        """Events per second, all or of a type, that the cursor of a subscription has passed: of the fastest generation."""
        passed = self._rate(("read", subscription, ""))
        if passed is None or event_type is None:
            return passed
        came = sum(each.get((), 0) for _, each in islice(self._samples, 1, None))
        of_type = sum(each.get((event_type,), 0) for _, each in islice(self._samples, 1, None))
        return passed * (of_type / came if came else self._mix.get(event_type, 0.0))

    def _rate(self, key: Key) -> float | None:
        if len(self._samples) < 2:
            return None
        seconds = (self._samples[-1][0] - self._samples[0][0]).total_seconds()
        events = sum(came.get(key, 0) for _, came in islice(self._samples, 1, None))
        return max(0.0, events) / seconds if seconds > 0 else None

    def _publisher(self, flow: Flow, now: datetime) -> tuple[str, str]:
        """The names under which the events of a type and a publisher are counted."""
        name = flow.event_type if flow.event_type in self.publishers or len(self.publishers) < TYPES else OTHER
        found = self.publishers.setdefault(name, {})
        who: tuple[str, str | None] = flow.source, flow.origin
        if who not in found and len(found) >= SOURCES:
            who = OTHER, None
        found[who] = now
        return name, who[1] or who[0]

    def _make_room(self, now: datetime) -> None:
        """Where there is no room, forgets who was not seen within the window."""
        full = len(self.publishers) >= TYPES
        for name, found in list(self.publishers.items()):
            recent = {who: at for who, at in found.items() if at >= now - WINDOW}
            if full and not recent:
                del self.publishers[name]
            elif len(found) >= SOURCES:
                self.publishers[name] = recent


def _shares(flows: Sequence[Flow], counted: int) -> Mapping[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for each in flows:
        found[each.event_type] += each.events / counted
    return found
