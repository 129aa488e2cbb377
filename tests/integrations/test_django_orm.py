"""`@orm`: what a handler does through Django's ORM is part of the handler's transaction, and Django cannot end that."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    close_old_connections,
    connection,
    connections,
    transaction,
)
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from tests.integrations.django_project.here import changed, pointed_at
from tests.integrations.django_project.models import Customer, Invoice

from outrider import Backoff, Event, Outrider, SyncHandlerContext
from outrider.errors import ConfigError, DeclarationError, SwallowedError
from outrider.integrations.django import orm
from outrider.postgres.orm_transaction import BorrowedSession
from outrider.testing import drain_sync
from outrider.worker.drain import Drained

pytestmark = pytest.mark.verify

TABLES = (Customer, Invoice)
LATER = Backoff.table("1h")


class Ordered(Event, type="django.ordered", key="order_id"):
    order_id: str


class Booked(Event, type="django.booked"):
    order_id: str


def create_tables() -> None:
    with connection.schema_editor() as editor:
        for model in TABLES:
            editor.create_model(model)


@pytest.fixture
def here(database: str) -> Iterator[str]:
    with pointed_at(database):
        create_tables()
        connection.close()
        yield database


@pytest.fixture
def app(here: str) -> Outrider:
    return Outrider(context="books", dsn=here)


async def published(app: Outrider, *orders: str, **options: Any) -> Drained:
    async with app:
        await app.migrate()
        async with app.connect() as conn, conn.transaction():
            await app.publish_many(conn, [Ordered(order_id=each) for each in orders])
        return await app.drain(**options)


def rows(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        found = conn.execute(query.encode()).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


def invoices(dsn: str) -> list[str]:
    return rows(dsn, "select order_id from django_project_invoice order by order_id")


def receipts(dsn: str) -> int:
    return len(rows(dsn, "select 1 from outrider.event_handled"))


def failures(dsn: str) -> list[Any]:
    return rows(dsn, "select status, last_error_code, last_error from outrider.delivery order by seq")


def bill(event: Ordered) -> None:
    Invoice.objects.create(order_id=event.order_id)


# What belongs together


async def test_effects_commit_with_the_receipts(app: Outrider, here: str) -> None:
    app.handler(Ordered, name="books.bill")(orm(bill))
    assert (await published(app, "1", "2", raise_on_failure=True)).handled == 2
    assert (invoices(here), receipts(here)) == (["1", "2"], 2)


async def test_an_error_leaves_neither(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.fail", retry=LATER)
    @orm
    def fail(event: Ordered) -> None:
        bill(event)
        raise ValueError("after the effect")

    assert (await published(app, "1")).to_retry == 1
    assert (invoices(here), receipts(here)) == ([], 0)


async def test_every_kind_of_blocking_handler(app: Outrider, here: str) -> None:
    seen: list[Any] = []

    @app.handler(Ordered, name="books.alone")
    @orm
    def alone(event: Ordered) -> None:
        seen.append((event.order_id, connection.in_atomic_block))

    @app.handler(Ordered, name="books.both")
    @orm(using="default")
    def both(event: Ordered, ctx: SyncHandlerContext) -> None:
        seen.append((event.order_id, ctx.attempt))

    @app.handler(Ordered, name="books.batch")
    @orm
    def batch(events: list[Ordered], ctx: SyncHandlerContext) -> None:
        seen.append(("+".join(event.order_id for event in events), len(ctx.envelopes)))

    @app.handler(Ordered, name="books.bare_batch")
    @orm
    def bare_batch(events: list[Ordered]) -> None:
        seen.append(("&".join(event.order_id for event in events), len(events)))

    @app.handler(Ordered, name="books.option")
    @orm
    def option(event: Ordered, *, shown: bool = True) -> None:
        seen.append((event.order_id, connection.in_atomic_block, shown))

    class Book:
        def __call__(self, events: list[Ordered]) -> None:
            seen.append(("|".join(event.order_id for event in events), len(events)))

    app.handler(Ordered, name="books.callable")(orm(Book()))
    assert (await published(app, "1", "2", raise_on_failure=True)).handled == 12
    one_by_one = [("1", True, True), ("2", True, True), ("1", True), ("2", True), ("1", 1), ("2", 1)]
    assert sorted(seen, key=str) == sorted([*one_by_one, ("1+2", 2), ("1&2", 2), ("1|2", 2)], key=str)


def test_a_decorated_handler_keeps_its_name_and_annotations() -> None:
    decorated = orm(bill)
    assert (decorated.__name__, list(inspect.signature(decorated).parameters)) == ("bill", ["event", "ctx"])
    assert inspect.get_annotations(decorated, eval_str=True, globals=globals())["event"] is Ordered


def test_called_by_hand_it_is_a_plain_function(here: str) -> None:
    orm(bill)(Ordered(order_id="1"))
    assert invoices(here) == ["1"]


async def test_ctx_tx_and_the_orm_are_the_same_transaction_with_their_own_types(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.both")
    @orm
    def both(event: Ordered, ctx: SyncHandlerContext) -> None:
        Invoice.objects.create(order_id=event.order_id, details={"lines": [1, "ü"]})
        row = ctx.tx.execute(
            "select details from django_project_invoice where order_id = %s", [event.order_id]
        ).fetchone()
        assert row == ({"lines": [1, "ü"]},)
        ctx.tx.execute("update django_project_invoice set order_id = 'renamed'")
        assert Invoice.objects.get().details == {"lines": [1, "ü"]}

    await published(app, "1", raise_on_failure=True)
    assert invoices(here) == ["renamed"]


@pytest.mark.parametrize("notify", ["commit", "after_commit", "off"])
async def test_a_handler_publishes_on_djangos_connection(here: str, notify: Any) -> None:
    app = Outrider(context="books", dsn=here, notify=notify)

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        app.publish_sync(connection, Booked(order_id=event.order_id))
        with transaction.atomic():
            app.publish_sync(connection, Booked(order_id=event.order_id))
            transaction.set_rollback(True)

    await published(app, "1", raise_on_failure=True)
    assert rows(here, "select payload->>'order_id' from outrider.outbox where event_type = 'django.booked'") == ["1"]


# Blocks inside a handler


async def test_an_inner_block_is_a_savepoint(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        with pytest.raises(IntegrityError), transaction.atomic():
            bill(event)
        with transaction.atomic(), transaction.atomic():
            Invoice.objects.create(order_id=f"{event.order_id} again")
        with transaction.atomic():
            Invoice.objects.create(order_id="undone")
            transaction.set_rollback(True)

    await published(app, "1", "2", raise_on_failure=True)
    assert invoices(here) == ["1", "1 again", "2", "2 again"]


def swallow(event: Ordered) -> None:
    bill(event)
    with suppress(IntegrityError):
        bill(event)


def swallow_below_the_orm(event: Ordered) -> None:
    bill(event)
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("select 1 / 0")


def swallow_without_a_savepoint(event: Ordered) -> None:
    with suppress(KeyError), transaction.atomic(savepoint=False):
        bill(event)
        raise KeyError


def mark(event: Ordered) -> None:
    bill(event)
    transaction.set_rollback(True)


@pytest.mark.parametrize(
    ("function", "status", "code"),
    [
        (swallow, "failed", "23505"),
        (swallow_below_the_orm, "pending", "22012"),
        (swallow_without_a_savepoint, "pending", "swallowed_error"),
        (mark, "pending", "swallowed_error"),
    ],
)
async def test_what_is_broken_or_marked_is_not_committed(
    app: Outrider, here: str, function: Callable[[Ordered], None], status: str, code: str
) -> None:
    app.handler(Ordered, name="books.failing", retry=LATER)(orm(function))
    await published(app, "1")
    assert (invoices(here), receipts(here)) == ([], 0)
    [(found_status, found_code, said)] = failures(here)
    assert (found_status, found_code) == (status, code)
    assert "with transaction.atomic():" in said


async def test_a_violation_that_shows_at_the_commit_is_found_alone(app: Outrider, here: str) -> None:
    """Django's foreign keys are checked when the transaction commits: by then it holds a whole batch."""

    @app.handler(Ordered, name="books.book", order="none")
    @orm
    def book(event: Ordered) -> None:
        Invoice.objects.create(order_id=event.order_id, customer_id=404 if event.order_id == "3" else None)

    drained = await published(app, "1", "2", "3", "4")
    assert (drained.handled, drained.buried) == (3, 1)
    assert (invoices(here), receipts(here)) == (["1", "2", "4"], 3)
    assert [code for _, code, _ in failures(here)] == ["23503"]


