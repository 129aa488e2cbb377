"""dispatched: events must reach their handlers through a worker that a real notification has woken."""

from __future__ import annotations

import psycopg
import pytest
from tests.proxy import Proxy
from tests.testing.orders import OrderPlaced, OrderShipped, order

from outrider import Bury, Outrider, RetryPolicy
from outrider.errors import ConfigError
from outrider.testing import dispatched


def shop(database: str, **settings: str) -> tuple[Outrider, list[str]]:
    app, handled = Outrider(context="shop", dsn=database, **settings), list[str]()  # type: ignore[arg-type]

    @app.handler(OrderPlaced, name="shop.invoice", retry=RetryPolicy(retries=0))
    async def invoice(event: OrderPlaced) -> None:
        if event.order_id == "13":
            raise Bury("nobody wants number 13")
        handled.append(event.order_id)

    @app.handler(OrderShipped, name="shop.ship")
    async def ship(event: OrderShipped) -> None:
        handled.append(f"shipped {event.order_id}")

    return app, handled


async def test_what_was_published_in_the_block_is_handled_at_its_end(database: str) -> None:
    app, handled = shop(database)
    async with app:
        await app.migrate()
        async with dispatched(app), app.connect() as conn, conn.transaction():
            await app.publish_many(conn, [order(1), order(2), OrderShipped(order_id="1")])
    assert sorted(handled) == ["1", "2", "shipped 1"]


async def test_by_another_process_in_sql(database: str) -> None:
    app, handled = shop(database)
    async with app:
        await app.migrate()
        async with dispatched(app, handlers=["shop.invoice"]):
            with psycopg.connect(database) as conn:
                conn.execute("""select outrider.publish('kit.placed', '{"order_id": "5", "total": "1.00"}')""")
    assert handled == ["5"]


async def publish_quietly(app: Outrider, database: str, *, then_drain: bool) -> None:
    async with dispatched(app, timeout=0.3):
        with psycopg.connect(database) as conn:
            conn.execute("set outrider.notify = off")
            app.publish_sync(conn, order(1))
        if then_drain:
            await app.drain()


async def test_without_a_notification_it_fails(database: str) -> None:
    app, handled = shop(database)
    async with app:
        await app.migrate()
        with pytest.raises(AssertionError, match=r"within 0\.3 s: kit\.placed at \d+ is pending at shop\.invoice"):
            await publish_quietly(app, database, then_drain=False)
    assert handled == []


async def test_a_drain_does_not_make_it_pass(database: str) -> None:
    app, handled = shop(database)
    async with app:
        await app.migrate()
        with pytest.raises(AssertionError, match=r"within 0\.3 s: no notification woke shop\.invoice \(nothing did\)"):
            await publish_quietly(app, database, then_drain=True)
    assert handled == ["1"]


async def test_a_dead_letter_is_told(database: str) -> None:
    app, _ = shop(database)
    async with app:
        await app.migrate()
        with pytest.raises(AssertionError, match=r"failed at shop\.invoice: Bury: nobody wants number 13"):
            async with dispatched(app, timeout=5), app.connect() as conn:
                await app.publish(conn, order(13))


async def test_a_block_that_publishes_nothing_proves_nothing(database: str) -> None:
    app, _ = shop(database)
    async with app:
        await app.migrate()
        with pytest.raises(AssertionError, match="no event that these handlers want was published and committed"):
            async with dispatched(app, timeout=0.1):
                pass


async def test_an_app_that_does_not_notify(database: str) -> None:
    app, _ = shop(database, notify="off")
    async with app:
        with pytest.raises(ConfigError, match="nothing wakes a worker"):
            async with dispatched(app):
                pass


async def test_the_time_is_for_the_events_and_not_for_the_start_of_the_worker(database: str) -> None:
    with Proxy(database) as proxy:
        proxy.slow(0.1)
        app, _ = shop(database, listen_dsn=proxy.dsn)
        async with app:
            await app.migrate()
            with pytest.raises(AssertionError, match="no event that these handlers want was published and committed"):
                async with dispatched(app, timeout=0.1):
                    pass
