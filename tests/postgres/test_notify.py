"""Wake-ups: one function sends them, it obeys the setting, and a queue without room never fails the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest
from redis.asyncio import Redis
from tests.brokers import RedisServer
from tests.clusters import SETTINGS, WHOLE, migrated
from tests.conftest import _database
from tests.streams.conftest import name, redis_server
from tests.worker.jobs.factory import Make, Ordered, Paint, opened, until

import outrider
from outrider import HandlerContext, Outrider, RetryPolicy
from outrider.postgres.embedded import Embedded
from outrider.postgres.listener import Listener
from outrider.signals import Failed, ListenerUp, Signal, Troubled
from outrider.streams import RedisStreams
from outrider.testing import expect

__all__ = ["name", "redis_server"]

CHANNELS = "listen outbox_default; listen outbox_gen_1"


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    """Its queue holds 512 kB of notifications."""
    with Embedded.temporary(settings=SETTINGS | {"max_notify_queue_pages": "64"}) as server:
        asyncio.run(migrated(server, WHOLE))
        yield server.dsn()


@pytest.fixture
def small(small_server: str) -> Iterator[str]:
    yield from _database(small_server, WHOLE)


@asynccontextmanager
async def full_queue(dsn: str) -> AsyncIterator[None]:
    """Somebody listens and does not end a transaction, until nobody can notify any more. The tail of the queue is left to
    others: once it is full, nothing here calls pg_notification_queue_usage()."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as deaf:
        await deaf.execute("listen somewhere")
        await deaf.execute("select pg_notification_queue_usage()")  # gives back what an earlier test has filled
        async with (
            deaf.transaction(),
            await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None) as conn,
        ):
            await deaf.execute("select 1")
            for size in (7900, 1):  # to the last byte
                with suppress(psycopg.errors.ProgramLimitExceeded):
                    while True:
                        await conn.execute(f"select pg_notify('somewhere', repeat('x', {size}))".encode())
            with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="NOTIFY queue"):
                await conn.execute("notify somewhere")
            yield


def make_all(ran: list[str]) -> Any:
    def declare(app: Outrider) -> None:
        @app.job(Make)
        async def make(job: Make) -> dict[str, int]:
            ran.append("plain")
            return {"made": job.n}

        @app.job(Paint, concurrency=1, keep="7d")
        async def paint(job: Paint) -> None:
            ran.append("limited")

        @app.job(on=Ordered, name="factory.produce")
        async def produce(event: Ordered) -> None:
            ran.append("of events")

    return declare


@pytest.mark.parametrize("notify", ["off", "commit"])
async def test_a_full_queue_stops_no_work(small: str, notify: Literal["off", "commit"]) -> None:
    """Publishing, routing, claiming and settling go on, by polling; nothing runs twice and no result is lost."""
    ran: list[str] = []
    async with opened(small, make_all(ran), notify=notify, poll=0.05) as factory, full_queue(small):
        async with factory.app.worker():
            await factory.enqueue(*(Make(n=n) for n in range(6)))
            await factory.enqueue(*(Paint(part=str(n)) for n in range(6)))
            await factory.publish(*(Ordered(n=n) for n in range(6)))

            async def all_settled() -> bool:
                return len(await factory.receipts()) == 18

            await until(all_settled)
        assert sorted(ran) == ["limited"] * 6 + ["of events"] * 6 + ["plain"] * 6
        assert not await factory.owed()
        kept = [row["result"] for row in await factory.receipts() if row["handler_name"] == "factory.make"]
        assert sorted(each["made"] for each in kept) == list(range(6))
        assert not await factory.rows("select 1 from outrider.worker"), "it took its leave"


UNGUARDED = """create or replace function outrider.notify(p_channel text, p_kind text) returns void language sql as
               $$ select pg_notify('outbox_default', 'x') $$"""


