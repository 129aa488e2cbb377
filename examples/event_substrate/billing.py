"""The context `billing`: it reads orders through a view of its own, and owns `billing.invoiced`.

It imports nothing of `orders`: the name of the fact and its JSON are all that they share.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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


app = Outrider(context="billing")
rates: dict[str, Decimal] = {}
"""The tax table of another service, which may be down."""
tracer = trace.get_tracer("billing")


@app.handler(OrderPlaced, name="billing.invoice", retry=Backoff.table("50ms", "50ms"))
async def invoice(order: OrderPlaced, ctx: HandlerContext) -> None:
    """Three attempts, then it is a dead letter. The invoice, its event and the receipt commit together."""
    sender = TraceContextTextMapPropagator().extract(ctx.envelope.trace_context or {})
    with tracer.start_as_current_span("invoice", context=sender):
        gross = order.total * (1 + rates["vat"])
        row = await ctx.tx.execute(
            "insert into invoice (order_id, gross) values (%s, %s) returning number", [order.order_id, gross]
        )
        (number,) = await row.fetchone() or (0,)
        await app.publish(ctx.tx, Invoiced(order_id=order.order_id, number=number))
