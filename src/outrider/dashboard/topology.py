"""Who publishes and who takes which events: a picture in columns, from streams and contexts over event types and
subscriptions to streams. Edges carry rates and lag. The template draws it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from outrider.dashboard.text import capped
from outrider.dashboard.traffic import OTHER, Traffic
from outrider.dashboard.verdict import BAD
from outrider.postgres.admin.status import Standing, Status

EVERY = "every event"
DRAWN = 200
"""Event types, and contexts, that are drawn. More are drawn only if a subscription or a rollup names them."""
HEIGHT, GAP, PORT = 42, 8, 18
"""Of a node; between two nodes; between the ends of two edges at one node."""
WIDTH, BETWEEN = 200, 128
STATES = {**BAD, "paused": "paused"}
TITLES = ("Streams to read", "Contexts, inboxes, rollups", "Events and jobs", "Subscriptions", "Streams to write")


@dataclass(slots=True)
class Node:
    name: str
    kind: str
    """context, inbox, rollup, event, stream, or the kind of a subscription."""
    path: str
    """The page that it links to."""
    note: str = ""
    tone: str = ""
    x: int = 0
    y: int = 0
    height: int = HEIGHT
    ends: int = 0
    """Edges that end here."""


@dataclass(slots=True)
class Edge:
    start: Node
    end: Node
    label: str
    tone: str = ""
    port: int = 0
    """Its place among the edges that end at the same node."""

    @property
    def line(self) -> tuple[int, int, int, int]:
        spread = (self.end.ends - 1) * PORT
        y2 = self.end.y + (self.end.height - spread) // 2 + self.port * PORT
        return self.start.x + WIDTH, self.start.y + self.start.height // 2, self.end.x, y2


@dataclass(slots=True)
class Picture:
    columns: list[tuple[str, int, list[Node]]] = field(default_factory=list)
    """Title, left edge and nodes, from the left to the right."""
    edges: list[Edge] = field(default_factory=list)
    width: int = 0
    height: int = HEIGHT
    left_out: int = 0
    """Event types and contexts that are not drawn."""


def topology(status: Status, traffic: Traffic) -> Picture:
    takers = [each for each in status.subscriptions if each.kind != "inbox" and each.event_types != []]
    jobs = [each for each in status.subscriptions if each.kind == "job" and each.event_types == []]
    emitted = {name for each in status.rollups for name in each.emits}
    wanted = {name for each in takers for name in each.event_types or ()}
    named = wanted | emitted
    others = sorted(traffic.publishers.keys() - named, key=lambda name: (-(traffic.published(name) or 0), name))
    drawn = others[: max(0, DRAWN - len(named))]
    events = {
        name: Node(name, "event", f"log?type={quote(name)}", _per_second(traffic.published(name)))
        for name in sorted(named.union(drawn))
    }
    if OTHER in events:
        events[OTHER].path = "log"
    if any(each.event_types is None for each in takers):
        events[EVERY] = Node(EVERY, "event", "log", _per_second(traffic.published()))
    for each in jobs:
        events[each.name] = Node(each.name, "job", f"jobs?type={quote(each.name)}", _owed(each), _tone(each))
    picture = Picture(left_out=len(others) - len(drawn))
    sources, read = _sources(picture, status, traffic, events, jobs)
    middle = _takers(picture, takers, traffic, events)
    streams = _streams(picture, takers, middle, traffic)
    ordered = list(events.values())
    near = _near(sources, picture.edges, ordered)
    columns = [_near(read, picture.edges, near), near, ordered, list(middle.values()), streams]
    _place(picture, columns)
    return picture


def _sources(
    picture: Picture, status: Status, traffic: Traffic, events: Mapping[str, Node], jobs: Iterable[Standing]
) -> tuple[list[Node], list[Node]]:
    """Contexts publish and enqueue; inboxes bring events of other services; rollups make events of rows. And the streams
    that inboxes read."""
    found: dict[tuple[str, str], Node] = {}
    streams = []
    for each in status.subscriptions:
        if each.kind == "inbox":
            note = ", ".join([*_states(each), *([] if each.streams else ["no stream yet"])])
            inbox = Node(each.name, "inbox", f"subscriptions/{quote(each.name)}", note, _tone(each))
            found["inbox", each.name] = inbox
            for stream in each.streams:
                node = Node(stream.name, "stream", f"streams?inbox={quote(each.name)}", f"{stream.events:,} events")
                picture.edges.append(Edge(node, inbox, _rate(traffic.moved(each.name, stream.name))))
                streams.append(node)
    left_out: set[tuple[str, str]] = set()
    for name, publishers in sorted(traffic.publishers.items()):
        for source, origin in sorted(publishers, key=str):
            kind, who = ("context", source) if origin is None else ("inbox", origin)
            if name not in events:
                continue
            if (kind, who) not in found and len(found) >= DRAWN:
                left_out.add((kind, who))
                continue
            path = f"contracts?context={quote(source)}" if origin is None else f"subscriptions/{quote(who)}"
            start = found.setdefault((kind, who), Node(who, kind, path))
            picture.edges.append(Edge(start, events[name], _rate(traffic.published(name, who))))
    picture.left_out += len(left_out)
    for job in jobs:
        path = f"contracts?context={quote(job.context)}"
        start = found.setdefault(("context", job.context), Node(job.context, "context", path))
        picture.edges.append(Edge(start, events[job.name], f"{capped(job.waiting)} owed" if job.waiting else ""))
    for rollup in status.rollups:
        note = f"{capped(rollup.pending)} rows wait" if rollup.pending else f"of {rollup.source}"
        start = found["rollup", rollup.name] = Node(rollup.name, "rollup", f"rollups/{quote(rollup.name)}", note)
        start.tone = "bad" if rollup.set_aside else ""
        picture.edges += [Edge(start, events[name], "") for name in dict.fromkeys(rollup.emits)]
    return list(found.values()), streams


def _takers(
    picture: Picture, takers: Iterable[Standing], traffic: Traffic, events: Mapping[str, Node]
) -> dict[str, Node]:
    rows = {name: row for row, name in enumerate(events)}
    middle: dict[str, Node] = {}
    for each in sorted(takers, key=lambda each: (_centre(rows[n] for n in each.event_types or [EVERY]), each.name)):
        node = Node(each.name, each.kind, f"subscriptions/{quote(each.name)}", _owed(each), _tone(each))
        middle[each.name] = node
        for name in sorted(each.event_types or [EVERY]):
            lag = f", lag {each.lag:,}" if each.is_behind else ""
            rate = _rate(traffic.read(each.name, None if name == EVERY else name))
            picture.edges.append(
                Edge(events[name], node, f"{rate}{lag}".removeprefix(", "), "behind" if each.is_behind else "")
            )
    return middle


def _streams(picture: Picture, takers: Iterable[Standing], middle: Mapping[str, Node], traffic: Traffic) -> list[Node]:
    found = []
    for each in takers:
        for stream in each.streams:
            node = Node(stream.name, "stream", "streams", f"{stream.events:,} events")
            picture.edges.append(Edge(middle[each.name], node, _rate(traffic.moved(each.name, stream.name))))
            found.append(node)
    return found


def _place(picture: Picture, columns: Iterable[list[Node]]) -> None:
    for edge in picture.edges:
        edge.port, edge.end.ends = edge.end.ends, edge.end.ends + 1
    x = 0
    for title, nodes in zip(TITLES, columns, strict=True):
        if not nodes:
            continue
        y = 0
        for node in nodes:
            node.x, node.y, node.height = x, y, max(HEIGHT, node.ends * PORT + 6)
            y += node.height + GAP
        picture.columns.append((title, x, nodes))
        picture.width, picture.height = x + WIDTH, max(picture.height, y)
        x += WIDTH + BETWEEN


def _near(nodes: list[Node], edges: Iterable[Edge], ordered: list[Node]) -> list[Node]:
    """Each as high as what it leads to."""
    rows = {id(node): row for row, node in enumerate(ordered)}
    ends: dict[int, list[int]] = {}
    for edge in edges:
        if id(edge.end) in rows:
            ends.setdefault(id(edge.start), []).append(rows[id(edge.end)])
    return sorted(nodes, key=lambda node: (_centre(ends.get(id(node), [0])), node.name))


def _centre(places: Iterable[int]) -> float:
    found = list(places)
    return sum(found) / len(found)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.1f}/s"


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.1f} a second"


def _owed(each: Standing) -> str:
    owed = [f"{capped(each.waiting)} waiting" if each.waiting else "", f"{capped(each.dead)} dead" if each.dead else ""]
    return ", ".join(filter(None, [*_states(each), *owed])) or ("reading" if each.is_behind else "up to date")


def _states(each: Standing) -> list[str]:
    """Why a node is red."""
    return [] if each.kind == "reader" else [STATES[state] for state in each.states if state in STATES]


def _tone(each: Standing) -> str:
    return "bad" if each.dead or (each.states != ("running",) and each.kind != "reader") else ""
