"""Tools to test your own code: fixtures, assertions, and handlers in a transaction that is rolled back.

    @pytest.fixture
    def app(outrider_relocate):
        return outrider_relocate(shop.app)

    async def test_an_order_is_invoiced(app, outrider_database):
        async with await AsyncConnection.connect(outrider_database) as conn:
            with capture(app) as published:
                await place_order(conn, "7")
            assert_published(published, OrderPlaced, key="7", fields={"total": Decimal("9.90")})
            await drain(app, conn)
            await assert_published_in(conn, InvoiceSent, key="7")
            await assert_enqueued_in(conn, SendReceipt, fields={"order_id": "7"})
            await conn.rollback()

The fixtures (`outrider_relocate`, `outrider_database` and others) are a pytest plugin: put `pytest_plugins =
["outrider.testing.plugin"]` into your top-level conftest.py. With the plugin, apps open only databases of the tests.
`test_contracts = contract_test("shop.app:app")` in a test module fails when an event no longer has the shape that others
rely on (`outrider contracts check`). `exercise` holds the checks that every publishing adapter must pass, `streams` those of
every sink and source.
"""

from outrider.testing import exercise, streams
from outrider.testing.assertions import (
    Captured,
    assert_enqueued,
    assert_enqueued_in,
    assert_enqueued_in_sync,
    assert_published,
    assert_published_in,
    assert_published_in_sync,
    capture,
)
from outrider.testing.contracts import contract_test
from outrider.testing.dispatched import dispatched
from outrider.testing.draining import drain, drain_sync
from outrider.testing.expect import expect

__all__ = [
    "Captured",
    "assert_enqueued",
    "assert_enqueued_in",
    "assert_enqueued_in_sync",
    "assert_published",
    "assert_published_in",
    "assert_published_in_sync",
    "capture",
    "contract_test",
    "dispatched",
    "drain",
    "drain_sync",
    "exercise",
    "expect",
    "streams",
]
