"""What is particular to JetStream: acknowledgements, its dedup window, subjects, streams that cannot be used."""

from __future__ import annotations

import asyncio
import shutil
import traceback
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import nats
import pytest
from nats.js.api import RetentionPolicy, StreamSource
from tests.brokers import NatsServer, free_port
from tests.streams.gate import Gate

from outrider import Envelope
from outrider.errors import BrokerUnavailable, ConfigError, StreamMissing
from outrider.streams import nats_append
from outrider.streams.nats import JetStream
from outrider.streams.nats_read import nanoseconds
from outrider.streams.stream import Appended, Moved, Rejected, StreamEntry
from outrider.streams.url import broker
from outrider.testing.harness import again, appended, events, same, tail_of


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[Any]:
    client = await nats.connect(nats_server.url)
    yield client.jetstream()
    await client.close()


@pytest.fixture
async def sink(nats_server: NatsServer, name: str) -> AsyncIterator[JetStream]:
    sink = JetStream(nats_server.url, stream=name, create=True)
    await sink.open()
    yield sink
    await sink.close()


async def test_a_copy_has_a_connection_of_its_own(sink: JetStream, name: str) -> None:
    used = sink._stream._connection
    other = sink.copy()
    assert await other.end(name) == await sink.end(name)
    assert await other.weaknesses()
    await other.close()
    assert used is not None
    assert sink._stream.is_connected(used)


