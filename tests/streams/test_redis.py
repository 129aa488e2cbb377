"""What is particular to Redis Streams: ids by a clock, keys of another type, memory, authentication, a lease."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.streams.gate import Gate

from outrider.errors import BrokerUnavailable, ConfigError, StreamMissing
from outrider.streams.lease import RedisLease
from outrider.streams.redis import RedisStreams
from outrider.streams.redis_append import CHUNK_BYTES
from outrider.streams.redis_connection import MAX_CONNECTIONS
from outrider.streams.stream import Appended, Moved, Rejected
from outrider.streams.url import Address, broker
from outrider.testing.harness import again, appended, events, same, tail_of


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Any]:
    async with Redis.from_url(redis_server.url, protocol=2) as client:
        yield client


@pytest.fixture
async def sink(redis_server: RedisServer, name: str) -> AsyncIterator[RedisStreams]:
    sink = RedisStreams(redis_server.url, stream=name)
    yield sink
    await sink.close()


def at(sink: RedisStreams, ms: int) -> RedisStreams:
    sink._appender.clock = lambda: ms
    return sink


async def test_ids_are_the_writers_clock(sink: RedisStreams, name: str) -> None:
    assert await at(sink, 1000).append(name, events(3), "0-0") == Appended("1000-2")
    assert await at(sink, 1000).append(name, events(2), "1000-2") == Appended("1000-4")
    assert await at(sink, 1005).append(name, events(1), "1000-4") == Appended("1005-0")


async def test_a_clock_that_goes_back(sink: RedisStreams, name: str) -> None:
    given = events(4)
    end = appended(await at(sink, 2000).append(name, given[:2], "0-0"))
    assert await at(sink, 500).append(name, given[2:], end) == Appended("2000-3")
    same(await tail_of(sink, name, "0-0"), given)


async def test_a_zombie_with_a_later_clock(sink: RedisStreams, redis_server: RedisServer, name: str) -> None:
    given = events(3)
    end = appended(await at(sink, 1000).append(name, given, "0-0"))
    zombie = at(RedisStreams(redis_server.url, stream=name), 999_999)
    assert await zombie.append(name, given, "0-0") == Moved(end)
    await zombie.close()
    same(await tail_of(sink, name, "0-0"), given)


async def test_a_pipeline_that_arrives_late(sink: RedisStreams, redis_server: RedisServer, name: str) -> None:
    """The zombie has given up, its successor has gone on: then Redis gets what the zombie had sent."""
    given = events(300)
    async with Gate(redis_server.url) as gate:
        zombie = at(RedisStreams(gate.url, stream=name, timeout=2), 10**15)
        await zombie.open()
        assert appended(await zombie.append(name, given[:100], "0-0"))
        end = await zombie.end(name)
        gate.shut("client")
        with pytest.raises(BrokerUnavailable, match=r"no answer within 2\S* s"):
            await zombie.append(name, given[100:200], end)
        await gate.holds("client", 10_000)
        end = appended(await sink.append(name, given[100:], end))
        gate.open()
        await gate.quiet()
        assert await sink.end(name) == end
        await zombie.close()
    same(await tail_of(sink, name, "0-0"), given)


async def test_answers_that_come_too_late_are_not_taken_for_others(redis_server: RedisServer, name: str) -> None:
    given = events(4)
    async with Gate(redis_server.url) as gate:
        sink = RedisStreams(gate.url, stream=name, timeout=2)
        end = appended(await sink.append(name, given[:2], "0-0"))
        gate.shut("server")
        with pytest.raises(BrokerUnavailable):
            await sink.append(name, given[2:], end)
        gate.open()
        arrived = await sink.end(name)
        assert sink.sort_key(arrived) > sink.sort_key(end)
        assert await sink.append(name, given[2:], end) == Moved(arrived)
        same(await tail_of(sink, name, "0-0"), given)
        await sink.close()


async def test_many_streams_each_with_its_own_end(redis_server: RedisServer, name: str) -> None:
    sink = RedisStreams(redis_server.url, stream_for=lambda event: f"{name}:{event.key}")
    a, b = events(2, key="a"), events(3, key="b")
    assert {sink.stream_of(event) for event in a + b} == {f"{name}:a", f"{name}:b"}
    ends = {key: appended(await sink.append(f"{name}:{key}", given, "0-0")) for key, given in (("a", a), ("b", b))}
    assert {key: await sink.end(f"{name}:{key}") for key in ends} == ends
    same(await tail_of(sink, f"{name}:a", "0-0"), a)
    same(await tail_of(sink, f"{name}:b", "0-0"), b)
    with pytest.raises(ConfigError, match="a source needs stream="):
        await sink.read("0-0", 1, 0)
    await sink.close()


async def test_a_batch_larger_than_a_chunk(sink: RedisStreams, name: str) -> None:
    given = events(40, text="x" * (CHUNK_BYTES // 10))
    end = appended(await at(sink, 1000).append(name, given, "0-0"))
    assert end == "1000-39"
    same(await tail_of(sink, name, "0-0"), given)


async def test_after_another_writers_chunk_nothing_more_is_sent(
    sink: RedisStreams, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both choose the same ids; the second's second chunk must not follow the first's first one."""
    monkeypatch.setattr("outrider.streams.redis_append.CHUNK_EVENTS", 5)
    theirs, ours = events(5), events(10)
    other = at(RedisStreams(redis_server.url, stream=name), 1000)
    assert await other.append(name, theirs, "0-0") == Appended("1000-4")
    assert await at(sink, 1000).append(name, ours, "0-0") == Moved("1000-4")
    same(await tail_of(sink, name, "0-0"), theirs)
    await other.close()


