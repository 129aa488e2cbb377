"""The context `orders`: it owns `orders.placed`, and has changed its shape once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from outrider import Event, Outrider


def total_of(v1: dict[str, Any]) -> dict[str, Any]:
    """Version 1 counted cents, in euros."""
    return {"order_id": v1["order_id"], "total": str(Decimal(v1["cents"]) / 100), "currency": "EUR"}


class OrderPlacedV1(Event, type="orders.placed", version=1, key="order_id", deprecated_after="2099-12-31"):
    """An order was placed. Total in cents, always in euros."""

    order_id: UUID
    cents: int


class OrderPlaced(Event, type="orders.placed", version=2, key="order_id", upcasters={1: total_of}):
    """An order was placed and will be paid for."""

    order_id: UUID
    total: Decimal
    currency: str


app = Outrider(context="orders")
