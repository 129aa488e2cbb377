"""The log goes on to a broker: each event once, in order, whatever the relay finds there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import Depot, Lost, depot, ids_in

from outrider import Envelope
from outrider.errors import StreamOccupied, SubscriptionRefused
from outrider.postgres import relays
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.relay.sender import Sender
from outrider.signals import Rewound, Trimmed
from outrider.streams import Appended, Sink
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaCodec
from outrider.streams.stream import bare_position

pytestmark = pytest.mark.also_on(15)


async def test_everything_is_sent_once_and_in_order(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish_many(1234)
        assert (await house.app.drain()).relayed == 1234
        assert await ids_in(sink, name) == sent
        sent += await house.publish("a1", "b1")
        assert (await house.app.drain()).relayed == 2
        assert (await house.app.drain()).relayed == 0
        assert await ids_in(sink, name) == sent
        [stream] = await house.rows("select position from outrider.stream")
        assert stream["position"].split("#")[0] == f"{await house.app.current_hwm(name)}@{sent[-1].hex}", (
            "it names the last event"
        )


async def test_a_take_that_finds_nothing_is_not_rolled_back(database: str, sink: Sink, tmp_path: Path) -> None:
    """An idle relay would be counted in the rollbacks of its database."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        [relay] = house.app.relays
        sessions = WorkerSessions(database, 1)
        with (tmp_path / "sent").open("w") as file:
            async with sessions.session("depot.out") as conn:
                conn.pgconn.trace(file.fileno())
                sent = await Sender(relay, house.app.signals, schema="outrider", worker="test").step(conn)
                conn.pgconn.untrace()
        await sessions.close()
        assert sent.outcome == "idle"
        told = (tmp_path / "sent").read_text().lower()
        assert "commit" in told
        assert "rollback" not in told


async def test_what_arrived_before_a_crash_is_not_sent_again(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=10)
        await house.app.migrate()
        sent = await house.publish_many(25)
        await house.app.drain()
        # As a relay that died between the broker's answer and its commit: five are there, of which nobody knows.
        more = await house.publish_many(30, start=25)
        await sink.open()
        envelopes = await house.envelopes(more[:5])
        outcome = await sink.append(name, envelopes, await sink.end(name))
        assert isinstance(outcome, Appended)
        await sink.close()
        await house.app.drain()
        assert await ids_in(sink, name) == sent + more
        assert await house.rows("select * from outrider.stream_ahead") == []


async def test_the_batch_after_a_crash_may_be_another_one(database: str, sink: Sink, name: str) -> None:
    """What is in the stream is spread over several batches, and not at their beginning."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=4)
        await house.app.migrate()
        await house.publish("a1")
        await house.app.drain()
        sent = await house.publish_many(20)
        await sink.open()
        there = [sent[n] for n in (1, 2, 7, 8, 15)]
        await sink.append(name, await house.envelopes(there), await sink.end(name))
        await sink.close()
        await house.app.drain()
        found = (await ids_in(sink, name))[1:]
        assert found == there + [each for each in sent if each not in there]
        assert await house.rows("select * from outrider.stream_ahead") == []


async def test_what_is_ahead_and_withdrawn_is_forgotten(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        await house.publish("a1")
        await house.app.drain()
        sent = await house.publish("a2", "a3", "a4")
        await sink.open()
        await sink.append(name, await house.envelopes(sent[:2]), await sink.end(name))
        await sink.close()
        await house.app.withdraw(sent[0])
        await house.app.drain()
        assert (await ids_in(sink, name))[1:] == sent, "it was too late for the first"
        assert await house.rows("select * from outrider.stream_ahead") == []


async def test_what_was_ahead_in_a_lost_end_is_sent(
    database: str, sink: Sink, name: str, remove: Callable[[], Awaitable[None]]
) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish("a1")
        await house.app.drain()
        sent += await house.publish("a2", "a3")
        await house.execute("insert into outrider.stream_ahead values ('depot.out', %s)", [sent[1]])
        await remove()
        await house.app.drain()
        assert await ids_in(sink, name) == sent


async def test_only_what_it_wants(database: str, sink: Sink, name: str) -> None:
    """Its types, whatever their target; not what came in from elsewhere."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink, events=[Lost])
        await house.app.migrate()
        await house.publish("a1")
        wanted = await house.publish("a2", model=Lost)
        wanted += await house.publish("a3", model=Lost, target="billing")
        [foreign] = await house.publish("a4", model=Lost)
        await house.execute("update outrider.outbox set origin = 'depot.in' where id = %s", [foreign])
        await house.app.drain()
        assert await ids_in(sink, name) == wanted