async def test_scripts_that_redis_has_forgotten(sink: RedisStreams, redis: Any, name: str) -> None:
    end = appended(await sink.append(name, events(1), "0-0"))
    await redis.script_flush()
    assert isinstance(await sink.append(name, events(1), end), Appended)


async def test_a_key_of_another_type(sink: RedisStreams, redis: Any, name: str) -> None:
    await redis.set(name, "mine")
    for asking in (sink.end(name), sink.append(name, events(1), "0-0"), sink.read("0-0", 1, 0)):
        with pytest.raises(StreamMissing, match=rf"is not a stream.*redis-cli DEL {name}"):
            await asking
    assert await redis.get(name) == b"mine"


async def test_out_of_memory_is_nobodys_fault(name: str) -> None:
    with RedisServer(durable=False) as server:
        sink = RedisStreams(server.url, stream=name)
        given = events(4)
        end = appended(await sink.append(name, given[:2], "0-0"))
        async with Redis.from_url(server.url) as redis:
            await redis.config_set("maxmemory", "1")
            with pytest.raises(BrokerUnavailable, match=r"does not accept anything now: .*maxmemory"):
                await sink.append(name, given[2:], end)
            assert await sink.end(name) == end
            await redis.config_set("maxmemory", "0")
        appended(await sink.append(name, given[2:], end))
        same(await tail_of(sink, name, "0-0"), given)
        await sink.close()


