"""The Protocols of §16 and their adapters: the type checker reads this file, and so does pytest."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.integrations.harness import count

from outrider import Envelope, Event, Outrider, PublishRefused
from outrider.errors import DeclarationError
from outrider.protocols import EventHandler, EventListener, EventPublisher, TransactionHandler
from outrider.signals import ListenerUp, RetryScheduled, Settled
from outrider.testing import expect


class Planted(Event, type="protocols.planted", key="tree"):
    tree: str


class FakePublisher:
    """What a domain's own unit tests would use."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    async def publish(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)


class Garden:
    """A domain that knows the Protocol only."""

    def __init__(self, publisher: EventPublisher, wrap: Callable[[Event], Envelope]) -> None:
        self._publisher = publisher
        self._wrap = wrap

    async def plant(self, tree: str) -> None:
        await self._publisher.publish(self._wrap(Planted(tree=tree)))


def accepts(publisher: EventPublisher, listener: EventListener, handler: EventHandler) -> None:
    """Called with the adapters: mypy --strict checks that they satisfy the Protocols."""
    assert isinstance(publisher, EventPublisher)
    assert isinstance(listener, EventListener)
    assert callable(handler)


async def ignore(_: Envelope) -> None: ...


async def test_the_adapters_satisfy_the_protocols(database: str) -> None:
    app = Outrider(dsn=database)
    async with await AsyncConnection.connect(database) as conn:
        accepts(app.publisher(conn), app.listener(), ignore)
    accepts(FakePublisher(), app.listener(), ignore)


async def test_a_domain_publishes_through_the_protocol(database: str) -> None:
    app = Outrider(dsn=database)
    fake = FakePublisher()
    await Garden(fake, app.envelope).plant("oak")
    assert [envelope.key for envelope in fake.envelopes] == ["oak"]
    async with await AsyncConnection.connect(database) as conn:
        await Garden(app.publisher(conn), app.envelope).plant("oak")
        assert count(database) == 0, "it commits with its transaction"
        await conn.commit()
    assert count(database) == 1


def by_hand(**changes: Any) -> Envelope:
    made: dict[str, Any] = {
        "id": uuid4(),
        "event_type": "protocols.planted",
        "event_version": 1,
        "payload_json": '{"tree": "oak"}',
        "source": "default",
        "idempotency_key": "once",
    }
    return Envelope(**(made | changes))


async def test_an_envelope_made_by_hand(database: str) -> None:
    app = Outrider(dsn=database)
    envelope = by_hand(key="oak", trace_context={"traceparent": "00-1-2-00"}, channel="outbox_gen_0_bulk")
    async with await AsyncConnection.connect(database) as conn:
        await app.publisher(conn).publish(envelope)
        found = await (await conn.execute("select id, aggregate_id, channel, payload from outrider.outbox")).fetchone()
    assert found == (envelope.id, "oak", "outbox_gen_0_bulk", {"tree": "oak"})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"payload_json": "{"}, "payload"),
        ({"payload_json": '{"tree": 1}'}, "tree"),
        ({"payload_json": '{"tree": "oak", "heigth": 3}'}, "heigth"),
        ({"payload_json": '{"tree": "a\\u0000"}'}, "tree"),
        ({"payload_json": '{"tree": "' + "x" * 300_000 + '"}', "key": "k"}, "payload"),
        ({"event_type": "protocols.unknown"}, "event_type"),
        ({"event_version": 2}, "event_type"),
        ({"source": "elsewhere"}, "source"),
        ({"generation": 3}, "generation"),
        ({"channel": "whatever"}, "channel"),
        ({"channel": "outbox_gen_0_NO"}, "channel_class"),
        ({"id": "1"}, "id"),
        ({"origin": "inbox"}, "origin"),
        ({"seq": 3}, "envelope"),
        ({"key": ""}, "key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": None}, "idempotency_key"),
        ({"channel": None}, "channel"),
        ({"event_version": "1"}, "event_version"),
        ({"trace_context": "abc"}, "trace_context"),
        ({"trace_context": {"a": 1}}, "trace_context"),
        ({"content_class": "secret"}, "content_class"),
        ({"trace_context": {"a": "b\x00"}}, "trace_context"),
    ],
)
async def test_an_envelope_that_cannot_be_stored(database: str, changes: dict[str, Any], field: str) -> None:
    app = Outrider(dsn=database)
    async with await AsyncConnection.connect(database) as conn:
        await conn.execute("select 1")
        with pytest.raises(PublishRefused) as refused:
            await app.publisher(conn).publish(by_hand(**changes))
        assert refused.value.field == field
        with pytest.raises(PublishRefused) as refused:
            await app.publish_many(conn, [by_hand(**changes)])
        assert refused.value.field == f"events[0].{field}"
        await conn.execute("select 1")
    other = Outrider(context="elsewhere", dsn=database).envelope(Planted(tree="oak"))
    with pytest.raises(PublishRefused, match="source"):
        await app.publish_many(conn, [other])
    changed = replace(app.envelope(Planted(tree="oak")), source="elsewhere")
    with pytest.raises(PublishRefused, match="source"):
        await app.publish_many(conn, [changed])


