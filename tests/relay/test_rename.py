"""A relay and an inbox under new names go on where they were: nothing is sent twice, nothing comes in twice."""

from __future__ import annotations

from tests.brokers import RedisServer
from tests.relay.depot import Depot, depot, ids_in

from outrider.postgres.admin import subscriptions
from outrider.streams.redis import RedisStreams


async def rename(house: Depot, old: str, new: str) -> None:
    async with house.app.connect() as conn:
        await subscriptions.rename(conn, old, new, "outrider")


async def test_both_go_on(database: str, other_database: str, redis_server: RedisServer, name: str) -> None:
    stream = RedisStreams(redis_server.url, stream=name)
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.out", stream)
        b.app.inbox("shop.in", RedisStreams(redis_server.url, stream=name))
        for house in (a, b):
            await house.app.migrate()
        sent = await a.publish("a1", "a2")
        await a.app.drain()
        assert (await b.app.drain()).ingested == 2
        await rename(a, "depot.out", "depot.sent")
        await rename(b, "shop.in", "shop.came")
    async with depot(database) as a, depot(other_database, context="shop") as b:
        a.app.relay("depot.sent", stream)
        b.app.inbox("shop.came", RedisStreams(redis_server.url, stream=name))
        sent += await a.publish("a3")
        assert (await a.app.drain()).relayed == 1
        assert await ids_in(stream, name) == sent
        await b.execute("update outrider.stream set position = '0-0'")  # as if it read the whole stream again
        assert (await b.app.drain()).ingested == 1
        assert [row["id"] for row in await b.rows("select id from outrider.outbox order by seq")] == sent