# What would end the transaction


def durable() -> None:
    with transaction.atomic(durable=True):
        raise AssertionError("not durable")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "close": (lambda: connection.close(), "do not close it"),
    "close_all": (connections.close_all, "do not close it"),
    "connect": (lambda: connection.connect(), "cannot be reopened"),
    "commit": (transaction.commit, "forbidden when an 'atomic' block"),
    "rollback": (transaction.rollback, "forbidden when an 'atomic' block"),
    "autocommit": (lambda: transaction.set_autocommit(True), "forbidden when an 'atomic' block"),
    "durable": (durable, "durable atomic block cannot be nested"),
    "on_commit": (lambda: transaction.on_commit(print), "Publish an event instead"),
    "robust_on_commit": (lambda: transaction.on_commit(print, robust=True), "Publish an event instead"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_handler_cannot_end_its_transaction(app: Outrider, here: str, name: str) -> None:
    act, said = REFUSED[name]

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        with pytest.raises((TransactionManagementError, RuntimeError), match=said):
            act()

    assert (await published(app, "1", "2", raise_on_failure=True)).handled == 2
    assert invoices(here) == ["1", "2"]


async def test_a_handler_that_does_not_catch_it_fails(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        transaction.on_commit(print)

    with pytest.raises(TransactionManagementError, match="Publish an event instead"):
        await published(app, "1", raise_on_failure=True)
    assert invoices(here) == []


async def test_old_connections_are_closed_without_harm(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        close_old_connections()
        bill(event)
        close_old_connections()
        assert Invoice.objects.filter(order_id=event.order_id).exists()

    await published(app, "1", "2", raise_on_failure=True)
    assert invoices(here) == ["1", "2"]


def test_nothing_can_be_done_afterwards(here: str) -> None:
    app = Outrider(context="books")
    kept: list[Any] = []

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        kept.append(connections["default"])

    with transaction.atomic():
        app.publish_sync(connection, Ordered(order_id="1"))
        drain_sync(app, connection.connection)
        with pytest.raises(InterfaceError, match="after its handler had returned"):
            kept[0].cursor()
        transaction.set_rollback(True)


# What Django expects of a connection


@pytest.mark.parametrize("options", [{}, {"server_side_binding": True}, {"prepare_threshold": 0}, {"pool": True}])
async def test_large_results_and_many_statements(app: Outrider, here: str, options: dict[str, Any]) -> None:
    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        Invoice.objects.bulk_create(Invoice(order_id=f"{event.order_id}-{n}") for n in range(50))
        assert len(list(Invoice.objects.iterator(chunk_size=7))) >= 50
        next(Invoice.objects.iterator(chunk_size=7))  # its cursor stays open until the transaction ends
        for n in range(10):
            assert Invoice.objects.filter(order_id=f"{event.order_id}-{n}").count() == 1

    with pointed_at(here, **options):
        await published(app, *"1234", raise_on_failure=True)
    assert len(invoices(here)) == 200


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_times_are_djangos(
    app: Outrider, here: str, aware: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's zone is Django's until the transaction ends; it is set only where it is another."""
    zone = "UTC" if aware else "America/Chicago"
    with psycopg.connect(here, autocommit=True) as conn:
        server_zone = "Asia/Kathmandu" if elsewhere else zone
        conn.execute(f"alter database {conn.info.dbname} set timezone to '{server_zone}'".encode())
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    given = noon if aware else noon.replace(tzinfo=None)
    zones: list[str] = []

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        Invoice.objects.create(order_id=event.order_id, at=given)
        assert Invoice.objects.get(order_id=event.order_id).at == given
        assert Invoice.objects.filter(at__hour=12, order_id=event.order_id).exists()
        with connection.cursor() as cursor:
            cursor.execute("show timezone")
            zones.extend(cursor.fetchone() or ())

    asked: list[Any] = []
    execute = BorrowedSession.execute

    def watched(session: BorrowedSession, *args: Any) -> Any:
        asked.append(args)
        return execute(session, *args)

    monkeypatch.setattr(BorrowedSession, "execute", watched)
    with changed(USE_TZ=aware, TIME_ZONE=zone):
        await published(app, "1", "2", "3", raise_on_failure=True)
    assert zones == [zone] * 3
    assert len(asked) == (1 if elsewhere else 0)
    stored = rows(here, "select distinct at from django_project_invoice")
    assert [each.astimezone(UTC) for each in stored] == [noon if aware else noon.replace(hour=17)]


async def test_receivers_of_new_connections_are_told(app: Outrider, here: str) -> None:
    """They teach a connection types, or settings; in a handler too."""

    def teach(connection: Any, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set local app.taught = 'yes'")

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        with connection.cursor() as cursor:
            cursor.execute("show app.taught")
            assert cursor.fetchone() == ("yes",)

    connection_created.connect(teach)
    try:
        assert (await published(app, "1", raise_on_failure=True)).handled == 1
    finally:
        connection_created.disconnect(teach)


async def test_another_alias_is_a_connection_of_its_own_and_closed_again(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.book", retry=LATER)
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        Customer.objects.using("aside").create(name="stays")
        raise ValueError

    with pointed_at(here, alias="aside"):
        await published(app, "1")
    assert (invoices(here), rows(here, "select name from django_project_customer")) == ([], ["stays"])


async def test_one_decorated_function_calls_another(app: Outrider, here: str) -> None:
    inner = orm(bill)

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered, ctx: SyncHandlerContext) -> None:
        inner(event, ctx)  # type: ignore[call-arg]
        bill(Ordered(order_id=f"{event.order_id} too"))

    await published(app, "1", raise_on_failure=True)
    assert invoices(here) == ["1", "1 too"]


# Trouble that is not the handler's


async def test_a_conflict_with_others_uses_no_attempt(app: Outrider, here: str) -> None:
    calls: list[int] = []

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered, ctx: SyncHandlerContext) -> None:
        bill(event)
        calls.append(ctx.attempt)
        if len(calls) == 1:
            with connection.cursor() as cursor:
                cursor.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")

    await published(app, "1")
    assert (calls, invoices(here), failures(here)) == ([1, 1], ["1"], [])


async def test_a_lost_session_uses_no_attempt(app: Outrider, here: str) -> None:
    calls: list[int] = []

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered, ctx: SyncHandlerContext) -> None:
        bill(event)
        calls.append(ctx.attempt)
        if len(calls) == 1:
            with psycopg.connect(here, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s)", [ctx.tx.info.backend_pid])
            list(Invoice.objects.all())

    await published(app, "1")
    assert (calls, invoices(here), failures(here)) == ([1, 1], ["1"], [])


async def test_a_handler_that_takes_too_long_is_cut_off(app: Outrider, here: str) -> None:
    @app.handler(Ordered, name="books.book", timeout="200ms", retry=LATER)
    @orm
    def book(event: Ordered) -> None:
        bill(event)
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")

    await published(app, "1")
    assert (invoices(here), [code for _, code, _ in failures(here)]) == ([], ["timeout"])


# In a test's own transaction


def test_drain_sync_in_a_test_transaction(here: str) -> None:
    app = Outrider(context="books")

    @app.handler(Ordered, name="books.book")
    @orm
    def book(event: Ordered) -> None:
        with transaction.atomic():
            bill(event)
        app.publish_sync(connection, Booked(order_id=event.order_id))

    @app.handler(Booked, name="books.check")
    @orm
    def check(event: Booked) -> None:
        assert Invoice.objects.get().order_id == event.order_id

    with transaction.atomic():
        usual = connections["default"]
        with transaction.atomic():
            app.publish_sync(connection, Ordered(order_id="1"))
        with CaptureQueriesContext(connection) as queries:
            assert drain_sync(app, connection.connection).handled == 2
        assert [each for each in queries.captured_queries if "django_project_invoice" in each["sql"]]
        assert connections["default"] is usual
        assert Invoice.objects.count() == 1
        with transaction.atomic():
            Invoice.objects.create(order_id="2")
        transaction.set_rollback(True)
    assert (invoices(here), receipts(here)) == ([], 0)


def test_an_error_in_drain_sync_gives_the_usual_connection_back(here: str) -> None:
    app = Outrider(context="books")
    app.handler(Ordered, name="books.mark")(orm(mark))
    with transaction.atomic():
        usual = connections["default"]
        app.publish_sync(connection, Ordered(order_id="1"))
        with pytest.raises(SwallowedError):
            drain_sync(app, connection.connection)
        assert connections["default"] is usual
        assert Invoice.objects.count() == 0
    assert invoices(here) == []


# What cannot work


def test_async_handlers_are_refused() -> None:
    with pytest.raises(DeclarationError, match="write `def` instead of `async def`"):

        @orm
        async def book(event: Ordered) -> None: ...


def test_above_the_handler_it_is_refused() -> None:
    """Then the worker would call the bare function, which commits on its own."""
    with pytest.raises(DeclarationError, match=r"@orm stands above @app\.handler"):

        @orm
        @Outrider(dsn="x").handler(Ordered, name="books.invoice")
        def invoice(event: Ordered) -> None: ...


def test_a_handler_with_a_yield_is_refused() -> None:
    with pytest.raises(DeclarationError, match="remove the yield"):

        @orm
        def book(event: Ordered) -> Iterator[None]:
            yield


def test_a_handler_takes_an_event() -> None:
    with pytest.raises(DeclarationError, match=r"a handler takes \(event, ctx\) or \(event\), not \(\)"):

        @orm
        def book() -> None: ...


def test_the_alias_is_given_by_name() -> None:
    with pytest.raises(DeclarationError, match=r"write @orm\(using='other'\)"):
        orm("other")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("using", "options", "said"),
    [
        ("lite", {}, "DATABASES\\['lite'\\] is sqlite"),
        ("template", {}, "and DATABASES\\['template'\\] is 'template1'"),
        ("default", {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE}, "handlers run at READ COMMITTED"),
        ("default", {"assume_role": "somebody"}, "has assume_role"),
    ],
)
async def test_unsuitable_settings_are_named(
    app: Outrider, here: str, server: str, using: str, options: dict[str, Any], said: str
) -> None:
    app.handler(Ordered, name="books.bill")(orm(using=using)(bill))
    elsewhere = psycopg.conninfo.make_conninfo(server, dbname="template1")
    with (
        pointed_at(here, **options),
        pointed_at(elsewhere, alias="template"),
        pytest.raises(ConfigError, match=said),
    ):
        await published(app, "1", raise_on_failure=True)
    assert invoices(here) == []


async def test_read_committed_may_be_asked_for(app: Outrider, here: str) -> None:
    app.handler(Ordered, name="books.bill")(orm(bill))
    with pointed_at(here, isolation_level=psycopg.IsolationLevel.READ_COMMITTED):
        assert (await published(app, "1", raise_on_failure=True)).handled == 1
