"""A circuit breaker: when everything fails the handler stops, uses up no attempts, and goes on when a probe succeeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.worker.shop import Placed, Shop, opened

from outrider import Breaker, Bury, Outrider, RetryPolicy, Snooze
from outrider.errors import ConfigError, DeclarationError

ONCE_MORE = RetryPolicy(retries=1, base="1h", cap="1h", jitter="none")


class Outage(Exception):
    pass


def out() -> None:
    raise Outage("the bank does not answer")


def never() -> None:
    raise Bury("never")


def guarded(breaker: Breaker | None, **options: Any) -> Callable[[Shop], object]:
    def declare(shop: Shop) -> None:
        app = shop.app
        app.handler(Placed, name="shop.effect", retry=ONCE_MORE, **{"breaker": breaker, **options})(shop.effect)

    return declare


async def cursors(shop: Shop) -> list[tuple[int, bool, float | None]]:
    query = """select failures, open_until > now() as open, extract(epoch from open_until - now())::float8 as seconds
               from outrider.cursor order by partition"""
    return [(row["failures"], bool(row["open"]), row["seconds"]) for row in await shop.rows(query)]


async def wait_over(shop: Shop) -> None:
    """Time travel: the breaker's pause is over, and so are the waits of what is parked."""
    await shop.rows("update outrider.cursor set open_until = open_until - interval '1 day'")
    await shop.make_due()


def names(count: int) -> list[str]:
    return [f"{chr(ord('a') + n)}1" for n in range(count)]


async def test_it_opens_instead_of_burying_everything(database: str) -> None:
    async with opened(database, guarded(Breaker(failures=3, probe="30s", longest="1m"))) as shop:
        events = names(8)
        shop.wrong = dict.fromkeys(events, out)
        await shop.publish(*events)
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry, drained.buried) == (0, 3, 0)
        assert (await cursors(shop))[0][:2] == (3, True)
        assert len(shop.calls) == 3
        await shop.app.drain()
        assert len(shop.calls) == 3, "nothing is taken while it is open"

        for probe in range(1, 20):
            await wait_over(shop)
            drained = await shop.app.drain()
            assert (drained.handled, drained.to_retry, drained.buried) == (0, 1, 0), (
                "a probe is one event, and uses no attempt"
            )
            failures, is_open, seconds = (await cursors(shop))[0]
            assert (failures, is_open) == (3 + probe, True)
            assert seconds is not None
            assert seconds <= 60
        parked = await shop.parked()
        assert {row["status"] for row in parked.values()} == {"pending"}
        assert max(row["attempts"] for row in parked.values()) == 1

        shop.wrong.clear()
        await wait_over(shop)
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (8, 0)
        assert sorted(await shop.effects()) == events
        assert await cursors(shop) == [(0, False, None)]
        assert await shop.parked() == {}


async def test_without_one_everything_is_buried(database: str) -> None:
    """What the breaker is for."""
    async with opened(database, guarded(None)) as shop:
        events = names(8)
        shop.wrong = dict.fromkeys(events, out)
        await shop.publish(*events)
        await shop.app.drain()
        await shop.make_due()
        assert (await shop.app.drain()).buried == 8


async def test_a_success_in_between_starts_the_count_anew(database: str) -> None:
    async with opened(database, guarded(Breaker(failures=3), limit=1)) as shop:
        for n in range(3):
            shop.wrong = {f"a{n}": out, f"b{n}": out}
            await shop.publish(f"a{n}", f"b{n}", f"c{n}")
            await shop.app.drain()
            await shop.rows("delete from outrider.delivery")
        assert await cursors(shop) == [(0, False, None)]


async def test_a_poisonous_event_does_not_keep_it_open(database: str) -> None:
    """The next probe is another one: the poison does not stand in the way of what is well."""
    async with opened(database, guarded(Breaker(failures=1))) as shop:
        shop.wrong = {"a1": out}
        await shop.publish("a1")
        await shop.app.drain()
        assert (await cursors(shop))[0][:2] == (1, True)
        await wait_over(shop)
        await shop.app.drain()
        await shop.publish("b1")
        await shop.rows("update outrider.cursor set open_until = open_until - interval '1 day'")
        assert (await shop.app.drain()).handled == 1
        assert await shop.effects() == ["b1"]
        assert await cursors(shop) == [(0, False, None)]