class Restored:
    """As if the queue had filled between notify and COMMIT: until the first failure, notify does not look at it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.codes: list[str] = []
        with psycopg.connect(dsn, autocommit=True) as conn:
            [[self._guarded]] = conn.execute("select pg_get_functiondef('outrider.notify'::regproc)").fetchall()
            conn.execute(UNGUARDED.encode())

    def hear(self, signal: Signal) -> None:
        if isinstance(signal, Troubled | Failed):
            self.codes.append(signal.code if isinstance(signal, Troubled) else signal.verdict.code)
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                conn.execute(self._guarded.encode())


async def test_a_queue_that_fills_before_the_commit_takes_no_result(small: str) -> None:
    def declare(app: Outrider) -> None:
        @app.job(Paint, concurrency=1, keep="7d")
        async def paint(job: Paint) -> dict[str, int]:
            return {"painted": job.n}

    async with opened(small, declare, poll=0.05) as factory:
        await factory.enqueue(*(Paint(part=str(n), n=n) for n in range(3)))
        async with full_queue(small):
            restored = Restored(small)
            factory.app.signals.listen(restored.hear)
            async with factory.app.worker():

                async def all_settled() -> bool:
                    return len(await factory.receipts()) == 3

                await until(all_settled)
        assert restored.codes == ["54000"]
        assert sorted(row["result"]["painted"] for row in await factory.receipts()) == [0, 1, 2]


async def test_a_queue_that_fills_before_the_commit_uses_no_attempt(small: str) -> None:
    tried: list[int] = []

    def declare(app: Outrider) -> None:
        @app.handler(Ordered, name="factory.plan", retry=RetryPolicy(retries=0))
        async def plan(event: Ordered, ctx: HandlerContext) -> None:
            tried.append(ctx.attempt)
            await ctx.tx.execute("select outrider.enqueue('factory.make', '{}')")

    async with opened(small, declare, poll=0.05) as factory:
        await factory.publish(Ordered(n=1))
        async with full_queue(small):
            restored = Restored(small)
            factory.app.signals.listen(restored.hear)
            assert (await factory.app.drain()).handled == 1
        assert restored.codes == ["54000"]
        assert tried == [1, 1]
        assert not await factory.rows("select 1 from outrider.delivery")


async def test_a_queue_that_fills_before_the_commit_refuses_no_entry(
    small: str, redis_server: RedisServer, name: str
) -> None:
    members = {"v": 1, "id": str(UUID(int=1)), "event_type": "factory.ordered", "event_version": 1, "source": "shop"}
    entry = json.dumps(members | {"content_class": "internal", "trace_context": None, "payload": {"n": 1}})

    def declare(app: Outrider) -> None:
        app.inbox("factory.in", RedisStreams(redis_server.url, stream=name), poll=0.05)

    async with opened(small, declare, poll=0.05) as factory, Redis.from_url(redis_server.url) as redis:
        await redis.xadd(name, {"event": entry})
        async with full_queue(small):
            restored = Restored(small)
            factory.app.signals.listen(restored.hear)
            async with factory.app.worker():
                look = "select 1 from outrider.outbox union all select 1 from outrider.stream_refused"
                await until(lambda: factory.rows(look))
        assert await factory.rows("select 1 from outrider.outbox")
        assert not await factory.rows("select 1 from outrider.stream_refused")
        assert restored.codes == ["54000"]


async def test_a_full_queue_stops_no_operator(small: str) -> None:
    async with opened(small, make_all([])) as factory, full_queue(small):
        app = factory.app
        done, gone, failed = await factory.enqueue(*(Make(n=n) for n in range(3)), delay=3600)
        await factory.enqueue(Make(), workspace_id="acme")
        await factory.rows(
            "update outrider.job set status = 'failed', waits_for = null, buried_at = now() where event_id = %s", failed
        )
        [placed] = await factory.publish(Ordered(n=1))
        await factory.rows("select * from outrider.route('factory.produce', 10, 10, '{factory.ordered}', 'default', 0)")
        await app.pause("factory.make")
        await app.resume("factory.make")
        await app.pause()
        await app.resume()
        assert [each.outcome for each in await app.jobs.run_now(done)] == ["due"]
        assert [each.outcome for each in await app.jobs.cancel(gone)] == ["cancelled"]
        assert [each.outcome for each in await app.replay(failed)] == ["replayed"]
        assert {each.outcome for each in await app.withdraw(placed)} == {"withdrawn"}
        erased = await factory.rows(
            "select jobs from outrider.erase('acme', null, null, true, 'jobs', 0, 100, 'asked')"
        )
        assert erased == [{"jobs": 1}]


async def test_the_queue_empties_with_the_next_wake_up(small: str) -> None:
    """Postgres gives its room back only when somebody asks how full it is: whoever sends does, and a new listener does."""
    async with opened(small, make_all([]), poll="1h") as factory:
        async with full_queue(small):
            pass
        async with (
            await psycopg.AsyncConnection.connect(small, autocommit=True) as ear,
            await psycopg.AsyncConnection.connect(small, autocommit=True) as other,
        ):
            await ear.execute(CHANNELS)
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                await other.execute("notify outbox_default, 'the queue is still full'")
            await factory.enqueue(Make())
            assert [poke.payload async for poke in ear.notifies(timeout=60, stop_after=1)] == ["factory.make"]
        async with full_queue(small):
            pass
        async with expect(factory.app, ListenerUp), factory.app.worker():
            pass


EVERY_SENDER = """
select outrider.publish('factory.ordered', '{}', key => '1');
select outrider.enqueue('factory.make', '{}');
select * from outrider.enqueue_one('factory.make', '{}', '00000000-0000-7000-8000-000000000001', now() + interval '1 hour');
select * from outrider.route('factory.produce', 10, 10, '{factory.ordered}', 'default', 0);
select * from outrider.run_now('00000000-0000-7000-8000-000000000001');
select outrider.release(j, 'later') from outrider.job as j;
select outrider.wake(array['factory.make', 'factory.produce']);
select outrider.pause('factory.produce');
select outrider.resume('factory.produce');
select * from outrider.withdraw((select id from outrider.outbox limit 1));
"""


SENDERS = r"""
select p.proname from pg_proc as p
where p.pronamespace = 'outrider'::regnamespace and p.prokind in ('f', 'p')
  and pg_get_functiondef(p.oid) ~* 'pg_notify|(^|;|begin|then|else|loop)\s+notify\s+["a-z]'
