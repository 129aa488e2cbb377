"""A relay and an inbox to harm: what they are, a producer for them, and what must hold of the stream afterwards.

The broker's address is kept in the database that a worker is given, so that any process finds it there.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from tests.brokers import Broker

from outrider import Event, HandlerContext, Outrider
from outrider.streams import Sink
from outrider.streams.lease import RedisLease
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.worker.worker import Worker

STREAM, LEASE = "faults", "lock:outbox:fault"
DEADLINE = 1.0
PATIENCE = 60.0
SETUP = (
    "create table broker (kind text, url text); create table effect (at bigint generated always as identity, id uuid)"
)


class Noted(Event, type="fault.relayed", key="key"):
    key: str
    n: int


class Seen(Event, type="fault.relayed", foreign=True):
    key: str
    n: int


def stream_at(kind: str, url: str, timeout: float = DEADLINE) -> Any:
    """A short timeout: these brokers are killed and paused."""
    if kind == "redis":
        return RedisStreams(url, stream=STREAM, timeout=timeout)
    return JetStream(url, stream=STREAM, timeout=timeout, create=True)


def _address(dsn: str) -> tuple[str, str]:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select kind, url from broker").fetchone()
    assert row is not None
    return row[0], row[1]


def make(dsn: str, outside: Path | None = None, **options: Any) -> Outrider:
    """What goes out."""
    app = Outrider(context="fault", dsn=dsn, poll=0.5)
    app.relay("fault.out", stream_at(*_address(dsn)), batch=7, poll=0.1, deadline=DEADLINE, **options)
    return app


def make_leased(dsn: str, outside: Path | None = None) -> Outrider:
    """What goes out, with a lease in the same Redis."""
    _, url = _address(dsn)
    return make(dsn, outside, lease=RedisLease(url, LEASE, ttl=5))


def make_inbox(dsn: str, outside: Path | None = None) -> Outrider:
    """What comes in."""
    app = Outrider(context="there", dsn=dsn, poll=0.5)
    app.inbox("there.in", stream_at(*_address(dsn)), batch=7, poll=0.1)

    @app.handler(Seen, name="there.effect")
    async def effect(event: Seen, ctx: HandlerContext) -> None:
        await ctx.tx.execute("insert into effect (id) values (%s)", [ctx.envelope.id])

    return app


def worker_of(app: Outrider) -> Worker:
    return app.worker(grace=5)


async def setup(dsn: str, kind: str, url: str, make: Callable[..., Outrider] = make) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(SETUP)
        await conn.execute("insert into broker values (%s, %s)", [kind, url])
    async with make(dsn) as app:
        await app.migrate()


async def produce(dsn: str, number: int, seed: int = 0, sessions: int = 3) -> None:
    """Concurrent transactions of different length, some of them rolled back; each key is written by one session."""
    app = Outrider(context="fault", dsn=dsn)

    async def one(session: int) -> None:
        chance = random.Random(f"{seed} {session}")
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            for n in range(number // sessions):
                try:
                    async with conn.transaction():
                        for _ in range(chance.randint(1, 3)):
                            await app.publish(conn, Noted(key=f"{session}.{chance.randrange(3)}", n=n))
                        await asyncio.sleep(chance.choice((0, 0, 0.002)))
                        if chance.random() < 0.1:
                            raise psycopg.Rollback
                except psycopg.Rollback:
                    pass

    await asyncio.gather(*(one(session) for session in range(sessions)))


async def until(condition: Callable[[], Awaitable[object]], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 (what it waits for is another process, or a broker)
            await asyncio.sleep(0.02)


async def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        return await (await conn.execute(query.encode())).fetchall()


async def relayed(dsn: str) -> bool:
    """All that is committed is past the relay, and settled."""
    [(behind, owed)] = await rows(
        dsn,
        """select (select count(*) from outrider.event_status where subscription = 'fault.out' and status <> 'delivered'),
                  (select count(*) from outrider.stream_ahead)""",
    )
    return not behind and not owed


async def content(kind: str, url: str) -> list[UUID | None]:
    sink: Sink = stream_at(kind, url, timeout=PATIENCE)
    await sink.open()
    try:
        return [entry.id async for page in sink.tail(STREAM, sink.start) for entry in page]
    finally:
        await sink.close()


async def check(dsn: str, broker: Broker, kind: str) -> list[UUID]:
    """Every committed event is in the stream, once, those of a key in their order; nothing else is, nothing is buried."""
    log = await rows(dsn, "select id, aggregate_id from outrider.outbox where origin is null order by seq")
    found = await content(kind, broker.url)
    counts = Counter(found)
    assert {each: number for each, number in counts.items() if number > 1} == {}, "doubled"
    assert {each for each, _ in log} - set(found) == set(), "lost"
    assert set(found) - {each for each, _ in log} == set(), "nobody has committed it"
    wanted, keys = defaultdict(list), dict(log)
    for event_id, key in log:
        wanted[key].append(event_id)
    there = defaultdict(list)
    for event_id in found:
        there[keys[event_id]].append(event_id)
    assert there == wanted, "out of order"
    assert await rows(dsn, "select event_id from outrider.delivery") == [], "an outage buries nothing"
    return [each for each, _ in log]
