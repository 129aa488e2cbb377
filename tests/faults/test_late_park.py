"""An operator is quicker than a worker that has to say what failed: what nobody will read again must not be parked."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.worker.shop import Cancelled, Placed, Shop, opened

from outrider import Bury
from outrider.postgres import handler_batches
from outrider.postgres.admin import subscriptions
from outrider.postgres.handler_batches import Connection
from outrider.postgres.statement import Params

pytestmark = pytest.mark.verify


def fail() -> None:
    raise RuntimeError("as told")


def between(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Once, after the rollback of a batch and before its failure is parked."""
    park = handler_batches.park

    async def late(conn: Connection, asked: Params, schema: str) -> list[int]:
        monkeypatch.setattr(handler_batches, "park", park)
        await handler_batches.roll_back(conn)
        await act()
        return await park(conn, asked, schema)

    monkeypatch.setattr(handler_batches, "park", late)


@pytest.mark.parametrize("order", ["key", "none", "total"])
async def test_withdrawn(database: str, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", order=order)(shop.effect)  # type: ignore[arg-type]

    async with opened(database, declare) as shop:
        shop.wrong = {"a1": fail}
        await shop.publish("a1", "a2", "b1")
        [first] = await shop.rows("select id from outrider.outbox order by seq limit 1")
        between(monkeypatch, lambda: shop.app.withdraw(first["id"]))
        await asyncio.wait_for(shop.app.drain(), 60)
        assert await shop.effects() == ["a2", "b1"]
        assert await shop.parked() == {}


async def test_no_longer_wanted(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, Cancelled, name="shop.effect")(shop.effect)

    async with opened(database, declare) as shop:
        async with shop.app.connect() as conn:
            await shop.app.publish(conn, Cancelled(customer="a", n=1))
        shop.wrong = {"a1": fail}

        async def narrow() -> None:
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
                await subscriptions.narrow(conn, "shop.effect", ["dispatch.cancelled"], "outrider", force=True)

        between(monkeypatch, narrow)
        await asyncio.wait_for(shop.app.drain(), 60)
        assert await shop.parked() == {}
        await shop.publish("a2")
        assert (await shop.app.drain()).handled == 1


async def test_pages_of_late_events_after_a_restore(database: str) -> None:
    """They lie below the floor: a dead letter among them is passed over all the same, and so is a withdrawn one."""

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", limit=4)(shop.effect)

    def never() -> None:
        raise Bury("never")

    async with opened(database, declare) as shop, await psycopg.AsyncConnection.connect(database) as late:
        for n in range(12):
            await shop.app.publish(late, Placed(customer="a", n=n))
        await shop.publish("b1")
        await shop.app.drain()
        await late.commit()
        # As after a restore into a cluster with lower transaction ids.
        await shop.rows("update outrider.outbox set tx = (tx::text::bigint + 1000000)::text::xid8")
        await shop.rows(
            """update outrider.cursor set cluster = cluster + 1, horizon = found.last, inflight = found.running
               from (select (max(tx::text::bigint) + 1)::text::xid8 as last,
                            format('%s:%s:%s', min(tx), max(tx::text::bigint) + 1, min(tx))::pg_snapshot as running
                     from outrider.outbox) as found"""
        )
        shop.wrong = {"a9": never}
        [seventh] = await shop.rows("select id from outrider.outbox where payload->>'n' = '7'")
        await shop.app.withdraw(seventh["id"])
        await asyncio.wait_for(shop.app.drain(), 60)
        assert await shop.effects() == ["b1", *(f"a{n}" for n in range(12) if n not in (7, 9))]
        assert {name: row["status"] for name, row in (await shop.parked()).items()} == {"a9": "failed"}