async def test_messages_say_what_they_are(sink: JetStream, js: Any, name: str) -> None:
    [event] = events(1)
    assert await sink.append(name, [event], "0") == Appended("1")
    message = await js.get_msg(name, 1)
    assert message.subject == f"{name}.exercise.placed"
    assert message.data == sink.codec.encode(event, "")
    expected = {
        "Nats-Msg-Id": str(event.id),
        "Content-Type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": str(event.id),
        "ce-type": "exercise.placed",
        "ce-source": "exercise",
        "ce-time": "2024-02-29T12:30:15.123456+00:00",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    assert {header: message.headers.get(header) for header in expected} == expected


@pytest.fixture
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event goes ahead of the others: what the headers alone keep out."""
    monkeypatch.setattr(nats_append, "FIRST_CHUNK", nats_append.CHUNK_EVENTS)


async def test_a_retry_after_the_dedup_window(nats_server: NatsServer, js: Any, name: str) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.>"], duplicate_window=0.1)
    sink = JetStream(nats_server.url, stream=name)
    given = events(3)
    assert await sink.append(name, given, "0") == Appended("3")
    # The server has forgotten the ids when it takes one of them again.
    end = 3
    while (ack := await js.publish(f"{name}.x", b"", headers={"Nats-Msg-Id": str(given[0].id)})).duplicate:
        pass
    end = ack.seq
    assert await sink.append(name, given, "0") == Moved(str(end))
    same((await tail_of(sink, name, "0"))[:3], given)
    await sink.close()


async def test_what_is_repeated_within_the_window_is_passed_over(sink: JetStream, name: str) -> None:
    """The server has it where the stream ended, or before: the others follow without a gap."""
    given, new = events(5), events(4)
    appended(await sink.append(name, given, "0"))
    outcome = await sink.append(
        name, [given[4], new[0], given[2], given[1], *new[1:3], given[2], new[3], given[0]], "5"
    )
    assert outcome == Appended("9", frozenset({0, 2, 3, 6, 8}))
    same(await tail_of(sink, name, "0"), [*given, *new])
    assert await sink.append(name, given, "9") == Appended("9", frozenset(range(5)))
    refused = Envelope.of(vars(new[0]) | {"id": uuid4(), "payload_json": '"' + "x" * 2**20 + '"'})
    rejected = await sink.append(name, [*given, *(last := events(1)), refused], "9")
    assert isinstance(rejected, Rejected)
    assert (rejected.index, rejected.position) == (6, "10")
    same(await tail_of(sink, name, "9"), last)


async def test_a_duplicate_of_what_came_after_is_no_success(sink: JetStream, name: str) -> None:
    """The server would acknowledge it: it is in the stream, but somebody else may have written it."""
    given = events(3)
    appended(await sink.append(name, given, "0"))
    assert await sink.append(name, [given[2]], "2") == Moved("3")
    new = events(1)
    assert await sink.append(name, [*new, *new], "3") == Moved("4")
    same(await tail_of(sink, name, "0"), [*given, *new])


@pytest.mark.usefixtures("all_at_once")
async def test_nothing_follows_another_writers_event(sink: JetStream, nats_server: NatsServer, name: str) -> None:
    """The sequence alone would let our second in behind the other's first."""
    given = events(5)
    async with Gate(nats_server.url) as gate:
        late = JetStream(gate.url, stream=name, timeout=5)
        assert await late.append(name, given[:1], "0") == Appended("1")
        gate.shut("client")
        sending = asyncio.create_task(late.append(name, given[2:], "1"))
        await gate.holds("client", 1000)
        assert await sink.append(name, given[1:2], "1") == Appended("2")
        gate.open()
        assert await sending == Moved("2")
        same(await tail_of(sink, name, "0"), given[:2])
        await late.close()


@pytest.mark.usefixtures("all_at_once")
async def test_a_pipeline_that_arrives_late(sink: JetStream, nats_server: NatsServer, name: str) -> None:
    """The zombie has given up and hung up, its successor has gone on: then the server gets what the zombie had sent."""
    given = events(300)
    async with Gate(nats_server.url) as gate:
        zombie = JetStream(gate.url, stream=name, timeout=2)
        assert await zombie.append(name, given[:100], "0") == Appended("100")
        gate.shut("client")
        with pytest.raises(BrokerUnavailable, match=r"no answer within 2\S* s"):
            await zombie.append(name, given[100:200], "100")
        await gate.holds("client", 10_000)
        assert await sink.append(name, given[100:], "100") == Appended("300")
        gate.open()
        await gate.quiet()
        last = events(1)
        assert await sink.append(name, last, "300") == Appended("301")
        await zombie.close()
    same(await tail_of(sink, name, "0"), given + last)


@pytest.mark.usefixtures("all_at_once")
async def test_acknowledgements_that_come_too_late(sink: JetStream, nats_server: NatsServer, name: str) -> None:
    given = events(20)
    async with Gate(nats_server.url) as gate:
        slow = JetStream(gate.url, stream=name, timeout=2)
        assert await slow.append(name, given[:10], "0") == Appended("10")
        gate.shut("server")
        with pytest.raises(BrokerUnavailable):
            await slow.append(name, given[10:], "10")
        gate.open()
        assert await slow.end(name) == "20"
        assert await slow.append(name, given[10:], "10") == Moved("20")
        await slow.close()
    same(await tail_of(sink, name, "0"), given)


async def test_a_stream_that_was_deleted(nats_server: NatsServer, js: Any, name: str) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    sink = JetStream(nats_server.url, stream=name)
    given = events(2)
    appended(await sink.append(name, given, "0"))
    page = await sink.read("0", 10, 0)
    await js.delete_stream(name)
    how = rf"has no stream {name}: create it \(nats stream add {name} .*create=True"
    for asking in (
        lambda: sink.append(name, given, "2"),
        lambda: sink.end(name),
        lambda: tail_of(sink, name, "0"),
        lambda: sink.read(page.position, 10, 0),
    ):
        with pytest.raises(StreamMissing, match=how):
            async with asyncio.timeout(60):
                await asking()
    await sink.close()


async def test_a_stream_deleted_while_a_reader_waits(sink: JetStream, js: Any, name: str) -> None:
    reading = asyncio.create_task(sink.read("0", 10, 60))
    while not (consumers := await js.consumers_info(name)) or not consumers[0].num_waiting:
        assert not reading.done()
    await js.delete_stream(name)
    with pytest.raises(StreamMissing):
        async with asyncio.timeout(60):
            await reading


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"retention": RetentionPolicy.WORK_QUEUE}, "has the retention workqueue"),
        ({"no_ack": True}, "does not acknowledge"),
        ({"sources": [StreamSource(name="origin")]}, "copies other streams"),
        ({"mirror": StreamSource(name="origin"), "subjects": None}, "is a mirror"),
    ],
)
async def test_a_stream_that_is_not_one_relays_alone(
    config: dict[str, Any], what: str, nats_server: NatsServer, js: Any, name: str
) -> None:
    await js.add_stream(**{"name": name, "subjects": [f"{name}.>"], **config})
    sink = JetStream(nats_server.url, stream=name)
    with pytest.raises(StreamMissing, match=f"the stream {name} of nats://.* {what}"):
        await sink.open()
    await sink.close()
    await js.delete_stream(name)


