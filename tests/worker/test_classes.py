"""`worker --class X --only-class`: a channel class splits the processing, by subscription."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.shop import Placed, Shop, opened
from tests.worker.test_generations import so
from tests.worker.test_worker import Heard

from outrider import HandlerContext, Job, Outrider
from outrider.errors import ConfigError, DeclarationError
from outrider.signals import Notified

HEAVY, LIGHT = "shop.heavy", "shop.light"


class Held:
    """A shop with a heavy handler, which does not return before it is told to, and a light one."""

    def __init__(self) -> None:
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.by: dict[str, list[str]] = {HEAVY: [], LIGHT: []}

    def declare(self, shop: Shop) -> None:
        @shop.app.handler(Placed, name=HEAVY, channel_class="heavy")
        async def heavy(event: Placed, ctx: HandlerContext) -> None:
            self.by[HEAVY].append(f"{event.customer}{event.n}")
            self.begun.set()
            await self.go.wait()

        @shop.app.handler(Placed, name=LIGHT)
        async def light(event: Placed, ctx: HandlerContext) -> None:
            self.by[LIGHT].append(f"{event.customer}{event.n}")


async def test_each_worker_takes_what_is_of_its_class(database: str) -> None:
    """The heavy handler is held, and the light one goes on beside it."""
    held = Held()
    async with (
        opened(database, held.declare, poll="1h") as shop,
        opened(database, held.declare, poll="1h") as other,
        shop.app.worker(classes=["heavy"], only_class=True) as heavy,
        other.app.worker(only_class=True) as light,
    ):
        assert heavy.identity.subscriptions == [HEAVY]
        assert light.identity.subscriptions == [LIGHT]
        heard, lightly = Heard(shop.app), Heard(other.app)
        await shop.publish("a1", "a2")
        await held.begun.wait()
        await lightly.until(lambda: lightly.handled() == 2)
        assert held.by == {HEAVY: ["a1"], LIGHT: ["a1", "a2"]}
        held.go.set()
        await heard.until(lambda: heard.handled() == 2)
        rows = await shop.rows("select handler_name, count(*) as n from outrider.event_handled group by 1 order by 1")
        assert [tuple(row.values()) for row in rows] == [(HEAVY, 2), (LIGHT, 2)]


async def test_what_is_of_no_class_needs_no_class_to_be_named(database: str) -> None:
    held = Held()
    held.go.set()
    async with opened(database, held.declare, poll="1h") as shop, shop.app.worker() as worker:
        assert worker.identity.subscriptions == [HEAVY, LIGHT], "a worker without only_class serves everything"
        heard = Heard(shop.app)
        await so(lambda: worker.listening)
        assert set(worker.wakeups.channels) == {"outbox_default", "outbox_gen_0_heavy"}
        await shop.publish("a1", channel_class="heavy")
        await heard.first(Notified, lambda each: each.channel == "outbox_gen_0_heavy")
        await heard.until(lambda: held.by == {HEAVY: ["a1"], LIGHT: ["a1"]})


async def test_jobs_are_of_no_class(database: str) -> None:
    class Chore(Job, type="classes.chore"):
        n: int

    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name=HEAVY, channel_class="heavy")(shop.effect)

        @shop.app.job(Chore)
        async def chore(job: Chore) -> None: ...

    async with opened(database, declare) as shop:
        for options, names in (
            ({"classes": ["heavy"], "only_class": True}, [HEAVY]),
            ({"only_class": True}, ["classes.chore"]),
        ):
            worker: Any = shop.app.worker(**options)
            assert worker.identity.subscriptions == names


async def test_a_class_that_nobody_has_is_refused(database: str) -> None:
    async with opened(database, Held().declare) as shop:
        with pytest.raises(ConfigError, match="no handler is of the channel class 'heavi'; there are: heavy"):
            shop.app.worker(classes=["heavi"], only_class=True)
        shop.app.worker(classes=["heavi"])  # only a wake-up, of events that others may publish


def test_a_class_is_a_word() -> None:
    app = Outrider()
    with pytest.raises(DeclarationError, match="channel_class"):
        app.handler(Placed, name="shop.x", channel_class="Not a word")(Shop(app, "").effect)