async def test_what_came_in_is_forwarded_if_asked(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink, forward=True)
        await house.app.migrate()
        sent = await house.publish("a1", "a2")
        await house.execute("update outrider.outbox set origin = 'depot.in' where id = %s", [sent[0]])
        await house.app.drain()
        assert await ids_in(sink, name) == sent


async def test_of_one_tenant(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink, workspace_id="acme")
        await house.app.migrate()
        await house.publish("a1")
        await house.publish("a2", workspace_id="other")
        wanted = await house.publish("a3", workspace_id="acme")
        await house.app.drain()
        assert await ids_in(sink, name) == wanted


async def test_several_streams_each_with_its_position(database: str, redis_server: RedisServer, name: str) -> None:
    sink = RedisStreams(redis_server.url, stream_for=lambda envelope: f"{name}.{envelope.key}")
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=10)
        await house.app.migrate()
        sent = await house.publish_many(100)
        assert (await house.app.drain()).relayed == 100
        for place, key in enumerate("abcdefgh"):
            assert await ids_in(sink, f"{name}.{key}") == sent[place::8]
        positions = {
            row["name"]: bare_position(row["position"])
            for row in await house.rows("select name, position from outrider.stream")
        }
        await sink.open()
        assert positions == {stream: await sink.end(stream) for stream in positions}
        await sink.close()


async def test_a_stream_that_others_have_written_to_is_refused(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        house.app.relay("depot.again", sink)
        await house.app.migrate()
        await house.publish("a1")
        await house.app.drain(handlers=["depot.out"])
        with pytest.raises(StreamOccupied, match=f"outrider relay adopt depot.again {name}"):
            await house.app.drain(handlers=["depot.again"])


async def test_a_lost_end_is_sent_again(
    database: str, sink: Sink, name: str, remove: Callable[[], Awaitable[None]]
) -> None:
    """The stream is gone, as after a restart without what was stored; what is sent until then comes again, and once."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=10)
        await house.app.migrate()
        sent = await house.publish_many(55)
        await house.app.drain()
        await remove()
        sent += await house.publish_many(7, start=55)
        signals: list[Rewound] = []
        house.app.signals.listen(lambda signal: signals.append(signal) if isinstance(signal, Rewound) else None)
        await house.app.drain()
        assert await ids_in(sink, name) == sent
        assert [(each.subscription, each.stream, each.whole) for each in signals] == [("depot.out", name, True)]


async def test_it_goes_back_to_the_newest_mark_that_is_in_the_stream(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """Entries between the mark and the end that was kept are not sent again."""
    sink = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=10)
        await house.app.migrate()
        sent = await house.publish_many(20)
        await house.app.drain()
        mark = await _mark(house)
        sent += await house.publish_many(20, start=20)
        await house.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            entries: Any = await redis.xrange(name)
            await redis.delete(name)
            for position, fields in entries[:25]:
                await redis.xadd(name, fields, id=position)
        signals: list[Rewound] = []
        house.app.signals.listen(lambda signal: signals.append(signal) if isinstance(signal, Rewound) else None)
        sent += await house.publish_many(3, start=40)
        assert (await house.app.drain()).relayed == 15 + 3
        assert await ids_in(sink, name) == sent
        assert [each.at for each in signals] == [mark]


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


async def _mark(house: Depot) -> datetime:
    await house.execute("select outrider.relay_mark('depot.out')")
    [row] = await house.rows("select max(at) as at from outrider.stream_mark")
    at: datetime = row["at"]
    return at


@pytest.fixture
def rejected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected event is not due again before its drain has ended, however slow that is."""
    monkeypatch.setattr("outrider.relay.sender.SHORTEST", 30.0)


class Refusing:
    """A codec that cannot write some events."""

    content_type = "application/json"

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self._codec = EnvelopeCodec()
        self.decode, self.id_of = self._codec.decode, self._codec.id_of

    def encode(self, envelope: Envelope, position: str) -> bytes:
        if envelope.payload["n"] in self.refused:
            raise ValueError(f"{envelope.payload['n']} is too much")
        return self._codec.encode(envelope, position)


@pytest.mark.usefixtures("rejected_once")
async def test_a_rejected_event_is_tried_again_then_buried_and_the_stream_goes_on(
    database: str, redis_server: RedisServer, name: str
) -> None:
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=3, batch=10)
        await house.app.migrate()
        codec.refused = {4}
        sent = await house.publish_many(15)
        await house.app.drain()
        assert await ids_in(sink, name) == sent[:4], "nothing behind it is taken for sent"
        [row] = await house.rows("select * from outrider.delivery")
        assert (row["status"], row["attempts"], row["last_error_code"]) == ("pending", 1, "unencodable")
        for _ in range(2):
            await house.execute("update outrider.delivery set run_at = now()")
            await house.app.drain()
        assert await ids_in(sink, name) == sent[:4] + sent[5:]
        [row] = await house.rows("select * from outrider.delivery")
        assert (row["status"], row["attempts"], row["reached"]) == ("failed", 3, True)
        assert len(row["failure_history"]) == 3
        assert "4 is too much" in row["last_error"]

        codec.refused = set()
        await house.app.replay(sent[4])
        assert (await house.app.drain()).relayed == 1
        assert await ids_in(sink, name) == sent[:4] + sent[5:] + [sent[4]]
        assert await house.rows("select * from outrider.delivery") == []


