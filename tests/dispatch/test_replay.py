"""Dead letters go back into their line: per subscription, in order, marked, and never twice."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.dispatch.shop import Placed, Shop, opened

from outrider import Bury
from outrider.postgres.replay import Replayed


def fail() -> None:
    raise Bury("not today")


async def dead(shop: Shop, *names: str) -> dict[str, UUID]:
    """Events of which those in `shop.wrong` are buried; the ids of all."""
    await shop.publish(*names)
    await shop.app.drain()
    rows = await shop.rows("select id, (payload->>'customer') || (payload->>'n') as name from outrider.outbox")
    return {row["name"]: row["id"] for row in rows}


async def test_a_dead_letter_is_handled_after_its_replay(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1", "a2")
        assert await shop.effects() == ["a2"]
        shop.wrong.clear()
        assert await shop.app.replay(ids["a1"], by="an operator") == [Replayed("shop.effect", "replayed")]
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["attempts"], parked["cycle"], parked["head"]) == ("pending", 0, 2, True)
        assert [entry.get("by") for entry in parked["failure_history"]] == [None, "an operator"]
        assert (await shop.app.drain()).handled == 1
        assert await shop.effects() == ["a2", "a1"]
        assert await shop.parked() == {}
        assert await shop.app.replay(ids["a1"]) == [Replayed("shop.effect", "skipped_handled")]
        assert await shop.app.replay(ids["a1"], subscription="shop.other") == [Replayed("shop.other", "not_found")]
        with pytest.raises(TypeError, match="a UUID, not str"):
            await shop.app.replay("a1")  # type: ignore[arg-type]


async def test_one_that_fails_again_is_in_its_next_cycle(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        await shop.app.replay(ids["a1"])
        await shop.app.drain()
        (parked,) = (await shop.parked()).values()
        assert (parked["status"], parked["cycle"]) == ("failed", 2)
        assert [entry["cycle"] for entry in parked["failure_history"]] == [1, 1, 2]


async def test_a_replayed_one_waits_in_line(database: str) -> None:
    """Its key has a parked event by now: the first of both is the head."""

    def later() -> None:
        raise RuntimeError("later")

    async with opened(database) as shop:
        shop.wrong |= {"a1": fail, "a2": later}
        ids = await dead(shop, "a1", "a2", "a3")
        assert list(await shop.parked()) == ["a1", "a2", "a3"]
        shop.wrong.clear()
        await shop.app.replay(ids["a1"])
        assert {name: row["head"] for name, row in (await shop.parked()).items()} == {
            "a1": True,
            "a2": False,
            "a3": False,
        }
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a2", "a3"]


async def test_only_the_named_subscription(database: str) -> None:
    def declare(shop: Shop) -> None:
        for name in ("shop.one", "shop.two"):
            shop.app.handler(Placed, name=name)(shop.effect)

    async with opened(database, declare) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        assert await shop.app.replay(ids["a1"], subscription="shop.two") == [Replayed("shop.two", "replayed")]
        assert await shop.app.replay(ids["a1"], subscription="shop.two") == [Replayed("shop.two", "not_found")]
        assert await shop.app.replay(ids["a1"]) == [Replayed("shop.one", "replayed")]


async def test_what_was_handled_meanwhile_is_skipped(database: str) -> None:
    """Another event with its idempotency key came through."""
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        await shop.publish("a1", idempotency_key="once")
        await shop.app.drain()
        (row,) = await shop.rows("select id from outrider.outbox")
        await shop.publish("a2", idempotency_key="once")
        await shop.app.drain()
        assert await shop.app.replay(row["id"]) == [Replayed("shop.effect", "skipped_handled")]
        assert await shop.effects() == ["a2"]


async def test_two_replays_at_once(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = fail
        ids = await dead(shop, "a1")
        query = "select outcome from outrider.outbox_replay(%s)"
        with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
            assert one.execute(query, [ids["a1"]]).fetchall() == [("replayed",)]
            two.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                two.execute(query, [ids["a1"]])
            one.commit()
            assert two.execute(query, [ids["a1"]]).fetchall() == [("not_found",)]


async def test_unknown_events_and_other_generations(database: str) -> None:
    async with opened(database) as shop:
        assert await shop.app.replay(uuid4()) == [Replayed(None, "not_found")]
        shop.wrong["a1"] = fail
        ids: dict[str, Any] = await dead(shop, "a1")
        with (
            psycopg.connect(database) as conn,
            pytest.raises(psycopg.Error, match="cannot be replayed in generation 7"),
        ):
            conn.execute("select outrider.outbox_replay(%s, 7)", [ids["a1"]])
