"""What the worker processes run. It imports models, so it can be imported only after django.setup()."""

from __future__ import annotations

from outrider import Event, Outrider, SyncHandlerContext
from outrider.integrations.django import orm

from .models import Invoice


class Placed(Event, type="django.placed", key="order_id"):
    order_id: str


class Invoiced(Event, type="django.invoiced", key="order_id"):
    order_id: str


app = Outrider(context="shop")
reader = app.reader(Invoiced, name="shop.invoiced")


@app.handler(Placed, name="shop.invoice", start="beginning")
@orm
def invoice(event: Placed, ctx: SyncHandlerContext) -> None:
    Invoice.objects.create(order_id=event.order_id)
    app.publish_sync(ctx.tx, Invoiced(order_id=event.order_id))
