"""A version of billing that would break: it needs what orders do not promise. For the check only."""

from __future__ import annotations

from datetime import date
from uuid import UUID

from outrider import Event, Outrider

from .billing import Invoiced


class OrderPlaced(Event, type="orders.placed", version=2, foreign=True):
    order_id: UUID
    total: int
    due: date


app = Outrider(context="billing")
__all__ = ["Invoiced", "OrderPlaced", "app"]
