"""Publishing on Django's connections: the exercise of all drivers, atomic blocks, and pokes after the commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar, Unpack

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.db import DatabaseError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from tests.integrations.django_project.here import changed, forget, pointed_at
from tests.integrations.harness import count

from outrider import Envelope, Event, Outrider
from outrider.errors import NoTransaction, SchemaMismatch
from outrider.integrations.django import DRIVER
from outrider.postgres.notifier import Notifier
from outrider.publish import PublishOptions
from outrider.testing import exercise
from outrider.testing.cases import Placed

pytestmark = pytest.mark.verify

T = TypeVar("T")


class DjangoHarness:
    """Django's connections belong to a thread, and refuse an event loop in it: all that it does, it does in one."""

    app: Outrider
    reader: Any

    def __init__(self, conn: Callable[[], Any]) -> None:
        self._conn = conn
        self._thread = ThreadPoolExecutor(1)
        self._blocks: list[Any] = []

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, copy_context().run, work, *args)

    async def publish(self, event: Event, **options: Unpack[PublishOptions]) -> Envelope:
        return await self.do(lambda: self.app.publish_sync(self._conn(), event, **options))

    async def publish_many(self, events: Sequence[Event | Envelope]) -> list[Envelope]:
        return await self.do(lambda: self.app.publish_many_sync(self._conn(), events))

    def _enter(self) -> None:
        self._blocks.append(transaction.atomic())
        self._blocks[-1].__enter__()

    def _leave(self, undo: bool) -> None:
        if undo:
            transaction.set_rollback(True)
        self._blocks.pop().__exit__(None, None, None)

    async def begin(self) -> None:
        await self.do(self._enter)

    async def commit(self) -> None:
        await self.do(self._leave, False)

    async def rollback(self) -> None:
        await self.do(self._leave, True)

    savepoint = begin
    rollback_to_savepoint = rollback

    def _ask(self) -> object:
        with connection.cursor() as cursor:
            cursor.execute("select 42")
            row = cursor.fetchone()
            return row[0] if row else None

    async def answer(self) -> object:
        return await self.do(self._ask)

    async def close(self) -> None:
        await self.do(forget)
        self._thread.shutdown()


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], Any]]] = {
    "client_side_binding": ({}, {}, lambda: connection),
    "server_side_binding": ({"DEBUG": True}, {"server_side_binding": True}, lambda: connection),
    "naive": ({"USE_TZ": False, "TIME_ZONE": "America/Chicago"}, {}, lambda: connections["default"]),
}


@asynccontextmanager
async def opened(kind: str, dsn: str) -> AsyncIterator[DjangoHarness]:
    values, options, conn = KINDS[kind]
    app = Outrider(context=exercise.CONTEXT, dsn=dsn)
    reader = app.reader(name="exercise.everything")
    with ExitStack() as stack:
        stack.enter_context(changed(**values))
        stack.enter_context(pointed_at(dsn, **options))
        harness = DjangoHarness(conn)
        async with app:
            await app.migrate()
            harness.app, harness.reader = app, reader
            await exercise.read(harness)
            try:
                yield harness
            finally:
                await harness.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_exercise(kind: str, database: str) -> None:
    async with opened(kind, database) as harness:
        await exercise.run(harness)


# Blocking code, as Django's is

PLACED = Placed(order_id="1")


@pytest.fixture
def here(database: str) -> Iterator[str]:
    with pointed_at(database):
        yield database


@pytest.fixture
def app() -> Outrider:
    return Outrider(context="shop")


def test_an_event_commits_with_its_atomic_block(app: Outrider, here: str) -> None:
    with transaction.atomic():
        app.publish_sync(connection, PLACED)
        assert count(here) == 0
    assert count(here) == 1
    with suppress(ZeroDivisionError), transaction.atomic():
        app.publish_many_sync(connection, [PLACED, PLACED])
        _ = 1 / 0
    assert count(here) == 1


def test_an_inner_block_takes_its_events_with_it(app: Outrider, here: str) -> None:
    with transaction.atomic():
        app.publish_sync(connection, PLACED)
        with suppress(ZeroDivisionError), transaction.atomic():
            app.publish_sync(connection, PLACED)
            _ = 1 / 0
        with transaction.atomic():
            app.publish_sync(connection, PLACED)
    assert count(here) == 2


@pytest.mark.parametrize("published", ["publish_sync", "publish_many_sync"])
def test_outside_an_atomic_block_it_is_refused(app: Outrider, here: str, published: str) -> None:
    event: Any = PLACED if published == "publish_sync" else [PLACED]
    with pytest.raises(NoTransaction, match=r"with transaction.atomic\(\):"):
        getattr(app, published)(connection, event)
    assert count(here) == 0