"""


def test_one_function_sends_every_notification(whole_database: str) -> None:
    """Whatever calls it obeys the setting, and cannot fail for a full queue. Beside it, a worker answers a canary."""
    with psycopg.connect(whole_database) as conn:
        assert conn.execute(SENDERS.encode()).fetchall() == [("notify",)]
        conn.execute("create function outrider.loud() returns void language plpgsql as 'begin notify outbox_x; end'")
        assert len(conn.execute(SENDERS.encode()).fetchall()) == 2
    package = Path(outrider.__file__).parent
    found = {path for path in package.rglob("*") if path.suffix in (".py", ".sql") and "pg_notify" in path.read_text()}
    assert {path.name for path in found} == {"notify.sql", "canary.py"}


@pytest.mark.parametrize("setting", ["off", ""])
async def test_every_sender_obeys_the_setting(database: str, setting: str) -> None:
    async with (
        opened(database, make_all([])),
        await psycopg.AsyncConnection.connect(database, autocommit=True) as ear,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as conn,
    ):
        await ear.execute(CHANNELS)
        await conn.execute(f"set outrider.notify = '{setting}'".encode())
        for each in filter(str.strip, EVERY_SENDER.split(";")):
            await conn.execute(each.encode())
            await conn.execute("notify outbox_default, 'the end'")
            heard: list[str] = []
            while "the end" not in heard:
                heard += [poke.payload async for poke in ear.notifies(timeout=60, stop_after=1)]
            assert (heard == ["the end"]) == (setting == "off" or "pause(" in each), (each, heard)


async def test_a_worker_that_is_told_to_be_quiet_is(database: str) -> None:
    """Its sessions have the setting, also those that were reset for another handler."""
    async with (
        opened(database, make_all([]), notify="off", poll=0.05) as factory,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as ear,
    ):
        await ear.execute(CHANNELS)
        async with factory.app.worker():
            await factory.enqueue(Make(), *(Paint(part="a") for _ in range(3)))
            await factory.publish(Ordered(n=1))

            async def all_settled() -> bool:
                return len(await factory.receipts()) == 5

            await until(all_settled)
        [later] = await factory.enqueue(Make(), delay=3600)
        await factory.app.jobs.run_now(later)
        await factory.rows("notify outbox_default, 'the end'")
        assert [poke.payload async for poke in ear.notifies(timeout=60, stop_after=1)] == ["the end"]


async def test_a_type_that_is_too_long_for_a_notification_can_be_replayed(database: str) -> None:
    """Only a raw insert writes one."""
    async with opened(database, make_all([])) as factory:
        [job] = await factory.enqueue(Make())
        await factory.rows(
            "update outrider.job set status = 'failed', subscription = repeat('x', 9000) where event_id = %s", job
        )
        [row] = await factory.rows("select outcome from outrider.replay(array(select id from outrider.job))")
        assert row["outcome"] == "replayed"


async def test_who_overfills_the_queue_and_fails_does_not_silence_it(small: str) -> None:
    """Anybody who can connect. Its transaction ends with an error, so nobody who listens was told to read on, and the queue
    was full for as long as no listener came anew."""
    told: asyncio.Queue[str] = asyncio.Queue()
    listener = Listener(
        small,
        ["outbox_default"],
        on_notification=lambda _, payload: told.put_nowait(payload),
        on_up=lambda: told.put_nowait("up"),
        on_down=told.put_nowait,
        heartbeat=0.1,
    )
    listening = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(25), await psycopg.AsyncConnection.connect(small, autocommit=True) as conn:
            assert await told.get() == "up"
            with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="NOTIFY queue"):
                await conn.execute("select pg_notify('x', n || repeat('x', 7000)) from generate_series(1, 100) as n")
            assert await told.get() == "up"
            await conn.execute("select outrider.notify('outbox_default', 'a.b')")
            assert await told.get() == "a.b"
    finally:
        listening.cancel()
        await asyncio.wait([listening])


LOUD = """create or replace function outrider.notify(p_channel text, p_kind text) returns void language plpgsql as
          $$ begin if pg_trigger_depth() > 0 then raise 'the trigger notifies'; end if; end $$"""


async def test_many_notify_by_themselves_and_one_by_the_trigger(database: str) -> None:
    """Also in one transaction: what publish_many says of itself does not hold for the statements after it."""
    async with opened(database, make_all([])) as factory, await psycopg.AsyncConnection.connect(database) as conn:
        await factory.rows(LOUD)
        for publish in (
            lambda: factory.app.publish(conn, Ordered(n=1)),
            lambda: conn.execute("select outrider.publish('factory.ordered', '{}', key => '1')"),
        ):
            await factory.app.publish_many(conn, [Ordered(n=n) for n in range(3)])
            with pytest.raises(psycopg.errors.RaiseException, match="the trigger notifies"):
                await publish()
            await conn.rollback()


ECHO = """create function public.echo() returns trigger language plpgsql as $$
          begin
              if new.event_type <> 'factory.echo' then perform outrider.publish('factory.echo', '{}'); end if;
              return null;
          end $$"""
ECHOES = "create trigger echo after insert on outrider.outbox for each row execute function public.echo()"


async def test_a_trigger_that_publishes_notifies(database: str) -> None:
    async with (
        opened(database, make_all([])) as factory,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as ear,
    ):
        await ear.execute(CHANNELS)
        await factory.rows(ECHO)
        await factory.rows(ECHOES)
        await factory.publish(Ordered(n=1))
        heard = [poke.payload async for poke in ear.notifies(timeout=60, stop_after=2)]
        assert sorted(heard) == ["factory.echo", "factory.ordered"]


@pytest.mark.parametrize("notify", ["off", "after_commit"])
async def test_a_publisher_that_is_told_to_be_quiet_is(database: str, notify: Literal["off", "after_commit"]) -> None:
    """Its driver cannot tell when the transaction has committed, so nobody notifies after it either."""
    async with (
        opened(database, make_all([]), notify=notify) as factory,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as ear,
    ):
        await ear.execute(CHANNELS)
        await factory.publish(Ordered(n=1))
        await factory.publish(*(Ordered(n=n) for n in range(3)))
        await factory.enqueue(Make(), *(Make(n=n) for n in range(3)))
        await factory.rows("notify outbox_default, 'the end'")
        assert [poke.payload async for poke in ear.notifies(timeout=60, stop_after=1)] == ["the end"]
