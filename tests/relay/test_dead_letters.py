"""The dead letters of a relay are like any other: listed, shown, replayed at the end of the stream, discarded, edited."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.cli import inprocess
from tests.relay.depot import Depot, depot, ids_in
from tests.relay.test_relay import Refusing, _mark

from outrider.signals import Taken
from outrider.streams.redis import RedisStreams


class Desk:
    """An operator at work on a depot whose relay has buried n = 2; the broker takes everything again."""

    def __init__(self, folder: Path, house: Depot, sink: RedisStreams, stream: str, sent: list[UUID]) -> None:
        self.folder = folder
        self.house = house
        self.sink = sink
        self.stream = stream
        self.sent = sent

    async def said(self, *arguments: str) -> str:
        done = await asyncio.to_thread(inprocess.run, self.folder, *arguments, "--dsn", self.house.dsn)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    async def streamed(self) -> list[UUID]:
        return await ids_in(self.sink, self.stream)


async def buried(house: Depot, sink: RedisStreams, codec: Refusing) -> list[UUID]:
    house.app.relay("depot.out", sink, publish_max_attempts=1)
    await house.app.migrate()
    codec.refused = {2}
    sent = await house.publish("a1", "a2", "a3")
    await house.app.drain()
    codec.refused = set()
    return sent


async def cut(server: RedisServer, name: str, kept: int) -> None:
    """The broker loses the end of the stream."""
    async with Redis.from_url(server.url) as redis:
        entries: Any = await redis.xrange(name)
        await redis.delete(name)
        for position, fields in entries[:kept]:
            await redis.xadd(name, fields, id=position)


@pytest.fixture
def codec() -> Refusing:
    return Refusing()


@pytest.fixture
def sink(redis_server: RedisServer, name: str, codec: Refusing) -> RedisStreams:
    return RedisStreams(redis_server.url, stream=name, codec=codec)


async def test_one_is_listed_shown_and_sent_again_at_the_end(
    database: str, sink: RedisStreams, name: str, codec: Refusing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    async with depot(database) as house:
        desk = Desk(tmp_path, house, sink, name, await buried(house, sink, codec))
        first, second, third = desk.sent
        assert await desk.streamed() == [first, third]
        [group] = json.loads(await desk.said("dlq", "list", "--json"))["groups"]
        assert (group["subscription"], group["code"], group["letters"]) == ("depot.out", "unencodable", 1)
        shown = await desk.said("dlq", "show", str(second))
        assert re.search(r"^subscription +depot\.out$", shown, re.MULTILINE)
        assert "unencodable: 2 is too much" in shown
        assert "depot.out: failed: a dead letter since" in await desk.said("event", "show", str(second))
        assert "depot.out: delivered: it is in its stream" in await desk.said("event", "show", str(third))

        said = await desk.said("dlq", "replay", str(second), "--yes")
        assert "replayed" in said
        assert "depot.out: pending: due now, no worker serves the subscription" in await desk.said(
            "event", "show", str(second)
        )
        await house.publish("a4")
        assert (await house.app.drain()).relayed == 2
        assert (await desk.streamed())[:2] == [first, third]
        assert sorted(await desk.streamed(), key=str)[:3] == sorted(desk.sent, key=str)
        assert len(await desk.streamed()) == 4
        assert "depot.out: delivered: it is in its stream" in await desk.said("event", "show", str(second))


async def test_one_that_is_discarded_is_never_sent(
    database: str, sink: RedisStreams, name: str, codec: Refusing, tmp_path: Path
) -> None:
    async with depot(database) as house:
        desk = Desk(tmp_path, house, sink, name, await buried(house, sink, codec))
        await desk.said("dlq", "discard", str(desk.sent[1]), "--reason", "a test", "--yes")
        assert "depot.out: discarded" in await desk.said("event", "show", str(desk.sent[1]))
        await house.app.drain()
        assert await desk.streamed() == [desk.sent[0], desk.sent[2]]


async def test_one_that_is_edited_is_sent_as_it_is_then(
    database: str, sink: RedisStreams, name: str, codec: Refusing
) -> None:
    async with depot(database) as house:
        sent = await buried(house, sink, codec)
        codec.refused = {2}
        [replayed] = await house.app.replay(sent[1], payload={"parcel": "a", "n": 7})
        assert replayed.outcome == "replayed"
        assert (await house.app.drain()).relayed == 1
        await sink.open()
        entries = [entry async for page in sink.tail(name, sink.start) for entry in page]
        await sink.close()
        assert [entry.id for entry in entries] == [sent[0], sent[2], sent[1]]
        assert codec.decode(entries[-1].data).payload == {"parcel": "a", "n": 7}


async def test_an_edited_dead_letter_stays_edited(
    database: str, redis_server: RedisServer, sink: RedisStreams, name: str, codec: Refusing
) -> None:
    async with depot(database) as house:
        sent = await buried(house, sink, codec)
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


async def test_one_that_is_rejected_again_is_dead_again_and_holds_up_nothing(
    database: str, sink: RedisStreams, name: str, codec: Refusing
) -> None:
    async with depot(database) as house:
        sent = await buried(house, sink, codec)
        codec.refused = {2}
        await house.app.replay(sent[1])
        [more] = await house.publish("a4")
        await house.app.drain()
        await sink.open()
        assert await ids_in(sink, name) == [sent[0], sent[2], more]
        [row] = await house.rows("select status, cycle, attempts from outrider.delivery")
        assert row == {"status": "failed", "cycle": 2, "attempts": 1}


async def test_a_replayed_dead_letter_in_a_lost_end_is_sent_again(
    database: str, redis_server: RedisServer, sink: RedisStreams, name: str, codec: Refusing
) -> None:
    """The cursor of the mark is past it: only what was kept of the replay brings it back."""
    async with depot(database) as house:
        sent = await buried(house, sink, codec)
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


async def test_a_replayed_letter_without_its_event_does_not_spin(
    database: str, sink: RedisStreams, codec: Refusing
) -> None:
    async with depot(database) as house:
        sent = await buried(house, sink, codec)
        await house.execute("delete from outrider.outbox where id = %s", [sent[1]])
        await house.execute("select outrider.replay(array(select id from outrider.delivery), 'somebody')")
        takes: list[Taken] = []
        house.app.signals.listen(lambda each: takes.append(each) if isinstance(each, Taken) else None)
        async with asyncio.timeout(30):
            await house.app.drain()
        assert len(takes) <= 3