@pytest.mark.parametrize("terminal", [True, False])
async def test_terminal_failures_count_and_are_buried(database: str, terminal: bool) -> None:
    """A probe that is buried for what it is says nothing for the next; snoozes say nothing at all."""

    def fail() -> None:
        raise Bury("never") if terminal else Snooze("1h", "later")

    async with opened(database, guarded(Breaker(failures=2))) as shop:
        events = names(4)
        shop.wrong = dict.fromkeys(events, fail)
        await shop.publish(*events)
        drained = await shop.app.drain()
        if terminal:
            assert drained.buried == 2
            assert (await cursors(shop))[0][:2] == (2, True)
            await wait_over(shop)
            assert (await shop.app.drain()).buried == 1
        else:
            assert drained.to_retry == 4
            assert await cursors(shop) == [(0, False, None)]


async def test_each_partition_has_its_own(database: str) -> None:
    async with opened(database, guarded(Breaker(failures=1), partitions=4)) as shop:
        shop.wrong = {"a1": out}
        await shop.publish("a1")
        await shop.app.drain()
        others = [f"{letter}2" for letter in "bcdefghijklmnop"]
        await shop.publish("a2", *others)
        drained = await shop.app.drain()
        state = [is_open for _, is_open, _ in await cursors(shop)]
        assert state.count(True) == 1
        assert 0 < drained.handled < len(others), "the other partitions go on"


async def test_resume_closes_it(database: str) -> None:
    async with opened(database, guarded(Breaker(failures=1, probe="1h", longest="1h"))) as shop:
        shop.wrong = {"a1": out}
        await shop.publish("a1", "b1")
        await shop.app.drain()
        assert await shop.effects() == []
        await shop.app.resume("shop.effect")
        await shop.app.drain()
        assert await shop.effects() == ["b1"]


async def test_a_restarted_worker_finds_it_open(database: str) -> None:
    """Its state is in the database: many workers, one breaker."""
    declare = guarded(Breaker(failures=1))
    async with opened(database, declare) as shop:
        shop.wrong = {"a1": out}
        await shop.publish("a1", "b1")
        await shop.app.drain()
    async with opened(database, declare) as shop:
        await shop.app.drain()
        assert shop.calls == []


async def test_a_worker_without_one_finds_it_open(database: str) -> None:
    """The breaker was taken out of the code: the event fails as any other does, and is buried in the end."""
    async with opened(database, guarded(Breaker(failures=1))) as shop:
        shop.wrong = {"a1": out}
        await shop.publish("a1")
        await shop.app.drain()
    async with opened(database, guarded(None)) as shop:
        shop.wrong = {"a1": out}
        await wait_over(shop)
        assert (await shop.app.drain()).buried == 1
        assert len(shop.calls) == 1


async def test_a_pause_that_is_over_wakes_nobody(database: str) -> None:
    """Nothing is left to probe with: its workers sleep until something comes."""
    async with opened(database, guarded(Breaker(failures=1))) as shop:
        shop.wrong = {"a1": never}
        await shop.publish("a1")
        assert (await shop.app.drain()).buried == 1
        await wait_over(shop)
        assert (await shop.app.drain()).handled == 0
        [row] = await shop.rows(
            "select outcome, due_in from outrider.take('shop.effect', p_knows => '{dispatch.placed}')"
        )
        assert row == {"outcome": "idle", "due_in": None}


async def test_what_is_refused() -> None:
    for wrong, said in (
        ({"failures": 0}, "failures"),
        ({"probe": 0}, "probe"),
        ({"probe": "1h", "longest": "1m"}, "longest"),
    ):
        with pytest.raises(ConfigError, match=said):
            Breaker(**wrong)
    with pytest.raises(DeclarationError, match="not a Breaker"):
        Outrider(context="shop").handler(Placed, name="shop.x", breaker=3)(print)  # type: ignore[arg-type]
