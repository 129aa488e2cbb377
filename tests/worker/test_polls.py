"""One look for the polls of all handlers: it never says "nothing to take" where a take would find something."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from tests.worker.shop import Placed, Shop, opened
from tests.worker.test_worker import Heard

from outrider.postgres import handler_batches
from outrider.postgres.log import TakeRequest
from outrider.postgres.statement import fetch
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import Taken, Woken

MANY = 20


async def idle(shop: Shop) -> bool:
    """Whether a look finds nothing for the handler. If so, a take must find nothing either."""
    sessions = WorkerSessions(shop.dsn, 1)
    try:
        async with sessions.session("shop.effect") as conn:
            said = await fetch(conn, "handlers/idle", "outrider", {"subscriptions": ["shop.effect"]})
            if said:
                claim = await handler_batches.take(
                    conn, TakeRequest("shop.effect", knows=["dispatch.placed"]), "outrider"
                )
                await handler_batches.roll_back(conn)
                assert (claim.outcome, claim.due_in) == ("idle", None)
            return bool(said)
    finally:
        await sessions.close()


def failing() -> None:
    raise ValueError("not yet")


@asynccontextmanager
async def read_up(database: str) -> AsyncIterator[Shop]:
    async with opened(database) as shop:
        await shop.publish("a1")
        await shop.app.drain()
        assert await idle(shop)
        yield shop


async def test_a_new_event_is_seen(database: str) -> None:
    async with read_up(database) as shop:
        await shop.publish("a2")
        assert not await idle(shop)


async def test_an_event_that_commits_late_is_seen(database: str) -> None:
    """The cursor has passed its position while its transaction was open."""
    async with read_up(database) as shop, await psycopg.AsyncConnection.connect(database) as late:
        await shop.app.publish(late, Placed(customer="b", n=1))
        await shop.publish("a2")
        await shop.app.drain()
        assert await idle(shop)
        await late.commit()
        assert not await idle(shop)
        await shop.app.drain()
        assert await idle(shop)


async def test_what_waits_for_a_retry_is_left_to_the_take(database: str) -> None:
    """The answer of a take says when the retry is due."""
    async with read_up(database) as shop:
        shop.wrong["b1"] = failing
        await shop.publish("b1")
        await shop.app.drain()
        assert not await idle(shop)


@pytest.mark.parametrize(
    "change",
    [
        "update outrider.cursor set cluster = 0",
        "update outrider.cursor set owing = array['3'::xid8], owed_after = 0",
        "update outrider.cursor set open_until = now() - interval '1 day'",
        "update outrider.cursor set horizon = '9223372036854775807'",
        "update outrider.cursor set seq = seq + 1",
        "delete from outrider.cursor",
    ],
    ids=["another home", "owing", "a probe is due", "from elsewhere", "ahead of the log", "no cursor"],
)
async def test_in_doubt_it_must_be_taken(database: str, change: str) -> None:
    async with read_up(database) as shop:
        await shop.rows(change)
        assert not await idle(shop)


def many(shop: Shop) -> None:
    for number in range(MANY):
        shop.app.handler(Placed, name=f"shop.effect{number}")(shop.effect)


def polls(heard: Heard) -> int:
    return sum(each.reason == "poll" for each in heard.signals if isinstance(each, Woken))


async def test_idle_handlers_poll_without_a_take(database: str) -> None:
    async with opened(database, many, poll="50ms", notify="off") as shop:
        heard = Heard(shop.app)
        async with shop.app.worker():
            await heard.until(lambda: polls(heard) > MANY)
            del heard.signals[:]
            await heard.until(lambda: polls(heard) > 3 * MANY)
            assert not [each for each in heard.signals if isinstance(each, Taken)]
            await shop.publish("a1")
            await heard.until(lambda: heard.handled() == MANY)
