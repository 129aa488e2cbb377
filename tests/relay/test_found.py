"""What an attack on relays has found, and what was missing then."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.relay.depot import Depot, Sent, depot, ids_in
from tests.relay.test_relay import Refusing, _mark

from outrider import Outrider
from outrider.errors import DeclarationError
from outrider.postgres import relays
from outrider.signals import Taken, Trimmed
from outrider.streams import RedisLease, RedisStreams


async def cut(server: RedisServer, name: str, kept: int) -> None:
    """The broker loses the end of the stream."""
    async with Redis.from_url(server.url) as redis:
        entries: Any = await redis.xrange(name)
        await redis.delete(name)
        for position, fields in entries[:kept]:
            await redis.xadd(name, fields, id=position)


async def buried(house: Depot, codec: Refusing) -> list[UUID]:
    """Three events, of which the second is a dead letter."""
    codec.refused = {2}
    sent = await house.publish("a1", "a2", "a3")
    await house.app.drain()
    codec.refused = set()
    return sent


async def test_a_replayed_dead_letter_in_a_lost_end_is_sent_again(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """The cursor of the mark is past it: only what was kept of the replay brings it back."""
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        sent = await buried(house, codec)
        await _mark(house)
        await house.app.replay(sent[1])
        sent += await house.publish("a4")
        await house.app.drain()
        before = await ids_in(sink, name)
        assert before == [sent[0], sent[2], sent[1], sent[3]]
        await cut(redis_server, name, 2)
        sent += await house.publish("a5")
        await house.app.drain()
        assert await ids_in(sink, name) == [*before, sent[4]]
        await cut(redis_server, name, 4)
        await house.app.drain()
        await house.publish("a6")
        await house.app.drain()
        assert sorted((await ids_in(sink, name))[:5]) == sorted(sent), "nothing is sent twice, nor lost"
        assert await house.rows("select * from outrider.delivery") == []


async def test_an_edited_dead_letter_stays_edited(database: str, redis_server: RedisServer, name: str) -> None:
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        sent = await buried(house, codec)
        codec.refused = {2}
        await house.app.replay(sent[1], payload={"parcel": "a", "n": 7})
        await house.app.drain()
        assert await ids_in(sink, name) == [sent[0], sent[2], sent[1]]
        await cut(redis_server, name, 0)
        sent += await house.publish("a4")
        await house.app.drain()
        assert await ids_in(sink, name) == sent, "now in its turn"
        async with Redis.from_url(redis_server.url) as redis:
            entries: Any = await redis.xrange(name)
        assert codec.decode(entries[1][1][b"event"]).payload == {"parcel": "a", "n": 7}


async def test_a_rejection_that_comes_too_late_buries_nothing(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling deploy: the old code cannot write it, the new one can, and sends it in between."""
    codec, really = Refusing(), relays.reject
    async with depot(database) as old, depot(database) as new:
        old.app.relay("depot.out", RedisStreams(redis_server.url, stream=name, codec=codec), publish_max_attempts=1)
        new.app.relay("depot.out", RedisStreams(redis_server.url, stream=name), publish_max_attempts=1)
        await old.app.migrate()
        codec.refused = {1}
        sent = await old.publish("a1")

        async def late(*given: Any) -> tuple[int, bool]:
            await new.app.drain()
            return await really(*given)

        monkeypatch.setattr(relays, "reject", late)
        await old.app.drain()
        assert await ids_in(RedisStreams(redis_server.url, stream=name), name) == sent
        assert await old.rows("select * from outrider.delivery") == []


async def test_a_withdrawn_event_is_not_rejected(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await house.app.migrate()
        [event] = await house.publish("a1")
        await house.app.withdraw(event)
        query = "select * from outrider.relay_reject('depot.out', 1, 'c', 'm', 'w', interval '1 s', 1, true)"
        assert await house.rows(query) == [{"attempts": 0, "buried": False}]
        assert await house.rows("select * from outrider.delivery") == []


async def test_a_replayed_letter_without_its_event_does_not_spin(
    database: str, redis_server: RedisServer, name: str
) -> None:
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        sent = await buried(house, codec)
        await house.execute("delete from outrider.outbox where id = %s", [sent[1]])
        await house.execute("select outrider.replay(array(select id from outrider.delivery), 'somebody')")
        takes: list[Taken] = []
        house.app.signals.listen(lambda each: takes.append(each) if isinstance(each, Taken) else None)
        async with asyncio.timeout(30):
            await house.app.drain()
        assert len(takes) <= 3


async def test_a_worker_ends_well_while_the_brokers_are_down(database: str, name: str) -> None:
    with RedisServer() as server:
        async with depot(database) as house:
            lease = RedisLease(server.url, key=f"lock:{name}", ttl=30)
            house.app.relay("depot.out", RedisStreams(server.url, stream=name), lease=lease, poll=0.05)
            await house.app.migrate()
            async with house.app.worker():
                server.kill()


async def test_what_was_trimmed_before_it_was_counted_is_loud(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say which events were in the entries that are gone: they are sent again, and that is said."""
    sink = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        await house.publish("a1")
        await house.app.drain()
        sent = await house.publish_many(20)

        async def die(*_: Any) -> None:
            raise ConnectionError("died between append and commit")

        with monkeypatch.context() as patched:
            patched.setattr(relays, "settle", die)
            with pytest.raises(ConnectionError):
                await house.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.xtrim(name, maxlen=5, approximate=False)
        trimmed: list[Trimmed] = []
        house.app.signals.listen(lambda each: trimmed.append(each) if isinstance(each, Trimmed) else None)
        await house.app.drain()
        assert [each.stream for each in trimmed] == [name]
        assert set(await ids_in(sink, name)) == set(sent)


def test_less_than_two_batches_are_too_few_to_keep() -> None:
    app = Outrider(context="depot", dsn="postgresql://nowhere")
    with pytest.raises(DeclarationError, match="keeps less than two batches of 500"):
        app.relay("depot.out", RedisStreams("redis://127.0.0.1:1", stream="s", max_len=999), events=[Sent])
