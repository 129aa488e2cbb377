"""A takeover: each row of the old table is dispatched once, by the old system or by Outrider, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel

from outrider import Event, Job, Outrider
from outrider.errors import DeclarationError, TakeoverRefused
from outrider.postgres.admin.takeover import TakeoverRun, TakeoverState
from outrider.signed import Signed
from outrider.takeover import Takeover

TABLE = "public.orders_outbox"
SIGNED = Signed("ann", "we move")
OLD = """create table orders_outbox (
    id bigint generated always as identity primary key, event_type text not null, order_id text, payload json not null,
    tenant text, created_at timestamptz not null default now(), published_at timestamptz)"""
INSERT = """insert into orders_outbox (event_type, order_id, payload)
    values ('OrderPlaced', %s, json_build_object('order_id', %s::text))"""


class Enrich(Job, type="takeover.enrich"):
    item: int


class OrderPlaced(Event, type="takeover.placed", key="order_id"):
    order_id: str


class Old:
    """The system that is there: a table, and a session of a producer."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(OLD)

    def insert(self, *orders: str) -> None:
        for order in orders:
            self.conn.execute(INSERT, [order, order])

    def dispatch(self, limit: int) -> list[str]:
        """As the old dispatcher does: lock, send, mark."""
        query = """update orders_outbox set published_at = now() where id in (
            select id from orders_outbox where published_at is null order by id limit %s for update skip locked)
            returning id, order_id"""
        return [order for _, order in sorted(self.conn.execute(query, [limit]).fetchall())]

    def owed(self) -> list[str]:
        query = "select order_id from orders_outbox where published_at is null order by id"
        return [order for (order,) in self.conn.execute(query).fetchall()]

    def events(self) -> list[tuple[Any, ...]]:
        query = "select aggregate_id, idempotency_key, occurred_at, workspace_id from outrider.outbox order by seq"
        return self.conn.execute(query).fetchall()


@pytest.fixture
def old(database: str) -> Iterator[Old]:
    system = Old(database)
    yield system
    system.conn.close()


class Shop:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.app = Outrider(context="shop", dsn=dsn)
        self.app.takeover(
            TABLE,
            type="case event_type when 'OrderPlaced' then 'takeover.placed' else event_type end",
            key="order_id",
            workspace_id="tenant",
            occurred_at="created_at",
        )
        self.takeover = self.app.takeovers[0]
        self.handled: list[str] = []

        @self.app.handler(OrderPlaced, name="shop.invoice", start="beginning")
        async def invoice(event: OrderPlaced) -> None:
            self.handled.append(event.order_id)

    async def start(self, wait: float = 10) -> None:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await TakeoverRun(conn, *self.what).start(SIGNED, wait)

    async def cut_over(self, wait: float = 10) -> int:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            return [brought async for brought in TakeoverRun(conn, *self.what).cut_over(SIGNED, wait)][-1]

    async def finish(self, wait: float = 10, *, force: bool = True) -> TakeoverState:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            return await TakeoverRun(conn, *self.what).finish(SIGNED, wait, force=force)

    async def abort(self, wait: float = 10) -> None:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await TakeoverRun(conn, *self.what).abort(SIGNED, wait)

    async def state(self) -> TakeoverState:
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            return await TakeoverRun(conn, *self.what).state()

    @property
    def what(self) -> tuple[Takeover, str]:
        return self.takeover, "outrider"


async def test_from_the_first_row_to_the_reconciliation(old: Old, database: str) -> None:
    shop = Shop(database)
    old.insert("a", "b", "c", "d")
    assert old.dispatch(2) == ["a", "b"]
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.insert("e")
        assert (await shop.state()).phase == "rehearsal"
        assert old.events() == []  # it was only tried out
        assert old.dispatch(1) == ["c"]
        assert await shop.cut_over() == 2
        assert old.owed() == []
        old.insert("f", "g")
        assert old.owed() == []
        assert old.dispatch(100) == []
        await shop.app.drain()
        assert shop.handled == ["d", "e", "f", "g"]
        state = await shop.finish()
    assert (state.owed, state.made, state.brought, state.doubled, state.refused) == (0, 4, 2, 0, [])
    assert state.states == {"shop.invoice": {"delivered": 4}}
    old.insert("h")
    assert old.owed() == ["h"]  # the trigger is gone
    taken = "select order_id, id::text, created_at, tenant from orders_outbox where order_id between 'd' and 'g' order by id"
    assert old.events() == old.conn.execute(taken).fetchall()
    audit = old.conn.execute("select action, by, details ->> 'table' from outrider.audit order by id").fetchall()
    assert audit == [(f"takeover_{verb}", "ann", TABLE) for verb in ("start", "cutover", "finish")]