@pytest.mark.usefixtures("rejected_once")
async def test_a_replayed_dead_letter_beside_a_rejected_event(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """What is replayed comes out of its turn: it does not count among those that come before the rejected one."""
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=2)
        await house.app.migrate()
        codec.refused = {0}
        sent = await house.publish_many(3)
        for _ in range(2):
            await house.app.drain()
            await house.execute("update outrider.delivery set run_at = now()")
        assert await ids_in(sink, name) == sent[1:]
        codec.refused = {4}
        await house.app.replay(sent[0])
        sent += await house.publish_many(3, start=3)
        await house.app.drain()
        assert await ids_in(sink, name) == [sent[1], sent[2], sent[0], sent[3]]
        codec.refused = set()
        await house.execute("update outrider.delivery set run_at = now()")
        await house.app.drain()
        assert await ids_in(sink, name) == [sent[1], sent[2], sent[0], *sent[3:]]
        assert await house.rows("select * from outrider.delivery") == []


LARGE = """insert into outrider.outbox (event_type, source, payload)
           select 'depot.sent', 'depot', jsonb_build_object('parcel', 'a', 'n', n, 'text', repeat('x', 5000))
           from generate_series(1, 3) as n"""
BEYOND = """insert into outrider.outbox (event_type, source, entity_version, payload)
            select 'depot.sent', 'depot', 9007199254740993, '{"parcel": "a"}' from generate_series(1, 3)"""


@pytest.mark.usefixtures("rejected_once")
@pytest.mark.parametrize(
    ("insert", "codec", "code"),
    [(LARGE, EnvelopeCodec(), "too_large"), (BEYOND, ReplicaCodec(), "unencodable")],
    ids=["too large for the server", "not exact in the codec"],
)
async def test_what_would_be_rejected_every_time_is_buried_at_once(
    database: str, name: str, insert: str, codec: EnvelopeCodec | ReplicaCodec, code: str
) -> None:
    """Each such event held up the stream for 45 s, and a producer can insert a thousand of them."""
    with NatsServer(max_payload=4000) as server:
        sink = JetStream(server.url, stream=name, create=True, codec=codec)
        async with depot(database) as house:
            house.app.relay("depot.out", sink)
            await house.app.migrate()
            [first] = await house.publish("a1")
            await house.execute(insert)
            [last] = await house.publish("a2")
            await house.app.drain()
            assert await ids_in(sink, name) == [first, last]
            rows = await house.rows("select status, attempts, last_error_code from outrider.delivery")
            assert rows == [{"status": "failed", "attempts": 1, "last_error_code": code}] * 3


