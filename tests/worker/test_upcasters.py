"""Handlers and older versions: brought up before they are handled, whoever reads them; a bad upcaster is a dead letter."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider import Event, HandlerContext
from outrider.testing import drain
from outrider.worker.batch_runner import Runner

CALLS: list[str] = []


def one_to_two(payload: dict[str, Any]) -> dict[str, Any]:
    CALLS.append("one_to_two")
    if payload["total"] == 13:
        raise LookupError("no such luck")
    if payload["total"] == 14:
        return None  # type: ignore[return-value]
    return {"customer": payload["customer"], "cents": payload["total"] * 100}


def two_to_three(payload: dict[str, Any]) -> dict[str, Any]:
    CALLS.append("two_to_three")
    return {"customer": payload["customer"], "n": payload["cents"] // 100, "currency": "EUR"}


class Paid(Event, type="dispatch.paid", version=3, key="customer", upcasters={1: one_to_two, 2: two_to_three}):
    customer: str
    n: int
    currency: str


class PaidView(Event, type="dispatch.paid", version=2, foreign=True, upcasters={1: one_to_two}):
    customer: str
    cents: int = -1


def declare(shop: Shop) -> None:
    shop.app.handler(Paid, Placed, name="shop.effect", retry=SOON)(shop.effect)


async def write(shop: Shop, version: int, **payload: Any) -> None:
    """As a producer of that version did, once."""
    async with await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as conn:
        await conn.execute(
            """insert into outrider.outbox (event_type, event_version, source, aggregate_id, payload)
               values ('dispatch.paid', %s, 'shop', %s, %s)""",
            [version, payload["customer"], json.dumps(payload)],
        )


@pytest.fixture(autouse=True)
def calls() -> None:
    CALLS.clear()


async def test_older_versions_are_brought_up_and_newer_ones_are_not(database: str) -> None:
    async with opened(database, declare) as shop:
        await write(shop, 1, customer="a", total=1)
        await write(shop, 2, customer="b", cents=200)
        await write(shop, 3, customer="c", n=3, currency="USD")
        await write(shop, 4, customer="d", n=4, currency="USD", more=True)
        await shop.publish("e5")
        assert (await shop.app.drain()).handled == 5
        assert await shop.effects() == ["a1", "b2", "c3", "d4", "e5"]
        assert CALLS == ["one_to_two", "two_to_three", "two_to_three"]


async def test_a_batch_a_view_and_the_envelope(database: str) -> None:
    seen: list[Any] = []

    async def together(events: list[PaidView], ctx: HandlerContext) -> None:
        seen.extend(
            (event.cents, envelope.event_version) for event, envelope in zip(events, ctx.envelopes, strict=True)
        )
        seen.append(ctx.envelopes[0].payload)

    async with opened(database, lambda shop: shop.app.handler(PaidView, name="shop.together")(together)) as shop:
        await write(shop, 1, customer="a", total=1)
        await write(shop, 2, customer="a", cents=250)
        await write(shop, 3, customer="a", n=3, currency="EUR")
        assert (await shop.app.drain()).handled == 3
    assert seen == [(100, 1), (250, 2), (-1, 3), {"customer": "a", "total": 1}], "the envelope shows what was published"


async def test_an_upcaster_that_fails_is_one_dead_letter_each(database: str) -> None:
    async with opened(database, declare) as shop:
        for number, total in enumerate((1, 13, 2, 14, 3)):
            await write(shop, 1, customer=f"c{number}", total=total)
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry, drained.buried) == (3, 0, 2)
        rows = await shop.rows(
            "select last_error_code, last_error, attempts, status from outrider.delivery order by seq"
        )
        assert [(row["last_error_code"], row["attempts"], row["status"]) for row in rows] == [
            ("undecodable", 1, "failed")
        ] * 2
        raised, returned = [row["last_error"] for row in rows]
        assert "is not a Paid: its upcaster from version 1, one_to_two, raised LookupError: no such luck" in raised
        assert "its upcaster from version 1, one_to_two, returned NoneType, not a dict" in returned


async def test_a_validator_of_the_model_that_breaks_on_an_older_version(database: str) -> None:
    """Whatever it raises, it concerns its own event only."""
    from pydantic import field_validator

    class Checked(Event, type="dispatch.paid", version=2, foreign=True, upcasters={1: one_to_two}):
        cents: int

        @field_validator("cents")
        @classmethod
        def check(cls, cents: int) -> int:
            raise RuntimeError(f"broken at {cents}")

    async def handle(event: Checked) -> None: ...

    async with opened(database, lambda shop: shop.app.handler(Checked, name="shop.checked")(handle)) as shop:
        await write(shop, 1, customer="a", total=1)
        assert (await shop.app.drain()).buried == 1
        [row] = await shop.rows("select last_error_code, last_error from outrider.delivery")
        assert row["last_error_code"] == "undecodable"
        assert "is not a Checked: RuntimeError: broken at 100" in row["last_error"]


async def test_a_reader_decodes_older_versions(database: str) -> None:
    async with opened(database, lambda _: None) as shop:
        reader = shop.app.reader(Paid, name="shop.reader")
        await shop.app.migrate()
        await write(shop, 1, customer="a", total=7)
        async with shop.app.connect() as conn, conn.transaction():
            [envelope] = (await reader.take(conn)).events
        assert envelope.decode(Paid) == Paid(customer="a", n=7, currency="EUR")


async def test_the_drain_of_tests_brings_them_up(database: str) -> None:
    async with opened(database, declare) as shop, await psycopg.AsyncConnection.connect(database) as conn:
        await conn.execute(
            """insert into outrider.outbox (event_type, event_version, source, payload)
               values ('dispatch.paid', 1, 'shop', '{"customer": "a", "total": 7}')"""
        )
        assert (await drain(shop.app, conn)).handled == 1
        assert shop.calls == ["a7"]
        await conn.rollback()


async def test_without_upcasters_nothing_is_asked(database: str) -> None:
    async with opened(database) as shop:
        runner = Runner(shop.app.handlers[0])
        assert runner.decode == runner._decode
        runner.close()
    async with opened(database, declare) as shop:
        runner = Runner(shop.app.handlers[0])
        assert runner.decode == runner._decode_any_version
        runner.close()