async def test_limits_of_a_stream_are_its_owners_business(nats_server: NatsServer, js: Any, name: str) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.>"], max_msgs=5, max_age=3600)
    sink = JetStream(nats_server.url, stream=name)
    given = events(12)
    assert await sink.append(name, given, "0") == Appended("12")
    same(await tail_of(sink, name, "0"), given[7:])
    page = await sink.read("2", 10, 0)
    assert not page.rewound
    same(page.entries, given[7:])
    await js.delete_msg(name, 10)
    same(await tail_of(sink, name, "8"), [given[8], *given[10:]])
    await js.purge_stream(name)
    assert await tail_of(sink, name, "0") == []
    assert await sink.end(name) == "12"
    assert await sink.append(name, events(1), "12") == Appended("13")
    await sink.close()


async def test_a_full_stream_is_nobodys_fault(nats_server: NatsServer, js: Any, name: str) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.>"], max_msgs=5, discard="new")
    sink = JetStream(nats_server.url, stream=name)
    given = events(7)
    with pytest.raises(BrokerUnavailable, match=r"does not accept anything into .* now: maximum messages exceeded"):
        await sink.append(name, given, "0")
    same(await tail_of(sink, name, "0"), given[:5])
    assert await sink.end(name) == "5"
    await sink.close()


async def test_a_message_too_large_for_the_stream(nats_server: NatsServer, js: Any, name: str) -> None:
    """The server says so in the middle of the pipeline, and takes none that follow."""
    await js.add_stream(name=name, subjects=[f"{name}.>"], max_msg_size=2000)
    sink = JetStream(nats_server.url, stream=name)
    given = [*events(3), *events(1, text="x" * 5000), *events(3)]
    outcome = await sink.append(name, given, "0")
    assert isinstance(outcome, Rejected)
    assert (outcome.index, outcome.position, outcome.code) == (3, "3", "10054")
    same(await tail_of(sink, name, "0"), given[:3])
    assert await sink.append(name, given[4:], "3") == Appended("6")
    await sink.close()


async def test_a_message_too_large_for_the_server(name: str) -> None:
    """With its headers: the server would end the connection, so it is not sent, nor are those after it."""
    with NatsServer(max_payload=4000) as server:
        sink = JetStream(server.url, stream=name, create=True)
        for size in (4100, 3500):
            start = await sink.end(name)
            given = [*events(2), *events(1, text="x" * size), *events(2)]
            outcome = await sink.append(name, given, start)
            assert isinstance(outcome, Rejected)
            assert (outcome.index, outcome.code) == (2, "too_large")
            assert outcome.position == await sink.end(name) == str(int(start) + 2)
            assert "max_payload of the server is 4,000" in outcome.message
        await sink.close()


async def test_the_largest_message_that_fits(name: str) -> None:
    with NatsServer(max_payload=4000) as server:
        sink = JetStream(server.url, stream=name, create=True)
        outcomes = []
        end = "0"
        for size in range(3000, 3400):
            outcome = await sink.append(name, events(1, text="é" + "x" * size), end)
            outcomes.append(type(outcome))
            end = outcome.position if isinstance(outcome, Appended) else end
        assert set(outcomes) == {Appended, Rejected}
        assert outcomes == sorted(outcomes, key=[Appended, Rejected].index)
        await sink.close()


