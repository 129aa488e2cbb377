"""A worker's rights are enough for relays, inboxes and replicas: those of today, and those of before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.conninfo import make_conninfo
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.postgres.roles.house import before, opened
from tests.relay.depot import Depot, Lost, Sent
from tests.relay.test_relay import Refusing

from outrider import Outrider
from outrider.inbox.inbox import destination_of
from outrider.inbox.receiver import retry_refused
from outrider.observe import exposed
from outrider.observe.metrics import Metrics
from outrider.postgres import replicas
from outrider.postgres.statement import statement
from outrider.signals import Relayed, Rewound
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaCodec
from outrider.testing import expect

NEW = """
revoke all on outrider.stream, outrider.stream_mark, outrider.stream_ahead, outrider.stream_replayed,
    outrider.stream_refused from app;
revoke insert (origin) on outrider.outbox from app;
revoke all on function outrider.relay_settle, outrider.relay_mark, outrider.relay_open,
    outrider.relay_reject, outrider.relay_rewind, outrider.relay_ahead, outrider.ingest from app;
"""


@contextmanager
def role(*owners: psycopg.Connection[Any], made_before: bool) -> Iterator[str]:
    """A login with the rights of a worker and an operator in each of the databases; or with what a migration makes of those
    that an application had before."""
    if not made_before:
        with opened(*owners, both=("worker", "operator")) as house:
            yield house.login("worker", "operator")
        return
    name = f"role_{owners[0].info.dbname}"
    owners[0].execute(f"create role {name} login".encode())
    try:
        for each in owners:
            each.execute(re.sub(r"\bapp\b", name, before("app") + NEW).encode())
            each.execute(statement("schema/inherit_grants", "outrider"))
        yield name
    finally:
        for each in owners:
            each.execute(f"drop owned by {name}".encode())
        owners[0].execute(f"drop role {name}".encode())


async def test_the_role_of_relays_may_measure_them(database: str, redis_server: RedisServer, name: str) -> None:
    """It may not read the state of everything else; the database is up nevertheless."""

    def made(dsn: str) -> Outrider:
        app = Outrider(context="depot", dsn=dsn)
        app.relay("depot.out", RedisStreams(redis_server.url, stream=name), events=[Sent, Lost])
        return app

    async with made(database) as app:
        await app.migrate()
        await Depot(app, database).publish("a1", "a2")
    registry = CollectorRegistry()
    with psycopg.connect(database, autocommit=True) as owner, opened(owner) as house:
        async with made(make_conninfo(database, user=house.login("relay"))) as app:
            missing = await exposed.sample(app, "outrider", Metrics(app.signals, registry).instruments)
    assert "permission denied" in (missing or "")
    assert registry.get_sample_value("outrider_database_up") == 1
    assert registry.get_sample_value("outrider_workers") is None
    for topic, depth in (("depot.sent", 2), ("depot.lost", 0)):
        assert registry.get_sample_value("outrider_relay_depth", {"relay": "depot.out", "topic": topic}) == depth


@pytest.mark.verify
@pytest.mark.parametrize("made_before", [False, True], ids=["made by roles", "made before"])
async def test_they_are_enough(
    database: str, other_database: str, redis_server: RedisServer, name: str, made_before: bool
) -> None:
    """Sent, rejected, buried, replayed; a lost end sent again; read, refused, read again; a replica."""
    codec, url = Refusing(), redis_server.url

    def sending(dsn: str) -> Outrider:
        app = Outrider(context="depot", dsn=dsn)
        app.relay("depot.out", RedisStreams(url, stream=name, codec=codec), publish_max_attempts=1)
        copied = RedisStreams(url, stream=f"{name}-copy", codec=ReplicaCodec())
        app.relay("depot.copy", copied, workspace_id="acme")
        return app

    def receiving(dsn: str) -> Outrider:
        app = Outrider(context="shop", dsn=dsn)
        app.inbox("shop.in", RedisStreams(url, stream=name))
        app.replica("shop.copy", RedisStreams(url, stream=f"{name}-copy", codec=ReplicaCodec()), table="copy")
        return app

    for dsn, declared in ((database, sending), (other_database, receiving)):
        async with declared(dsn) as owning:
            await owning.migrate()
    with (
        psycopg.connect(database, autocommit=True) as owner,
        psycopg.connect(other_database, autocommit=True) as other,
        role(owner, other, made_before=made_before) as user,
    ):
        other.execute(replicas.DDL.format(table="copy").encode())
        other.execute(f"grant select, insert, update on copy to {user}".encode())
        async with sending(make_conninfo(database, user=user)) as app, Redis.from_url(url) as redis:
            house = Depot(app, database)
            await house.publish("a1", entity_version=1, workspace_id="acme")
            assert (await app.drain()).relayed == 2
            codec.refused = {2}
            [dead] = await house.publish("a2")
            await app.drain()
            codec.refused = set()
            assert [each.outcome for each in await app.replay(dead)] == ["replayed"]
            assert (await app.drain()).relayed == 1
            await redis.delete(name)
            await house.publish("a3")
            async with expect(app, Rewound):
                await app.drain()
            async with app.worker(), expect(app, Relayed):
                await house.publish("a4")
            assert await redis.xlen(name) == 4
            assert await app.current_hwm(name)
            await redis.xadd(name, {"event": "nonsense"})
        async with receiving(make_conninfo(other_database, user=user)) as app, app.connect() as conn:
            assert (await app.drain()).ingested == 5
            destination = destination_of(app.inboxes[0], app.settings)
            assert len((await retry_refused(conn, "shop.in", destination, "outrider")).refused) == 1
