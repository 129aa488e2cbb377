"""How soon an idle worker picks up one event, beside the bare LISTEN and NOTIFY that it waits for."""

from __future__ import annotations

import asyncio
import time

import psycopg
from psycopg import AsyncConnection

from benchmarks.event import Measured, event
from benchmarks.trial import Case, Trial
from outrider import Outrider
from outrider.signals import ListenerUp, Settled, Signal

PATIENCE = 10.0
PAUSE = 0.02
"""Long enough for the worker to have looked again and gone to sleep."""


async def worker(trial: Trial) -> None:
    """From just before the publisher's commit to the handler's entry, and to its commit."""
    app = Outrider(context="bench", dsn=trial.dsn)
    settled, listening = asyncio.Event(), asyncio.Event()
    entered = ended = 0.0

    @app.handler(Measured, name="bench.pickup")
    async def pickup(_: Measured) -> None:
        nonlocal entered
        entered = time.perf_counter()

    def hear(signal: Signal) -> None:
        nonlocal ended
        if isinstance(signal, ListenerUp):
            listening.set()
        elif isinstance(signal, Settled) and signal.events:
            ended = time.perf_counter()
            trial.batches += 1
            settled.set()

    app.signals.listen(hear)
    trial.latencies = {"to the handler": [], "to its commit": []}
    async with app:
        await app.migrate()
        with trial.window():
            async with app.worker():
                await asyncio.wait_for(listening.wait(), PATIENCE)
                with psycopg.connect(trial.direct) as conn:
                    for number in range(trial.events):
                        settled.clear()
                        begun = await asyncio.to_thread(_publish, app, conn, event(number))
                        await asyncio.wait_for(settled.wait(), PATIENCE)
                        trial.latencies["to the handler"].append(entered - begun)
                        trial.latencies["to its commit"].append(ended - begun)
                        await asyncio.sleep(PAUSE)


def _publish(app: Outrider, conn: psycopg.Connection, one: Measured) -> float:
    app.publish_sync(conn, one)
    begun = time.perf_counter()
    conn.commit()
    return begun


async def ping(trial: Trial) -> None:
    """An insert and a NOTIFY in one transaction, to a session that waits for it."""
    trial.latencies = {"to the listener": []}
    with trial.window():
        async with await AsyncConnection.connect(trial.dsn, autocommit=True) as listener:
            await listener.execute("listen ping")
            with psycopg.connect(trial.direct) as conn:
                for number in range(trial.events):
                    sending = asyncio.create_task(asyncio.to_thread(_insert_and_notify, conn, event(number)))
                    async for _ in listener.notifies(timeout=PATIENCE, stop_after=1):
                        arrived = time.perf_counter()
                    trial.latencies["to the listener"].append(arrived - await sending)
                    await asyncio.sleep(PAUSE)


def _insert_and_notify(conn: psycopg.Connection, one: Measured) -> float:
    conn.execute("insert into note values (%s, %s)", [one.customer, one.note])
    conn.execute("notify ping")
    begun = time.perf_counter()
    conn.commit()
    return begun


def cases(seed: str, events: int) -> list[Case]:
    return [
        Case("plain NOTIFY", seed, events, ping, proxied=False),
        Case("idle worker", seed, events, worker),
    ]