async def test_subjects_are_the_users_choice(nats_server: NatsServer, js: Any, name: str) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.eu.*", f"{name}.us"])
    sink = JetStream(nats_server.url, stream=name, subject_for=lambda event: f"{name}.{event.key}")
    fits = [*events(1, key="eu.north"), *events(1, key="us")]
    assert await sink.append(name, fits, "0") == Appended("2")
    for wrong in ("", "eu.*", "eu.a b", ".", "eu..north"):
        outcome = await sink.append(name, [*events(1, key="us"), *events(1, key=wrong), *events(1, key="us")], "2")
        assert isinstance(outcome, Rejected)
        assert (outcome.index, outcome.position, outcome.code) == (1, "3", "subject")
        await js.purge_stream(name)
        await js.delete_stream(name)
        await js.add_stream(name=name, subjects=[f"{name}.eu.*", f"{name}.us"])
        assert await sink.append(name, fits, "0") == Appended("2")
    await sink.close()


@pytest.mark.parametrize("wrong", ["asia", "eu", "eu.north.1", "us.1"])
async def test_a_subject_that_the_stream_does_not_take(nats_server: NatsServer, js: Any, name: str, wrong: str) -> None:
    """The stream is not what it must be; those before it are there, and it follows when the stream takes it."""
    await js.add_stream(name=name, subjects=[f"{name}.eu.*", f"{name}.us"])
    sink = JetStream(nats_server.url, stream=name, subject_for=lambda event: f"{name}.{event.key}")
    given = [*events(1, key="us"), *events(1, key="eu.north"), *events(1, key=wrong), *events(1, key="us")]
    with pytest.raises(
        StreamMissing, match=rf"does not accept the subject '{name}.{wrong}': add it \(nats stream edit"
    ):
        await sink.append(name, given, "0")
    same(await tail_of(sink, name, "0"), given[:2])
    await js.update_stream(name=name, subjects=[f"{name}.>"])
    assert await sink.append(name, given[2:], "2") == Appended("4")
    await sink.close()


@pytest.mark.parametrize("subject", [None, 7])
async def test_a_function_that_names_no_subject(nats_server: NatsServer, name: str, subject: Any) -> None:
    sink = JetStream(nats_server.url, stream=name, subject_for=lambda _: subject, create=True)
    outcome = await sink.append(name, events(1), "0")
    assert isinstance(outcome, Rejected)
    assert (outcome.index, outcome.code) == (0, "subject")
    await sink.close()


async def test_a_subject_that_the_stream_has_given_up(sink: JetStream, js: Any, name: str) -> None:
    appended(await sink.append(name, events(1), "0"))
    await js.update_stream(name=name, subjects=[f"{name}.other"])
    with pytest.raises(StreamMissing, match="does not accept the subject"):
        await sink.append(name, events(2), "1")
    await js.add_stream(name=f"{name}2", subjects=[f"{name}.exercise.>"])
    with pytest.raises(StreamMissing, match="does not accept the subject"):
        await sink.append(name, events(2), "1")
    assert (await js.stream_info(f"{name}2")).state.messages == 0, "it went to another stream"
    assert await sink.end(name) == "1"


async def test_no_consumer_is_left(sink: JetStream, js: Any, name: str) -> None:
    given = events(700)
    appended(await sink.append(name, given, "0"))
    same(await tail_of(sink, name, "0"), given)
    async for _ in sink.tail(name, "0"):
        break
    page = await sink.read("0", 10, 0)
    page = await sink.read(page.position, 10, 0)
    same(page.entries, given[10:20])
    assert len(await js.consumers_info(name)) == 1, "one consumer reads on"
    await sink.read("5", 10, 0)
    assert len(await js.consumers_info(name)) == 1
    await sink.close()
    assert await js.consumers_info(name) == []


async def test_a_consumer_that_the_server_removed(sink: JetStream, js: Any, name: str) -> None:
    given = events(4)
    appended(await sink.append(name, given, "0"))
    page = await sink.read("0", 2, 0)
    [consumer] = await js.consumers_info(name)
    await js.delete_consumer(name, consumer.name)
    entries: list[StreamEntry] = []
    while len(entries) < 2:
        page = await sink.read(page.position, 2, 0)
        assert not page.rewound
        entries += page.entries
    same(entries, given[2:])


async def test_a_read_that_was_cancelled(sink: JetStream, js: Any, name: str) -> None:
    given = events(3)
    reading = asyncio.create_task(sink.read("0", 10, 60))
    while not (consumers := await js.consumers_info(name)) or not consumers[0].num_waiting:
        assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    appended(await sink.append(name, given, "0"))
    page = await sink.read("0", 10, 1)
    same(page.entries, given)


