"""Events through one handler in one process, beside a loop over plain SQL that promises less."""

from __future__ import annotations

import asyncio
import time

import psycopg
from psycopg import AsyncConnection

from benchmarks.event import Measured, event
from benchmarks.trial import Case, Trial, polish
from outrider import HandlerContext, Outrider
from outrider.signals import Settled, Signal

BATCH = 500
WRITES = 100


async def seed(dsn: str, events: int) -> None:
    app = Outrider(context="bench", dsn=dsn)
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            for begin in range(0, events, 10_000):
                async with conn.transaction():
                    await app.publish_many(conn, [event(n) for n in range(begin, min(begin + 10_000, events))])
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("create table note (customer text, note text)")
        admin.execute("create table raw_receipt (reader text, id uuid, primary key (reader, id))")
        admin.execute("create table raw_position (reader text primary key, seq bigint)")
        admin.execute("insert into raw_position values ('raw', 0)")
    polish(dsn)


def noop_app(dsn: str, partitions: int = 1) -> Outrider:
    app = Outrider(context="bench", dsn=dsn)

    @app.handler(Measured, name="bench.noop", start="beginning", partitions=partitions)
    async def noop(event: Measured) -> None:
        pass

    return app


async def drain_noop(trial: Trial) -> None:
    await _drain(trial, noop_app(trial.dsn))


async def drain_writing(trial: Trial) -> None:
    app = Outrider(context="bench", dsn=trial.dsn)

    @app.handler(Measured, name="bench.writing", start="beginning")
    async def writing(event: Measured, ctx: HandlerContext) -> None:
        await ctx.tx.execute("insert into note values (%s, %s)", [event.customer, event.note])

    await _drain(trial, app)


async def drain_later(trial: Trial) -> None:
    app = Outrider(context="bench", dsn=trial.dsn)

    @app.handler(Measured, name="bench.writing", start="beginning")
    async def writing(event: Measured, ctx: HandlerContext) -> None:
        ctx.later("insert into note values (%s, %s)", [event.customer, event.note])

    await _drain(trial, app)


async def drain_batches(trial: Trial) -> None:
    app = Outrider(context="bench", dsn=trial.dsn)

    @app.handler(Measured, name="bench.writing", start="beginning")
    async def writing(events: list[Measured], ctx: HandlerContext) -> None:
        rows = [(event.customer, event.note) for event in events]
        async with ctx.tx.cursor() as cursor:
            await cursor.executemany("insert into note values (%s, %s)", rows)

    await _drain(trial, app)


async def drain_arrays(trial: Trial) -> None:
    app = Outrider(context="bench", dsn=trial.dsn)

    @app.handler(Measured, name="bench.writing", start="beginning")
    async def writing(events: list[Measured], ctx: HandlerContext) -> None:
        columns = [[event.customer for event in events], [event.note for event in events]]
        await ctx.tx.execute("insert into note select * from unnest(%s::text[], %s::text[])", columns)

    await _drain(trial, app)


async def _drain(trial: Trial, app: Outrider) -> None:
    def count(signal: Signal) -> None:
        if isinstance(signal, Settled):
            trial.batches += 1

    app.signals.listen(count)
    async with app:
        await app.migrate()
        with trial.window():
            drained = await app.drain()
    assert drained.handled == trial.events, drained


async def work_noop(trial: Trial) -> None:
    """A worker with four partitions, from its start to the last commit."""
    app = noop_app(trial.dsn, partitions=4)
    left, finished, ended = trial.events, asyncio.Event(), 0.0

    def count(signal: Signal) -> None:
        nonlocal left, ended
        if isinstance(signal, Settled):
            trial.batches += 1
            left -= signal.events
            if left == 0:
                ended = time.perf_counter()
                finished.set()

    app.signals.listen(count)
    async with app:
        await app.migrate()
        with trial.window() as window:
            async with app.worker():
                await finished.wait()
            window.stop(ended)


async def raw_noop(trial: Trial) -> None:
    """Reads `seq > position`, which skips what commits late; one receipt each; no failure is thought of."""
    with trial.window(), psycopg.connect(trial.dsn) as conn, conn.cursor(binary=True) as cursor:
        position = 0
        while True:
            rows = cursor.execute(
                "select seq, id, payload::text from outrider.outbox where seq > %s order by seq limit %s",
                [position, BATCH],
            ).fetchall()
            if not rows:
                break
            for _, _, payload in rows:
                _ignore(Measured.model_validate_json(payload))
            cursor.execute("insert into raw_receipt select 'raw', unnest(%s::uuid[])", [[id_ for _, id_, _ in rows]])
            position = rows[-1][0]
            cursor.execute("update raw_position set seq = %s where reader = 'raw'", [position])
            conn.commit()
            trial.batches += 1


def _ignore(event: Measured) -> None:
    pass


async def raw_writing(trial: Trial) -> None:
    """The inserts alone, in transactions of 100; nothing is read."""
    with trial.window(), psycopg.connect(trial.dsn) as conn:
        for number in range(trial.events):
            one = event(number)
            conn.execute("insert into note values (%s, %s)", [one.customer, one.note])
            if number % WRITES == WRITES - 1:
                conn.commit()
                trial.batches += 1


async def raw_writing_async(trial: Trial) -> None:
    """The same on an async connection, such as a handler has."""
    with trial.window():
        async with await AsyncConnection.connect(trial.dsn) as conn:
            for number in range(trial.events):
                one = event(number)
                await conn.execute("insert into note values (%s, %s)", [one.customer, one.note])
                if number % WRITES == WRITES - 1:
                    await conn.commit()
                    trial.batches += 1


def noop_cases(seed: str, events: int) -> list[Case]:
    return [
        Case("plain loop (*)", seed, events, raw_noop),
        Case("drain, 1 partition", seed, events, drain_noop),
        Case("worker, 4 partitions", seed, events, work_noop),
    ]


def writing_cases(seed: str, events: int) -> list[Case]:
    return [
        Case("plain inserts, 100 per commit", seed, events, raw_writing),
        Case("the same, async", seed, events, raw_writing_async),
        Case("handler, ctx.tx.execute", seed, events, drain_writing),
        Case("handler, ctx.later", seed, events, drain_later),
        Case("batch handler, executemany", seed, events, drain_batches),
        Case("batch handler, one insert of arrays", seed, events, drain_arrays),
    ]
