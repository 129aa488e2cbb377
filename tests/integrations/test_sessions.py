"""Handlers that take a Session or an AsyncSession: it works on their transaction, and cannot end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from sqlalchemy import Identity, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.integrations.harness import url
from tests.worker.shop import SOON, Cancelled, Placed, Shop, opened

from outrider import HandlerContext, Outrider, SyncHandlerContext
from outrider.errors import DeclarationError
from outrider.testing import assert_published_in, assert_published_in_sync, drain, drain_sync

pytestmark = pytest.mark.verify


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    handler: Mapped[str]
    name: Mapped[str]


def effect(event: Placed) -> Effect:
    return Effect(handler="orm", name=f"{event.customer}{event.n}")


class OwnSession(AsyncSession):
    pass


class Repository:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def __call__(self, event: Placed) -> None:
        self.session.add(effect(event))


async def plain(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))


async def with_context(event: Placed, ctx: HandlerContext, session: OwnSession) -> None:
    assert ctx.envelope.key == event.customer
    assert type(session) is OwnSession
    session.add(effect(event))


async def session_first_of_two(event: Placed, session: AsyncSession, ctx: HandlerContext) -> None:
    assert ctx.envelope.key == event.customer
    session.add(effect(event))


async def by_keyword(event: Placed, *, session: AsyncSession) -> None:
    session.add(effect(event))


async def in_begin(event: Placed, session: AsyncSession) -> None:
    async with session.begin():
        session.add(effect(event))


async def committing(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    await session.commit()
    assert (await session.scalars(select(Effect.name))).all()


async def batch(events: list[Placed], session: AsyncSession) -> None:
    session.add_all([effect(event) for event in events])


def blocking(event: Placed, session: Session) -> None:
    session.add(effect(event))


def blocking_batch(events: list[Placed], ctx: SyncHandlerContext, session: Session) -> None:
    assert len(ctx.envelopes) == len(events)
    session.add_all([effect(event) for event in events])
    session.commit()


KINDS: list[Callable[..., Any]] = [
    plain, with_context, session_first_of_two, by_keyword, in_begin, committing, batch, blocking, blocking_batch
]  # fmt: skip


@asynccontextmanager
async def shop_with(dsn: str, handler: Callable[..., Any]) -> AsyncIterator[Shop]:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.orm", retry=SOON)(handler)

    async with opened(dsn, declare) as shop:
        yield shop


@pytest.mark.parametrize("handler", KINDS, ids=lambda each: each.__name__)
async def test_what_a_session_holds_is_written_with_the_receipt(database: str, handler: Callable[..., Any]) -> None:
    async with shop_with(database, handler) as shop:
        await shop.publish("a1", "b1", "a2")
        drained = await shop.app.drain(raise_on_failure=True)
        assert drained.handled == 3
        assert sorted(await shop.effects()) == ["a1", "a2", "b1"]
        assert (await shop.app.drain()).handled == 0


async def test_a_factory_may_take_a_session(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.subscribe(Placed, Repository, name="shop.orm")

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain(raise_on_failure=True)
        assert sorted(await shop.effects()) == ["a1", "b1"]


async def commits_then_fails(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    await session.commit()
    if event.n == 2:
        raise RuntimeError("after the commit")


async def rolls_back_and_returns(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    await session.flush()
    if event.n == 2:
        await session.rollback()


def rolls_back_and_returns_blocking(event: Placed, session: Session) -> None:
    session.add(effect(event))
    session.flush()
    if event.n == 2:
        session.rollback()


async def breaks_a_constraint_late(event: Placed, session: AsyncSession) -> None:
    """Only the flush after the handler finds it."""
    session.add(effect(event))
    if event.n == 2:
        session.add(Effect(handler="orm"))


async def swallows_an_error(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    if event.n == 2:
        session.add(Effect(handler="orm"))
        with pytest.raises(IntegrityError):
            await session.flush()


def rolls_back_in_a_thread(event: Placed, session: Session) -> None:
    session.add(effect(event))
    session.flush()
    if event.n == 2:
        with ThreadPoolExecutor(1) as apart:
            apart.submit(session.rollback).result()


async def rolls_back_in_another_context(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    await session.flush()
    if event.n == 2:
        await asyncio.create_task(session.rollback(), context=Context())


async def leaves_a_task_behind(event: Placed, session: AsyncSession) -> None:
    session.add(effect(event))
    await session.flush()
    if event.n == 2:
        lent: Any = (await (await session.connection()).get_raw_connection()).driver_connection
        running = asyncio.create_task(session.execute(text("select pg_sleep(60)")))
        running.add_done_callback(lambda task: task.cancelled() or task.exception())
        while lent.info.transaction_status != TransactionStatus.ACTIVE:  # noqa: ASYNC110 (libpq tells nobody)
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("handler", "code", "status"),
    [
        (rolls_back_in_a_thread, "rolled_back", "pending"),
        (rolls_back_in_another_context, "rolled_back", "pending"),
        (leaves_a_task_behind, "unfinished_error", "pending"),
        (commits_then_fails, "runtime_error", "pending"),
        (rolls_back_and_returns, "rolled_back", "pending"),
        (rolls_back_and_returns_blocking, "rolled_back", "pending"),
        (breaks_a_constraint_late, "23502", "failed"),
        (swallows_an_error, "rolled_back", "pending"),
    ],
)
async def test_a_failure_undoes_what_its_session_wrote(
    database: str, handler: Callable[..., Any], code: str, status: str
) -> None:
    async with shop_with(database, handler) as shop:
        await shop.rows("alter table effect alter column name set not null")
        await shop.publish("a1", "b2", "c3")
        await shop.app.drain()
        assert sorted(await shop.effects()) == ["a1", "c3"]
        parked = await shop.parked()
        assert list(parked) == ["b2"]
        assert parked["b2"]["status"] == status
        assert parked["b2"]["last_error_code"] == code
        assert "'b2'" not in parked["b2"]["last_error"], "the parameters of a statement may be personal"


async def test_a_nested_transaction_may_fail_alone(database: str) -> None:
    async def handler(event: Placed, session: AsyncSession) -> None:
        session.add(effect(event))
        with pytest.raises(IntegrityError):
            async with session.begin_nested():
                session.add(Effect(handler="orm"))

    async with shop_with(database, handler) as shop:
        await shop.rows("alter table effect alter column name set not null")
        await shop.publish("a1")
        assert (await shop.app.drain(raise_on_failure=True)).handled == 1
        assert await shop.effects() == ["a1"]


async def open_nested(event: Placed, session: AsyncSession) -> None:
    await session.begin_nested()
    session.add(effect(event))


def open_nested_blocking(event: Placed, session: Session) -> None:
    session.begin_nested()
    session.begin_nested()
    session.add(effect(event))


@pytest.mark.parametrize("handler", [open_nested, open_nested_blocking])
async def test_a_nested_transaction_that_is_left_open_is_kept(database: str, handler: Callable[..., Any]) -> None:
    """As the session's own commit would."""
    async with shop_with(database, handler) as shop:
        await shop.publish("a1", "b1")
        assert (await shop.app.drain(raise_on_failure=True)).handled == 2
        assert sorted(await shop.effects()) == ["a1", "b1"]


