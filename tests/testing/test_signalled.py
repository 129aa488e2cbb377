"""expect: waiting for signals instead of sleeping."""

from __future__ import annotations

import asyncio

import pytest
from tests.testing.orders import OrderPlaced, order

from outrider import Outrider
from outrider.signals import Published, Settled, Signal, Woken
from outrider.testing import expect


async def test_a_worker_is_awaited(database: str) -> None:
    app = Outrider(context="shop", dsn=database)
    handled: list[str] = []

    @app.handler(OrderPlaced, name="shop.note")
    async def note(event: OrderPlaced) -> None:
        handled.append(event.order_id)

    async with app:
        await app.migrate()
        async with app.worker():
            async with expect(app, Settled, lambda s: s.events) as seen, app.connect() as conn:
                await app.publish(conn, order(1))
            assert handled == ["1"]
    assert (seen[0].subscription, seen[0].events) == ("shop.note", 1)


async def test_several_and_from_other_threads() -> None:
    app = Outrider()
    async with expect(app, Woken, lambda s: s.reason == "notification", times=2) as seen:
        for reason in ("notification", "poll", "notification"):
            await asyncio.to_thread(app.signals.emit, Woken("shop.note", reason))
    assert [signal.reason for signal in seen] == ["notification", "notification"]


async def test_what_came_instead_is_told() -> None:
    app = Outrider()
    with pytest.raises(
        TimeoutError, match=r"0 of 1 Woken that fits within 0\.01 s; other signals meanwhile: 1 Woken\. Is a worker"
    ):
        async with expect(app, Woken, lambda s: s.reason == "notification", timeout=0.01):
            app.signals.emit(Woken("shop.note", "poll"))
    with pytest.raises(TimeoutError, match=r"0 of 1 Published within 0\.01 s; other signals meanwhile: none"):
        async with expect(app, Published, timeout=0.01):
            pass


async def test_a_predicate_that_raises_is_raised() -> None:
    app = Outrider()
    with pytest.raises(ZeroDivisionError):
        async with expect(app, Woken, lambda _: 1 / 0):
            app.signals.emit(Woken("shop.note", "poll"))


async def test_a_block_that_fails_does_not_wait() -> None:
    app = Outrider()
    heard: list[Signal] = []
    with pytest.raises(ZeroDivisionError):
        async with expect(app, Published) as seen:
            raise ZeroDivisionError
    app.signals.listen(heard.append)
    app.signals.emit(Woken("shop.note", "poll"))
    assert (seen, len(heard)) == ([], 1)


async def test_too_few_are_not_enough() -> None:
    app = Outrider()
    with pytest.raises(TimeoutError, match=r"1 of 2 Woken within 0\.05 s"):
        async with expect(app, Woken, times=2, timeout=0.05):
            app.signals.emit(Woken("shop.note", "poll"))