async def test_a_message_larger_than_redis_takes(
    sink: RedisStreams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.streams.redis_append.MAX_BYTES", 2000)
    given = [*events(3), *events(1, text="x" * 2000), *events(2)]
    outcome = await sink.append(name, given, "0-0")
    assert isinstance(outcome, Rejected)
    assert (outcome.index, outcome.position, outcome.code) == (3, await sink.end(name), "too_large")
    same(await tail_of(sink, name, "0-0"), given[:3])
    appended(await sink.append(name, given[4:], outcome.position))


async def test_an_error_in_the_middle_of_a_chunk(sink: RedisStreams, redis: Any, name: str) -> None:
    """Here the ids run out. What Redis has added stays, what comes after the error is neither sent nor taken for sent."""
    after = f"{2**64 - 1}-{2**64 - 3}"
    await redis.xadd(name, {"event": "first"}, id=after)
    given = events(4)
    with pytest.raises(BrokerUnavailable, match="does not accept anything now"):
        await sink.append(name, given, after)
    same(await tail_of(sink, name, after), given[:2])


async def test_reading_a_stream_that_was_made_anew(sink: RedisStreams, redis: Any, name: str) -> None:
    first, second = events(4), events(2)
    end = appended(await at(sink, 5000).append(name, first, "0-0"))
    await redis.delete(name)
    gone = await sink.read(end, 10, 0)
    assert (gone.entries, gone.position, gone.rewound) == ([], "0-0", True)
    appended(await at(sink, 3000).append(name, second, "0-0"))
    page = await sink.read(end, 10, 0)
    assert page.rewound
    same(page.entries, second)
    third = events(3)
    appended(await at(sink, 9000).append(name, third, page.position))
    page = await sink.read(end, 10, 0)
    assert page.rewound, "the new stream has gone past the old position, and never had it"
    same(page.entries, second + third)


async def test_a_stream_made_anew_while_a_reader_waits(sink: RedisStreams, redis: Any, name: str) -> None:
    end = appended(await at(sink, 5000).append(name, events(1), "0-0"))
    reading = asyncio.create_task(sink.read(end, 10, 30))
    while not (await redis.info("clients"))["blocked_clients"]:
        assert not reading.done()
    given = events(2)
    async with redis.pipeline(transaction=True) as pipe:
        pipe.delete(name)
        pipe.xadd(name, {"event": sink.codec.encode(given[0], "")}, id="3000-0")
        pipe.xadd(name, {"event": sink.codec.encode(given[1], "")}, id="7000-0")
        await pipe.execute()
    page = await reading
    assert page.rewound
    same(page.entries, given)


async def test_a_trimmed_stream_is_the_same_stream(sink: RedisStreams, redis: Any, name: str) -> None:
    given = events(10)
    appended(await at(sink, 1000).append(name, given, "0-0"))
    await redis.xtrim(name, maxlen=4, approximate=False)
    page = await sink.read("1000-2", 10, 0)
    assert not page.rewound
    same(page.entries, given[6:])
    await redis.xtrim(name, maxlen=0, approximate=False)
    page = await sink.read("1000-9", 10, 0)
    assert (list(page.entries), page.position, page.rewound) == ([], "1000-9", False)
    assert await sink.end(name) == "1000-9"
    assert await sink.append(name, given[:1], "1000-9") == Appended(await sink.end(name))


async def test_another_entry_at_the_same_id_is_another_stream(sink: RedisStreams, redis: Any, name: str) -> None:
    """The tail was lost and sent again, with one more before it: the id that the reader knows is another event's now."""
    given, more = events(6), events(1)
    appended(await at(sink, 1000).append(name, given, "0-0"))
    page = await sink.read("0-0", 10, 0)
    assert page.position == f"1000-5@{given[5].id.hex}"
    await redis.delete(name)
    sent = [*given[:3], *more, *given[3:]]
    appended(await at(sink, 1000).append(name, sent, "0-0"))
    anew = await sink.read(page.position, 10, 0)
    assert anew.rewound
    same(anew.entries, sent)
    assert not (await sink.read(anew.position, 10, 0)).rewound
    bare = await sink.read("1000-5", 10, 0)
    assert not bare.rewound, "a position that names no entry is taken as it is"
    same(bare.entries, sent[6:])


async def test_another_entry_that_is_no_event(sink: RedisStreams, redis: Any, name: str) -> None:
    await redis.xadd(name, {"event": "one"}, id="1-0")
    page = await sink.read("0-0", 10, 0)
    assert not (await sink.read(page.position, 10, 0)).rewound
    await redis.delete(name)
    await redis.xadd(name, {"event": "two"}, id="1-0")
    assert (await sink.read(page.position, 10, 0)).rewound


async def test_a_bare_position_becomes_that_of_its_entry(sink: RedisStreams, name: str) -> None:
    given = events(2)
    end = appended(await sink.append(name, given, "0-0"))
    assert (await sink.read(end, 10, 0)).position == f"{end}@{given[1].id.hex}"


async def test_an_entry_that_was_deleted_before_it_was_read(sink: RedisStreams, redis: Any, name: str) -> None:
    given = events(10)
    appended(await at(sink, 1000).append(name, given, "0-0"))
    await redis.xdel(name, "1000-5")
    assert not await sink.complete(name, "1000-4")
    assert await sink.complete(name, "1000-5")
    pages = [await sink.read(f"1000-{n}", 2, 0) for n in (1, 3, 6)]
    assert [page.trimmed for page in pages] == [False, True, False]
    same(pages[1].entries, [given[4], given[6]])


async def test_a_stream_that_began_before_its_reader(sink: RedisStreams, redis: Any, name: str) -> None:
    given = events(5)
    appended(await sink.append(name, given, "0-0"))
    await redis.xtrim(name, maxlen=4, approximate=False)
    page = await sink.read("0-0", 10, 0)
    assert page.trimmed
    same(page.entries, given[1:])


async def test_more_streams_than_connections(redis_server: RedisServer, redis: Any, name: str) -> None:
    sink = RedisStreams(redis_server.url, stream_for=lambda event: f"{name}:{event.key}")
    before = (await redis.info("clients"))["connected_clients"]
    given = [events(1, key=str(n)) for n in range(300)]
    ends = await asyncio.gather(*(sink.append(f"{name}:{n}", each, "0-0") for n, each in enumerate(given)))
    assert {type(end) for end in ends} == {Appended}
    assert await asyncio.gather(*(sink.end(f"{name}:{n}") for n in range(300))) == [appended(end) for end in ends]
    assert (await redis.info("clients"))["connected_clients"] - before <= MAX_CONNECTIONS
    await sink.close()


async def test_one_failure_is_not_the_others(sink: RedisStreams, redis: Any, name: str) -> None:
    reading = asyncio.create_task(sink.read("0-0", 10, 60))
    while not (await redis.info("clients"))["blocked_clients"]:
        assert not reading.done()
    with pytest.raises(BrokerUnavailable, match="unknown command"):
        async with sink._connection.client() as client:
            await client.execute_command("NONSENSE")
    given = events(1)
    appended(await sink.append(name, given, "0-0"))
    same((await reading).entries, given)


async def test_max_len_keeps_about_so_many(redis_server: RedisServer, redis: Any, name: str) -> None:
    sink = RedisStreams(redis_server.url, stream=name, max_len=100)
    appended(await sink.append(name, events(1000), "0-0"))
    assert 100 <= await redis.xlen(name) < 300
    await sink.close()


async def test_entries_of_others_have_no_id(sink: RedisStreams, redis: Any, name: str) -> None:
    await redis.xadd(name, {"something": "elsé", b"\xff": b"\\x00\xfe"}, id="1-0")
    await redis.xadd(name, {"event": "no event"}, id="2-0")
    page = await sink.read("0-0", 10, 0)
    assert [(entry.data, entry.id) for entry in page.entries] == [
        (b'{"fields": {"something": "els\xc3\xa9", "\\\\xff": "\\\\x00\\\\xfe"}}', None),
        (b"no event", None),
    ]
    assert [sink.sort_key(entry.position) for entry in page.entries] == [(1, 0), (2, 0)]


async def test_a_stream_that_is_not_there_yet(sink: RedisStreams, name: str) -> None:
    page = await sink.read("0-0", 10, 0.05)
    assert (list(page.entries), page.position, page.rewound) == ([], "0-0", False)


@pytest.mark.verify
async def test_waiting_longer_than_an_answer_may_take(redis_server: RedisServer, name: str) -> None:
    sink = RedisStreams(redis_server.url, stream=name, timeout=2)
    page = await sink.read("0-0", 10, 2.5)
    assert not page.entries
    await sink.close()


async def test_a_read_that_was_cancelled(sink: RedisStreams, redis: Any, name: str) -> None:
    reading = asyncio.create_task(sink.read("0-0", 10, 60))
    while not (await redis.info("clients"))["blocked_clients"]:
        assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    given = events(2)
    end = appended(await sink.append(name, given, "0-0"))
    assert await sink.end(name) == end
    same((await sink.read("0-0", 10, 1)).entries, given)


@pytest.mark.verify
async def test_a_paused_server_is_unavailable_and_comes_back(name: str) -> None:
    with RedisServer(durable=False) as server:
        sink = RedisStreams(server.url, stream=name, timeout=2)
        given = events(2)
        end = appended(await sink.append(name, given[:1], "0-0"))
        server.pause()
        for asking in (sink.append(name, given[1:], end), sink.end(name), sink.read(end, 1, 0.1), sink.open()):
            with pytest.raises(BrokerUnavailable, match=r"no answer within 2\S* s"):
                await asking
        server.resume()
        arrived = await again(lambda: sink.end(name))
        assert await sink.append(name, given[1:], end) in (Moved(arrived), Appended(await sink.end(name)))
        same(await tail_of(sink, name, "0-0"), given)
        server.kill()
        with pytest.raises(BrokerUnavailable):
            await sink.end(name)
        server.restart()
        assert await again(lambda: sink.end(name)) == "0-0"
        await sink.close()


@pytest.mark.parametrize("user", [None, "relay"])
async def test_tls_and_password_by_url(user: str | None, name: str) -> None:
    with RedisServer(durable=False, user=user, password="p:w/é@x", tls=True) as server:
        sink = broker(server.url, stream=name)
        assert "p:w" not in repr(sink)
        assert "p%3Aw" not in repr(sink)
        assert isinstance(await sink.append(name, events(1), "0-0"), Appended)
        await sink.close()
        wrong = broker(server.url.replace("p%3Aw", "s3cret"), stream=name)
        with pytest.raises(BrokerUnavailable) as caught:
            await wrong.open()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(server.url, "")
        await wrong.close()
        untrusted = broker(server.url.partition("?")[0], stream=name)
        with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
            await untrusted.open()
        await untrusted.close()


async def test_a_url_that_cannot_be_read_is_not_shown() -> None:
    for url in (
        "redis://:s3cret#x@host:6379",
        "s3cret",
        "redis://:s3cret@host:notaport",
        "redis://user:1234/s3cret@cache:6379/0",
        "redis://user:1234?s3cret@cache:6379/0",
        "redis://user:1234#s3cret@cache:6379/0",
        "nats://12/s3cret@host:4222",
    ):
        with pytest.raises(ConfigError, match="@ is %40, / %2F") as caught:
            broker(url, stream="s")
        assert "s3cret" not in "".join(traceback.format_exception(caught.value, chain=True))


def test_texts_of_others_are_shown_without_secrets() -> None:
    address = Address.of("redis://relay:p%3Aw@host:6379/2")
    assert str(address) == "redis://host:6379/2"
    assert (
        address.masked("cannot reach redis://relay:p%3Aw@host with p:w")
        == "cannot reach redis://relay:***@host with ***"
    )
    assert "p:w" not in repr(address)
    token = Address.of("nats://t0ken@host")
    assert token.masked("t0ken is wrong") == "*** is wrong"
    assert "t0ken" not in f"{token} {token!r}"


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="one of stream= and stream_for="):
        RedisStreams("redis://localhost")
    with pytest.raises(ConfigError, match="one of stream= and stream_for="):
        RedisStreams("redis://localhost", stream="s", stream_for=lambda _: "s")
    with pytest.raises(ConfigError, match="is no Redis"):
        RedisStreams("nats://localhost", stream="s")
    with pytest.raises(ConfigError, match=r"kafka://.*redis://, rediss://, unix://, nats://, tls://"):
        broker("kafka://localhost", stream="s")