async def test_a_rejected_event_halts_the_stream_if_asked(database: str, redis_server: RedisServer, name: str) -> None:
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=2, on_rejected="halt")
        await house.app.migrate()
        codec.refused = {1}
        sent = await house.publish_many(3)
        for _ in range(4):
            await house.app.drain()
            await house.execute("update outrider.delivery set run_at = now()")
        assert await ids_in(sink, name) == sent[:1]
        codec.refused = set()
        await house.app.drain()
        assert await ids_in(sink, name) == sent
        assert await house.rows("select * from outrider.delivery") == []


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


async def test_one_that_finds_no_stream_is_rejected(database: str, redis_server: RedisServer, name: str) -> None:
    def stream_for(envelope: Envelope) -> str:
        return name if envelope.payload["n"] != 1 else ""

    async with depot(database) as house:
        sink = RedisStreams(redis_server.url, stream_for=stream_for)
        house.app.relay("depot.out", sink, publish_max_attempts=1)
        await house.app.migrate()
        sent = await house.publish_many(3)
        await house.app.drain()
        assert await ids_in(sink, name) == [sent[0], sent[2]]
        [row] = await house.rows("select last_error from outrider.delivery where status = 'failed'")
        assert "is not the name of a stream" in row["last_error"]


async def test_a_withdrawn_event_is_not_sent(database: str, sink: Sink, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish("a1", "a2", "a3")
        await house.app.withdraw(sent[1])
        await house.app.drain()
        assert await ids_in(sink, name) == [sent[0], sent[2]]


async def test_a_withdrawn_event_is_not_rejected(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await house.app.migrate()
        [event] = await house.publish("a1")
        await house.app.withdraw(event)
        query = "select * from outrider.relay_reject('depot.out', 1, 'c', 'm', 'w', interval '1 s', 1, true)"
        assert await house.rows(query) == [{"attempts": 0, "buried": False}]
        assert await house.rows("select * from outrider.delivery") == []


async def test_another_kind_of_broker_gets_what_the_marks_reach(
    database: str, redis_server: RedisServer, nats_server: NatsServer, name: str
) -> None:
    """Another URL: what was sent to the first broker is not in the second, as if that had lost it."""
    first = RedisStreams(redis_server.url, stream=name)
    second = JetStream(nats_server.url, stream=name, create=True)
    async with depot(database) as house:
        house.app.relay("depot.out", first)
        await house.app.migrate()
        sent = await house.publish_many(10)
        await house.app.drain()
    async with depot(database) as house:
        house.app.relay("depot.out", second)
        sent += await house.publish_many(3, start=10)
        await house.app.drain()
        assert await ids_in(second, name) == sent
        assert await house.app.current_hwm(name) == "13"


async def test_the_high_water_mark_of_a_stream(database: str, redis_server: RedisServer, name: str) -> None:
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        house.app.relay("depot.split", RedisStreams(redis_server.url, stream_for=lambda each: f"{name}.{each.key}"))
        await house.app.migrate()
        assert await house.app.current_hwm(name) == "0-0", "nothing was written yet"
        with pytest.raises(SubscriptionRefused, match="its first event makes it known"):
            await house.app.current_hwm(f"{name}.a")
        await house.publish("a1")
        await house.app.drain()
        assert await house.app.current_hwm(name) != "0-0"
        async with house.app.connect() as conn, conn.transaction():
            assert await house.app.current_hwm(f"{name}.a", conn=conn) != "0-0"
