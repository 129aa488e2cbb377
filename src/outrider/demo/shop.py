"""The shop and its customers: each order and its event are written in one transaction.

Customers roll back, roll back to a savepoint, keep a transaction open, and order in bulk. Some cards ("shaky") are
declined once; stolen ones always.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from decimal import Decimal
from typing import Literal

from outrider import Backoff, Event, HandlerContext, Outrider
from outrider.demo import catalogue
from outrider.demo.catalogue import declare_catalogue
from outrider.postgres.connection import AsyncSession

CUSTOMERS = ("amber", "birch", "coral", "dune", "ember", "fern", "grove", "heath", "isle", "jade")
HESITANT = ("mist", "stone")
SHAKY_SHARE = 0.05

Card = Literal["good", "shaky", "stolen"]

TABLES = """
create table customer (name text primary key, orders integer not null default 0);
create table placed_order (
    id        bigint generated always as identity primary key,
    customer  text not null references customer,
    number    integer not null,
    total     numeric not null,
    card      text not null,
    placed_at timestamptz not null default clock_timestamp()
);
create index on placed_order (id) where card = 'stolen';
-- Written by the handlers. Without a unique order_id, so that a doubled invoice shows.
create table invoice (
    id       bigint generated always as identity primary key,
    order_id bigint not null,
    customer text not null,
    number   integer not null,
    total    numeric not null,
    made_at  timestamptz not null default clock_timestamp()
);
create index on invoice (customer, id);
create table loyalty (customer text primary key, orders bigint not null, points bigint not null);
"""

# Locks the customer's row until the end of the transaction, so that the orders of one customer commit one by one.
PLACE = """
with counted as (update customer set orders = orders + 1 where name = %(customer)s returning orders)
insert into placed_order (customer, number, total, card) select %(customer)s, orders, %(total)s, %(card)s from counted
returning id, number
"""
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


class OrderPlaced(Event, type="shop.order_placed", key="customer"):
    order_id: int
    customer: str
    number: int
    """Of this customer: 1, 2, 3, …"""
    total: Decimal
    card: Card


class Shop:
    def __init__(self, app: Outrider) -> None:
        self.app = app
        self.rolled_back = 0
        self.chance = random.Random()  # noqa: S311 (who buys what is no secret)

    async def furnish(self) -> None:
        await self.app.migrate()
        async with self.app.connect() as conn:
            await conn.execute(TABLES)
            await conn.execute("insert into customer select unnest(%s::text[])", [[*CUSTOMERS, *HESITANT]])
            await catalogue.furnish(conn, self.app)

    async def place(self, conn: AsyncSession, customer: str, card: Card | None = None) -> None:
        """Writes the order and its event in the caller's transaction: both are committed, or neither."""
        total = Decimal(self.chance.randint(100, 99_900)) / 100
        card = card or ("shaky" if self.chance.random() < SHAKY_SHARE else "good")
        cursor = await conn.execute(PLACE, {"customer": customer, "total": total, "card": card})
        [(order_id, number)] = await cursor.fetchall()
        order = OrderPlaced(order_id=order_id, customer=customer, number=number, total=total, card=card)
        await self.app.publish(conn, order)

    async def buy(self, customer: str, card: Card | None = None) -> None:
        async with self.app.connect() as conn, conn.transaction():
            await self.place(conn, customer, card)

    async def change_mind(self, customer: str) -> None:
        async with self.app.connect() as conn, conn.transaction(force_rollback=True):
            await self.place(conn, customer)
        self.rolled_back += 1

    async def drop_an_item(self, customer: str) -> None:
        async with self.app.connect() as conn, conn.transaction():
            await self.place(conn, customer)
            async with conn.transaction(force_rollback=True):  # a savepoint
                await self.place(conn, customer)
            await self.place(conn, customer)
        self.rolled_back += 1

    async def buy_in_bulk(self, customer: str) -> None:
        async with self.app.connect() as conn, conn.transaction():
            for _ in range(self.chance.randint(10, 40)):
                await self.place(conn, customer)

    async def hesitate(self, customer: str, closing: asyncio.Event) -> None:
        """The events get their log positions at once, but nobody sees them until the transaction commits."""
        async with self.app.connect() as conn, conn.transaction():
            await self.place(conn, customer)
            await self.place(conn, customer)
            await pause(closing, self.chance.uniform(0.5, 3))

    async def serve(self, closing: asyncio.Event) -> None:
        ways = [self.buy, self.change_mind, self.drop_an_item, self.buy_in_bulk]
        while not closing.is_set():
            [way] = self.chance.choices(ways, weights=[80, 12, 6, 2])
            await way(self.chance.choice(CUSTOMERS))
            await pause(closing, self.chance.expovariate(25))

    async def serve_hesitant(self, customer: str, closing: asyncio.Event) -> None:
        while not closing.is_set():
            await self.hesitate(customer, closing)

    async def serve_thieves(self, closing: asyncio.Event) -> None:
        while not closing.is_set():
            await self.buy(self.chance.choice(CUSTOMERS), "stolen")
            await pause(closing, self.chance.uniform(2, 4))


async def pause(until: asyncio.Event, seconds: float | None) -> None:
    """Sleeps for `seconds`, or until the event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until.wait()


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
