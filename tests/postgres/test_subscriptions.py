"""What an operator sees of subscriptions and does with them; a rename in the code that would leave a backlog behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import AsyncConnection
from tests.worker.shop import Cancelled, Placed, Shop, opened

from outrider import Job, Outrider
from outrider.errors import CursorError, DeclarationError, SchemaMismatch, SubscriptionRefused
from outrider.postgres.admin import subscriptions
from outrider.postgres.admin.subscriptions import Backlog
from outrider.postgres.schema.registration import orphaned
from outrider.signals import ListenerUp, Settled, Signal, Skipped
from outrider.testing import expect

SCHEMA = "outrider"


@pytest.fixture
async def conn(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        yield conn


def explode() -> None:
    raise ValueError("not today")


async def serve(conn: AsyncConnection[Any], name: str, seen: str = "now()") -> None:
    """As if a worker had been seen then."""
    await conn.execute(
        f"""insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at)
            values (gen_random_uuid(), 'elsewhere', 1, 'x', 0, array[%s], {seen})""".encode(),
        [name],
    )


@asynccontextmanager
async def renamed(dsn: str, name: str = "shop.renamed", **options: Any) -> AsyncIterator[Outrider]:
    """The same code with another name for its handler."""
    app = Outrider(context="shop", dsn=dsn, **options)

    @app.handler(Placed, name=name)
    async def handle(event: Placed) -> None:
        assert event

    async with app:
        yield app


async def test_the_overview(database: str, conn: AsyncConnection[Any]) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", order="none", partitions=2)(shop.effect)
        shop.app.reader(name="shop.all")

    async with opened(database, declare) as shop:
        shop.wrong["a1"] = explode
        await shop.publish("a1", "a2", "b1")
        await shop.app.drain()
        await shop.publish("c1")
        await serve(conn, "shop.effect")
        await serve(conn, "shop.effect", "now() - interval '31 seconds'")
        everything, effect = await subscriptions.overview(conn, SCHEMA)
    assert (everything.name, everything.kind, everything.event_types, everything.lag) == ("shop.all", "reader", None, 4)
    assert (everything.waiting, everything.dead, everything.workers) == (0, 0, 0)
    assert (effect.kind, effect.context, effect.event_types) == ("handler", "shop", ["dispatch.placed"])
    assert (effect.partitions, effect.order, effect.paused_at, effect.lag) == (2, "none", None, 1)
    assert (effect.waiting, effect.dead, effect.workers) == (1, 0, 1)


async def test_the_backlog_counts_only_what_the_subscription_wants(database: str, conn: AsyncConnection[Any]) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", partitions=4)(shop.effect)

    async with opened(database, declare) as shop:
        await shop.publish(*(f"{customer}1" for customer in "abcdefgh"))
        await shop.publish("i1", target="elsewhere")
        async with shop.app.connect() as own, own.transaction():
            await shop.app.publish(own, Cancelled(customer="a"))
        assert await subscriptions.backlog(conn, "shop.effect", SCHEMA) == Backlog(8, False, 0, 0)
        await shop.app.drain()
        assert not (await subscriptions.backlog(conn, "shop.effect", SCHEMA)).unhandled


async def test_the_backlog_includes_what_committed_late(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop, await AsyncConnection.connect(database) as slow:
        await shop.app.publish(slow, Placed(customer="s"))
        await shop.publish("a1")
        assert (await shop.app.drain()).handled == 1
        assert (await subscriptions.backlog(conn, "shop.effect", SCHEMA)).unread == 0
        await slow.commit()
        assert (await subscriptions.backlog(conn, "shop.effect", SCHEMA)).unread == 1


async def test_the_backlog_is_counted_only_so_far(
    database: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST", 2)
    async with opened(database) as shop:
        shop.wrong["a1"] = explode
        await shop.publish("a1", "a2", "a3")
        await shop.app.drain()
        await shop.publish("b1", "b2", "b3")
    left = await subscriptions.backlog(conn, "shop.effect", SCHEMA)
    assert str(left) == "at least 2 unread, 2 or more waiting for retry, 0 dead letters"


async def test_an_unknown_name_is_answered_with_the_known_ones(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop:
        with pytest.raises(SubscriptionRefused, match=r"no subscription 'shop.efect'.*there are: shop.effect"):
            await shop.app.pause("shop.efect")


async def test_without_a_schema(empty_database: str) -> None:
    async with await AsyncConnection.connect(empty_database, autocommit=True) as conn:
        with pytest.raises(SchemaMismatch, match="run outrider migrate"):
            await subscriptions.overview(conn, SCHEMA)


@pytest.mark.parametrize("name", ["shop.effect", None])
async def test_pause_and_resume_under_a_worker(database: str, name: str | None) -> None:
    """Resuming wakes the worker, which would otherwise look again only after an hour."""
    skipped, listening, settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    heard: dict[type[Signal], asyncio.Event] = {Skipped: skipped, ListenerUp: listening, Settled: settled}
    async with opened(database, poll="1h") as shop:
        await shop.app.pause(name)
        shop.app.signals.listen(lambda signal: heard[type(signal)].set() if type(signal) in heard else None)
        await shop.publish("a1")
        assert (await shop.app.drain()).handled == 0
        async with shop.app.worker():
            await asyncio.wait_for(skipped.wait(), 30)
            await asyncio.wait_for(listening.wait(), 30)
            assert not settled.is_set()
            await shop.app.resume(name)
            await asyncio.wait_for(settled.wait(), 30)
        assert await shop.effects() == ["a1"]


async def test_pausing_everything_is_a_switch_of_its_own(database: str) -> None:
    """It holds subscriptions that come later, and leaves alone what was paused by its name."""
    async with opened(database) as shop:
        await shop.app.pause("shop.effect")
        await shop.app.pause()
        shop.app.handler(Placed, name="shop.later", start="beginning")(shop.effect)
        await shop.publish("a1")
        await shop.app.migrate()
        assert (await shop.app.drain()).handled == 0
        await shop.app.resume("shop.effect")
        assert (await shop.app.drain()).handled == 0
        await shop.app.pause("shop.effect")
        await shop.app.resume()
        assert (await shop.app.drain()).by_handler == {"shop.later": 1}


async def test_a_paused_subscription_with_an_overdue_event_is_not_asked_all_the_time(database: str) -> None:
    taken = 0

    def count(signal: object) -> None:
        nonlocal taken
        taken += type(signal).__name__ == "Taken"

    async with opened(database, notify="off", poll="1h") as shop:
        shop.wrong["a1"] = explode
        await shop.publish("a1")
        await shop.app.drain()
        await shop.make_due()
        await shop.app.pause("shop.effect")
        shop.app.signals.listen(count)
        async with shop.app.worker():
            for _ in range(20):
                await shop.rows("select 1")
        assert taken == 1


async def test_rename_moves_position_parked_events_and_receipts(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop:
        shop.wrong["b1"] = explode
        await shop.publish("a1", "b1", "b2")
        await shop.app.drain()
        await shop.publish("c1")
        assert await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA) == 1
    async with renamed(database) as app:
        await app.migrate()
        await shop.make_due()
        done = await app.drain()
    assert (done.handled, done.duplicates) == (3, 0)
    assert {row["handler_name"] for row in await shop.rows("select * from outrider.event_handled")} == {"shop.renamed"}
    assert [each.name for each in await subscriptions.overview(conn, SCHEMA)] == ["shop.renamed"]


async def test_rename_is_refused_when_it_would_mix_things_up(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop:
        shop.app.reader(name="shop.other")
        await shop.app.migrate()
    for new, why in (("shop.other", "already"), ("Shop Other", "not lower-case words")):
        with pytest.raises(SubscriptionRefused, match=why):
            await subscriptions.rename(conn, "shop.effect", new, SCHEMA, force=True)
    await conn.execute(
        "insert into outrider.event_handled values ('shop.before', 'k', gen_random_uuid(), 1, now(), 0, 'internal')"
    )
    with pytest.raises(SubscriptionRefused, match="would be skipped"):
        await subscriptions.rename(conn, "shop.effect", "shop.before", SCHEMA, force=True)
    await serve(conn, "shop.effect")
    with pytest.raises(SubscriptionRefused, match=r"a worker served shop.effect within the last 30 s: stop it first"):
        await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA)
    assert await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA, force=True) == 0


@pytest.mark.verify
async def test_rename_waits_for_a_batch_in_progress(
    database: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PATIENCE", "50ms")
    async with opened(database) as shop:
        async with await AsyncConnection.connect(database) as taking:
            await shop.publish("a1")
            await taking.execute("select * from outrider.take('shop.effect', p_knows => '{dispatch.placed}')")
            with pytest.raises(SubscriptionRefused, match="was being read for 50ms"):
                await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA)
            await taking.rollback()
        await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA)


async def test_a_rename_and_a_batch_that_parks_do_not_deadlock(database: str, conn: AsyncConnection[Any]) -> None:
    """The batch refers to the subscription while the rename, which came second, waits for the batch."""
    async with opened(database) as shop, await AsyncConnection.connect(database) as taking:
        await shop.publish("a1")
        [(pid,)] = await (await conn.execute("select pg_backend_pid()")).fetchall()
        await taking.execute("select from outrider.cursor where subscription = 'shop.effect' for update")
        renaming = asyncio.create_task(subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA))
        async with asyncio.timeout(30):
            while not await shop.rows(f"select 1 from pg_locks where pid = {pid} and not granted"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await taking.execute(
            """insert into outrider.delivery
               (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
               values ('shop.effect', 0, 1, gen_random_uuid(), 'dispatch.placed', 'pending', true, true, now())"""
        )
        await taking.commit()
        await renaming
    assert [row["subscription"] for row in await shop.rows("select subscription from outrider.delivery")] == [
        "shop.renamed"
    ]


@pytest.mark.parametrize(
    ("events", "wrong", "said"),
    [
        (["a1"], False, "1 unread, 0 waiting for retry, 0 dead letters"),
        (["a1", "a2"], True, "0 unread, 2 waiting for retry, 0 dead letters"),
    ],
)
async def test_retire_is_refused_while_something_would_be_lost(
    database: str, conn: AsyncConnection[Any], events: list[str], wrong: bool, said: str
) -> None:
    async with opened(database) as shop:
        await shop.publish(*events)
        if wrong:
            shop.wrong["a1"] = explode
            await shop.app.drain()
        with pytest.raises(SubscriptionRefused, match=said):
            await subscriptions.retire(conn, "shop.effect", SCHEMA)
        await subscriptions.retire(conn, "shop.effect", SCHEMA, force=True)
        for table in ("subscription", "cursor", "owed"):
            assert await shop.rows(f"select * from outrider.{table}") == []


async def test_dead_letters_keep_a_subscription_and_receipts_outlive_it(
    database: str, conn: AsyncConnection[Any]
) -> None:
    async with opened(database) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
        await serve(conn, "shop.effect")
        with pytest.raises(SubscriptionRefused, match="stop it first"):
            await subscriptions.retire(conn, "shop.effect", SCHEMA)
        await conn.execute("delete from outrider.worker")
        await conn.execute(
            """insert into outrider.delivery
               (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
               values ('shop.effect', 0, 1, gen_random_uuid(), 'dispatch.placed', 'failed', false, true, now())"""
        )
        with pytest.raises(SubscriptionRefused, match="0 unread, 0 waiting for retry, 1 dead letters"):
            await subscriptions.retire(conn, "shop.effect", SCHEMA)
        await conn.execute("delete from outrider.delivery")
        assert not (await subscriptions.retire(conn, "shop.effect", SCHEMA)).unhandled
        assert len(await shop.rows("select * from outrider.event_handled")) == 2


async def test_a_worker_whose_subscription_is_retired_ends_with_an_error(
    database: str, conn: AsyncConnection[Any]
) -> None:
    """At once, also when it serves others: they stop too, instead of using up the grace time."""

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect")(shop.effect)
        shop.app.handler(Cancelled, name="shop.other")(shop.effect)

    async with opened(database, declare) as shop:
        worker = shop.app.worker(grace="1h")
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.ready.wait(), 30)
        await subscriptions.retire(conn, "shop.effect", SCHEMA, force=True)
        await shop.publish("a1")
        with pytest.raises(CursorError, match=r'no cursor for subscription "shop.effect"'):
            await asyncio.wait_for(running, 30)


# Fewer types than before


async def test_a_handler_that_wants_less_than_before(database: str, conn: AsyncConnection[Any]) -> None:
    """Registration only adds: migrate says so, and narrow takes away."""

    def both(shop: Shop) -> None:
        shop.app.handler(Placed, Cancelled, name="shop.effect")(shop.effect)

    async with opened(database, both) as shop:
        await shop.publish("a1")
    async with opened(database) as shop:
        [registered] = await shop.app.migrate()
        assert (registered.outcome, registered.surplus) == ("unchanged", ("dispatch.cancelled",))
        assert (await shop.app.drain()).handled == 0
        narrowed = subscriptions.narrow(conn, "shop.effect", ["dispatch.cancelled"], SCHEMA)
        assert await narrowed == 0
        assert (await shop.app.drain()).handled == 1
        [registered] = await shop.app.migrate()
        assert registered.surplus == ()


async def test_narrowing_is_refused_while_something_would_be_lost(database: str, conn: AsyncConnection[Any]) -> None:
    def fail() -> None:
        raise RuntimeError

    def both(shop: Shop) -> None:
        shop.app.handler(Placed, Cancelled, name="shop.effect")(shop.effect)

    async with opened(database, both) as shop:
        for types, said in (
            (["no.such"], "does not want no.such; it wants dispatch.cancelled, dispatch.placed"),
            (["dispatch.placed", "dispatch.cancelled"], "would have no event types left"),
        ):
            with pytest.raises(SubscriptionRefused, match=said):
                await subscriptions.narrow(conn, "shop.effect", types, SCHEMA)
        await shop.publish("a1", "b1")
        with pytest.raises(SubscriptionRefused, match=r"has 2 unread events of dispatch\.placed"):
            await subscriptions.narrow(conn, "shop.effect", ["dispatch.placed"], SCHEMA)
        shop.wrong["a1"] = fail
        await shop.app.drain()
        with pytest.raises(SubscriptionRefused, match=r"1 events of dispatch\.placed wait for a retry"):
            await subscriptions.narrow(conn, "shop.effect", ["dispatch.placed"], SCHEMA, force=True)
        await shop.make_due()
        shop.wrong.clear()
        await shop.app.drain()
        await shop.publish("c1")
        assert await subscriptions.narrow(conn, "shop.effect", ["dispatch.placed"], SCHEMA, force=True) == 1


# A new name for old code


async def test_a_renamed_handler_with_a_backlog_is_not_registered(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop:
        await shop.publish("a1")
    async with renamed(database) as app:
        for start in (app.migrate, app.worker().run):
            with pytest.raises(DeclarationError) as caught:
                await start()
            for said in (
                "outrider subscription rename shop.effect shop.renamed",
                "outrider subscription retire shop.effect",
                "OUTRIDER_ALLOW_ORPHANS=1",
                "1 unread",
            ):
                assert said in str(caught.value)
        [old] = await subscriptions.overview(conn, SCHEMA)
        assert orphaned(old, "shop", ["shop.renamed"])
        await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA)
        assert [each.outcome for each in await app.migrate()] == ["unchanged"]


async def test_it_may_be_meant_as_a_second_one(
    database: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(database) as shop:
        await shop.publish("a1")
    monkeypatch.setenv("OUTRIDER_ALLOW_ORPHANS", "1")
    async with renamed(database) as app:
        assert [each.outcome for each in await app.migrate()] == ["created"]


async def test_a_renamed_handler_beside_its_old_worker_is_refused(database: str, conn: AsyncConnection[Any]) -> None:
    async with opened(database) as shop, shop.app.worker():
        async with renamed(database) as app:
            for start in (app.migrate, app.worker().run):
                with pytest.raises(DeclarationError) as caught:
                    await start()
                for said in (
                    "1 worker serves it",
                    "`outrider subscription rename shop.effect shop.renamed`",
                    "`outrider subscription retire shop.effect`",
                    "OUTRIDER_ALLOW_ORPHANS=1",
                ):
                    assert said in str(caught.value)
        assert [each.name for each in await subscriptions.overview(conn, SCHEMA)] == ["shop.effect"]


async def test_a_reader_of_everything_under_a_new_name_is_refused(database: str) -> None:
    old, new = Outrider(context="shop", dsn=database), Outrider(context="shop", dsn=database)
    old.reader(name="shop.audit")
    new.reader(name="shop.archive")
    async with old, new:
        await old.migrate()
        with pytest.raises(DeclarationError, match=r"outrider subscription rename shop\.audit shop\.archive"):
            await new.migrate()


@pytest.mark.parametrize(
    ("before", "after"), [((), (Placed,)), ((Placed,), ())], ids=["lists types now", "listed types"]
)
async def test_a_reader_of_everything_that_lists_types_under_a_new_name_is_refused(
    database: str, before: tuple[type[Placed], ...], after: tuple[type[Placed], ...]
) -> None:
    old, new = Outrider(context="shop", dsn=database), Outrider(context="shop", dsn=database)
    old.reader(*before, name="shop.audit")
    new.reader(*after, name="shop.archive")
    async with old, new:
        await old.migrate()
        with pytest.raises(DeclarationError, match=r"outrider subscription rename shop\.audit shop\.archive"):
            await new.migrate()


@pytest.mark.parametrize("change", ["name", "more types", "a job"])
async def test_what_wants_the_same_events_under_a_new_name_is_refused(database: str, change: str) -> None:
    """Also when there is nothing to read, and nobody serves the old one."""
    async with opened(database) as shop:
        pass
    app = Outrider(context="shop", dsn=database)
    if change == "a job":
        app.job(on=Placed, name="shop.new")(print)
    else:
        app.handler(*((Placed, Cancelled) if change == "more types" else (Placed,)), name="shop.new")(shop.effect)
    async with app:
        with pytest.raises(DeclarationError) as caught:
            await app.migrate()
    assert "`outrider subscription retire shop.effect`" in str(caught.value)
    assert ("`outrider subscription rename shop.effect shop.new`" in str(caught.value)) is (change != "a job")


@pytest.mark.parametrize("difference", ["context", "types", "declared", "kind"])
async def test_what_is_no_rename(database: str, difference: str) -> None:
    async with opened(database) as shop:
        await shop.publish("a1")
    app = Outrider(context="other" if difference == "context" else "shop", dsn=database)
    if difference == "kind":
        app.reader(Placed, name="shop.new")
    else:
        app.handler(Cancelled if difference == "types" else Placed, name="shop.new")(shop.effect)
    if difference == "declared":
        app.handler(Placed, name="shop.effect")(shop.effect)
    async with app:
        assert "created" in [each.outcome for each in await app.migrate()]


class Pack(Job, type="subscriptions.pack"):
    pass


class Ship(Job, type="subscriptions.ship"):
    pass


async def test_a_job_that_is_only_enqueued_is_renamed_only_with_a_backlog(database: str) -> None:
    """Jobs of two types have no event in common."""
    old, new = Outrider(context="shop", dsn=database), Outrider(context="shop", dsn=database)
    old.job(Pack)(print)
    new.job(Ship)(print)
    async with old, old.connect() as conn:
        await old.migrate()
        async with new:
            assert [each.outcome for each in await new.migrate()] == ["created"]
            await subscriptions.retire(conn, "subscriptions.ship", SCHEMA)
        await old.enqueue(conn, Pack())
    async with new:
        with pytest.raises(DeclarationError, match=r"rename subscriptions\.pack subscriptions\.ship"):
            await new.migrate()


async def test_listeners_of_other_processes_are_no_renames(database: str) -> None:
    """Each process knows its own listeners only."""

    async def nothing(envelope: Any) -> None: ...

    apps = [Outrider(context="shop", dsn=database) for _ in range(2)]
    async with apps[0], apps[1], asyncio.TaskGroup() as group:
        listening = []
        for app, name in zip(apps, ("shop.one", "shop.two"), strict=True):
            listen = app.listener().listen(channel="outbox_default", handler_name=name, handler=nothing)
            async with expect(app, ListenerUp):
                listening.append(group.create_task(listen))
        for each in listening:
            each.cancel()


async def test_a_rename_in_a_rolling_deploy(database: str, conn: AsyncConnection[Any]) -> None:
    """As docs/rollout.md has it: the old workers leave the handler out, it is renamed, the new ones take over."""
    async with opened(database) as shop:
        async with shop.app.worker(exclude=["shop.effect"]):
            await shop.publish("a1")
            await subscriptions.rename(conn, "shop.effect", "shop.renamed", SCHEMA)
            async with opened(database, lambda new: new.app.handler(Placed, name="shop.renamed")(new.effect)) as new:
                await new.publish("a2")
                await new.app.drain()
                assert await new.effects() == ["a1", "a2"]
        with pytest.raises(DeclarationError, match=r"rename shop\.renamed shop\.effect"):
            await shop.app.migrate()


async def test_parked_events_are_a_backlog_too(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = explode
        await shop.publish("a1")
        await shop.app.drain()
    async with renamed(database) as app:
        with pytest.raises(DeclarationError, match="0 unread, 1 waiting for retry"):
            await app.migrate()


async def test_the_role_of_an_app_whose_subscriptions_are_known_needs_no_more_rights(database: str) -> None:
    """It looks at other subscriptions only when it brings a new one."""
    async with opened(database) as shop:
        await shop.rows("create role looker login")
        try:
            await shop.rows("grant usage on schema outrider to looker")
            await shop.rows("grant select on outrider.subscription to looker")
            async with await AsyncConnection.connect(database, user="looker", autocommit=True) as conn:
                assert await subscriptions.unregistered(conn, ["shop.effect", "shop.new"], SCHEMA) == {"shop.new"}
                with pytest.raises(SchemaMismatch, match="may not use"):
                    await subscriptions.overview(conn, SCHEMA)
        finally:
            await shop.rows("drop owned by looker")
            await shop.rows("drop role looker")


async def test_jobs_go_with_their_type(database: str, conn: AsyncConnection[Any]) -> None:
    """To the new name; with a retired type they are lost, which is said before."""
    await conn.execute("select outrider.register('shop.old', 'job', 'shop', '{}')")
    for run_at in ("now()", "now() + interval '1 hour'"):
        await conn.execute(f"select outrider.enqueue('shop.old', '{{}}', run_at => {run_at})".encode())
    await subscriptions.rename(conn, "shop.old", "shop.new", SCHEMA)
    cursor = await conn.execute("select distinct subscription, count(*) from outrider.job group by 1")
    assert await cursor.fetchall() == [("shop.new", 2)]
    with pytest.raises(SubscriptionRefused, match="0 unread, 2 waiting for retry, 0 dead letters"):
        await subscriptions.retire(conn, "shop.new", SCHEMA)
    await subscriptions.retire(conn, "shop.new", SCHEMA, force=True)
    assert await (await conn.execute("select from outrider.job")).fetchall() == []