@pytest.mark.verify
def test_the_client_is_imported_when_it_is_needed() -> None:
    code = """
import sys
from outrider.streams.redis import RedisStreams
from outrider.streams.nats import JetStream
RedisStreams("redis://localhost", stream="s"), JetStream("nats://localhost", stream="s")
assert not {"redis", "nats"} & set(sys.modules)
sys.path, sys.path_importer_cache = [], {}
for make in RedisStreams, JetStream:
    try:
        make("redis://localhost" if make is RedisStreams else "nats://localhost", stream="s")
    except Exception as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (
        ran.stdout == "Redis needs its client: install outrider[redis]\nNATS needs its client: install outrider[nats]\n"
    )


async def test_a_lease_has_one_holder(redis_server: RedisServer, redis: Any, name: str) -> None:
    one, two = (RedisLease(redis_server.url, key=f"lock:outbox:{name}", ttl=20) for _ in range(2))
    assert await one.acquire()
    assert not await two.acquire()
    assert not await two.renew()
    await two.release()
    assert await one.acquire(), "what is ours stays ours"
    await redis.pexpire(one.key, 5000)
    assert await one.renew()
    assert 15_000 < await redis.pttl(one.key) <= 20_000
    await one.release()
    assert await redis.exists(one.key) == 0
    assert await two.acquire()
    assert not await one.renew()
    await one.release()
    assert await two.renew(), "only the holder can release"
    await two.release()


async def test_a_lease_that_lapsed_is_another_ones(redis_server: RedisServer, redis: Any, name: str) -> None:
    one, two = (RedisLease(redis_server.url, key=name) for _ in range(2))
    assert await one.acquire()
    await redis.delete(name)
    assert not await one.renew()
    assert await two.acquire()
    assert not await one.acquire()
    for lease in (one, two):
        await lease.release()


async def test_a_lease_without_its_server() -> None:
    with RedisServer(durable=False, password="s3cret") as server:
        lease = RedisLease(server.url, key="k", timeout=2)
        assert await lease.acquire()
        server.pause()
        with pytest.raises(BrokerUnavailable):
            await lease.renew()
        server.resume()
        assert await lease.renew()
        server.kill()
        with pytest.raises(BrokerUnavailable) as caught:
            await lease.release()
        assert "s3cret" not in f"{caught.value} {lease!r}"
