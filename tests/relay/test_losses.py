"""A broker forgets, and a relay that was frozen before that fills the stream again: the stream ends at a later place, or at
the right one, and what is missing is found all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.relay.depot import depot, ids_in

from outrider import Envelope
from outrider.relay import relay_loop
from outrider.signals import ListenerUp, Relayed, Rewound, Signal, Taken, Woken
from outrider.streams import Appended, Sink
from outrider.streams.redis import RedisStreams
from outrider.testing import expect

Forget = Callable[[], Awaitable[None]]


async def wake(sink: Sink, stream: str, envelopes: Sequence[Envelope]) -> None:
    """What a relay sends that has read at the start of the stream, and was frozen since then."""
    await sink.open()
    assert isinstance(await sink.append(stream, envelopes, sink.start), Appended)
    await sink.close()


async def test_a_frozen_relay_fills_a_stream_that_was_emptied(
    database: str, sink: Sink, name: str, remove: Forget
) -> None:
    """Its condition holds again. With Redis the stream then ends beyond the position that is stored."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        sent = await house.publish_many(7)
        await house.app.drain()
        await remove()
        await wake(sink, name, await house.envelopes(sent[:3]))
        sent += await house.publish("a7")
        async with expect(house.app, Rewound) as rewound:
            await house.app.drain()
        assert await ids_in(sink, name) == sent
        assert [(each.stream, each.whole) for each in rewound] == [(name, True)]


async def test_a_frozen_relay_fills_an_emptied_stream_until_it_is_trimmed(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """The stored position is missing, as if it had been trimmed. But trimming would have removed all entries up to
    it, more than the new stream has lost."""
    sink = RedisStreams(redis_server.url, stream=name, max_len=100)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=50)
        await house.app.migrate()
        sent = await house.publish_many(400)
        await house.app.drain()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.delete(name)
            await wake(sink, name, await house.envelopes(sent[:250]))
            assert await redis.xlen(name) < 250
        sent += await house.publish("a7")
        async with expect(house.app, Rewound) as rewound:
            await house.app.drain()
        assert (await ids_in(sink, name))[-101:] == sent[-101:]
        assert [(each.stream, each.whole) for each in rewound] == [(name, True)]


async def test_a_stream_that_was_trimmed_behind_the_position_is_not_lost(
    database: str, redis_server: RedisServer, name: str
) -> None:
    """The relay died after an append that trimmed the entry at its position away."""
    sink = RedisStreams(redis_server.url, stream=name, max_len=100)
    rewound: list[Signal] = []
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=50)
        await house.app.migrate()
        house.app.signals.listen(lambda each: rewound.append(each) if isinstance(each, Rewound) else None)
        sent = await house.publish_many(200)
        await house.app.drain()
        sent += await house.publish_many(250, start=200)
        envelopes = await house.envelopes(sent[200:])
        await sink.open()
        assert isinstance(await sink.append(name, envelopes, await sink.end(name)), Appended)
        sent += await house.publish("a7")
        await house.app.drain()
        assert (await ids_in(sink, name))[-1] == sent[-1]
        assert rewound == []


@pytest.mark.parametrize("more", [0, 1])
async def test_another_event_is_where_the_stream_should_end(
    database: str, sink: Sink, name: str, remove: Forget, more: int
) -> None:
    """The frozen relay had read when the first event was not committed yet: what it sends begins with the second.

    JetStream counts from 1 again, so that its stream ends where it should, or one beyond.
    """
    async with depot(database) as house:
        house.app.relay("depot.out", sink, batch=3)
        await house.app.migrate()
        sent = await house.publish_many(3)
        await house.app.drain()
        sent += await house.publish_many(3, start=3)
        await remove()
        await wake(sink, name, await house.envelopes(sent[1 : 4 + more]))
        await house.app.drain()
        found = await ids_in(sink, name)
        assert found[: 3 + more] == sent[1 : 4 + more]
        assert sorted(found) == sorted(sent), "each of them, once"


async def test_a_relay_with_nothing_to_send_looks_what_is_there(
    database: str, sink: Sink, name: str, remove: Forget
) -> None:
    """Where the stream should end is an event that has been withdrawn since the frozen relay read it."""
    async with depot(database) as house:
        house.app.relay("depot.out", sink, poll=0.1)
        await house.app.migrate()
        sent = await house.publish_many(4)
        envelopes = await house.envelopes(sent[1:])
        await house.app.withdraw(sent[3])
        await house.app.drain()
        await remove()
        await wake(sink, name, envelopes)
        async with AsyncExitStack() as ending, expect(house.app, Relayed), expect(house.app, Rewound):
            await ending.enter_async_context(house.app.worker())
        assert await ids_in(sink, name) == [*sent[1:], sent[0]]


async def test_an_idle_relay_asks_the_broker_and_not_the_database(
    database: str, sink: Sink, name: str, remove: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next poll is an hour away: the check of the streams finds the loss, and until then nothing is taken."""
    monkeypatch.setattr(relay_loop, "CHECK_INTERVAL", 0.05)
    taken: list[Signal] = []
    async with depot(database) as house:
        house.app.relay("depot.out", sink, poll="1h")
        await house.app.migrate()
        sent = await house.publish_many(4)
        async with AsyncExitStack() as ending:
            async with expect(house.app, Relayed), expect(house.app, ListenerUp):
                await ending.enter_async_context(house.app.worker())
            async with expect(house.app, Woken, lambda each: each.reason == "poll", times=3):
                pass  # the listener has woken it before
            async with expect(house.app, Woken, lambda each: each.reason == "poll", times=5):
                ending.callback(
                    house.app.signals.listen(lambda each: taken.append(each) if isinstance(each, Taken) else None)
                )
            assert taken == []
            async with expect(house.app, Relayed), expect(house.app, Rewound):
                await remove()
        assert await ids_in(sink, name) == sent