@asynccontextmanager
async def listening(
    app: Outrider,
    name: str,
    handler: EventHandler | TransactionHandler,
    channel: str = "outbox_default",
    *,
    settles: int = 0,
) -> AsyncIterator[Any]:
    """Ends when so many events are settled, counted from before the listener's first look."""
    task: asyncio.Task[None] | None = None
    try:
        async with settled(app, settles) if settles else nullcontext():
            async with expect(app, ListenerUp):
                task = asyncio.create_task(app.listener().listen(channel=channel, handler_name=name, handler=handler))
            yield task
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def settled(app: Outrider, events: int) -> AsyncIterator[None]:
    """Until so many were, in however many batches."""
    counts: list[int] = []

    def enough(signal: Settled) -> bool:
        counts.append(signal.events)
        return sum(counts) >= events

    async with expect(app, Settled, enough):
        yield


async def publish(app: Outrider, *trees: str, **options: Any) -> None:
    async with app.connect() as conn, conn.transaction():
        for tree in trees:
            await app.publish(conn, Planted(tree=tree), **options)


async def test_a_listener_hears_every_event_of_its_channel_once(database: str) -> None:
    heard: asyncio.Queue[Envelope] = asyncio.Queue()
    async with Outrider(dsn=database) as app, asyncio.timeout(30):
        async with listening(app, "garden.watcher", heard.put, settles=3):
            await publish(app, "elsewhere", channel_class="bulk")
            await publish(app, "oak", "elm")
            trees = [(await heard.get()).decode(Planted).tree for _ in range(2)]
        await publish(app, "ash")
        async with listening(app, "garden.watcher", heard.put, settles=1):
            trees.append((await heard.get()).decode(Planted).tree)
        assert trees == ["oak", "elm", "ash"]
        assert heard.empty()


async def test_an_event_is_no_envelope(database: str) -> None:
    async with await AsyncConnection.connect(database) as conn:
        with pytest.raises(PublishRefused, match=r"app.envelope\(event\) makes one"):
            await Outrider(dsn=database).publisher(conn).publish(Planted(tree="oak"))  # type: ignore[arg-type]


def test_an_envelope_can_be_pickled() -> None:
    envelope = Outrider().envelope(Planted(tree="oak"))
    assert pickle.loads(pickle.dumps(envelope)) == envelope


async def test_a_hand_made_envelope_has_the_key_of_its_event(database: str) -> None:
    async with await AsyncConnection.connect(database) as conn:
        await Outrider(dsn=database).publisher(conn).publish(by_hand())
        found = await (await conn.execute("select aggregate_id, idempotency_key from outrider.outbox")).fetchone()
    assert found == ("oak", "once")


async def test_one_name_on_two_channels(database: str) -> None:
    """Each hears all of its channel: neither counts as read what is the other's."""
    plain: asyncio.Queue[Envelope] = asyncio.Queue()
    bulk: asyncio.Queue[Envelope] = asyncio.Queue()
    async with (
        asyncio.timeout(30),
        Outrider(dsn=database) as one,
        Outrider(dsn=database) as two,
        listening(one, "garden.watcher", plain.put),
        listening(two, "garden.watcher", bulk.put, "outbox_gen_0_bulk"),
    ):
        for number in range(5):
            await publish(one, f"oak{number}")
            await publish(one, f"elm{number}", channel_class="bulk")
        heard = [[(await queue.get()).decode(Planted).tree for _ in range(5)] for queue in (plain, bulk)]
    assert heard == [[f"{tree}{number}" for number in range(5)] for tree in ("oak", "elm")]


@pytest.mark.parametrize("channel", ["outbox_defualt", "outbox_gen_1", "outbox_gen_0_", "outbox_gen_0_No", ""])
async def test_a_channel_that_nobody_publishes_to(database: str, channel: str) -> None:
    async with Outrider(dsn=database) as app:
        with pytest.raises(
            DeclarationError, match="'outbox_default' and, for each channel_class, 'outbox_gen_0_<class>'"
        ):
            await app.listener().listen(channel=channel, handler_name="garden.watcher", handler=ignore)


async def test_what_a_listener_fails_on_is_parked(database: str) -> None:
    async def fail(_: Envelope) -> None:
        raise RuntimeError("no")

    async with Outrider(dsn=database) as app, listening(app, "garden.watcher", fail), expect(app, RetryScheduled):
        await publish(app, "oak")
    with psycopg.connect(database) as conn:
        assert conn.execute("select subscription, status from outrider.delivery").fetchall() == [
            ("garden.watcher", "pending")
        ]


async def test_one_name_listens_once_in_an_app(database: str) -> None:
    async with Outrider(dsn=database) as app, listening(app, "garden.watcher", ignore):
        with pytest.raises(DeclarationError, match="declared twice"):
            await app.listener().listen(channel="outbox_default", handler_name="garden.watcher", handler=ignore)
