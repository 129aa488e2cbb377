"""What is measured: the parts of the table, each with its lines, and how Outrider behaves as things grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.peers.environments import node, ours, theirs
from benchmarks.peers.line import INSTALL, Line

EVENTS, EVENTS_4, JOBS = "Outrider events", "Outrider events, 4 partitions", "Outrider jobs"
GRAPHILE, BARE = "Graphile Worker 0.18", "bare SQL"
PGQUEUER, PROCRASTINATE = "PgQueuer 1.6", "procrastinate 3.10"
SYSTEMS: dict[str, Callable[[], list[str]]] = {
    EVENTS: lambda: ours("outrider_events"),
    EVENTS_4: lambda: ours("outrider_events_4"),
    JOBS: lambda: ours("outrider_jobs"),
    GRAPHILE: node,
    PGQUEUER: lambda: theirs("pgqueuer_jobs"),
    PROCRASTINATE: lambda: theirs("procrastinate_jobs"),
    BARE: lambda: ours("bare"),
}
EVENTS_BEFORE, JOBS_BEFORE = "Outrider events, before", "Outrider jobs, before"
BEFORE = {EVENTS_BEFORE: "outrider_events", JOBS_BEFORE: "outrider_jobs"}
"""Programs of another commit, if one is named."""
NAMES = (*SYSTEMS, *BEFORE)
SLOW = {PGQUEUER: 0.2, PROCRASTINATE: 0.02}
"""Which share of a drain a slow system gets, so that a run ends."""
Unit = Literal["per second", "ms", "statements/s"]
Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    key: str
    title: str
    unit: Unit
    lines: list[Line]
    yardstick: str | None = None
    """None: the first line."""
    repeats: int | None = None
    messages: bool = True
    """Whether round trips and statements are counted."""


@dataclass(frozen=True)
class Sizes:
    drain: int = 100_000
    publish: int = 1_500
    bulk: int = 30_000
    crowd: int = 5_000
    pickup: int = 80
    paced: int = 1_000
    idle: int = 30
    later: int = 300_000
    grown_log: tuple[int, ...] = (10_000, 1_000_000)
    grown_drain: int = 20_000
    churn: int = 20_000


FULL = Sizes(grown_log=(10_000, 1_000_000, 10_000_000))
QUICK = Sizes(2_000, 60, 2_000, 160, 20, 200, 2, 2_000, (2_000, 10_000), 2_000, 2_000)


def table(commands: Commands, sizes: Sizes, redis: str | None) -> list[Part]:
    def lines(mode: str, count: int, *systems: str) -> list[Line]:
        return [Line(name, commands[name], mode, count) for name in systems or NAMES if name in commands]

    once = [each for each in NAMES if each != EVENTS_4]
    drains = [
        replace(line, count=count, prepare=(INSTALL, ("seed", count)))
        for line in lines("drain", sizes.drain)
        for count in [max(1, int(sizes.drain * SLOW.get(line.name, 1)))]
    ]
    crowd = [replace(line, publishers=16) for line in lines("crowd", sizes.crowd, *once)]
    if EVENTS in commands:
        after = {"OUTRIDER_NOTIFY": "after_commit"}
        crowd.insert(1, replace(crowd[0], name="Outrider events, notify=after_commit", env=after))
    return [
        Part("drain", "drain of no-op events or jobs", "per second", drains, GRAPHILE),
        Part("publish", "publish or enqueue, one per commit", "per second", lines("publish", sizes.publish, *once), BARE),
        Part(
            "within", "added to a business transaction", "ms",
            lines("within", sizes.publish, EVENTS, JOBS, GRAPHILE, PGQUEUER, BARE, *BEFORE), BARE,
        ),
        Part("bulk", "publish or enqueue, 1,000 a call", "per second", lines("bulk", sizes.bulk, *once), GRAPHILE),
        Part("crowd", "16 publishers at once, one per commit", "per second", crowd, GRAPHILE, messages=False),
        Part("pickup", "pickup by an idle worker", "ms", lines("pickup", sizes.pickup, *once), GRAPHILE),
        Part("paced", "500 per second", "ms", lines("paced", sizes.paced, *once), GRAPHILE),
        Part(
            "idle", "statements of an idle worker", "statements/s", _idle(commands, sizes, redis),
            repeats=1, messages=False,
        ),
        Part("later", "pickup by an idle worker, jobs of next year wait in distinct queues", "ms", _later(commands, sizes),
            messages=False),
    ]  # fmt: skip


def _idle(commands: Commands, sizes: Sizes, redis: str | None) -> list[Line]:
    found = []
    if EVENTS in commands:
        few = {"BENCH_HANDLERS": "2", "BENCH_JOBS": "2"} | ({"BENCH_REDIS": redis} if redis else {})
        grown = ours("outrider_grown")
        name = "Outrider, 2 handlers, 2 job types" + (", a relay" if redis else "")
        found.append(Line(name, grown, "idle", sizes.idle, env=few))
        found.append(Line("Outrider, 200 handlers", grown, "idle", sizes.idle, env={"BENCH_HANDLERS": "200"}))
    if GRAPHILE in commands:
        found.append(Line(f"{GRAPHILE}, 1 job type", commands[GRAPHILE], "idle", sizes.idle))
    return found


def _later(commands: Commands, sizes: Sizes) -> list[Line]:
    found = []
    for name in (JOBS, GRAPHILE):
        if name in commands:
            none = Line(f"{name}, none", commands[name], "pickup", sizes.pickup)
            found.append(none)
            later = (INSTALL, ("later", sizes.later))
            found.append(replace(none, name=f"{name}, {sizes.later:,}", prepare=later))
    return found


def growth(commands: Commands, sizes: Sizes) -> list[Part]:
    """Outrider alone. In each part all lines do the same work."""
    if EVENTS not in commands:
        return []
    grown = ours("outrider_grown")
    logs = {f"{count:,} events in the log": (("history", count), INSTALL) for count in sizes.grown_log}
    fresh = (("seed", sizes.grown_drain),)
    handlers = {f"{count} subscriptions": {"BENCH_HANDLERS": str(count)} for count in (1, 20, 200)}
    churned = (("seed", sizes.churn), ("drain", sizes.churn), ("seed", sizes.grown_drain))
    crowd = Line("", commands[EVENTS], "crowd", sizes.crowd)
    parts = [
        Part("log-publish", "growth of the log: publish, one per commit", "per second",
            [Line(name, grown, "publish", sizes.publish, prepare) for name, prepare in logs.items()], messages=False),
        Part("log-drain", f"growth of the log: drain of {sizes.grown_drain:,} new events", "per second",
            [Line(name, grown, "drain", sizes.grown_drain, prepare, fresh) for name, prepare in logs.items()]),
        Part("subscriptions-publish", "growth of subscriptions: publish, one per commit", "per second",
            [Line(name, grown, "publish", sizes.publish, env=env) for name, env in handlers.items()], messages=False),
        Part("subscriptions-pickup", "growth of subscriptions: pickup, one of them wants the event", "ms",
            [Line(name, grown, "pickup", sizes.pickup, env=env) for name, env in handlers.items()]),
        Part("publishers", "growth of publishers: all at once, one per commit", "per second",
            [replace(crowd, name=f"{count} publishers", publishers=count) for count in (1, 16, 64)], messages=False),
    ]  # fmt: skip
    for what, name in (("events", EVENTS), ("jobs", JOBS)):
        if name in commands:
            line = Line(f"{sizes.churn:,} done before", commands[name], "drain", sizes.grown_drain, before=churned)
            held = replace(line, name="the same, and an old snapshot is held", old_snapshot=True)
            title = f"an old snapshot: drain of {sizes.grown_drain:,} {what}"
            parts.append(Part(f"snapshot-{what}", title, "per second", [line, held], messages=False))
    return parts
