"""The context `billing`: it reads orders through a view of its own, and owns `billing.invoiced`.

It imports nothing of `orders`: the name of the fact and its JSON are all that they share.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from opentelemetry import trace

from outrider import Backoff, Event, HandlerContext, Outrider


def from_cents(v1: dict[str, Any]) -> dict[str, Any]:
    return v1 | {"total": str(Decimal(v1["cents"]) / 100)}


class OrderPlaced(Event, type="orders.placed", version=2, foreign=True, upcasters={1: from_cents}):
    """What billing needs to know of an order: not its currency."""

    order_id: UUID
    total: Decimal


class Invoiced(Event, type="billing.invoiced", version=1, key="order_id"):
    """An order was invoiced."""

    order_id: UUID
    number: int


rates: dict[str, Decimal] = {}
"""The tax table of another service, which may be down."""
tracer = trace.get_tracer("billing")

TABLES = """
create table if not exists invoice (
    number bigint generated always as identity, order_id uuid, gross numeric, release bigint);
create table if not exists risk (order_id uuid, score numeric, release bigint);
"""
"""`release` is the generation of the worker that wrote the row. Nothing is unique: an order that is handled twice shows."""


def make(**settings: Any) -> Outrider:
    """The app of one release."""
    app = Outrider(context="billing", **settings)

    @app.handler(OrderPlaced, name="billing.invoice", retry=Backoff.table("50ms", "50ms"))
    async def invoice(order: OrderPlaced, ctx: HandlerContext) -> None:
        """Three attempts, then it is a dead letter. The invoice, its event and the receipt commit together."""
        with tracer.start_as_current_span("invoice"):
            gross = order.total * (1 + rates["vat"])
            row = await ctx.tx.execute(
                "insert into invoice (order_id, gross, release) values (%s, %s, %s) returning number",
                [order.order_id, gross, app.settings.generation],
            )
            (number,) = await row.fetchone() or (0,)
            await app.publish(ctx.tx, Invoiced(order_id=order.order_id, number=number))

    @app.handler(OrderPlaced, name="billing.risk", channel_class="model")
    async def risk(order: OrderPlaced, ctx: HandlerContext) -> None:
        """A model scores the order, which takes long: workers of the class `model` do it, apart from the invoices."""
        await ctx.tx.execute(
            "insert into risk values (%s, %s, %s)", [order.order_id, order.total / 1000, app.settings.generation]
        )

    return app


app = make()