async def test_a_stream_made_anew_has_another_incarnation(sink: JetStream, js: Any, name: str) -> None:
    old, new = events(3), events(5)
    appended(await sink.append(name, old, "0"))
    page = await sink.read("0", 10, 0)
    await js.delete_stream(name)
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    appended(await sink.append(name, new, "0"))
    found: list[StreamEntry] = []
    position = page.position
    while len(found) < 5:
        page = await sink.read(position, 10, 1)
        assert page.rewound is (not found) or not page.entries
        found += page.entries
        position = page.position
    same(found, new)
    bare = await sink.read("3", 10, 0)
    assert not bare.rewound
    same(bare.entries, new[3:])
    assert (await sink.read("9", 10, 0)).rewound


async def test_another_message_under_the_same_number_is_another_stream(name: str) -> None:
    """The tail was lost and sent again, with one more before it: the stream is the same one, the message is not."""
    with NatsServer() as server:
        sink = JetStream(server.url, stream=name, create=True)
        given, more = events(6), events(1)
        appended(await sink.append(name, given[:3], "0"))
        server.stop()
        shutil.copytree(server.data, server.folder / "copy")
        server.start()
        await again(lambda: sink.append(name, given[3:], "3"))
        page = await sink.read("0", 10, 0)
        same(page.entries, given)
        server.kill()
        shutil.rmtree(server.data)
        shutil.copytree(server.folder / "copy", server.data)
        server.start()
        sent = [*given[:3], *more, *given[3:]]
        assert await again(lambda: sink.end(name)) == "3"
        appended(await sink.append(name, sent[3:], "3"))
        anew = await sink.read(page.position, 10, 0)
        assert anew.rewound
        same(anew.entries, sent)
        await sink.close()
        assert not (await sink.read(anew.position, 10, 0)).rewound
        bare = await sink.read("6", 10, 0)
        assert not bare.rewound, "a position that names no message is taken as it is"
        same(bare.entries, sent[6:])
        await sink.close()


@pytest.mark.parametrize(
    ("time", "wanted"),
    [
        ("2026-11-15T21:54:55.601695169Z", "1794779695601695169"),
        ("2026-11-15T21:54:55.6Z", "1794779695600000000"),
        ("2026-11-15T21:54:55Z", "1794779695000000000"),
        ("2026-11-15T22:54:55.000000001+01:00", "1794779695000000001"),
    ],
)
def test_times_to_the_nanosecond(time: str, wanted: str) -> None:
    assert nanoseconds(time) == wanted


async def test_positions_of_a_reader_that_comes_back(sink: JetStream, js: Any, name: str) -> None:
    """A position without the message's time, as of a mark, gets it; a message that is gone cannot be compared."""
    appended(await sink.append(name, events(3), "0"))
    page = await sink.read("0", 10, 0)
    await sink.close()
    idle = await sink.read(page.position, 10, 0)
    assert (idle.position, idle.rewound, idle.trimmed) == (page.position, False, False)
    await sink.close()
    assert (await sink.read("3", 10, 0)).position == page.position
    await sink.close()
    await js.purge_stream(name)
    gone = await sink.read(page.position, 10, 0)
    assert (sink.sort_key(gone.position), gone.rewound, gone.trimmed) == ((3,), False, False)


async def test_a_message_that_was_deleted_before_it_was_read(sink: JetStream, js: Any, name: str) -> None:
    given = events(8)
    appended(await sink.append(name, given, "0"))
    assert await sink.complete(name, "0")
    page = await sink.read("0", 2, 0)
    await js.delete_msg(name, 4)
    assert not await sink.complete(name, "2")
    page = await sink.read(page.position, 2, 0)
    assert page.trimmed
    same(page.entries, [given[2], given[4]])
    page = await sink.read(page.position, 10, 0)
    assert not page.trimmed
    same(page.entries, given[5:])


