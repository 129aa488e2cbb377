"""Each role does all of its job with its own rights, as a login that is a member of it and of nothing else."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import psycopg
import pytest
from psycopg.types.json import Jsonb
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.postgres.roles.house import House, opened
from tests.relay.depot import Depot
from tests.relay.test_relay import Refusing

from outrider import Bury, Event, HandlerContext, Job, Outrider
from outrider.enqueue import OnConflict
from outrider.signals import Fired, JobsCompleted, Relayed, Rewound
from outrider.streams.redis import RedisStreams
from outrider.testing import expect

pytestmark = pytest.mark.also_on(15, 16)


class Placed(Event, type="roles.placed", key="n"):
    n: int


class Counted(Event, type="roles.counted"):
    n: int


class Send(Job, type="roles.send"):
    n: int


class Sweep(Job, type="roles.sweep"):
    pass


HOW: list[OnConflict] = ["keep", "keep", "replace", "debounce"]


def shop(dsn: str) -> Outrider:
    app = Outrider(context="shop", dsn=dsn, generation=41, poll=0.2)

    @app.handler(Placed, name="shop.count", start="beginning")
    async def count(event: Placed, ctx: HandlerContext) -> None:
        if event.n == 13:
            raise Bury("no luck")
        await ctx.tx.execute("insert into effect values (%s)", [event.n])
        await app.publish(ctx.tx, Counted(n=event.n))
        await app.enqueue(ctx.tx, Send(n=event.n), unique_key=f"send-{event.n}")

    @app.job(Send, keep="1d")
    async def send(job: Send) -> None:
        if job.n == 13:
            raise ValueError("not yet")

    @app.job(on=Counted, name="shop.store")
    async def store(event: Counted) -> None: ...

    @app.job(Sweep, keep="1d")
    async def sweep(job: Sweep) -> None: ...

    app.schedule("* * * * * *", Sweep(), name="shop.sweeping")
    app.rollup("shop.pieces", table="piece", key=["document"], single="roles.one", rollup="roles.many")
    return app


def among(name: str, done: JobsCompleted) -> bool:
    return any(run.subscription == name for run, _ in done.details())


@pytest.mark.verify
async def test_who_produces_works_and_ticks(house: House) -> None:
    house.owner.execute("create table effect (n int); create table piece (document text)")
    house.owner.execute(f"grant insert on effect to {house.role('worker')}".encode())
    house.owner.execute(f"grant insert on piece to {house.role('producer')}".encode())
    async with shop(house.owner.info.dsn) as owning:
        await owning.migrate()
        house.owner.execute("select outrider.rollup_install(%s)", [Jsonb(owning.rollups[0].spec())])

    async with shop(house.dsn("producer")) as app, app.connect() as conn, conn.transaction():
        assert (await app.publish(conn, Placed(n=1))).seq
        await app.publish_many(conn, [Placed(n=2), Placed(n=13)])
        await app.enqueue_many(conn, [Send(n=3), Send(n=13)])
        outcomes = [
            (await app.enqueue(conn, Send(n=n), unique_key="one", on_conflict=how, delay="1h")).outcome
            for n, how in enumerate(HOW)
        ]
        assert outcomes == ["created", "kept", "replaced", "debounced"]
        await conn.execute("insert into piece values ('a'), ('a'), ('b')")
    with house.as_("producer") as low:
        for unique in ("null", "'two'", "'two'"):
            low.execute(f"select outrider.enqueue('roles.send', '{{\"n\": 4}}', unique_key => {unique})".encode())
        low.execute("select outrider.publish('roles.placed', '{\"n\": 5}', key => '5')")
        with low.transaction():
            app.publish_sync(low, Placed(n=6))
            app.enqueue_sync(low, Send(n=6), unique_key="two")
        assert low.execute("select count(seq) from outrider.outbox").fetchone() == (5,)
        for denied in (
            "select payload from outrider.outbox", "select * from outrider.delivery", "delete from outrider.outbox",
            "select * from outrider.job", "select * from outrider.owed", "select * from outrider.unfinished",
            "update outrider.job set run_at = now()", "delete from outrider.job",
            "insert into outrider.outbox (seq) overriding system value values (9)",
            "select * from outrider.take('shop.count')", "select outrider.withdraw(gen_random_uuid())",
            "insert into outrider.delivery (event_id) values (gen_random_uuid())",
            *(f"insert into outrider.job ({column}) values (default)" for column in (
                "id", "seq", "event_type", "status", "waits_for", "attempts", "lease_token", "created_at")),
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                low.execute(denied.encode())

    done = """select (select array_agg(n order by n) from effect),
                     (select array_agg(distinct handler_name order by handler_name) from outrider.event_handled),
                     (select array_agg(distinct generation) from outrider.cursor where subscription = 'shop.count'),
                     (select count(*) from outrider.owed where status = 'failed')"""

    async with shop(house.dsn("worker")) as app:
        async with (
            AsyncExitStack() as ending,
            expect(app, Fired),
            expect(app, JobsCompleted, partial(among, "shop.store")),
            expect(app, JobsCompleted, partial(among, "roles.sweep")),
        ):
            await ending.enter_async_context(app.worker())
        await app.drain()
        assert (await app.tick("shop.pieces")).result == "idle"
        async with app.connect() as conn:
            for denied in ("delete from outrider.event_handled", "update outrider.event_handled set seq = 1",
                           "delete from outrider.subscription", "insert into outrider.audit (by, action) values ('a', 'b')",
                           "select outrider.outbox_replay(gen_random_uuid())"):  # fmt: skip
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await conn.execute(denied.encode())
                await conn.rollback()
    [(effects, handled, generations, dead)] = house.owner.execute(done).fetchall()
    assert effects == [1, 2, 5, 6]
    assert handled == ["roles.send", "roles.sweep", "shop.count", "shop.store"]
    assert sorted(generations) == [0, 41]
    assert dead == 1
    with house.as_("cron") as low:
        told = low.execute("select outrider.rollup_tick('shop.pieces', true) ->> 'rows_marked'").fetchone()
        assert told == ("3",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            low.execute("select * from outrider.rollup")


async def test_who_relays(database: str, redis_server: RedisServer, name: str) -> None:
    """Sent, rejected, buried, replayed by an operator; a lost end sent again, a stream known again; no other moves."""
    codec, url = Refusing(), redis_server.url

    def depot(dsn: str) -> Outrider:
        app = Outrider(context="depot", dsn=dsn)
        app.relay("depot.out", RedisStreams(url, stream=name, codec=codec), publish_max_attempts=1)
        return app

    with psycopg.connect(database, autocommit=True) as owner, opened(owner) as house:
        async with depot(database) as owning:
            await owning.migrate()
            owner.execute("select outrider.register('depot.count', 'handler', 'depot', '{depot.sent}')")
            async with depot(house.dsn("relay")) as app, Redis.from_url(url) as redis:
                outside = Depot(owning, database)
                await outside.publish("a1")
                assert (await app.drain()).relayed == 1
                codec.refused = {2}
                [dead] = await outside.publish("a2")
                await app.drain()
                codec.refused = set()
                async with depot(house.dsn("operator")) as operating:
                    assert [each.outcome for each in await operating.replay(dead, reason="mended")] == ["replayed"]
                assert (await app.drain()).relayed == 1
                await redis.delete(name)
                await outside.publish("a3")
                async with expect(app, Rewound):
                    await app.drain()
                async with app.worker(), expect(app, Relayed):
                    await outside.publish("a4")
                assert await redis.xlen(name) == 4
                owner.execute("delete from outrider.stream")
                owner.execute("delete from outrider.stream_mark")
                await outside.publish("a5")
                await app.drain()
                assert await redis.xlen(name) == 5, "it knows what it has written"
        assert house.audit() == [
            ("replay", house.login("operator"), house.login("operator"), {"reason": "mended", "replayed": 1})
        ]
        with house.as_("relay") as low:
            for denied in ("select * from outrider.take('depot.out')", "update outrider.cursor set seq = 0",
                           "insert into outrider.outbox (event_type) values ('a')", "delete from outrider.delivery",
                           "insert into outrider.event_handled (handler_name) values ('a')"):  # fmt: skip
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    low.execute(denied.encode())
            for call in ("relay_take('depot.count', 1, 1, null)", "relay_hold('depot.count')",
                         "relay_open('depot.count', '{a}', '{1}')", "relay_rewind('depot.count', now())",
                         "relay_ahead('depot.count', '{}')",
                         "relay_settle('depot.count', '{}', '{}', '{}', '{}', '{}', '{}', true, true)",
                         "relay_reject('depot.count', 1, '', '', '', '0', 1, true)"):  # fmt: skip
                with pytest.raises(psycopg.Error, match=r"there is no relay 'depot\.count'"):
                    low.execute(f"select outrider.{call}".encode())