def test_a_broken_block_is_refused_as_django_does(app: Outrider, here: str) -> None:
    """Whatever broke it: a missing table of the caller is not our missing schema."""
    with transaction.atomic():
        with pytest.raises(DatabaseError), transaction.atomic(savepoint=False), connection.cursor() as cursor:
            cursor.execute("select 1 from nowhere")
        with pytest.raises(TransactionManagementError, match="You can't execute queries"):
            app.publish_sync(connection, PLACED)
        transaction.set_rollback(True)
    assert count(here) == 0


def test_other_databases_are_refused(app: Outrider, here: str) -> None:
    with pytest.raises(TypeError, match="is to sqlite, but the log is in Postgres"):
        app.publish_sync(connections["lite"], PLACED)
    with pytest.raises(TypeError, match="is to no database"):
        app.publish_sync(cache, PLACED)


async def test_the_async_verb_names_the_other(app: Outrider) -> None:
    with pytest.raises(TypeError, match="this is a Django connection: use publish_sync"):
        await app.publish(connection, PLACED)


def test_a_missing_schema_is_named(app: Outrider, empty_database: str) -> None:
    with pointed_at(empty_database), pytest.raises(SchemaMismatch, match="not installed here"), transaction.atomic():
        app.publish_sync(connection, PLACED)


def test_another_schema(here: str) -> None:
    app = Outrider(context="shop", schema="events", dsn=here)

    async def migrate() -> None:
        async with app:
            await app.migrate()

    asyncio.run(migrate())
    with transaction.atomic():
        app.publish_many_sync(connection, [PLACED, PLACED])
    assert (count(here, "events.outbox"), count(here)) == (2, 0)


def test_what_watches_djangos_queries_sees_it(app: Outrider, here: str) -> None:
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with CaptureQueriesContext(connection) as logged, connection.execute_wrapper(watch), transaction.atomic():
        app.publish_sync(connection, PLACED)
    assert len(seen) == 1
    assert [query for query in logged.captured_queries if "exercise.placed" in query["sql"]]


async def test_in_async_code_it_goes_where_the_orm_goes(app: Outrider, here: str) -> None:
    def place() -> None:
        with transaction.atomic():
            app.publish_sync(connection, PLACED)

    await sync_to_async(place)()
    await sync_to_async(forget)()
    assert count(here) == 1


# Pokes


class Sent(Notifier):
    def __init__(self) -> None:
        self.pokes: list[Any] = []

    def notify(self, pokes: Any) -> None:
        self.pokes.append(set(pokes))


@pytest.fixture
def poking(monkeypatch: pytest.MonkeyPatch) -> tuple[Outrider, list[Any]]:
    app, sent = Outrider(context="shop", notify="after_commit"), Sent()
    monkeypatch.setattr(app._publisher, "_notifier", sent)
    return app, sent.pokes


POKE = {("outbox_default", "exercise.placed")}


def test_a_poke_comes_after_the_commit(poking: tuple[Outrider, list[Any]], here: str) -> None:
    app, pokes = poking
    with transaction.atomic():
        app.publish_sync(connection, PLACED)
        with transaction.atomic():
            app.publish_many_sync(connection, [PLACED, PLACED])
        assert pokes == []
    assert pokes == [POKE, POKE]


def test_no_poke_comes_after_a_rollback(poking: tuple[Outrider, list[Any]], here: str) -> None:
    app, pokes = poking
    with transaction.atomic():
        app.publish_sync(connection, PLACED)
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            app.publish_sync(connection, PLACED)
            transaction.set_rollback(True)
        assert pokes == []
    with transaction.atomic():
        pass
    assert pokes == []


def test_an_error_of_a_poke_does_not_reach_the_caller(
    poking: tuple[Outrider, list[Any]], here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = poking

    def fail(*_: object) -> None:
        raise OSError("no thread")

    monkeypatch.setattr(Sent, "notify", fail)
    with transaction.atomic():
        app.publish_sync(connection, PLACED)
    assert count(here) == 1


def test_the_pokes_of_a_process_are_coalesced_and_heard(here: str) -> None:
    app = Outrider(context="shop", notify="after_commit", dsn=here)
    with psycopg.connect(here, autocommit=True) as ear:
        ear.execute("listen outbox_default")
        with transaction.atomic():
            for _ in range(200):
                app.publish_sync(connection, PLACED)
            assert threading.current_thread().name != "outrider-notify"
        heard = next(ear.notifies(timeout=60, stop_after=1))
        app._notifier.close()
        assert (heard.payload, app._notifier.sent < 20) == ("exercise.placed", True)


def test_the_driver_is_blocking_only() -> None:
    assert (DRIVER.run, DRIVER.run_sync is None) == (None, False)
