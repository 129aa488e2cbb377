"""The stream of another service comes in: each event once, in order, with its position; the handlers here run on it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import Depot, Sent, depot

from outrider import Bury, Envelope, Event, HandlerContext, Outrider
from outrider.errors import DeclarationError, SubscriptionRefused
from outrider.inbox.inbox import destination_of
from outrider.inbox.receiver import retry_refused
from outrider.postgres import inboxes
from outrider.postgres.inboxes import InboxProgress, Kept, Refused, Stamp, ingest
from outrider.signals import EntryRefused, Ingested, Rewound, Trimmed
from outrider.streams import Sink
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaCodec
from outrider.streams.url import broker

pytestmark = pytest.mark.also_on(15)


class Arrived(Event, type="depot.sent", foreign=True):
    """What the other service wants to know of a parcel."""

    parcel: str
    n: int


class Both:
    """Two services, each with a database of its own, and a stream between them."""

    def __init__(self, a: Depot, b: Depot, sink: Sink, stream: str) -> None:
        self.a = a
        self.b = b
        self.sink = sink
        self.stream = stream

    async def carry(self) -> None:
        await self.a.app.drain()
        await self.b.app.drain()

    async def arrived(self) -> list[UUID]:
        rows = await self.b.rows("select id from outrider.outbox where origin is not null order by seq")
        return [row["id"] for row in rows]

    async def effects(self) -> list[str]:
        return [row["name"] for row in await self.b.rows("select name from effect order by id")]


@pytest.fixture(params=("redis", "nats"))
def stream(request: pytest.FixtureRequest, name: str) -> Any:
    """A stream of its own: something to write to and to read from."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return RedisStreams(server.url, stream=name)
    nats: NatsServer = request.getfixturevalue("nats_server")
    return JetStream(nats.url, stream=name, create=True)


@asynccontextmanager
async def both(here: str, there: str, stream: Any, name: str, **options: Any) -> AsyncIterator[Both]:
    async with depot(here) as a, depot(there, context="shop") as b:
        a.app.relay("depot.out", stream)
        b.app.inbox("shop.in", stream, **options)
        effect(b.app)
        await a.app.migrate()
        await b.app.migrate()
        await b.execute("create table effect (id bigint generated always as identity, name text)")
        yield Both(a, b, stream, name)


def effect(app: Outrider) -> None:
    @app.handler(Arrived, name="shop.effect")
    async def effect(event: Arrived, ctx: HandlerContext) -> None:
        if event.n == 66666:
            raise Bury("unlucky")
        await ctx.tx.execute("insert into effect (name) values (%s)", [f"{event.parcel}{event.n}"])


async def test_events_come_in_and_handlers_run(database: str, other_database: str, stream: Any, name: str) -> None:
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish_many(1200)
        await pair.carry()
        assert await pair.arrived() == sent
        assert await pair.effects() == [f"{'abcdefgh'[n % 8]}{n}" for n in range(1200)]
        await pair.carry()
        assert len(await pair.effects()) == 1200
        [row] = await pair.b.rows("select * from outrider.stream")
        assert (row["events"], row["name"]) == (1200, name)


async def test_an_event_comes_in_whole(database: str, other_database: str, stream: Any, name: str) -> None:
    async with both(database, other_database, stream, name) as pair:
        options: dict[str, Any] = {"idempotency_key": "once", "workspace_id": "acme", "aggregate_kind": "parcel"}
        await pair.a.publish("ä1", content_class="confidential", target="shop", entity_version=7, **options)
        await pair.carry()
        query = """select id, event_type, event_version, occurred_at, source, target, content_class, workspace_id,
                          aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context
                   from outrider.outbox"""
        [there] = await pair.a.rows(query)
        [here] = await pair.b.rows(query)
        assert here == there
        assert await pair.effects() == ["ä1"]


