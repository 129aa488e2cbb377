"""Faults 11 and 22 to 25: relays die, stop and wake; brokers die, come back, come back empty. The stream holds every event
once and in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import nats
import psutil
import psycopg
import pytest
from redis.asyncio import Redis
from tests.brokers import Broker, NatsServer, RedisServer
from tests.faults import relay_subject as subject
from tests.faults.nursery import Nursery
from tests.oracle import Oracle
from tests.tiers import one_in_test

from outrider import Outrider, failpoint
from outrider.signals import BrokerDown, Rewound
from outrider.streams.nats import JetStream

POINTS = ("relay.sent", "relay.taken", "relay.opened", "relay.appended", "relay.settled", "relay.recovered")
INBOX_POINTS = ("inbox.read", "inbox.settled")
ENDS = {"exit": failpoint.EXIT_CODE, "kill": -9}
KINDS = {"redis": RedisServer, "nats": NatsServer}
RELAY = "tests.faults.relay_subject"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(kind: str) -> Iterator[Broker]:
    with KINDS[kind]() as server:
        yield server


@pytest.mark.parametrize("point", one_in_test(POINTS, "relay.appended"))
async def test_a_relay_that_dies_at(
    database: str, tmp_path: Path, broker: Broker, kind: str, point: str, long: bool
) -> None:
    await subject.setup(database, kind, broker.url)
    async with Nursery(database, Oracle(tmp_path), RELAY) as nursery:
        for seed in range(10 if long else 1):
            action = ["exit", "kill"][(seed + (kind == "nats")) % 2]
            once = point in ("relay.opened", "relay.recovered")
            if once and seed:
                break
            if point == "relay.recovered":  # what one that died has left must be found first
                await subject.produce(database, 30, seed)
                first = await nursery.start("relay.appended:exit:2")
                assert await nursery.end_of(first) == ENDS["exit"]
            victim = await nursery.start(f"{point}:{action}:{1 if once else 3 + seed}")
            await subject.produce(database, 60, seed)
            assert await nursery.end_of(victim) == ENDS[action], "the point was not hit"
            healthy = await nursery.start()
            await subject.until(lambda: subject.relayed(database))
            await nursery.kill(healthy, signal.SIGTERM)
            await subject.check(database, broker, kind)


@pytest.mark.verify
@pytest.mark.parametrize("point", [pytest.param("relay.taken", marks=pytest.mark.long), "relay.appended"])
async def test_a_relay_that_was_stopped_wakes_too_late(
    database: str, tmp_path: Path, broker: Broker, kind: str, point: str
) -> None:
    """Another one takes over when the server has ended the session of the first; what the first sends then is refused."""
    await subject.setup(database, kind, broker.url)
    async with Nursery(database, Oracle(tmp_path), RELAY) as nursery:
        zombie = await nursery.start(f"{point}:stop:3")
        await subject.produce(database, 60)
        await subject.until(lambda: _stopped(zombie))
        second = await nursery.start()
        await subject.until(lambda: subject.relayed(database))
        await subject.check(database, broker, kind)
        os.kill(zombie, signal.SIGCONT)
        await subject.produce(database, 30, seed=1)
        await subject.until(lambda: subject.relayed(database))
        await nursery.kill(second)
        await subject.produce(database, 30, seed=2)
        await subject.until(lambda: subject.relayed(database))
        await subject.check(database, broker, kind)
        assert await nursery.kill(zombie, signal.SIGTERM) == 0


@pytest.mark.verify
async def test_a_relay_that_was_stopped_has_lost_its_lease(database: str, tmp_path: Path) -> None:
    """Another one has it when the first wakes up, in the middle of a batch."""
    with RedisServer() as broker:
        await subject.setup(database, "redis", broker.url, subject.make_leased)
        async with (
            Nursery(database, Oracle(tmp_path), f"{RELAY}:make_leased") as nursery,
            Redis.from_url(broker.url) as redis,
        ):
            zombie = await nursery.start("relay.appended:stop:3")
            await subject.produce(database, 60)
            await subject.until(lambda: _stopped(zombie))
            second = await nursery.start()
            await subject.until(lambda: subject.relayed(database))
            token = await redis.get(subject.LEASE)
            os.kill(zombie, signal.SIGCONT)
            await subject.produce(database, 30, seed=1)
            await subject.until(lambda: subject.relayed(database))
            assert await redis.get(subject.LEASE) == token, "the second one keeps it"
            assert await nursery.kill(second, signal.SIGTERM) == 0
            await subject.produce(database, 30, seed=2)
            await subject.until(lambda: subject.relayed(database))
            assert await redis.get(subject.LEASE) not in (None, token)
            await subject.check(database, broker, "redis")
            assert await nursery.kill(zombie, signal.SIGTERM) == 0


async def _stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.mark.verify
async def test_a_broker_that_is_killed_again_and_again(
    database: str, tmp_path: Path, broker: Broker, kind: str, long: bool
) -> None:
    await subject.setup(database, kind, broker.url)
    async with Nursery(database, Oracle(tmp_path), RELAY) as nursery:
        await nursery.start()
        for seed in range(20 if long else 4):
            producing = asyncio.create_task(subject.produce(database, 90, seed))
            await asyncio.sleep(0.03 * seed)
            broker.kill()
            await producing
            broker.start()
            await subject.until(lambda: subject.relayed(database))
        await subject.check(database, broker, kind)


@pytest.mark.verify
async def test_a_broker_that_comes_back_empty(database: str, broker: Broker, kind: str) -> None:
    """What it has lost is sent again, in its order; the relay finds out by itself, also when there is nothing to send."""
    await subject.setup(database, kind, broker.url)
    await subject.produce(database, 120)
    rewound: asyncio.Queue[Rewound] = asyncio.Queue()
    async with subject.make(database) as app:
        app.signals.listen(lambda each: rewound.put_nowait(each) if isinstance(each, Rewound) else None)
        async with app.worker():
            await subject.until(lambda: subject.relayed(database))
            broker.restart(empty=True)
            async with asyncio.timeout(subject.PATIENCE):
                assert (await rewound.get()).whole
            await subject.produce(database, 30, seed=1)
            await subject.until(lambda: subject.relayed(database))
            await subject.check(database, broker, kind)
            async with asyncio.timeout(subject.PATIENCE):
                producing = asyncio.create_task(subject.produce(database, 200, seed=2))
                broker.restart(empty=True)
                await rewound.get()
                await producing
            await subject.until(lambda: subject.relayed(database))
            await subject.check(database, broker, kind)


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["redis"])
async def test_a_relay_that_was_stopped_fills_a_broker_that_came_back_empty(
    database: str, tmp_path: Path, broker: Broker, kind: str
) -> None:
    """It was stopped with its first batch read, before the first append; 6 s later the server has ended its session."""
    await subject.setup(database, kind, broker.url)
    await subject.produce(database, 60)
    async with Nursery(database, Oracle(tmp_path), RELAY) as nursery:
        zombie = await nursery.start("relay.taken:stop:2")  # the first take finds out that the stream is to be opened
        await subject.until(lambda: _stopped(zombie))
        second = await nursery.start()
        await subject.until(lambda: subject.relayed(database))
        await nursery.kill(second)
        async with Redis.from_url(broker.url) as redis:
            await redis.flushall()
        os.kill(zombie, signal.SIGCONT)
        await subject.produce(database, 30, seed=1)
        await subject.until(lambda: subject.relayed(database))
        await subject.check(database, broker, kind)
        assert await nursery.kill(zombie, signal.SIGTERM) == 0


@pytest.mark.verify
async def test_an_outage_buries_nothing(database: str, broker: Broker, kind: str, long: bool) -> None:
    await subject.setup(database, kind, broker.url)
    down: asyncio.Queue[BrokerDown] = asyncio.Queue()
    async with subject.make(database) as app:
        app.signals.listen(lambda each: down.put_nowait(each) if isinstance(each, BrokerDown) else None)
        async with app.worker():
            await subject.produce(database, 30)
            await subject.until(lambda: subject.relayed(database))
            broker.kill()
            await subject.produce(database, 10_000 if long else 600, seed=1)
            for _ in range(12 if long else 4):
                async with asyncio.timeout(subject.PATIENCE):
                    assert (await down.get()).subscription == "fault.out"
            broker.start()
            await subject.until(lambda: subject.relayed(database))
    await subject.check(database, broker, kind)


@pytest.mark.verify
async def test_a_broker_that_does_not_move(database: str, broker: Broker, kind: str) -> None:
    """It takes what it was sent only after the relay has given up on it: found in the tail, sent once."""
    await subject.setup(database, kind, broker.url)
    down: asyncio.Queue[BrokerDown] = asyncio.Queue()
    async with subject.make(database) as app:
        app.signals.listen(lambda each: down.put_nowait(each) if isinstance(each, BrokerDown) else None)
        async with app.worker():
            await subject.produce(database, 30)
            await subject.until(lambda: subject.relayed(database))
            for seed in (1, 2):
                broker.pause()
                await subject.produce(database, 30, seed)
                async with asyncio.timeout(subject.PATIENCE):
                    await down.get()
                broker.resume()
                await subject.until(lambda: subject.relayed(database))
    await subject.check(database, broker, kind)


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["nats"])
async def test_a_stream_that_was_deleted_is_loud(database: str, broker: Broker) -> None:
    """Without create=True a missing stream is an error that says what to do, at once, and again and again."""
    await subject.setup(database, "nats", broker.url)
    down: asyncio.Queue[BrokerDown] = asyncio.Queue()
    app = Outrider(context="fault", dsn=database)
    app.relay("fault.out", JetStream(broker.url, stream=subject.STREAM, timeout=3), poll=0.1)
    app.signals.listen(lambda each: down.put_nowait(each) if isinstance(each, BrokerDown) else None)
    async with app, app.worker():
        await subject.produce(database, 30)
        async with asyncio.timeout(subject.PATIENCE):
            said = await down.get()
        assert subject.STREAM in said.message
        assert "create=True" in said.message
        client = await nats.connect(broker.url)
        stream = client.jetstream()
        await stream.add_stream(name=subject.STREAM, subjects=[f"{subject.STREAM}.>"])
        await subject.until(lambda: subject.relayed(database))
        await subject.check(database, broker, "nats")
        while not down.empty():
            down.get_nowait()
        await stream.delete_stream(subject.STREAM)
        async with asyncio.timeout(subject.PATIENCE):  # with nothing to send, too
            assert "create=True" in (await down.get()).message
        await stream.add_stream(name=subject.STREAM, subjects=[f"{subject.STREAM}.>"])
        await client.close()
        await subject.produce(database, 30, seed=1)
        await subject.until(lambda: subject.relayed(database))
    await subject.check(database, broker, "nats")


@pytest.mark.verify
async def test_a_long_writer_holds_up_only_its_own_events(database: str, broker: Broker, kind: str) -> None:
    await subject.setup(database, kind, broker.url)
    async with subject.make(database) as app, app.worker():
        async with await psycopg.AsyncConnection.connect(database) as slow:
            mine = [(await app.publish(slow, subject.Noted(key="slow", n=n))).id for n in range(20)]
            await subject.produce(database, 60)
            await subject.until(lambda: subject.relayed(database))
            await slow.commit()
        await subject.until(lambda: subject.relayed(database))
    await subject.check(database, broker, kind)
    there = await subject.content(kind, broker.url)
    assert there[-20:] == mine


@pytest.mark.parametrize("point", one_in_test(INBOX_POINTS, "inbox.read"))
async def test_an_inbox_that_dies_at(
    database: str, other_database: str, tmp_path: Path, broker: Broker, kind: str, point: str, long: bool
) -> None:
    """Every event of the other service has one effect here, those of a key in their order."""
    await subject.setup(database, kind, broker.url)
    await subject.setup(other_database, kind, broker.url, subject.make_inbox)
    inbox = f"{RELAY}:make_inbox"
    async with Nursery(other_database, Oracle(tmp_path), inbox) as nursery, subject.make(database) as app:
        for seed in range(10 if long else 1):
            action = ["exit", "kill"][(seed + (kind == "nats")) % 2]
            await subject.produce(database, 60, seed)
            await app.drain()
            victim = await nursery.start(f"{point}:{action}:{3 + seed}")
            assert await nursery.end_of(victim) == ENDS[action], "the point was not hit"
        await nursery.start()
        sent = await subject.check(database, broker, kind)

        async def handled() -> bool:
            [(number,)] = await subject.rows(other_database, "select count(*) from effect")
            return bool(number >= len(sent))

        await subject.until(handled)
        effects = [each for (each,) in await subject.rows(other_database, "select id from effect order by at")]
        arrived = await subject.rows(other_database, "select id, aggregate_id from outrider.outbox order by seq")
        assert [each for each, _ in arrived] == await subject.content(kind, broker.url)
        assert sorted(effects) == sorted(sent), "each once"
        keys = dict(arrived)
        for key in set(keys.values()):  # across keys a batch whose worker died again and again is handled apart
            assert [each for each in effects if keys[each] == key] == [each for each, own in arrived if own == key]
