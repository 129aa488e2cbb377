"""Relays, inboxes and rollups with policies on: the worker's see every tenant, and each event stays its tenant's."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.postgres.tenants.house import House
from tests.relay.depot import depot

from outrider import Event, HandlerContext, Outrider
from outrider.streams.redis import RedisStreams


class Arrived(Event, type="depot.sent", foreign=True):
    parcel: str


def declared(house: House, who: str, url: str, name: str) -> Outrider:
    app = Outrider(context="house", dsn=house.dsn(who))
    app.inbox("house.in", RedisStreams(url, stream=name))
    app.relay("house.out", RedisStreams(url, stream=f"{name}-out"))
    app.rollup("house.merged", table="piece", key=["document"], single="house.piece", rollup="house.pieces")

    @app.handler(Arrived, name="house.arrived", role=house.role("app"))
    async def arrived(event: Arrived, ctx: HandlerContext) -> None:
        rows = await (await ctx.tx.execute("select distinct workspace_id from outrider.outbox")).fetchall()
        assert rows == [(ctx.envelope.workspace_id,)]
        await ctx.tx.execute("insert into piece values (%s)", [event.parcel])

    return app


@pytest.mark.verify
async def test_what_comes_in_goes_out_again_as_its_tenants(
    house: House, database: str, redis_server: RedisServer, name: str
) -> None:
    """From another database into this one, where a handler as the app's role writes rows that are rolled up and sent on."""
    async with depot(database) as outside:
        outside.app.relay("depot.out", RedisStreams(redis_server.url, stream=name))
        await outside.app.migrate()
        for tenant in ("a", "b"):
            await outside.publish("x1", "x2", "y1", workspace_id=tenant)
        assert (await outside.app.drain()).relayed == 6

    with psycopg.connect(house.dsn("owner"), autocommit=True) as owner:
        owner.execute("create table piece (document text)")
        owner.execute(house.sql("grant insert on piece to {app}; grant select on piece to {worker}"))
        async with declared(house, "owner", redis_server.url, name) as app:
            await app.migrate()
            owner.execute("select outrider.rollup_install(%s)", [Jsonb(app.rollups[0].spec())])
        house.rows("grant all on all sequences in schema outrider to {worker}")

    async with declared(house, "worker", redis_server.url, name) as app:
        await app.drain()
        assert house.rows("select workspace_id, count(*) from outrider.outbox group by 1 order by 1") == [
            ("a", 3), ("b", 3),
        ]  # fmt: skip
        ticked = await app.tick("house.merged", flush=True)
        assert (ticked.groups_emitted, ticked.pieces_emitted) == (2, 2), "x of each tenant, and y"
        await app.drain()
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        entries: Any = await redis.xrange(f"{name}-out")
    sent = [json.loads(entry["event"]) for _, entry in entries]
    assert sorted((each["workspace_id"], each["event_type"]) for each in sent) == [
        ("a", "house.piece"), ("a", "house.pieces"), ("b", "house.piece"), ("b", "house.pieces"),
    ], "and nothing of what came in"  # fmt: skip
