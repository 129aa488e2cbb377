"""What the shop does with an order, away from the till: it writes the invoice, and it grants the points.

Both handlers get every order. They write through `ctx.tx`: what they write and that the event is handled are committed
together, or neither. So each order has its effects exactly once, whatever fails or dies on the way.
"""

from __future__ import annotations

from outrider import Backoff, HandlerContext, Outrider
from outrider.demo.catalogue import declare_catalogue
from outrider.demo.shop import OrderPlaced

RETRY = Backoff.table("200ms", "400ms")
INVOICE = """
insert into invoice (order_id, customer, number, total)
values (%(order_id)s, %(customer)s, %(number)s, %(total)s)
"""
POINTS = """
insert into loyalty (customer, orders, points)
select customer, count(*), sum(points) from unnest(%s::text[], %s::bigint[]) as granted (customer, points) group by customer
on conflict (customer) do update set orders = loyalty.orders + excluded.orders, points = loyalty.points + excluded.points
"""


class CardDeclined(Exception):
    pass


def open_shop(dsn: str, pool_size: int = 4, retry: Backoff = RETRY) -> Outrider:
    """The app as the tills and the workers know it; nothing of it comes from the environment."""
    app = Outrider(
        context="shop",
        dsn=dsn,
        listen_dsn=dsn,
        schema="outrider",
        generation=0,
        notify="commit",
        pool_size=pool_size,
    )

    # The orders of one customer get their invoices in their order, also when one of them has to be tried again; the
    # other customers do not wait. After the third failure an order is a dead letter, and its customer's next one goes on.
    @app.handler(OrderPlaced, name="shop.invoice", partitions=4, retry=retry)
    async def invoice(order: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute(INVOICE, order.model_dump())
        charge(order, ctx.attempt)

    # Points may come in any order, and many at once.
    @app.handler(OrderPlaced, name="shop.loyalty", order="none")
    async def loyalty(orders: list[OrderPlaced], ctx: HandlerContext) -> None:
        await ctx.tx.execute(POINTS, [[order.customer for order in orders], [int(order.total) for order in orders]])

    declare_catalogue(app)
    return app


def charge(order: OrderPlaced, attempt: int) -> None:
    """Whatever was written before it fails is rolled back: no invoice without the money."""
    if order.card == "stolen" or (order.card == "shaky" and attempt == 1):
        raise CardDeclined("card declined")
