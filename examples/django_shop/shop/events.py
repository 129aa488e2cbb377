"""What the shop tells, and what it does when it hears it. The worker runs `app`."""

from __future__ import annotations

from decimal import Decimal

from outrider import Event, Outrider
from outrider.integrations.django import orm

from .models import Invoice


class OrderPlaced(Event, type="shop.placed", key="order_id"):
    order_id: int
    total: Decimal


app = Outrider(context="shop")


@app.handler(OrderPlaced, name="shop.invoice")
@orm
def invoice(event: OrderPlaced) -> None:
    """The invoice commits together with the receipt that says: this event is handled."""
    Invoice.objects.create(order_id=event.order_id, total=event.total)
