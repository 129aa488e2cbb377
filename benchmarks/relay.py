"""Relays: 100,000 events of the log into a broker, beside the plainest pipelined append that the same client can do."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import nats
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer

from benchmarks.dispatch import database, describe
from benchmarks.event import Measured, event
from benchmarks.table import by_round, rate, say, show_rates
from benchmarks.trial import SETTINGS, Case, Trial, compare, polish, tell
from outrider import Envelope, Outrider
from outrider.ids import uuid7
from outrider.postgres.embedded import Embedded
from outrider.signals import Relayed, Signal
from outrider.streams import EnvelopeCodec, Sink, broker

BATCH = 500
SEED = "seed_relay"


async def seed(dsn: str, events: int) -> None:
    """The relay stands before the first of them."""
    app = Outrider(context="bench", dsn=dsn)
    app.relay("bench.out", broker("redis://127.0.0.1:1", stream="none"), events=[Measured])
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            for begin in range(0, events, 10_000):
                batch = range(begin, min(begin + 10_000, events))
                async with conn.transaction():
                    await app.publish_many(conn, [event(n) for n in batch])
    polish(dsn)


def relaying(make: Callable[[str], Sink]) -> Callable[[Trial], Awaitable[None]]:
    async def run(trial: Trial) -> None:
        def count(signal: Signal) -> None:
            trial.batches += isinstance(signal, Relayed)

        app = Outrider(context="bench", dsn=trial.dsn)
        app.relay("bench.out", make(f"s{uuid.uuid4().hex[:8]}"), events=[Measured], batch=BATCH)
        app.signals.listen(count)
        async with app:
            with trial.window():
                drained = await app.drain()
        assert drained.relayed == trial.events, drained

    return run


def entries() -> list[bytes]:
    """What the relay writes for one batch."""
    codec = EnvelopeCodec()
    return [codec.encode(_envelope(n), "") for n in range(BATCH)]


def _envelope(n: int) -> Envelope:
    made = Outrider(context="bench", dsn="").envelope(event(n))
    return Envelope.of(vars(made) | {"id": uuid7()})


def raw_redis(url: str) -> Callable[[Trial], Awaitable[None]]:
    async def run(trial: Trial) -> None:
        """XADD, 500 in a pipeline: the broker chooses the ids, and nobody asks who else writes."""
        stream, batch = f"s{uuid.uuid4().hex[:8]}", entries()
        async with Redis.from_url(url) as redis:
            await redis.ping()
            with trial.window():
                for _ in range(trial.events // BATCH):
                    pipeline = redis.pipeline(transaction=False)
                    for data in batch:
                        pipeline.xadd(stream, {"event": data})
                    await pipeline.execute()
                    trial.batches += 1
            assert await redis.xlen(stream) == trial.events

    return run


def raw_nats(url: str) -> Callable[[Trial], Awaitable[None]]:
    async def run(trial: Trial) -> None:
        """publish_async with an id for deduplication, 500 at a time, every acknowledgement awaited."""
        stream, batch = f"s{uuid.uuid4().hex[:8]}", entries()
        client = await nats.connect(url)
        js = client.jetstream()
        await js.add_stream(name=stream, subjects=[f"{stream}.>"])
        with trial.window():
            for number in range(trial.events // BATCH):
                headers = ({"Nats-Msg-Id": f"{number}.{n}"} for n in range(BATCH))
                sent = [await js.publish_async(f"{stream}.x", data, headers=next(headers)) for data in batch]
                await asyncio.gather(*sent)
                trial.batches += 1
        assert (await js.stream_info(stream)).state.messages == trial.events
        await client.close()

    return run


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks relay", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    options = parser.parse_args(arguments)
    events, repeats = (2_000, 1) if options.quick else (options.events // BATCH * BATCH, options.repeats)
    asyncio.run(measure(events, repeats))


async def measure(events: int, repeats: int) -> None:
    with Embedded.temporary(settings=SETTINGS) as server, RedisServer() as redis, NatsServer() as jetstream:
        say(describe(server))
        tell(f"seeding {events:,} events")
        await seed(database(server, SEED), events)
        for name, raw, url, options in (
            ("Redis Streams", raw_redis, redis.url, {}),
            ("NATS JetStream", raw_nats, jetstream.url, {"create": True}),
        ):
            results = await compare(server, _cases(raw(url), url, options, events), repeats)
            show_rates(f"{events:,} events into {name}", results)
            say(f"relay / raw = {rate(results[1]) / rate(results[0]):.2f}, {by_round(results[1], results[0])}")


def _cases(raw: Callable[[Trial], Awaitable[None]], url: str, options: dict[str, Any], events: int) -> list[Case]:
    relay = relaying(lambda stream: broker(url, stream=stream, **options))
    return [
        Case("raw pipelined append", SEED, events, raw, proxied=False),
        Case(f"relay, batch {BATCH}", SEED, events, relay),
    ]
