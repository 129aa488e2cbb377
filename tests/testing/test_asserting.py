"""assert_published and its forms on a connection; what they say when they fail."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.testing.orders import OrderPlaced, OrderShipped, PlacedElsewhere, order

from outrider import Outrider
from outrider.errors import CursorError, SchemaMismatch
from outrider.testing import assert_published, assert_published_in, assert_published_in_sync, capture

Conn = AsyncConnection[tuple[object, ...]]
APP = Outrider(context="shop")
ONE, TWO = APP.envelope(order(1)), APP.envelope(OrderPlaced(order_id="2", total=Decimal(5)))
SHIPPED = APP.envelope(OrderShipped(order_id="1"))


@pytest.fixture
async def conn(database: str) -> AsyncIterator[Conn]:
    async with await AsyncConnection.connect(database) as conn:
        yield conn
        await conn.rollback()


def said(failing: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return str(failing.value).splitlines()


def test_what_fits_is_returned() -> None:
    published = [ONE, SHIPPED, TWO]
    assert assert_published(published, OrderPlaced, key="2") == [OrderPlaced(order_id="2", total=Decimal(5))]
    assert assert_published(published, OrderPlaced, fields={"total": Decimal("9.90")}) == [order(1)]
    assert assert_published(published, OrderPlaced, where=lambda e: e.total < 9, key="2", times=1)
    assert assert_published(published, OrderPlaced, times=2) == [ONE.decode(OrderPlaced), TWO.decode(OrderPlaced)]
    assert len(assert_published(published, OrderPlaced, times=None)) == 2
    assert assert_published(published, PlacedElsewhere, key="1") == [PlacedElsewhere(order_id="1")]
    assert assert_published(published, OrderPlaced, key="3", times=0) == []


def test_a_key_is_compared_as_it_is_written() -> None:
    written = APP.envelope(order(1), key=str(UUID(int=1)))
    assert assert_published([written], OrderPlaced, key=UUID(int=1))


def test_a_near_miss_says_which_fields_differ() -> None:
    with pytest.raises(AssertionError) as failing:
        assert_published([SHIPPED, ONE], OrderPlaced, key="2", fields={"order_id": "1", "total": Decimal(5)})
    assert said(failing) == [
        "OrderPlaced (kit.placed) with key '2', order_id='1', total=Decimal('5'): wanted once, published not at all",
        "published were:",
        "  kit.placed, key '1': key is '1', wanted '2'; total is Decimal('9.90'), wanted Decimal('5')",
        "  kit.shipped, key '1'",
    ]


def test_too_many_are_named() -> None:
    with pytest.raises(AssertionError) as failing:
        assert_published([ONE, ONE, TWO], OrderPlaced, where=lambda e: e.order_id == "1")
    assert said(failing) == [
        "OrderPlaced (kit.placed) with where(...): wanted once, published twice",
        "published were:",
        "  kit.placed, key '1': fits",
        "  kit.placed, key '1': fits",
        "  kit.placed, key '2': where() is not true of OrderPlaced(order_id='2', total=Decimal('5'))",
    ]


def test_nothing_at_all() -> None:
    with pytest.raises(AssertionError) as failing:
        assert_published([], OrderPlaced, times=None)
    assert said(failing) == [
        "OrderPlaced (kit.placed): wanted at least once, published not at all",
        "nothing was published",
    ]


def test_a_long_list_is_cut() -> None:
    with pytest.raises(AssertionError) as failing:
        assert_published([SHIPPED] * 30 + [ONE], OrderPlaced, key="2")
    assert said(failing)[2].startswith("  kit.placed, key '1': key is '1'")
    assert len(said(failing)) == 23
    assert said(failing)[-1] == "  and 11 more"


async def test_what_was_published_outside_the_block_is_hinted_at(conn: Conn) -> None:
    app = Outrider(context="shop")
    with capture(app, everywhere=True), capture(app) as published:
        published.elsewhere = 2
    with pytest.raises(AssertionError, match=r"2 more were published meanwhile.*everywhere=True"):
        assert_published(published, OrderPlaced)


def test_a_payload_that_is_no_such_event() -> None:
    class Strict(OrderPlaced, type="kit.placed", foreign=True):
        colour: str

    with pytest.raises(AssertionError, match="is not a Strict: colour: Field required"):
        assert_published([ONE], Strict)


def test_misspelt_expectations_are_refused() -> None:
    with pytest.raises(TypeError, match="OrderPlaced has no field 'totl'; it has order_id, total"):
        assert_published([], OrderPlaced, fields={"totl": 1}, times=0)
    with pytest.raises(TypeError, match="has no filds; it has key, fields, where, times"):
        assert_published([], OrderPlaced, filds={"total": 1}, times=0)  # type: ignore[call-arg]


async def test_in_the_open_transaction(conn: Conn, database: str) -> None:
    await APP.publish(conn, order(1))
    await conn.commit()
    async with conn.transaction(), conn.transaction():
        await APP.publish(conn, order(2))
        await conn.execute("""select outrider.publish('kit.placed', '{"order_id": "3"}', key => '3')""")
        async with conn.transaction(force_rollback=True):
            await APP.publish(conn, order(4))
        async with await AsyncConnection.connect(database) as other:
            await APP.publish(other, order(5))
        assert await assert_published_in(conn, OrderPlaced, times=2) == [order(2), order(3)]
        assert await assert_published_in(conn, OrderPlaced, key="3") == [order(3)]
        with pytest.raises(
            AssertionError, match=r"wanted once, published not at all\n(.*\n)*  kit.placed, number \d+, key"
        ):
            await assert_published_in(conn, OrderPlaced, key="4")


def test_in_the_open_transaction_of_a_blocking_connection(database: str) -> None:
    with psycopg.connect(database) as conn:
        APP.publish_sync(conn, order(1))
        assert assert_published_in_sync(conn, OrderPlaced, key="1") == [order(1)]
        with pytest.raises(AssertionError, match="wanted once"):
            assert_published_in_sync(conn, OrderShipped)
        conn.rollback()


async def test_connections_that_cannot_serve(conn: Conn, database: str) -> None:
    with pytest.raises(CursorError, match=r"this connection has none.*with conn.transaction\(force_rollback=True\)"):
        await assert_published_in(conn, OrderPlaced)
    with pytest.raises(TypeError, match=r"use assert_published_in\(\) with it"):
        assert_published_in_sync(conn, OrderPlaced)
    with (
        psycopg.connect(database) as blocking,
        pytest.raises(TypeError, match=re.escape("use assert_published_in_sync() with it")),
    ):
        await assert_published_in(blocking, OrderPlaced)
    await conn.execute("select 1")
    with pytest.raises(SchemaMismatch, match='"nowhere" is not installed'):
        await assert_published_in(conn, OrderPlaced, schema="nowhere")