async def test_a_session_that_is_kept_is_dead(database: str) -> None:
    kept: list[AsyncSession] = []

    async def handler(_: Placed, session: AsyncSession) -> None:
        kept.append(session)

    async with shop_with(database, handler) as shop:
        await shop.publish("a1")
        await shop.app.drain(raise_on_failure=True)
        with pytest.raises(Exception, match=r"closed|after its handler had returned"):
            await kept[0].execute(text("select 1"))


async def test_what_a_handler_publishes_through_its_session_commits_with_it(database: str) -> None:
    def declare(shop: Shop) -> None:
        async def cancel(event: Placed, session: AsyncSession) -> None:
            await shop.app.publish(session, Cancelled(customer=event.customer, n=event.n))
            if event.n == 2:
                raise RuntimeError

        async def hear(event: Cancelled, session: AsyncSession) -> None:
            session.add(Effect(handler="orm", name=f"cancelled {event.customer}{event.n}"))

        shop.app.handler(Placed, name="shop.cancel", retry=SOON)(cancel)
        shop.app.handler(Cancelled, name="shop.hear")(hear)

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2")
        await shop.app.drain()
        assert await shop.effects() == ["cancelled a1"]


async def test_in_the_test_kit(database: str) -> None:
    """Handlers with sessions in a transaction that is rolled back."""
    async with (
        shop_with(database, plain) as shop,
        await AsyncConnection.connect(database) as conn,
        conn.transaction(force_rollback=True),
    ):
        await shop.app.publish(conn, Placed(customer="a", n=1))
        await drain(shop.app, conn)
        found = await (await conn.execute("select name from effect")).fetchall()
        assert found == [("a1",)]


