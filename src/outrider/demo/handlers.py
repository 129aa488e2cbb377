"""The handlers of an order: one writes the invoice, the other grants loyalty points.

Both get every order and write through `ctx.tx`. Their rows and the receipt of the event commit together, so each order
has its effects exactly once, whatever fails or dies.
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
    """The app of producers and workers. It reads no settings from the environment."""
    app = Outrider(
        context="shop",
        dsn=dsn,
        listen_dsn=dsn,
        schema="outrider",
        generation=0,
        notify="commit",
        pool_size=pool_size,
    )

    # Invoices of one customer are written in the order of the orders, also when one is retried; other customers do not
    # wait. After the third failure an order is a dead letter, and the customer's next order goes on.
    @app.handler(OrderPlaced, name="shop.invoice", partitions=4, retry=retry)
    async def invoice(order: OrderPlaced, ctx: HandlerContext) -> None:
        await ctx.tx.execute(INVOICE, order.model_dump())
        charge(order, ctx.attempt)

    # Points may be granted in any order, and many at once.
    @app.handler(OrderPlaced, name="shop.loyalty", order="none")
    async def loyalty(orders: list[OrderPlaced], ctx: HandlerContext) -> None:
        await ctx.tx.execute(POINTS, [[order.customer for order in orders], [int(order.total) for order in orders]])

    declare_catalogue(app)
    return app


def charge(order: OrderPlaced, attempt: int) -> None:
    """Fails after the invoice was written: the rollback removes the invoice."""
    if order.card == "stolen" or (order.card == "shaky" and attempt == 1):
        raise CardDeclined("card declined")
