"""Handlers run as the tenant of their event: its workspace, and the role that they ask for. Nothing of it is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import AsyncClientCursor, AsyncConnection, ClientCursor, Connection, Cursor
from psycopg.conninfo import make_conninfo
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.faults.subject import eventually
from tests.proxy import Proxy
from tests.worker.house import SEES, WHO, WRITES, House, built, inhabited
from tests.worker.shop import SOON, Placed

from outrider import Event, HandlerContext, Outrider, SyncHandlerContext
from outrider.envelope import inherited_workspace
from outrider.errors import ConfigError, DeclarationError
from outrider.postgres.lent_transaction import LentSyncSession, lend_sync, take_back
from outrider.postgres.orm_transaction import borrow
from outrider.postgres.psycopg_private import LentCursor
from outrider.postgres.tenant_context import TenantEntry
from outrider.signals import Failed, Signal
from outrider.testing import drain, drain_sync

Seen = list[tuple[int, str | None, str]]
"""(number of the event, workspace, user)"""
MIXED = ("w1", "w2", None, "w1", "w3", None, None, "w2")
AWKWARD = ("w'; select 1; --", "\\'; drop table item; --", "w\n\t\x7f", "zoë 会议室 🏠", "%s {} $1", "E'\\U0041")


@pytest.fixture
def house(database: str) -> Iterator[House]:
    with built(database) as house:
        yield house


class Repository:
    """For app.subscribe."""

    seen: Seen

    def __init__(self, tx: Any) -> None:
        self.tx = tx

    async def __call__(self, event: Placed) -> None:
        self.seen.append((event.n, *await (await self.tx.execute(WHO)).fetchone()))


def declare_kind(app: Outrider, kind: str, seen: Seen, **options: Any) -> None:
    """A handler of one kind that tells as whom it runs."""

    async def in_async(event: Placed, ctx: HandlerContext) -> None:
        seen.append((event.n, *await one(ctx.tx)))

    def blocking(event: Placed, ctx: SyncHandlerContext) -> None:
        seen.append((event.n, *(ctx.tx.execute(WHO).fetchone() or ())))

    async def batch(events: list[Placed], ctx: HandlerContext) -> None:
        who = await one(ctx.tx)
        seen.extend((event.n, *who) for event in events)

    def blocking_batch(events: list[Placed], ctx: SyncHandlerContext) -> None:
        who = ctx.tx.execute(WHO).fetchone() or ()
        seen.extend((event.n, *who) for event in events)

    async def session(event: Placed, session: AsyncSession) -> None:
        seen.append((event.n, *(await session.execute(text(WHO))).one()))

    def blocking_session(event: Placed, session: Session) -> None:
        seen.append((event.n, *session.execute(text(WHO)).one()))

    if kind == "factory":
        app.subscribe(Placed, type("Own", (Repository,), {"seen": seen}), name="house.kind", **options)
    else:
        functions: dict[str, Callable[..., Any]] = {
            "async": in_async, "blocking": blocking, "batch": batch, "blocking batch": blocking_batch,
            "session": session, "blocking session": blocking_session,
        }  # fmt: skip
        app.handler(Placed, name="house.kind", **options)(functions[kind])


KINDS = ["async", "blocking", "batch", "blocking batch", "session", "blocking session", "factory"]


async def one(tx: AsyncConnection[Any], query: str = WHO) -> tuple[Any, ...]:
    row = await (await tx.execute(query)).fetchone()
    assert row is not None
    return tuple(row)


def expected(user: str, workspaces: tuple[str | None, ...] = MIXED) -> Seen:
    return [(n, workspace or "", user) for n, workspace in enumerate(workspaces)]


@pytest.mark.parametrize("limit", [1, 100], ids=["one by one", "one batch"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_handler_runs_in_the_workspace_of_its_event(house: House, kind: str, limit: int) -> None:
    seen: Seen = []
    async with inhabited(house, lambda app: declare_kind(app, kind, seen, limit=limit)) as app:
        await house.publish(app, *MIXED)
        assert (await app.drain(raise_on_failure=True)).handled == len(MIXED)
    assert sorted(seen) == expected(house.worker)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_handler_can_have_a_role(house: House, kind: str) -> None:
    """The tenant's role has no rights in Outrider's own schema: whoever took or settled with it would fail."""
    seen: Seen = []
    async with inhabited(house, lambda app: declare_kind(app, kind, seen, role=house.tenant, limit=3)) as app:
        await house.publish(app, *MIXED)
        assert (await app.drain(raise_on_failure=True)).handled == len(MIXED)
    assert sorted(seen) == expected(house.tenant)


async def test_awkward_names_are_names(house: House) -> None:
    seen: Seen = []
    async with inhabited(house, lambda app: declare_kind(app, "async", seen)) as app:
        await house.publish(app, *AWKWARD)
        await app.drain(raise_on_failure=True)
    assert seen == expected(house.worker, AWKWARD)


async def test_rows_of_others_are_neither_read_nor_written(house: House) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.looks")
        async def looks(event: Placed, ctx: HandlerContext) -> None:
            [found] = await one(ctx.tx, SEES)
            changed = await ctx.tx.execute("update item set name = 'changed'")
            with suppress(psycopg.errors.InsufficientPrivilege):
                async with ctx.tx.transaction():
                    await ctx.tx.execute(WRITES, ["w3", "smuggled"])
                    found += " and wrote"
            seen.append((event.n, found, changed.rowcount))

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", None, "w2", "nobody")
        await app.drain(raise_on_failure=True)
    assert seen == [(0, "w1", 1), (1, "", 0), (2, "w2", 1), (3, "", 0)]
    assert house.rows("select name from item where workspace_id = 'w3'") == [("here before",)]


# The first statement


async def copied(tx: AsyncConnection[Any]) -> Any:
    async with tx.cursor() as cursor, cursor.copy(f"copy ({SEES}) to stdout") as copy:
        return b"".join([bytes(block) async for block in copy]).decode().strip()


async def streamed(tx: AsyncConnection[Any]) -> Any:
    async with tx.cursor() as cursor:
        rows = [row async for row in cursor.stream(SEES)]
        return rows[0][0]


async def in_pipeline(tx: AsyncConnection[Any]) -> Any:
    async with tx.pipeline():
        cursor = await tx.execute(SEES)
    return ((await cursor.fetchone()) or [None])[0]


async def in_savepoint(tx: AsyncConnection[Any]) -> Any:
    """Its rollback must not undo the tenant."""
    with suppress(ZeroDivisionError):
        async with tx.transaction():
            await tx.execute("delete from item")
            raise ZeroDivisionError
    return (await one(tx, SEES))[0]


async def of_the_server(tx: AsyncConnection[Any]) -> Any:
    async with tx.cursor("named") as cursor:
        await cursor.execute(SEES)
        return ((await cursor.fetchone()) or [None])[0]


async def several(tx: AsyncConnection[Any]) -> Any:
    cursor = await tx.execute(f"select 1; {SEES}")
    cursor.nextset()
    return ((await cursor.fetchone()) or [None])[0]


async def many(tx: AsyncConnection[Any]) -> Any:
    async with tx.cursor() as cursor:
        await cursor.executemany(f"{SEES} where name <> %s", [["a"], ["b"]], returning=True)
        return ((await cursor.fetchone()) or [None])[0]


async def large(tx: AsyncConnection[Any]) -> Any:
    """More than fits into the socket: it is sent while answers come back."""
    return await one_of(
        tx, "select string_agg(distinct workspace_id, ',') from item where name <> %s", "x" * 20_000_000
    )


async def large_both_ways(tx: AsyncConnection[Any]) -> Any:
    rows = await (await tx.execute("select workspace_id, %s::text from item", ["x" * 5_000_000])).fetchall()
    assert {len(echo) for _, echo in rows} == {5_000_000}
    return rows[0][0]


async def one_of(tx: AsyncConnection[Any], query: str, *params: Any, **options: Any) -> Any:
    row = await (await tx.execute(query.encode(), params, **options)).fetchone()
    assert row is not None
    return row[0]


async def bound_by_the_client(tx: AsyncConnection[Any]) -> Any:
    cursor = await AsyncClientCursor(tx).execute(f"{SEES} where name <> %s", ["a"])
    return ((await cursor.fetchone()) or [None])[0]


async def from_many_tasks(tx: AsyncConnection[Any]) -> Any:
    found = await asyncio.gather(*(one_of(tx, f"{SEES} where name <> %s", "a") for _ in range(5)))
    assert len(set(found)) == 1
    return found[0]


async def after_its_own_error(tx: AsyncConnection[Any]) -> Any:
    with suppress(psycopg.errors.DivisionByZero):
        async with tx.transaction():
            await tx.execute("select 1 / %s::int", [0])
    return (await one(tx, SEES))[0]


async def after_one_that_cannot_be_sent(tx: AsyncConnection[Any]) -> Any:
    with pytest.raises(psycopg.OperationalError, match="number of parameters"):
        await tx.execute(f"select {', '.join(['%s'] * 70_000)}", [1] * 70_000)
    return (await one(tx, SEES))[0]


FIRST: dict[str, Callable[[AsyncConnection[Any]], Any]] = {
    "plain": lambda tx: one_of(tx, SEES),
    "parameters": lambda tx: one_of(tx, f"{SEES} where name <> %s", "a"),
    "prepared": lambda tx: one_of(tx, f"{SEES} where name <> %s", "a", prepare=True),
    "binary": lambda tx: one_of(tx, f"{SEES} where name <> %s", "a", binary=True),
    "copy": copied, "stream": streamed, "pipeline": in_pipeline, "savepoint": in_savepoint, "server": of_the_server,
    "several": several, "many": many, "large": large, "large both ways": large_both_ways, "client": bound_by_the_client,
    "tasks": from_many_tasks, "error": after_its_own_error, "unsendable": after_one_that_cannot_be_sent,
}  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize("first", FIRST)
async def test_whatever_the_first_statement_is(house: House, first: str) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.first", role=house.tenant)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            seen.append(await FIRST[first](ctx.tx))
            assert await one(ctx.tx) == (ctx.envelope.workspace_id, house.tenant)

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2", "w1", "w3")
        await app.drain(raise_on_failure=True)
    assert seen == ["w1", "w2", "w1", "w3"]


def large_blocking(tx: Connection[Any]) -> Cursor[Any]:
    query = "select string_agg(distinct workspace_id, ',') from item where name <> %s"
    return tx.execute(query, ["x" * 20_000_000])


def piped(tx: Connection[Any]) -> Cursor[Any]:
    with tx.pipeline():
        return tx.execute(SEES)


BLOCKING: dict[str, Callable[[Connection[Any]], Cursor[Any]]] = {
    "plain": lambda tx: tx.execute(SEES),
    "parameters": lambda tx: tx.execute(f"{SEES} where name <> %s", ["a"]),
    "prepared": lambda tx: tx.execute(f"{SEES} where name <> %s", ["a"], prepare=True),
    "large": large_blocking,
    "pipeline": piped,
    "client": lambda tx: ClientCursor(tx).execute(f"{SEES} where name <> %s", ["a"]),
}


@pytest.mark.parametrize("first", BLOCKING)
async def test_whatever_the_first_statement_of_a_blocking_handler_is(house: House, first: str) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.first", role=house.tenant)
        def handle(event: Placed, ctx: SyncHandlerContext) -> None:
            seen.append(BLOCKING[first](ctx.tx).fetchone())
            assert ctx.tx.execute(WHO).fetchone() == (ctx.envelope.workspace_id, house.tenant)

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2", "w1", "w3")
        await app.drain(raise_on_failure=True)
    assert seen == [("w1",), ("w2",), ("w1",), ("w3",)]


async def test_a_statement_that_fails_first_says_why(house: House) -> None:
    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.fails", retry=SOON)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("select 1 / %s::int", [0])

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await app.drain(raise_on_failure=True)


async def test_a_first_statement_that_is_given_up_harms_nobody(house: House) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.impatient", retry=SOON)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            if event.n == 1:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await ctx.tx.execute("select pg_sleep(%s)", [60])
            seen.append((event.n, *await one(ctx.tx, SEES)))

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2", "w3")
        drained = await app.drain()
    assert (drained.handled, drained.to_retry) == (2, 1)
    assert (0, "w1") in seen
    assert (2, "w3") in seen
    assert house.rows("select last_error_code from outrider.delivery") == [("25P02",)]


async def test_the_tenant_travels_with_the_first_statement(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that sends nothing costs nothing; one that sends a statement costs that statement's round trip."""
    monkeypatch.setenv("OUTRIDER_ALLOW_ORPHANS", "1")

    async def trips(sends: int) -> int:
        def declare(app: Outrider) -> None:
            @app.handler(Placed, name=f"house.sends_{sends}")
            async def handle(event: Placed, ctx: HandlerContext) -> None:
                for _ in range(sends):
                    await ctx.tx.execute(WRITES, [ctx.envelope.workspace_id, "x"], prepare=False)

        with Proxy(house.dsn) as proxy:
            async with inhabited(house, declare, dsn=proxy.dsn) as app:
                await house.publish(app, *["w1", "w2"] * 5)
                before = proxy.round_trips
                assert (await app.drain(raise_on_failure=True)).handled == 10
                return proxy.round_trips - before

    nothing, once, twice = await trips(0), await trips(1), await trips(2)
    assert (once - nothing, twice - nothing) == (10, 20)


@pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])
async def test_the_first_event_without_a_tenant_sets_nothing(
    house: House, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by CommandComplete messages: two more for each call that enters a tenant."""
    monkeypatch.setenv("OUTRIDER_ALLOW_ORPHANS", "1")
    seen: list[Any] = []

    async def commands(name: str, *workspaces: str | None) -> int:
        def declare(app: Outrider) -> None:
            async def handle(ctx: HandlerContext) -> None:
                cursor = await ctx.tx.execute("select current_setting('app.workspace_id'), %s", [1], prepare=False)
                seen.append((await cursor.fetchone())[0])  # type: ignore[index]

            if batch:

                @app.handler(Placed, name=name)
                async def all_of_them(events: list[Placed], ctx: HandlerContext) -> None:
                    await handle(ctx)
            else:

                @app.handler(Placed, name=name)
                async def one_of_them(event: Placed, ctx: HandlerContext) -> None:
                    await handle(ctx)

        with Proxy(house.dsn) as proxy:
            async with inhabited(house, declare, dsn=proxy.dsn) as app:
                await house.publish(app, *workspaces)
                before = proxy.messages["C"]
                assert (await app.drain(raise_on_failure=True)).handled == len(workspaces)
                return proxy.messages["C"] - before

    calls = 1 if batch else 6
    without = await commands("house.without", *[None] * 6)
    assert seen == [""] * calls
    seen.clear()
    one_tenant = await commands("house.one_tenant", *[None] * 5, "w1")
    assert sorted(seen) == ([""] * (1 if batch else 5)) + ["w1"]
    assert one_tenant - without == (2 + 1 if batch else 0), "the second call of a batch, and the other five events"


async def test_what_a_handler_sets_itself_does_not_reach_the_next_event(house: House) -> None:
    """Also in a batch in which no event has a workspace."""
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.own")
        async def own(event: Placed, ctx: HandlerContext) -> None:
            cursor = await ctx.tx.execute("select current_setting('app.workspace_id')")
            seen.append((await cursor.fetchone())[0])  # type: ignore[index]
            await ctx.tx.execute("select set_config('app.workspace_id', 'w3', true)")

    async with inhabited(house, declare) as app:
        await house.publish(app, None, None, None)
        await app.drain(raise_on_failure=True)
    assert seen == ["", "", ""]


async def test_a_psycopg_that_sends_in_other_ways_is_found_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LentCursor.__mro__[1], "_maybe_prepare_gen")
    monkeypatch.delattr(LentCursor.__mro__[1], "_execute_send")

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.modern", retry=SOON)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("select %s", [1])

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1")
        with pytest.raises(psycopg.InterfaceError, match="without the tenant"):
            await app.drain(raise_on_failure=True)


# What a handler does to it


HOSTILE = {
    "backslashes": "set standard_conforming_strings = off; set backslash_quote = on",
    "local": "set local app.workspace_id = 'w3'",
    "session": "set app.workspace_id = 'w3'",
    "function": "select set_config('app.workspace_id', 'w3', false)",
    "empty": "set app.workspace_id = ''",
    "reset": "reset app.workspace_id",
    "role": "set role {thief}",
    "local role": "set local role {thief}",
    "reset role": "reset role; set app.workspace_id = 'w3'",
    "both": "set role {thief}; set app.workspace_id = 'w3'",
    "no role": "set role none; set app.workspace_id = 'w3'",
    "kept in a savepoint": "savepoint s; set role {thief}; set app.workspace_id = 'w3'; release s",
    "undone by a savepoint": "savepoint s; set role {thief}; set app.workspace_id = 'w3'; rollback to s",
    "left in a savepoint": "savepoint s; set role {thief}; set app.workspace_id = 'w3'",
    "one savepoint after another": "set role {thief}; savepoint s; set local role none; rollback to s; savepoint t",
    "block": "do $$ begin perform set_config('app.workspace_id', 'w3', false); set role {thief}; end $$",
    "shadow": "set search_path = shadow, pg_catalog, public; set role {thief}; set app.workspace_id = 'w3'",
}
SHADOW = """
create schema shadow;
grant usage on schema shadow to public;
create function shadow.set_config(text, text, boolean) returns text language sql as $$ select 'w3' $$;
"""


@pytest.mark.parametrize("limit", [1, 100], ids=["next batch", "same batch"])
@pytest.mark.parametrize("role", [False, True], ids=["worker", "role"])
async def test_what_a_handler_sets_is_gone_for_the_next_event(house: House, role: bool, limit: int) -> None:
    """Every other event is hostile; its neighbour in the log, and another handler, find only what is their own.

    What does not concern the tenant stays in the session, so the acts add up.
    """
    seen: dict[str, Seen] = {"hostile": [], "neighbour": []}
    options: Any = {"role": house.tenant} if role else {}
    acts = [house.sql(act) for act in HOSTILE.values()]
    witnesses = [(*AWKWARD, None, "w2")[n % (len(AWKWARD) + 2)] for n in range(len(acts))]
    workspaces = tuple(each for witness in witnesses for each in ("w1", witness))
    house.rows(SHADOW)

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.hostile", limit=limit, **options)
        async def hostile(event: Placed, ctx: HandlerContext) -> None:
            seen["hostile"].append((event.n, *await one(ctx.tx)))
            if event.n % 2 == 0:
                await ctx.tx.execute(acts[event.n // 2])

        @app.handler(Placed, name="house.neighbour", limit=limit)
        async def neighbour(event: Placed, ctx: HandlerContext) -> None:
            seen["neighbour"].append((event.n, *await one(ctx.tx)))

    async with inhabited(house, declare) as app:
        await house.publish(app, *workspaces)
        await app.drain(raise_on_failure=True)
    assert seen["hostile"] == expected(house.tenant if role else house.worker, workspaces)
    assert seen["neighbour"] == expected(house.worker, workspaces)


async def test_what_a_handler_sets_in_a_batch_without_tenants_is_gone_for_the_next_batch(house: House) -> None:
    seen: Seen = []
    acts = [house.sql(act) for act in HOSTILE.values()]
    house.rows(SHADOW)

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.hostile", limit=1)
        async def hostile(event: Placed, ctx: HandlerContext) -> None:
            seen.append((event.n, *await one(ctx.tx)))
            await ctx.tx.execute(acts[event.n])

    async with inhabited(house, declare) as app:
        await house.publish(app, *[None] * len(acts))
        await app.drain(raise_on_failure=True)
    assert seen == expected(house.worker, (None,) * len(acts))


async def test_another_encoding_does_not_change_who_the_tenant_is(house: House) -> None:
    seen: Seen = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.latin")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            seen.append((event.n, *await one(ctx.tx)))
            await ctx.tx.execute("set client_encoding = 'latin1'")

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "zoë")
        await app.drain(raise_on_failure=True)
    assert seen == expected(house.worker, ("w1", "zoë"))


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize(
    "act",
    [
        "rollback | set role {thief}; set app.workspace_id = 'w3'; commit | select 1",
        "rollback | set role {thief}; set app.workspace_id = 'w3'; commit",
        "reset all; set role {thief}",
        "set role {thief}; set app.workspace_id = 'w3'; select 1 / 0",
    ],
)
async def test_who_ends_the_transaction_or_breaks_it_leaves_nothing(house: House, act: str, ends: str) -> None:
    """What failed is parked, and the next batch taken, by the worker itself: the thief has no rights there."""
    seen: Seen = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.ends", retry=SOON)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            if event.n == 1:
                with suppress(psycopg.errors.DivisionByZero):
                    for each in act.split("|"):
                        await ctx.tx.execute(house.sql(each))
                if ends == "raises":
                    raise ValueError("after all that")
            seen.append((event.n, *await one(ctx.tx)))

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2", None)
        drained = await app.drain()
    assert (drained.handled, drained.to_retry + drained.buried) == (2, 1)
    assert [each for each in seen if each[0] != 1][-2:] == [(0, "w1", house.worker), (2, "", house.worker)]


@pytest.mark.parametrize(
    "act", ["set session authorization {thief}", "rollback | set session authorization {thief}; commit | select 1"]
)
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_who_shuts_the_next_one_out_is_found(house: House, act: str, ends: str) -> None:
    """A superuser can become somebody who may not go back: its neighbours are not to blame."""
    seen: Seen = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.superuser", retry=SOON)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            seen.append((event.n, *await one(ctx.tx)))
            if event.n == 1:
                for each in act.split("|"):
                    await ctx.tx.execute(house.sql(each))
                if ends == "raises":
                    raise ValueError("after all that")

    async with inhabited(house, declare, dsn=house.owner) as app:
        owner = psycopg.conninfo.conninfo_to_dict(house.owner)["user"]
        await house.publish(app, "w1", "w2", "w3")
        async with app.worker():
            await eventually(house.owner, "select count(*) from outrider.event_handled", 2)
            await eventually(house.owner, "select count(*) from outrider.delivery", 1)
    owed = "select o.payload->>'n', d.attempts from outrider.delivery as d join outrider.outbox as o using (seq)"
    assert house.rows(owed) == [("1", 1)]
    assert [each for each in seen if each[0] != 1][-2:] == [(0, "w1", owner), (2, "w3", owner)]


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "whole batches"])
async def test_a_failed_event_leaves_nothing_for_its_neighbours(house: House, batch: bool) -> None:
    seen: Seen = []

    async def look(events: list[Placed], ctx: HandlerContext) -> None:
        who = await one(ctx.tx)
        seen.extend((event.n, *who) for event in events)
        await ctx.tx.execute(house.sql("set role {thief}; set app.workspace_id = 'w3'"))
        if any(event.n == 1 for event in events):
            raise ValueError("as told")

    def declare(app: Outrider) -> None:
        async def each(event: Placed, ctx: HandlerContext) -> None:
            await look([event], ctx)

        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            await look(events, ctx)

        app.handler(Placed, name="house.fails", retry=SOON, role=house.tenant)(together if batch else each)

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2", "w1", None)
        drained = await app.drain()
    assert (drained.handled, drained.to_retry) == (3, 1)
    assert set(seen) == {*expected(house.tenant, ("w1", "w2", "w1", None))}


async def test_a_connection_of_another_role_goes_back_to_it(house: House) -> None:
    """The session logs in as one user and works as another; a reset between two handlers keeps that."""
    seen: Seen = []

    def declare(app: Outrider) -> None:
        for name in ("house.one", "house.two"):

            @app.handler(Placed, name=name, limit=1)
            async def handle(event: Placed, ctx: HandlerContext) -> None:
                seen.append((event.n, *await one(ctx.tx)))
                await ctx.tx.execute(house.sql("set role {thief}"))

    dsn = make_conninfo(house.owner, options=f"-c role={house.worker}")
    async with inhabited(house, declare, dsn=dsn) as app:
        await house.publish(app, "w1", "w2")
        await app.drain(raise_on_failure=True)
    assert seen == expected(house.worker, ("w1", "w2")) * 2


DEFERRED = """
create table told (who text);
grant insert on told to {worker};
create function tell() returns trigger language plpgsql as $$
begin insert into told values (current_setting('app.workspace_id', true)); return null; end $$;
create constraint trigger tells after insert on item deferrable initially deferred
    for each row execute function tell();
"""


@pytest.mark.parametrize("immediate", [False, True], ids=["deferred", "immediate"])
async def test_what_runs_at_commit_is_of_no_tenant(house: House, immediate: bool) -> None:
    house.rows(DEFERRED)

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.defers")
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute(WRITES, [ctx.envelope.workspace_id, "x"])
            if immediate:
                await ctx.tx.execute("set constraints tells immediate; set constraints tells deferred")

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2")
        await app.drain(raise_on_failure=True)
    assert house.rows("select who from told") == ([("w1",), ("w2",)] if immediate else [("",), ("",)])


# Whole batches


@pytest.mark.parametrize("kind", ["batch", "blocking batch"])
async def test_a_batch_of_several_workspaces_is_one_call_for_each(house: House, kind: str) -> None:
    calls: list[tuple[list[int], list[str | None], Any]] = []

    def note(events: list[Placed], ctx: HandlerContext | SyncHandlerContext, found: Any) -> None:
        calls.append(([event.n for event in events], [each.workspace_id for each in ctx.envelopes], found))

    def declare(app: Outrider) -> None:
        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            note(events, ctx, (await one(ctx.tx, SEES))[0])

        def blocking(events: list[Placed], ctx: SyncHandlerContext) -> None:
            note(events, ctx, (ctx.tx.execute(SEES).fetchone() or [None])[0])

        app.handler(Placed, name="house.together")(together if kind == "batch" else blocking)

    async with inhabited(house, declare) as app:
        await house.publish(app, "w2", None, "w1", "w2", None, "w2")
        assert (await app.drain(raise_on_failure=True)).handled == 6
    assert calls == [
        ([0, 3, 5], ["w2"] * 3, "w2"),
        ([1, 4], [None] * 2, ""),
        ([2], ["w1"], "w1"),
    ]


async def test_the_failure_of_a_call_is_that_of_its_workspace(house: House) -> None:
    failed: list[int] = []
    calls: list[list[int]] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.together", retry=SOON)
        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            calls.append([event.n for event in events])
            if ctx.envelope.workspace_id == "w2":
                raise ValueError("not for w2")

    def hear(signal: Signal) -> None:
        if isinstance(signal, Failed):
            failed.append(signal.envelope.payload["n"])

    async with inhabited(house, declare) as app:
        app.signals.listen(hear)
        await house.publish(app, "w1", "w2", "w1", "w3")
        drained = await app.drain()
    assert (drained.handled, drained.to_retry, failed) == (3, 1, [1])
    assert calls[:2] == [[0, 2], [1]]


# What handlers publish


class Inner(Event, type="house.inner"):
    told: str


async def test_what_a_handler_publishes_is_of_the_same_workspace(house: House) -> None:
    house.rows("grant insert on outrider.outbox to {worker}")

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.publishes")
        async def publishes(event: Placed, ctx: HandlerContext) -> None:
            await app.publish(ctx.tx, Inner(told="inherited"))
            await app.publish(ctx.tx, Inner(told="none"), workspace_id=None)
            await app.publish(ctx.tx, Inner(told="other"), workspace_id="w9")
            await app.publish_many(ctx.tx, [Inner(told="many"), app.envelope(Inner(told="envelope"))])
            await ctx.tx.execute("""select outrider.publish('house.inner', '{"told": "sql"}')""")
            await asyncio.create_task(publish_inside(app, ctx))

        @app.handler(Placed, name="house.blocks")
        def blocks(event: Placed, ctx: SyncHandlerContext) -> None:
            app.publish_sync(ctx.tx, Inner(told="thread"))

        @app.handler(Placed, name="house.together")
        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            await app.publish(ctx.tx, Inner(told="batch"))

    async def publish_inside(app: Outrider, ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, Inner(told="task"))

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", None, "w2")
        await app.drain(raise_on_failure=True)
    found = house.rows(
        """select payload->>'told', array_agg(workspace_id order by seq) from outrider.outbox
           where event_type = 'house.inner' group by 1"""
    )
    own, others = ["w1", None, "w2"], {"none": [None] * 3, "other": ["w9"] * 3}
    named = ("inherited", "many", "envelope", "sql", "task", "thread", "batch")
    assert dict(found) == dict.fromkeys(named, own) | others


async def test_a_worker_that_a_handler_starts_inherits_nothing(house: House) -> None:
    seen: list[Any] = []

    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.inside")
        async def inside(event: Placed, ctx: HandlerContext) -> None:
            seen.append(app.envelope(Inner(told="x")).workspace_id)

    async with inhabited(house, declare) as app:
        await house.publish(app, None, "w1", None)
        token = inherited_workspace.set("w9")  # as in a handler
        await app.drain(raise_on_failure=True)
        assert inherited_workspace.get() == "w9"
        inherited_workspace.reset(token)
    assert seen == [None, "w1", None]


# Roles that cannot be taken


async def nothing(event: Placed, ctx: HandlerContext) -> None:
    await ctx.tx.execute("select 1")


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ("", "is empty"),
        ("none", "leave it out"),
        ("x" * 64, "64 bytes, at most 63"),
        ("a\0b", "cannot store"),
        (7, "int, not str"),
    ],
)
def test_a_role_that_cannot_be_one_is_refused_when_it_is_declared(role: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Outrider(context="house").handler(Placed, name="house.role", role=role)(nothing)


@pytest.mark.parametrize("how", ["worker", "drain"])
async def test_a_role_that_is_not_there_stops_the_worker(house: House, how: str) -> None:
    def declare(app: Outrider) -> None:
        app.handler(Placed, name="house.role", role='no "such" role')(nothing)

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1")
        says = (
            """house.role runs with the role 'no "such" role', which does not exist: create role "no ""such"" role" """
        )
        with pytest.raises(ConfigError, match=says + f'nologin; grant "no ""such"" role" to "{house.worker}"'):
            await (app.worker().run() if how == "worker" else app.drain())
    assert house.rows("select count(*) from outrider.delivery") == [(0,)]


async def test_a_worker_that_is_no_member_is_told_what_to_grant(house: House) -> None:
    seen: Seen = []
    house.rows("revoke {tenant} from {worker}")
    async with inhabited(house, lambda app: declare_kind(app, "async", seen, role=house.tenant)) as app:
        await house.publish(app, "w1")
        with pytest.raises(ConfigError, match=f"the worker's user '{house.worker}' may not take: grant") as refused:
            async with app.worker():
                pass
        house.rows("grant" + str(refused.value).partition("grant")[2])
        async with app.worker():
            pass
    assert seen == [(0, "w1", house.tenant)]


async def test_a_role_taken_away_later_is_a_failure_to_be_tried_again(house: House) -> None:
    def declare(app: Outrider) -> None:
        @app.handler(Placed, name="house.role", role=house.tenant, retry=SOON, limit=1)
        async def handle(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("select %s", [1])
            if event.n == 0:
                house.rows("revoke {tenant} from {worker}")

    async with inhabited(house, declare) as app:
        await house.publish(app, "w1", "w2")
        drained = await app.drain()
    assert (drained.handled, drained.to_retry) == (1, 1)
    [(status, error)] = house.rows("select status, last_error from outrider.delivery")
    assert status == "pending"
    assert f'permission denied to set role "{house.tenant}"' in error


# In tests


@pytest.mark.parametrize("role", [False, True], ids=["its own", "role"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drain_inside_a_test_does_the_same_and_goes_home(house: House, kind: str, role: bool) -> None:
    """The session has become another user meanwhile: RESET ROLE would not be the way home."""
    seen: Seen = []
    app = Outrider(context="house")
    declare_kind(app, kind, seen, **({"role": house.tenant} if role else {}))
    async with await AsyncConnection.connect(house.owner) as conn:
        await conn.execute(house.sql("set role {worker}; set app.workspace_id = 'test'"))
        for n, workspace in enumerate(("w1", None, "w2")):
            await app.publish(conn, Placed(customer="a", n=n), workspace_id=workspace)
        assert (await drain(app, conn)).handled == 3
        assert await one(conn) == ("test", house.worker)
        await conn.rollback()
    assert sorted(seen) == expected(house.tenant if role else house.worker, ("w1", None, "w2"))


def test_a_blocking_drain_inside_a_test_does_the_same(house: House) -> None:
    seen: Seen = []
    app = Outrider(context="house")
    declare_kind(app, "blocking", seen, role=house.tenant)

    @app.handler(Placed, name="house.fails")
    def fails(event: Placed, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(house.sql("set role {thief}; set app.workspace_id = 'w3'"))
        raise ValueError("as told")

    with psycopg.connect(house.owner) as conn:
        app.publish_sync(conn, Placed(customer="a"), workspace_id="w1")
        app.publish_sync(conn, Placed(customer="b", n=1))
        home = conn.execute(WHO).fetchone()
        drained = drain_sync(app, conn, raise_on_failure=False)
        assert (drained.handled, drained.to_retry) == (2, 2)
        assert conn.execute(WHO).fetchone() == (home and ("", home[1]))
        conn.rollback()
    assert seen == expected(house.tenant, ("w1", None))


# For an ORM


def test_a_borrowed_session_enters_once_with_its_lender(house: House) -> None:
    with psycopg.connect(house.dsn) as owner:
        owner.execute("select 1")
        for first in ("lender", "borrower"):
            lent = lend_sync(owner)
            lent.entry = TenantEntry(house.tenant, "w1")
            borrowed = borrow(lent, cursor_factory=Cursor, types=psycopg, prepares=False)  # type: ignore[arg-type]
            order: list[LentSyncSession] = [lent, borrowed] if first == "lender" else [borrowed, lent]
            assert order[0].execute(f"{SEES} where name <> %s", ["a"]).fetchone() == ("w1",)
            order[0].execute("set local app.workspace_id = 'w2'")
            assert order[1].execute(WHO).fetchone() == ("w2", house.tenant)
            take_back(borrowed)
            take_back(lent)
        owner.rollback()