@pytest.mark.verify
@pytest.mark.usefixtures("all_at_once")
async def test_a_paused_server_is_unavailable_and_comes_back(name: str) -> None:
    with NatsServer() as server:
        sink = JetStream(server.url, stream=name, create=True, timeout=2)
        given = events(60)
        end = appended(await sink.append(name, given[:30], "0"))
        server.pause()
        for asking in (sink.append(name, given[30:], end), sink.end(name), sink.read(end, 1, 0.1), sink.open()):
            with pytest.raises(BrokerUnavailable, match=r"no answer|timeout|no servers"):
                await asking
        server.resume()
        arrived = await again(lambda: sink.end(name))
        while arrived != "60":  # of what was sent before, a part may still be on its way into the stream
            await sink.append(name, given[int(arrived) :], arrived)
            arrived = await sink.end(name)
        same(await tail_of(sink, name, "0"), given)
        server.kill()
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match=r"lost|closed|EOF|Connect call failed|reset"):
                await sink.end(name)
        server.restart()
        assert await again(lambda: sink.end(name)) == "60"
        await sink.close()


@pytest.mark.usefixtures("all_at_once")
async def test_a_connection_that_is_lost_says_so_at_once(nats_server: NatsServer, name: str) -> None:
    async with Gate(nats_server.url) as gate:
        sink = JetStream(gate.url, stream=name, create=True, timeout=60)
        await sink.open()
        gate.shut("server")
        sending = asyncio.create_task(sink.append(name, events(100), "0"))
        await gate.holds("server", 100)
        await gate.__aexit__(None, None, None)
        with pytest.raises(BrokerUnavailable, match=r"lost|closed|unexpected EOF"):
            async with asyncio.timeout(60):
                await sending
        await sink.close()


@pytest.mark.parametrize("user", [None, "relay"])
async def test_tls_and_password_by_url(user: str | None, name: str) -> None:
    with NatsServer(user=user, password="p:w/é@x", tls=True) as server:
        sink = broker(server.url, stream=name, create=True)
        assert "p:w" not in repr(sink)
        assert isinstance(await sink.append(name, events(1), "0"), Appended)
        await sink.close()
        wrong = broker(server.url.replace("p%3Aw", "s3cret"), stream=name)
        with pytest.raises(BrokerUnavailable, match="Authorization") as caught:
            await wrong.open()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(server.url, "")
        await wrong.close()
        untrusted = broker(server.url.partition("?")[0], stream=name)
        with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
            await untrusted.open()
        await untrusted.close()


async def test_a_server_without_tls_gets_no_password(name: str) -> None:
    with NatsServer(user="relay", password="s3cret") as server:
        sink = JetStream(server.url.replace("nats://", "tls://"), stream=name)
        with pytest.raises(BrokerUnavailable, match="TLS"):
            await sink.open()
        await sink.close()


async def test_the_next_host_when_one_is_down(nats_server: NatsServer, name: str) -> None:
    url = nats_server.url.replace("127.0.0.1", f"127.0.0.1:{free_port()},127.0.0.1")
    sink = JetStream(url, stream=name, create=True)
    assert await sink.append(name, events(1), "0") == Appended("1")
    await sink.close()


async def test_a_server_without_jetstream(name: str) -> None:
    with NatsServer(jetstream=False) as server:
        sink = JetStream(server.url, stream=name)
        with pytest.raises(BrokerUnavailable, match="no JetStream"):
            await sink.open()
        await sink.close()


def test_what_cannot_be() -> None:
    for stream in ("", "a.b", "a b", "*", "a>"):
        with pytest.raises(ConfigError, match="cannot be the name of a JetStream stream"):
            JetStream("nats://localhost", stream=stream)
    with pytest.raises(ConfigError, match="is no NATS"):
        JetStream("redis://localhost", stream="s")


async def test_a_subject_that_cannot_be_said_is_a_rejection(nats_server: NatsServer, name: str) -> None:
    def subject_for(envelope: Envelope) -> str:
        if envelope.id == given[2].id:
            raise KeyError("no such place")
        return f"{name}.x"

    given = events(4)
    sink = JetStream(nats_server.url, stream=name, subject_for=subject_for, create=True)
    assert await sink.append(name, given, "0") == Rejected(2, "2", "unencodable", "'no such place'")
    await sink.close()
