"""What the bound on payloads costs a publish: a database with it and one without it, in turn, on one server."""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time

import psycopg

from benchmarks.dispatch import database
from benchmarks.trial import SETTINGS
from outrider import Event, Outrider
from outrider.postgres.embedded import Embedded

BOUND = re.compile(r"when not \(pg_column_size\(new\.payload\).*?'outbox_payload_bounded'", re.DOTALL)


class Basket(Event, type="bench.basket"):
    items: list[dict[str, str | int | bool | list[str]]]


def basket(items: int) -> Basket:
    return Basket(
        items=[
            {
                "sku": f"article-{number:04}",
                "count": number,
                "cents": 990 + number,
                "gift": False,
                "tags": ["one", "two"],
            }
            for number in range(items)
        ]
    )


async def prepare(dsn: str, *, bounded: bool) -> None:
    async with Outrider(context="bench", dsn=dsn) as app:
        await app.migrate()
    if not bounded:
        with psycopg.connect(dsn, autocommit=True) as conn:
            [definition] = conn.execute("select pg_get_functiondef('outrider.accept_event'::regproc)").fetchone() or [
                ""
            ]
            without, removed = BOUND.subn("", definition)
            assert removed == 1
            conn.execute(without.encode())


def seconds(app: Outrider, conn: psycopg.Connection, event: Basket, number: int) -> float:
    begun = time.perf_counter()
    for _ in range(number):
        app.publish_sync(conn, event)
        conn.commit()
    return (time.perf_counter() - begun) / number


def main(arguments: list[str]) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks bounds", description=__doc__)
    options.add_argument("--rounds", type=int, default=100, help="pairs of measurements for each size")
    options.add_argument("--events", type=int, default=100, help="events of a measurement, each in its own transaction")
    chosen = options.parse_args(arguments)
    with Embedded.temporary(settings=SETTINGS) as server:
        dsns = {bounded: database(server, f"bounds_{bounded}".lower()) for bounded in (True, False)}
        for bounded, dsn in dsns.items():
            asyncio.run(prepare(dsn, bounded=bounded))
        app = Outrider(context="bench", dsn=dsns[True])
        with psycopg.connect(dsns[True]) as with_it, psycopg.connect(dsns[False]) as without:
            for items in (1, 20, 200):
                event = basket(items)
                size = len(event.model_dump_json())
                ratios, plain = [], []
                for number in range(chosen.rounds):
                    pair = [(with_it, True), (without, False)]
                    took = {
                        bounded: seconds(app, conn, event, chosen.events)
                        for conn, bounded in (pair if number % 2 else reversed(pair))
                    }
                    ratios.append(took[True] / took[False])
                    plain.append(took[False])
                low, cost, high = (f"{(each - 1) * 100:+.1f}" for each in statistics.quantiles(ratios, n=4))
                basis = f"{statistics.median(plain) * 1e6:,.0f} µs"
                print(f"{size:6,} B in {items:3} items: {cost} % of {basis}, quartiles {low} to {high} %", flush=True)