async def test_a_row_that_cannot_become_an_event_is_listed_and_stays_owed(old: Old, database: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.conn.execute("insert into orders_outbox (event_type, payload) values ('OrderPlaced', '[1]')")
        [(row_id, error)] = (await shop.state()).refused
        assert (row_id, "must be a JSON object" in error) == ("1", True)
        old.insert("a")
        assert await shop.cut_over() == 2  # both were looked at
        state = await shop.state()
        assert (state.owed, state.brought, [row for row, _ in state.refused]) == (1, 1, ["1"])
        with pytest.raises(
            TakeoverRefused, match=r"1 rows are still owed \(0 of them leased by the old workers, 1 refused\)"
        ):
            await shop.finish()
        old.conn.execute("""update orders_outbox set payload = '{"order_id": "x"}', order_id = 'x' where id = 1""")
        await shop.cut_over()  # again: what was refused is tried once more
        await shop.app.drain()
        assert sorted(shop.handled) == ["a", "x"]
        await shop.finish()


async def test_an_open_publisher_is_waited_for(old: Old, database: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        with psycopg.connect(database, application_name="checkout") as publisher:
            publisher.execute(INSERT, ["open", "open"])
            with pytest.raises(TakeoverRefused, match=r"held by checkout \(pid \d+, idle in transaction"):
                await shop.cut_over(wait=0)
            assert (await shop.state()).phase == "rehearsal"
            cutting = asyncio.create_task(shop.cut_over(wait=60))
            waits = "select from pg_locks where relation = 'orders_outbox'::regclass and not granted"
            while not old.conn.execute(waits).fetchall():  # noqa: ASYNC110 (the server tells nobody)
                await asyncio.sleep(0.01)
            publisher.commit()
        assert await cutting == 1
        old.insert("later")
        await shop.app.drain()
        assert shop.handled == ["open", "later"]


@pytest.mark.parametrize("verb", ["start", "abort", "finish"])
async def test_each_change_of_the_table_waits_for_open_publishers(old: Old, database: str, verb: str) -> None:
    shop = Shop(database)
    change: Callable[[float], Coroutine[Any, Any, object]] = getattr(shop, verb)
    async with shop.app:
        await shop.app.migrate()
        if verb != "start":
            await shop.start()
            await shop.cut_over()
        with psycopg.connect(database, application_name="checkout") as publisher:
            publisher.execute(INSERT, ["open", "open"])
            with pytest.raises(
                TakeoverRefused, match=r"nothing was changed within 0 s: the table is held by checkout \(pid"
            ):
                await change(0)
            changing = asyncio.create_task(change(60))
            waits = "select from pg_locks where relation = 'orders_outbox'::regclass and not granted"
            while not old.conn.execute(waits).fetchall():  # noqa: ASYNC110 (the server tells nobody)
                await asyncio.sleep(0.01)
            publisher.commit()
        await changing
        if verb == "start":
            assert old.owed() == ["open"]
        else:
            await shop.app.drain()
            assert shop.handled == ["open"]


@pytest.mark.parametrize("verb", ["start", "cut_over"])
async def test_a_declaration_that_was_corrected_counts(old: Old, database: str, verb: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.conn.execute("insert into orders_outbox (event_type, payload) values ('Placed', '{\"order_id\": \"a\"}')")
        [(_, error)] = (await shop.state()).refused
        assert "event type" in error
        corrected = Shop(database)
        corrected.takeover = replace(shop.takeover, type="'takeover.placed'")
        if verb == "start":
            await corrected.start()
            assert (await corrected.state()).refused == []
            old.conn.execute(
                "insert into orders_outbox (event_type, payload) values ('Placed', '{\"order_id\": \"b\"}')"
            )
            assert (await corrected.state()).refused == []
        await corrected.cut_over()
        assert old.owed() == []


async def test_a_row_that_is_refused_during_finish_stops_it(
    old: Old, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, state = Shop(database), TakeoverRun.state

    async def then_a_row(self: TakeoverRun) -> TakeoverState:
        found = await state(self)
        old.conn.execute("insert into orders_outbox (event_type, payload) values ('OrderPlaced', '[1]')")
        return found

    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        await shop.cut_over()
        monkeypatch.setattr(TakeoverRun, "state", then_a_row)
        with pytest.raises(TakeoverRefused, match=r"a row was refused meanwhile \(1\)"):
            await shop.finish()
        monkeypatch.undo()
        assert (await shop.state()).phase == "taken"


async def test_finish_again_tells_the_same(old: Old, database: str) -> None:
    shop = Shop(database)
    old.insert("a")
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        await shop.cut_over()
        await shop.app.drain()
        first = await shop.finish()
        assert await shop.finish() == first
        with pytest.raises(TakeoverRefused, match="nothing to abort, the phase is finished"):
            await shop.abort()


async def test_a_publisher_with_an_old_snapshot(old: Old, database: str) -> None:
    """It began before the cut-over, and cannot see its rows in our tables; the trigger fires all the same."""
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        with psycopg.connect(database) as publisher:
            publisher.isolation_level = IsolationLevel.REPEATABLE_READ
            publisher.execute("select 1")
            await shop.cut_over()
            publisher.execute(INSERT, ["old", "old"])
        assert old.owed() == []
        await shop.app.drain()
        assert shop.handled == ["old"]


async def test_a_row_that_is_not_inserted_is_no_event(old: Old, database: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        await shop.cut_over()
        old.insert("a")
        old.conn.execute(
            """insert into orders_outbox (id, event_type, order_id, payload) overriding system value
               values (1, 'OrderPlaced', 'twice', '{"order_id": "twice"}') on conflict do nothing"""
        )
        with old.conn.transaction(force_rollback=True):
            old.insert("rolled back")
        await shop.app.drain()
        assert shop.handled == ["a"]


async def test_abort_gives_new_rows_back(old: Old, database: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.insert("a")
        await shop.cut_over()
        await shop.abort()
        old.insert("b")
        assert old.owed() == ["b"]
        await shop.app.drain()
        assert shop.handled == ["a"]
        await shop.start()  # another try
        assert await shop.cut_over() == 1
        await shop.app.drain()
        assert shop.handled == ["a", "b"]


async def test_finish_waits_for_the_producers(old: Old, database: str) -> None:
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        with pytest.raises(TakeoverRefused, match="nothing to finish, the phase is not started"):
            await shop.finish()
        await shop.start()
        await shop.cut_over()
        with pytest.raises(TakeoverRefused, match="has started already"):
            await shop.start()
        old.insert("a")
        with pytest.raises(
            TakeoverRefused, match="producers still insert into the table, 1 rows in the last 10 minutes"
        ):
            await shop.finish(force=False)


async def test_the_tables_own_triggers_see_its_schema(old: Old, database: str) -> None:
    """Trigger functions name their tables without a schema, as procrastinate's do; the rehearsal runs them too."""
    shop = Shop(database)
    old.conn.execute("create table history (id bigint)")
    old.conn.execute("""create function remember() returns trigger language plpgsql as $$
        begin insert into history values (new.id); return null; end $$""")
    old.conn.execute("create trigger remember after update on orders_outbox for each row execute function remember()")
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.insert("a")
        assert (await shop.state()).refused == []
        await shop.cut_over()
        old.insert("b")
        assert (await shop.state()).refused == []
        old.conn.execute("drop table history")
        await shop.abort()
        await shop.start()
        old.insert("c")
        [(row_id, error)] = (await shop.state()).refused
        assert (row_id, error) == ("3", 'relation "history" does not exist')
        assert [each[0] for each in old.events()] == ["a", "b"]


async def test_a_table_of_jobs_with_leases(database: str) -> None:
    app, ran = Outrider(context="vault", dsn=database), list[int]()
    app.takeover(
        "public.enrichment_outbox",
        job=Enrich,
        payload="jsonb_build_object('item', id)",
        owed="status in ('pending', 'processing')",
        free="status = 'pending' or lease_expires_at < now()",
        done="status = 'taken_over'",
        run_at="run_after",
    )

    @app.job(Enrich)
    async def enrich(job: Enrich) -> None:
        ran.append(job.item)

    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("""create table enrichment_outbox (id int primary key, status text not null default 'pending',
            attempts int default 0, locked_by text, lease_expires_at timestamptz, run_after timestamptz default now())""")
        conn.execute("insert into enrichment_outbox (id) values (1), (2), (3), (4)")
        lease = (
            "update enrichment_outbox set status = 'processing', lease_expires_at = now() + %s::interval where id = %s"
        )
        conn.execute(lease, ["1 hour", 1])
        conn.execute(lease, ["-1 hour", 2])
        async with app:
            await app.migrate()
            async with await AsyncConnection.connect(database, autocommit=True) as session:
                run = TakeoverRun(session, app.takeovers[0], "outrider")
                await run.start(SIGNED, 10)
                assert [brought async for brought in run.cut_over(SIGNED, 10)][-1] == 3
                state = await run.state()
                assert (state.owed, state.leased, state.made) == (1, 1, 3)
                with pytest.raises(
                    TakeoverRefused, match=r"1 rows are still owed \(1 of them leased by the old workers"
                ):
                    await run.finish(SIGNED, 10, force=True)
                conn.execute("insert into enrichment_outbox (id) values (5)")
                conn.execute(lease, ["-1 second", 1])  # its old worker is gone
                await app.drain()
                await run.finish(SIGNED, 10, force=True)
            await app.drain()
        assert sorted(ran) == [1, 2, 3, 4, 5]
        assert conn.execute("select distinct status from enrichment_outbox").fetchall() == [("taken_over",)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("orders_outbox", {"type": "'a.b'"}, "is not like 'public.orders_outbox'"),
        ("public.orders", {}, "either type="),
        ("public.orders", {"type": "'a.b'", "id": "a.b"}, "is not the name of a column"),
        ("public.orders", {"type": "'a.b'", "run_at": "now()"}, "run_at is not for events"),
        ("public.orders", {"job": OrderPlaced}, "is not a Job class"),
    ],
)
def test_a_declaration_that_cannot_work(table: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Outrider(context="shop").takeover(table, **options)


@pytest.mark.parametrize("why", ["the declaration", "a trigger of the table"])
async def test_a_row_that_stays_owed_is_not_published(old: Old, database: str, why: str) -> None:
    """Else the cut-over would publish it again and again."""
    shop = Shop(database)
    if why == "the declaration":
        shop.takeover = replace(shop.takeover, done="tenant = 'x'")
    else:
        old.conn.execute("create function keep() returns trigger language plpgsql as 'begin return null; end'")
        old.conn.execute("create trigger keep before update on orders_outbox for each row execute function keep()")
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        old.insert("a")
        [(row_id, error)] = (await shop.state()).refused
        assert (row_id, error) == ("1", "the row is still owed after done=: it would be dispatched again")
        assert await shop.cut_over() == 1
        old.insert("b")
        state = await shop.state()
    assert old.events() == []
    assert (state.owed, state.brought, [row for row, _ in state.refused]) == (2, 0, ["2", "1"])


async def test_nobody_else_may_take_a_row(old: Old, database: str) -> None:
    """The function publishes with the rights of the owner. A trigger needs no right to it."""
    shop = Shop(database)
    async with shop.app:
        await shop.app.migrate()
        await shop.start()
        await shop.cut_over()
    with psycopg.connect(database, autocommit=True) as conn:
        found = conn.execute(
            """select p.proname from pg_proc as p, lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
               where p.pronamespace = 'outrider'::regnamespace and p.prosecdef and a.grantee = 0"""
        ).fetchall()
        assert found == []
        conn.execute("create role takeover_web; grant insert on orders_outbox to takeover_web; set role takeover_web")
        try:
            conn.execute(INSERT, ["a", "a"])
        finally:
            conn.execute("reset role; drop owned by takeover_web; drop role takeover_web")
    assert [key for key, *_ in old.events()] == ["a"]
