"""What is said of a relay: how far its streams are, what it owes, what has become of one event there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.brokers import NatsServer, RedisServer
from tests.relay.depot import Depot, Lost, depot
from tests.relay.test_relay import Refusing

from outrider import Outrider
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.event_history import Fate
from outrider.postgres.admin.status import Standing
from outrider.postgres.schema import uninstall
from outrider.signals import Relayed
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.testing import expect


async def standing(app: Outrider, name: str = "depot.out") -> Standing:
    [found] = [each for each in (await app.status()).subscriptions if each.name == name]
    return found


async def unread(house: Depot) -> tuple[int, int]:
    """As retiring the relay counts it, and as uninstalling does."""
    async with house.app.connect() as conn:
        await conn.set_autocommit(True)
        backlog = await subscriptions.backlog(conn, "depot.out", "outrider")
        survey = await uninstall.survey(conn, "outrider")
        await conn.set_autocommit(False)
    assert survey is not None
    [owed] = [each for each in survey.subscriptions if each.name == "depot.out"]
    return backlog.unread, owed.unread


async def fate(house: Depot, event_id: Any) -> Fate:
    story = await house.app.event(event_id)
    assert story is not None
    [found] = [each for each in story.fates if each.subscription == "depot.out"]
    return found


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_how_far_its_streams_are(database: str, request: pytest.FixtureRequest, kind: str, name: str) -> None:
    sink: RedisStreams | JetStream
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        sink = RedisStreams(server.url, stream=name)
    else:
        nats: NatsServer = request.getfixturevalue("nats_server")
        sink = JetStream(nats.url, stream=name, create=True)
    async with depot(database) as house:
        house.app.relay("depot.out", sink)
        await house.app.migrate()
        assert (await standing(house.app)).streams == ()
        assert (await standing(house.app)).states == ("no_worker",)
        async with house.app.worker(), expect(house.app, Relayed):
            await house.publish("a1", "b1")
            assert (await standing(house.app)).states == ("running",)
        await house.publish("c1")
        found = await standing(house.app)
        [stream] = found.streams
        assert (stream.name, stream.events, stream.refused) == (name, 2, 0)
        assert stream.place == await house.app.current_hwm(name)
        assert timedelta() <= (await house.app.status()).read_at - stream.moved_at < timedelta(minutes=5)
        assert (found.kind, found.lag, found.dead) == ("relay", 1, 0)
        assert found.oldest_owed_at is not None


@pytest.mark.parametrize(
    ("options", "event", "owed"),
    [
        ({}, {}, 1),
        ({}, {"target": "billing"}, 1),
        ({"events": [Lost]}, {}, 0),
        ({"events": [Lost]}, {"model": Lost}, 1),
        ({"workspace_id": "acme"}, {}, 0),
        ({"workspace_id": "acme"}, {"workspace_id": "other"}, 0),
        ({"workspace_id": "acme"}, {"workspace_id": "acme"}, 1),
        ({}, {"came_in": True}, 0),
        ({"forward": True}, {"came_in": True}, 1),
    ],
)
async def test_it_owes_what_it_would_send(
    database: str, redis_server: RedisServer, name: str, options: Any, event: dict[str, Any], owed: int
) -> None:
    """Whatever the target; only what was born here, and of its tenant."""
    came_in = event.pop("came_in", False)
    async with depot(database) as house:
        house.app.relay("depot.out", RedisStreams(redis_server.url, stream=name), **options)
        await house.app.migrate()
        [event_id] = await house.publish("a1", **event)
        if came_in:
            await house.execute("update outrider.outbox set origin = 'depot.in'")
        assert await unread(house) == (owed, owed)
        assert ((await standing(house.app)).oldest_owed_at is not None) == bool(owed)
        story = await house.app.event(event_id)
        assert story is not None
        assert [each.status for each in story.fates] == ["pending"] * owed
        assert (await house.app.drain()).relayed == owed
        assert await unread(house) == (0, 0)
        assert (await standing(house.app)).oldest_owed_at is None


async def test_what_has_become_of_an_event(database: str, redis_server: RedisServer, name: str) -> None:
    codec = Refusing()
    sink = RedisStreams(redis_server.url, stream=name, codec=codec)
    async with depot(database) as house:
        house.app.relay("depot.out", sink, publish_max_attempts=2)
        await house.app.migrate()
        codec.refused = {2}
        [first] = await house.publish("a1")
        assert ((await fate(house, first)).status, (await fate(house, first)).why) == (
            "pending",
            ("unread", "no_worker"),
        )
        [second] = await house.publish("a2")
        await house.app.drain()
        assert (await fate(house, first)).status == "delivered"
        await house.execute("update outrider.delivery set run_at = now() + interval '1 hour'")  # not while we look
        waits = await fate(house, second)
        assert (waits.status, waits.why, waits.attempts) == ("pending", ("retry", "no_worker"), 1)
        await house.execute("update outrider.delivery set run_at = now() - interval '1 second'")
        assert (await fate(house, second)).why == ("due", "no_worker")
        found = await standing(house.app)
        assert (found.waiting, found.dead) == (1, 0)
        await house.app.drain()
        dead = await fate(house, second)
        assert (dead.status, dead.error_code, dead.attempts) == ("failed", "unencodable", 2)
        found = await standing(house.app)
        assert (found.waiting, found.dead) == (0, 1)