async def test_the_test_kit_in_a_session(database: str) -> None:
    engine = create_async_engine(url("psycopg", database))
    async with shop_with(database, plain) as shop, AsyncSession(engine) as session:
        await shop.app.publish(session, Placed(customer="a", n=1))
        await assert_published_in(session, Placed, key="a")
        await drain(shop.app, session)
        assert (await session.scalars(select(Effect.name))).all() == ["a1"]
        await session.rollback()
    await engine.dispose()


async def test_the_test_kit_in_a_blocking_session(database: str) -> None:
    engine = create_engine(url("psycopg", database))
    async with shop_with(database, blocking) as shop:
        with Session(engine) as session:
            shop.app.publish_sync(session, Placed(customer="a", n=1))
            assert_published_in_sync(session, Placed, key="a")
            drain_sync(shop.app, session)
            assert session.scalars(select(Effect.name)).all() == ["a1"]
            session.rollback()
    engine.dispose()


async def test_the_test_kit_needs_psycopg(database: str) -> None:
    engine = create_async_engine(url("asyncpg", database))
    async with shop_with(database, plain) as shop, AsyncSession(engine) as session:
        await shop.app.publish(session, Placed(customer="a", n=1))
        with pytest.raises(TypeError, match=r"not asyncpg: use an engine with postgresql\+psycopg://"):
            await drain(shop.app, session)
    await engine.dispose()


async def test_annotations_that_cannot_be_resolved_count_by_their_text(database: str) -> None:
    handler = plain

    async def unresolved(event: Placed, session: AsyncSession) -> None:
        await handler(event, session)

    unresolved.__annotations__ = {"event": "Nowhere", "session": "AsyncSession"}
    async with shop_with(database, unresolved) as shop:
        await shop.publish("a1")
        await shop.app.drain(raise_on_failure=True)
        assert await shop.effects() == ["a1"]


async def async_with_blocking(event: Placed, session: Session) -> None: ...
def blocking_with_async(event: Placed, session: AsyncSession) -> None: ...
async def too_many(event: Placed, a: int, b: int, session: AsyncSession) -> None: ...
async def alone(session: AsyncSession) -> None: ...
async def optional(event: Placed, session: AsyncSession | None = None) -> None: ...
async def twice(event: Placed, session: AsyncSession, other: AsyncSession) -> None: ...
async def no_context(event: Placed, limit: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (async_with_blocking, "an async handler takes an AsyncSession, not session"),
        (blocking_with_async, "a blocking handler takes a Session, not session"),
        (too_many, r"takes \(event, session\) or \(event, ctx, session\)"),
        (optional, "annotate it as AsyncSession or Session alone"),
        (twice, "asks for two sessions"),
        (no_context, "the second parameter of a handler is its context, not limit: 'int'"),
        (alone, r"takes \(event, session\) or \(event, ctx, session\)"),
    ],
)
def test_declarations_that_cannot_work(handler: Callable[..., Awaitable[None]], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Outrider(dsn="x").handler(Placed, name="shop.orm")(handler)


def test_a_factory_that_takes_a_blocking_session() -> None:
    def factory(session: Session) -> Any: ...

    with pytest.raises(DeclarationError, match="take an AsyncSession"):
        Outrider(dsn="x").subscribe(Placed, factory, name="shop.orm")
