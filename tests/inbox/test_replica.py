"""A table that follows a stream: the newest version of each thing, from a snapshot and from what comes after it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.relay.depot import Depot, Sent, depot

from outrider.errors import ConfigError, DeclarationError
from outrider.postgres.replicas import DDL
from outrider.streams.nats import JetStream
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaChange, ReplicaCodec


@pytest.fixture(params=("redis", "nats"))
def stream(request: pytest.FixtureRequest, name: str) -> Any:
    if request.param == "redis":
        return RedisStreams(request.getfixturevalue("redis_server").url, stream=name, codec=ReplicaCodec())
    url = request.getfixturevalue("nats_server").url
    return JetStream(url, stream=name, codec=ReplicaCodec(), create=True)


async def publish(house: Depot, parcel: str, version: int, **options: Any) -> None:
    given: dict[str, Any] = {"aggregate_kind": "parcel", "entity_version": version} | options
    async with house.app.connect() as conn, conn.transaction():
        await house.app.publish(conn, Sent(parcel=parcel, n=version), **given)


async def table(house: Depot) -> dict[str, int]:
    rows = await house.rows("select aggregate_id, entity_version, payload from parcel")
    assert all(row["payload"]["n"] == row["entity_version"] for row in rows)
    return {row["aggregate_id"]: row["entity_version"] for row in rows}


async def test_older_versions_are_ignored(database: str, other_database: str, stream: Any) -> None:
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", stream)
        b.app.replica("shop.parcels", stream, table="parcel")
        await a.app.migrate()
        await b.app.migrate()
        await b.execute(DDL.format(table="parcel"))
        for parcel, version in (("x", 1), ("y", 1), ("x", 3), ("x", 2), ("y", 2)):
            await publish(a, parcel, version)
        await a.app.drain()
        await b.app.drain()
        assert await table(b) == {"x": 3, "y": 2}
        await publish(a, "x", 2)
        await publish(a, "y", 5)
        await a.app.drain()
        await b.app.drain()
        assert await table(b) == {"x": 3, "y": 5}
        assert await b.rows("select * from outrider.outbox") == []
        assert (await b.rows("select events from outrider.stream"))[0]["events"] == 3


async def test_a_long_payload_is_refused(database: str, redis_server: RedisServer, name: str) -> None:
    """Its bytes count with numbers in full, as they do for the log."""
    change = {
        "topic": "depot.sent", "aggregate_kind": "parcel", "stream_id": "1", "committed_at": "2026-01-31T12:00:00.000Z",
    }  # fmt: skip
    stream = RedisStreams(redis_server.url, stream=name, codec=ReplicaCodec())
    async with Redis.from_url(redis_server.url) as redis, depot(database, context="shop", payload_limit=2048) as b:
        for n, more in enumerate(('"x"', '"' + "x" * 3000 + '"', "[" + "1e300," * 20 + "0]", '"' + "x" * 80_000 + '"')):
            head = json.dumps(change | {"event_id": str(UUID(int=n)), "aggregate_id": f"k{n}", "entity_version": n})
            await redis.xadd(name, {"event": f'{head[:-1]},"payload":{{"n":{n},"more":{more}}}}}'})
        b.app.replica("shop.parcels", stream, table="parcel")
        await b.app.migrate()
        await b.execute(DDL.format(table="parcel"))
        await b.app.drain()
        assert await table(b) == {"k0": 0}
        refused = [row["message"] for row in await b.rows("select message from outrider.stream_refused order by id")]
        assert len(refused) == 3
        assert "at most 2,048 are allowed (payload_limit)" in refused[0]
        assert "bytes with its numbers in full, at most 2,048 are allowed (payload_limit)" in refused[1]
        assert "the entry has 80," in refused[2]


async def test_a_snapshot_and_what_comes_after_it(database: str, other_database: str, stream: Any, name: str) -> None:
    """The stream was cut before the snapshot: what is older is only there, what is newer only in the stream."""
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", stream)
        b.app.replica("shop.parcels", stream, table="parcel")
        await a.app.migrate()
        await b.app.migrate()
        await b.execute(DDL.format(table="parcel"))
        for version in (1, 2):
            await publish(a, "x", version)
            await publish(a, "y", version)
        await a.app.drain()

        async with a.app.connect() as conn:
            hwm = await a.app.current_hwm(name)
            await publish(a, "y", 3)
            await a.app.drain()  # relayed after the mark, and in the snapshot too
            rows = await (
                await conn.execute(
                    """select distinct on (aggregate_id) aggregate_id, entity_version, payload from outrider.outbox
                   order by aggregate_id, entity_version desc"""
                )
            ).fetchall()
        now = datetime.now(UTC)
        snapshot = [
            ReplicaChange(uuid4(), "depot.sent", "parcel", key, version, payload, "", now)
            for key, version, payload in rows
        ]
        assert await b.app.stitch("shop.parcels", snapshot, hwm=hwm) == 2
        assert await table(b) == {"x": 2, "y": 3}
        assert (await b.rows("select position from outrider.stream"))[0]["position"] == hwm

        await publish(a, "x", 3)
        await a.app.drain()
        await b.app.drain()
        assert await table(b) == {"x": 3, "y": 3}
        assert await b.app.stitch("shop.parcels", snapshot, hwm=hwm) == 0
        assert await table(b) == {"x": 3, "y": 3}


async def test_a_change_without_version_is_refused(
    database: str, other_database: str, redis_server: RedisServer, name: str
) -> None:
    stream = RedisStreams(redis_server.url, stream=name, codec=ReplicaCodec())
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", stream)
        b.app.replica("shop.parcels", stream, table="parcel")
        await a.app.migrate()
        await b.app.migrate()
        await b.execute(DDL.format(table="parcel"))
        await publish(a, "x", 1, entity_version=None)
        await publish(a, "x", 1)
        await a.app.drain()
        await b.app.drain()
        assert await table(b) == {"x": 1}
        [row] = await b.rows("select message from outrider.stream_refused")
        assert "entity_version=" in row["message"]


async def test_a_table_that_is_not_there(database: str, redis_server: RedisServer, name: str) -> None:
    stream = RedisStreams(redis_server.url, stream=name, codec=ReplicaCodec())
    async with depot(database) as house, Redis.from_url(redis_server.url) as redis:
        house.app.replica("depot.parcels", stream, table="parcel")
        await house.app.migrate()
        change = (
            '{"event_id":"01900000-0000-7000-8000-000000000001","topic":"depot.sent","aggregate_kind":null,"aggregate_id":"x",'
            '"entity_version":1,"payload":{"n":1},"stream_id":"1-1","committed_at":"2026-01-01T00:00:00.000Z"}'
        )
        await redis.xadd(name, {"event": change})
        with pytest.raises(DeclarationError, match="create table parcel"):
            await house.app.drain()
        await house.execute(DDL.format(table="parcel"))
        await house.app.drain()
        assert await table(house) == {"x": 1}
        with pytest.raises(ConfigError, match=r"app\.replica"):
            await house.app.stitch("depot.other", [], hwm="1-1")
