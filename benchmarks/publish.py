"""A publish with no subscriber and with twenty: it must cost the same."""

from __future__ import annotations

import time

import psycopg

from benchmarks.event import Measured, event
from benchmarks.trial import Case, Trial, polish
from outrider import Outrider

WARM_UP = 50


async def seed(dsn: str, subscribers: int) -> None:
    app = Outrider(context="bench", dsn=dsn)

    async def noop(event: Measured) -> None:
        pass

    for number in range(subscribers):
        app.handler(Measured, name=f"bench.subscriber_{number}")(noop)
    async with app:
        await app.migrate()
    polish(dsn)


async def publish(trial: Trial) -> None:
    """One event per commit. No worker runs: what is measured is what subscribers cost the producer."""
    app = Outrider(context="bench", dsn=trial.direct)
    took = trial.latencies["publish and commit"] = []
    with psycopg.connect(trial.direct) as conn:  # the first touch of a page after a checkpoint is logged whole
        for number in range(WARM_UP):
            app.publish_sync(conn, event(number))
            conn.commit()
    with trial.window(), psycopg.connect(trial.dsn) as conn:
        for number in range(trial.events):
            begun = time.perf_counter()
            app.publish_sync(conn, event(number))
            conn.commit()
            took.append(time.perf_counter() - begun)


def cases(seeds: dict[int, str], events: int) -> list[Case]:
    return [Case(f"{subscribers} subscribers", name, events, publish) for subscribers, name in seeds.items()]
