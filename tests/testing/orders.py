"""The events of the tests of the test kit, and a count from outside of the test's transaction."""

from __future__ import annotations

from decimal import Decimal

import psycopg

from outrider import Event, Job


class OrderPlaced(Event, type="kit.placed", key="order_id"):
    order_id: str
    total: Decimal = Decimal("9.90")


class OrderShipped(Event, type="kit.shipped", key="order_id"):
    order_id: str


class SendReceipt(Job, type="kit.send_receipt", key="order_id"):
    order_id: str
    copies: int = 1


class PlacedElsewhere(Event, type="kit.placed", foreign=True):
    order_id: str


def order(number: int) -> OrderPlaced:
    return OrderPlaced(order_id=str(number))


def committed(dsn: str) -> dict[str, int]:
    """What another session sees."""
    tables = ("outbox", "event_handled", "delivery", "job")
    with psycopg.connect(dsn) as conn:
        counts = [conn.execute(f"select count(*) from outrider.{table}".encode()).fetchone() for table in tables]
    return {table: row[0] for table, row in zip(tables, counts, strict=True) if row is not None and row[0]}
