"""Streams that are not as the relay needs them, and streams that it has begun and does not know: it goes on."""

from __future__ import annotations

from typing import Any

import nats
import pytest
from tests.brokers import NatsServer
from tests.relay.depot import Depot, depot, ids_in

from outrider.errors import StreamMissing, StreamOccupied
from outrider.postgres import connection, relays
from outrider.signals import BrokerDown, BrokerUp, Intruded, Relayed, Rewound
from outrider.streams import Sink
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.testing import expect
from outrider.testing.harness import events


async def test_a_stream_with_other_subjects_is_an_outage(database: str, nats_server: NatsServer, name: str) -> None:
    """It was deleted, and made anew with a configuration that does not fit: no event is to blame."""
    sink = JetStream(nats_server.url, stream=name)
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        sent = await house.publish_many(3)
        await house.app.drain()
        await stream.delete_stream(name)
        await stream.add_stream(name=name, subjects=[f"{name}.other"])
        sent += await house.publish_many(3, start=3)
        for _ in range(3):
            with pytest.raises(
                StreamMissing, match=rf"does not accept the subject '{name}.depot.sent': add it \(nats stream"
            ):
                await house.app.drain()
        assert await house.rows("select * from outrider.delivery") == [], "an attempt was used"
        async with house.app.worker():
            async with expect(house.app, BrokerDown, times=2) as down:
                pass
            assert "does not accept the subject" in down[-1].message
            async with expect(house.app, Relayed), expect(house.app, BrokerUp):
                await stream.update_stream(name=name, subjects=[f"{name}.>"])
        assert await ids_in(sink, name) == sent
    await client.close()


async def test_a_stream_that_was_deleted_is_made_again_if_asked(
    database: str, nats_server: NatsServer, name: str
) -> None:
    """Also by a relay that is connected all the time."""
    sink = JetStream(nats_server.url, stream=name, create=True)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, poll=0.1)
        await house.app.migrate()
        async with house.app.worker():
            async with expect(house.app, Relayed):
                sent = await house.publish("a1")
            client = await nats.connect(nats_server.url)
            async with expect(house.app, Relayed), expect(house.app, Rewound):
                await client.jetstream().delete_stream(name)
            await client.close()
        assert await ids_in(sink, name) == sent


async def forget(house: Depot) -> None:
    """What a crash does that loses the commit with which the stream was opened."""
    await house.execute("delete from outrider.stream where subscription = 'depot.out'")
    await house.execute("delete from outrider.stream_mark where subscription = 'depot.out'")


@pytest.fixture
def dies_before_settling(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    async def die(*_: Any) -> None:
        raise ConnectionError("died between append and commit")

    monkeypatch.setattr(relays, "settle", die)
    return monkeypatch


async def test_a_stream_that_was_opened_in_a_lost_commit(
    database: str, sink: Sink, name: str, dies_before_settling: pytest.MonkeyPatch
) -> None:
    """What is in it is of this log: it goes on as after a crash between append and commit."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=3)
        await house.app.migrate()
        sent = await house.publish_many(4)
        with pytest.raises(ConnectionError):
            await house.app.drain()
        assert await ids_in(sink, name) == sent[:3]
        dies_before_settling.undo()
        await forget(house)
        sent += await house.publish_many(4, start=4)
        await house.app.drain()
        assert await ids_in(sink, name) == sent
        assert await house.rows("select * from outrider.stream_ahead") == []


async def test_some_events_in_it_were_lost_with_the_commit(
    database: str, sink: Sink, name: str, dies_before_settling: pytest.MonkeyPatch
) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish_many(4)
        with pytest.raises(ConnectionError):
            await house.app.drain()
        dies_before_settling.undo()
        await forget(house)
        await house.execute("delete from outrider.outbox where id = any(%s)", [sent[2:]])
        more = await house.publish("a9")
        async with expect(house.app, Intruded) as intruded:
            await house.app.drain()
        assert [each.entries for each in intruded] == [2]
        assert await ids_in(sink, name) == [*sent, *more]


@pytest.mark.parametrize("born", ["elsewhere", "and brought by an inbox", "here, for another relay"])
async def test_a_stream_of_somebody_else_is_refused(database: str, sink: Sink, name: str, born: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish("a1", "a2")
        theirs = events(2) if born == "elsewhere" else await house.envelopes(sent)
        await sink.open()
        await sink.append(name, theirs, sink.start)
        if born == "and brought by an inbox":
            await house.execute("update outrider.outbox set origin = 'depot.in'")
            await house.publish("a3")
        if born == "here, for another relay":
            house.app.relay("depot.other", RedisStreams("redis://localhost", stream=name))
            await house.app.migrate()
            await house.execute("insert into outrider.stream values ('depot.other', %s, '0-0')", [name])
        with pytest.raises(StreamOccupied, match=f"outrider relay adopt depot.out {name}"):
            await house.app.drain(handlers=["depot.out"])
        assert len(await ids_in(sink, name)) == 2


async def test_a_stream_is_opened_durably_where_commits_are_not(database: str) -> None:
    """Nothing may be in the stream before the disk has that it was opened, with the event that it was opened for."""
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams("redis://localhost", stream="orders"))
        await house.app.migrate()
        async with await connection.connect(database, autocommit=True) as conn:
            await conn.execute("set synchronous_commit = off")
            await conn.execute("select outrider.publish('depot.sent', '{}')")
            [(written,)] = await (await conn.execute("select pg_current_wal_insert_lsn()")).fetchall()
            await relays.open_streams(conn, "depot.out", {"orders": "0-0"}, "outrider")
            flushed = await conn.execute("select pg_current_wal_flush_lsn() >= %s::pg_lsn", [written])
            assert await flushed.fetchall() == [(True,)]
            [(setting,)] = await (await conn.execute("show synchronous_commit")).fetchall()
            assert setting == "off", "only for this transaction"