async def test_a_stream_that_is_read_again_does_not_double(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish_many(30)
        await pair.carry()
        await pair.b.execute("update outrider.stream set position = %s", [stream.start])
        sent += await pair.a.publish("a1")
        await pair.carry()
        assert await pair.arrived() == sent
        assert len(await pair.effects()) == 31
        assert await pair.b.rows("select * from outrider.stream_refused") == []


async def test_who_has_read_from_elsewhere_writes_nothing(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with both(database, other_database, stream, name) as pair:
        await pair.a.publish_many(5)
        await pair.carry()
        [before] = await pair.b.rows("select * from outrider.stream")
        stamp = Stamp("outbox_default", 0, "commit")
        envelope = pair.a.app.envelope(Sent(parcel="z", n=1))
        async with pair.b.app.connect() as conn:
            late = InboxProgress("shop.in", name, "0-0", "1-1")
            outcome = await ingest(conn, late, [envelope], [Refused("1-1", b"", "")], stamp, "outrider")
        assert (outcome.outcome, outcome.events, outcome.stands) == ("moved", 0, before["position"])
        assert len(await pair.arrived()) == 5
        assert await pair.b.rows("select * from outrider.stream") == [before]
        assert await pair.b.rows("select * from outrider.stream_refused") == []


async def test_a_stream_that_was_lost_and_sent_again_does_not_double(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish_many(30)
        await pair.carry()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.delete(name)
        sent += await pair.a.publish("a1")
        await pair.carry()
        assert await pair.arrived() == sent


async def test_what_came_in_does_not_go_out_again(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    """Two services that send each other everything: no event goes round."""
    there, back = (RedisStreams(redis_server.url, stream=f"{name}.{each}") for each in "tb")
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", there)
        a.app.inbox("depot.in", back)
        b.app.relay("shop.out", back)
        b.app.inbox("shop.in", there)
        await a.app.migrate()
        await b.app.migrate()
        sent = [*await a.publish("a1", "a2"), *await b.publish("b1")]
        for _ in range(3):
            await a.app.drain()
            await b.app.drain()
        for house in (a, b):
            rows = await house.rows("select id from outrider.outbox")
            assert sorted(row["id"] for row in rows) == sorted(sent)


async def test_an_entry_that_is_no_event_is_kept_and_the_rest_goes_on(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with both(database, other_database, stream, name) as pair:
        refused: list[EntryRefused] = []
        pair.b.app.signals.listen(lambda each: refused.append(each) if isinstance(each, EntryRefused) else None)
        sent = await pair.a.publish("a1")
        await pair.a.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.xadd(name, {"event": b"\xff nonsense"})
            await redis.xadd(name, {"other": b"field"})
            entries: Any = await redis.xrange(name)
            again = entries[0][1][b"event"].replace(sent[0].hex[:8].encode(), b"01900000", 1)
            await redis.xadd(name, {"event": again})
        await pair.b.app.drain()
        assert await pair.effects() == ["a1", "a1"]
        rows = await pair.b.rows("select * from outrider.stream_refused order by id")
        assert [bytes(row["data"]) for row in rows] == [b"\xff nonsense", b'{"fields": {"other": "field"}}']
        assert [each.position for each in refused] == [row["position"] for row in rows]


async def test_what_only_the_database_refuses_is_one_entrys_fault(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    async with both(database, other_database, stream, name) as pair:
        await pair.b.execute("alter table outrider.outbox add constraint lucky check (payload->>'n' <> '13')")
        sent = await pair.a.publish_many(30)
        await pair.carry()
        assert await pair.arrived() == [*sent[:13], *sent[14:]]
        [row] = await pair.b.rows("select message from outrider.stream_refused")
        assert "lucky" in row["message"]


async def test_what_the_database_refuses_is_told_without_the_payload(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    async with both(database, other_database, stream, name) as pair:
        await pair.b.execute("alter table outrider.outbox add constraint lucky check (payload->>'n' <> '13')")
        await pair.a.publish("a13")
        await pair.carry()
        [row] = await pair.b.rows("select message from outrider.stream_refused")
        wanted = 'the database refuses it: new row for relation "outbox_s0" violates check constraint "lucky"'
        assert row["message"] == wanted


async def test_a_table_that_takes_nothing_is_no_fault_of_the_entries(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    """Nothing is refused, nothing moves; when the table is right again, all come in."""
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish("a1")
        await pair.carry()
        [before] = await pair.b.rows("select * from outrider.stream")
        await pair.b.execute("alter table outrider.outbox add constraint closed check (payload->>'n' < '2')")
        sent += await pair.a.publish("a7", "a8", "a9")
        await pair.a.app.drain()
        with pytest.raises(
            SubscriptionRefused, match=r"none of 3 entries can be stored.* constraint \"closed\""
        ) as caught:
            await pair.b.app.drain()
        assert "Failing row" not in str(caught.value), "the row is told, and with it the payload"
        assert await pair.b.rows("select * from outrider.stream_refused") == []
        assert await pair.b.rows("select * from outrider.stream") == [before]
        await pair.b.execute("alter table outrider.outbox drop constraint closed")
        await pair.b.app.drain()
        assert await pair.arrived() == sent


async def test_entries_that_are_refused_for_different_reasons(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with both(database, other_database, stream, name) as pair:
        for constraint, n in (("one", 1), ("two", 2)):
            await pair.b.execute(
                f"alter table outrider.outbox add constraint {constraint} check (payload->>'n' <> '{n}')"
            )
        await pair.a.publish("a1")
        await pair.a.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.xadd(name, {"event": "nonsense"})
        await pair.a.publish("a2")
        await pair.carry()
        messages = [
            row["message"] for row in await pair.b.rows("select message from outrider.stream_refused order by id")
        ]
        assert len(messages) == 3
        for message, word in zip(messages, ('"one"', "it is not JSON", '"two"'), strict=True):
            assert word in message
        sent = await pair.a.publish("a3")
        await pair.carry()
        assert await pair.arrived() == sent


class Broken(EnvelopeCodec):
    """Of somebody who did not expect this."""

    def decode(self, data: bytes) -> Envelope:
        if b'"n": 3' in data or b'"n":3' in data:
            raise KeyError("body")
        return super().decode(data)

    def id_of(self, data: bytes) -> UUID | None:
        if b'"n": 3' in data or b'"n":3' in data:
            raise KeyError("id")
        return super().id_of(data)


async def test_whatever_a_codec_raises_is_a_refusal(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name, codec=Broken()))
        await a.app.migrate()
        await b.app.migrate()
        await a.publish("a2", "a3", "a4")
        await a.app.drain()
        assert (await b.app.drain()).ingested == 2
        [row] = await b.rows("select message from outrider.stream_refused")
        assert row["message"] == "KeyError: 'body'"
        async with b.app.connect() as conn:
            destination = destination_of(b.app.inboxes[0], b.app.settings)
            tried = await retry_refused(conn, "shop.in", destination, "outrider")
        assert [why for _, why in tried.refused] == ["KeyError: 'body'"]


def test_a_codec_that_cannot_be_right(redis_server: RedisServer) -> None:
    class Own(ReplicaCodec):
        pass

    class OwnToo(EnvelopeCodec):
        pass

    def of(codec: Any) -> RedisStreams:
        return RedisStreams(redis_server.url, stream="s", codec=codec)

    app = Outrider(context="shop")
    with pytest.raises(DeclarationError, match=r"read the stream with app\.replica\('shop\.in', source, table"):
        app.inbox("shop.in", of(ReplicaCodec()))
    for wrong in (EnvelopeCodec(), CloudEventsCodec()):
        with pytest.raises(DeclarationError, match=r"give the source codec=ReplicaCodec\(\)"):
            app.replica("shop.copy", of(wrong), table="copy")
    app.inbox("shop.in", of(Own()))
    app.replica("shop.copy", of(OwnToo()), table="copy")


async def test_entries_that_were_removed_before_they_were_read(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    async with both(database, other_database, stream, name, batch=4) as pair:
        trimmed: list[Trimmed] = []
        pair.b.app.signals.listen(lambda each: trimmed.append(each) if isinstance(each, Trimmed) else None)
        sent = await pair.a.publish_many(5)
        await pair.carry()
        [row] = await pair.b.rows("select position from outrider.stream")
        missed = await pair.a.publish_many(20, start=5)
        await pair.a.app.drain()
        if isinstance(stream, RedisStreams):
            async with Redis.from_url(stream._connection._url) as redis:
                await redis.xtrim(name, maxlen=10, approximate=False)
        else:
            async with stream._stream.connected() as connection:
                await connection.request(f"$JS.API.STREAM.PURGE.{name}", {"keep": 10})
        await pair.b.app.drain()
        assert await pair.arrived() == [*sent, *missed[10:]]
        assert trimmed == [Trimmed("shop.in", name, row["position"])]


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_tail_that_was_lost_and_sent_again_otherwise(
    database: str, other_database: str, name: str, kind: str
) -> None:
    """What the relay sends again has one event more in it, before where the inbox stands; the broker is long enough again
    when the inbox looks."""
    server = NatsServer() if kind == "nats" else RedisServer(durable=False)
    with server:
        stream: Any = broker(server.url, stream=name, create=True)
        if kind == "redis":
            stream._appender.clock = lambda: 1_700_000_000_000  # the clock went back: ids are counted on
        async with both(database, other_database, stream, name) as pair, AsyncExitStack() as later:
            rewound: list[Rewound] = []
            pair.b.app.signals.listen(lambda each: rewound.append(each) if isinstance(each, Rewound) else None)
            sent = await pair.a.publish_many(5)
            await pair.carry()
            if kind == "redis":
                async with Redis.from_url(server.url) as redis:
                    await redis.save()
            else:
                server.stop()
                shutil.copytree(server.data, server.folder / "copy")
                server.start()
            conn = await later.enter_async_context(pair.a.app.connect())
            slow = await later.enter_async_context(slowly(pair.a, conn))
            sent += await pair.a.publish_many(10, start=5)
            await pair.carry()
            assert await pair.arrived() == sent
            server.kill()
            if kind == "nats":
                shutil.rmtree(server.data)
                shutil.copytree(server.folder / "copy", server.data)
            server.start()
            await later.aclose()
            await pair.a.app.drain()
            await pair.b.app.drain()
            assert slow in await pair.arrived()
            assert sorted(await pair.arrived()) == sorted([*sent, slow])
            assert [each.subscription for each in rewound] == ["shop.in"]


@asynccontextmanager
async def slowly(house: Depot, conn: Any) -> AsyncIterator[UUID]:
    """An event whose transaction is open meanwhile: its number is lower than those of events that are sent before it."""
    async with conn.transaction():
        yield (await house.app.publish(conn, Sent(parcel="slow", n=1))).id


async def test_a_stop_is_heard_while_it_waits(database: str, stream: Any) -> None:
    """Whatever its poll: what waits at the broker cannot hear it."""
    async with depot(database, context="shop") as b:
        b.app.inbox("shop.in", stream, poll="10m")
        await b.app.migrate()
        worker = b.app.worker(grace=20)
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        looks = asyncio.Queue[float]()
        read = stream.read

        async def reading(after: str, limit: int, wait: float) -> Any:
            looks.put_nowait(wait)
            return await read(after, limit, wait)

        stream.read = reading
        async with asyncio.timeout(60):
            while not await looks.get():
                pass
        worker.stop()
        assert await running, "it was cut off"


async def test_a_payload_beyond_the_limit_is_refused(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as a, depot(other_database, context="shop", payload_limit=2048) as b:
        a.app.relay("depot.out", stream)
        b.app.inbox("shop.in", stream)
        await a.app.migrate()
        await b.app.migrate()
        await a.publish("a1")
        async with a.app.connect() as conn, conn.transaction():
            await a.app.publish(conn, Sent(parcel="x" * 3000, n=2), key="x")
        await a.app.drain()
        assert (await b.app.drain()).ingested == 1
        [row] = await b.rows("select message from outrider.stream_refused")
        assert "at most 2,048 are allowed (payload_limit)" in row["message"]


async def test_a_long_entry_is_refused_before_it_is_parsed(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is 128 MB as a text may be 3 GB as Python's objects."""
    parsed: list[int] = []
    really = EnvelopeCodec.decode

    def decode(self: EnvelopeCodec, data: bytes) -> Envelope:
        parsed.append(len(data))
        return really(self, data)

    monkeypatch.setattr(EnvelopeCodec, "decode", decode)
    long = entry(1, '{"parcel":"a","n":' + "[" * 4 + "[]," * 30_000 + "[]" + "]" * 4 + "}")
    async with Redis.from_url(redis_server.url) as redis, depot(database, context="shop", payload_limit=2048) as b:
        await redis.xadd(name, {"event": long})
        await redis.xadd(name, {"event": entry(2, '{"parcel":"a","n":2}')})
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        await b.app.migrate()
        assert (await b.app.drain()).ingested == 1
        assert max(parsed) < 2048
        [row] = await b.rows("select message from outrider.stream_refused")
        assert "the entry has 90," in row["message"]
        assert "at most 69,632 are read: twice payload_limit, and 64 KiB" in row["message"]


async def test_refused_entries_are_read_again_in_pages(
    database: str, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a few MiB: a stream may have had anything in it."""
    pages: list[int] = []
    really = inboxes.refused_again

    async def noted(*args: Any) -> list[Kept]:
        found = await really(*args)
        pages.append(len(found))
        return found

    monkeypatch.setattr(inboxes, "refused_again", noted)
    async with Redis.from_url(redis_server.url) as redis, depot(database, context="shop", payload_limit=2048) as b:
        for n in range(7):
            text = "x" * (1_500_000 if n < 5 else 10)
            await redis.xadd(name, {"event": entry(n, f'{{"parcel":"{text}","n":{n}}}')})
        await redis.xadd(name, {"event": "no event"})
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        await b.app.migrate()
        assert (await b.app.drain()).ingested == 2
        async with b.app.connect() as conn:
            roomy = replace(b.app.settings, payload_limit=2_000_000)
            tried = await retry_refused(conn, "shop.in", destination_of(b.app.inboxes[0], roomy), "outrider")
        assert pages == [3, 3, 0]
        assert (tried.ingested, len(tried.refused)) == (5, 1)
        assert len(await b.rows("select from outrider.stream_refused")) == 1


def entry(n: int, payload: str, trace: str = "null") -> bytes:
    head = f'"v":1,"id":"{UUID(int=n)}","event_type":"depot.sent","event_version":1,"source":"depot"'
    return f'{{{head},"content_class":"internal","trace_context":{trace},"payload":{payload}}}'.encode()


async def test_numbers_count_in_full(database: str, redis_server: RedisServer, name: str) -> None:
    """24 kB of 1e-3000 have 9 MB when Postgres prints them. Such an entry is refused, and its neighbours come in."""
    numbers = '{"parcel":"a","n":2,"more":[' + "1e-3000," * 3000 + "0]}"
    trace = '{"traceparent":"' + "0" * 20_000 + '"}'
    async with Redis.from_url(redis_server.url) as redis, depot(database, context="shop") as b:
        for n, payload in enumerate(('{"parcel":"a","n":1}', numbers, '{"parcel":"a","n":1e-9000}')):
            await redis.xadd(name, {"event": entry(n, payload)})
        await redis.xadd(name, {"event": entry(3, '{"parcel":"a","n":3}', trace)})
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        await b.app.migrate()
        assert (await b.app.drain()).ingested == 2
        rows = await b.rows("select payload->>'n' as n, trace_context from outrider.outbox order by seq")
        assert [tuple(row.values()) for row in rows] == [("1", None), ("3", None)]
        refused = [row["message"] for row in await b.rows("select message from outrider.stream_refused order by id")]
        assert "bytes with its numbers in full, at most 262,144 are allowed (payload_limit)" in refused[0]
        assert "1e-9000 is a number that Postgres cannot store" in refused[1]


async def test_a_batch_of_large_entries_is_small(database: str, redis_server: RedisServer, name: str) -> None:
    """A broker counts entries, not bytes: the first batch is small, and the next ones as large as they may be."""
    text = "x" * 200_000
    sizes: list[int] = []
    async with Redis.from_url(redis_server.url) as redis, depot(database, context="shop") as b:
        for n in range(60):
            await redis.xadd(name, {"event": entry(n, f'{{"parcel":"{text}","n":{n}}}')})
        b.app.signals.listen(lambda each: sizes.append(each.events) if isinstance(each, Ingested) else None)
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        await b.app.migrate()
        assert (await b.app.drain()).ingested == 60
    assert sizes == [16, 16, 16, 12]


async def test_a_paused_inbox_reads_nothing(database: str, other_database: str, stream: Any, name: str) -> None:
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish("a1")
        await pair.b.app.pause("shop.in")
        await pair.carry()
        assert await pair.arrived() == []
        await pair.b.app.resume("shop.in")
        await pair.carry()
        assert await pair.arrived() == sent


async def test_handlers_have_their_dead_letters_here(
    database: str, other_database: str, stream: Any, name: str
) -> None:
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish("a1", "a66666", "a2")
        await pair.carry()
        assert await pair.effects() == ["a1", "a2"]
        [letter] = await pair.b.rows("select event_id, last_error from outrider.delivery where status = 'failed'")
        assert letter == {"event_id": sent[1], "last_error": "Bury: unlucky"}
        status = await pair.b.app.status()
        assert {each.name: each.dead for each in status.subscriptions} == {"shop.effect": 1, "shop.in": 0}


async def test_cloud_events(database: str, other_database: str, redis_server: RedisServer, name: str) -> None:
    stream = RedisStreams(redis_server.url, stream=name, codec=CloudEventsCodec())
    async with both(database, other_database, stream, name) as pair:
        sent = await pair.a.publish("a1", "b2")
        await pair.carry()
        assert await pair.arrived() == sent
        assert await pair.effects() == ["a1", "b2"]


async def test_two_processes_read_one_inbox(database: str, other_database: str, stream: Any, name: str) -> None:
    """Whoever is second finds that the inbox has moved, and writes nothing."""
    async with both(database, other_database, stream, name) as pair, depot(other_database, context="shop") as second:
        second.app.inbox("shop.in", stream)
        sent = await pair.a.publish_many(300)
        await pair.a.app.drain()
        async with pair.b.app.worker(handlers=["shop.in"]), second.app.worker(handlers=["shop.in"]):
            sent += await pair.a.publish_many(300, start=300)
            await pair.a.app.drain()
            while len(await pair.arrived()) < 600:
                pass
        assert await pair.arrived() == sent


async def test_another_kind_of_broker_is_read_from_its_beginning(
    database: str, other_database: str, redis_server: RedisServer, nats_server: NatsServer, name: str
) -> None:
    async with both(database, other_database, RedisStreams(redis_server.url, stream=name), name) as pair:
        sent = await pair.a.publish_many(10)
        await pair.carry()
    other = JetStream(nats_server.url, stream=name, create=True)
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", other)
        b.app.inbox("shop.in", other)
        sent += await a.publish_many(3, start=10)
        await a.app.drain()
        await b.app.drain()
        rows = await b.rows("select id from outrider.outbox order by seq")
        assert [row["id"] for row in rows] == sent
