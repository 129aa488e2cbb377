"""The shop: customers place orders and publish events in one transaction, clerks read the events back in another.

Customers behave as in real life: they change their minds, drop an item, hesitate with the till open, order in bulk.
Clerks are clumsy and now and then roll back what they have just read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from decimal import Decimal

from outrider import Event, Outrider
from outrider.postgres.session import AsyncSession

CUSTOMERS = ("amber", "birch", "coral", "dune", "ember", "fern", "grove", "heath", "isle", "jade")
HESITANT = ("mist", "stone")
PARTITIONS = 4

TABLES = """
create table customer (name text primary key, orders integer not null default 0);
create table placed_order (
    id       bigint generated always as identity primary key,
    customer text not null references customer,
    number   integer not null,
    total    numeric not null
);
-- What the clerks saw, in the order of each partition. Nothing here is unique: a double must be able to show.
create table seen (
    place       bigint generated always as identity primary key,
    partition   integer not null,
    seq         bigint not null,
    order_id    bigint not null,
    customer    text not null,
    number      integer not null,
    occurred_at timestamptz not null,
    seen_at     timestamptz not null default clock_timestamp()
);
create index on seen (partition, seq);
"""

# The customer's row is locked until the end of the transaction: that puts the orders of one customer in line.
PLACE = """
with line as (update customer set orders = orders + 1 where name = %(customer)s returning orders)
insert into placed_order (customer, number, total) select %(customer)s, orders, %(total)s from line
returning id, number
"""
SEE = "insert into seen (partition, seq, order_id, customer, number, occurred_at) values (%s, %s, %s, %s, %s, %s)"


class OrderPlaced(Event, type="shop.order_placed", key="customer"):
    order_id: int
    customer: str
    number: int
    """The how-manieth order of this customer."""
    total: Decimal


class Shop:
    def __init__(self, app: Outrider) -> None:
        self.app = app
        self.orders = app.reader(OrderPlaced, name="shop.clerks", partitions=PARTITIONS)
        self.rolled_back = 0
        self.read_again = 0
        self.chance = random.Random()  # noqa: S311 (who buys what is no secret)

    async def furnish(self) -> None:
        await self.app.migrate()
        async with self.app.connect() as conn:
            await conn.execute(TABLES)
            await conn.execute("insert into customer select unnest(%s::text[])", [[*CUSTOMERS, *HESITANT]])

    async def place(self, conn: AsyncSession, customer: str) -> None:
        """The order and its event, in the transaction of the caller: both are committed, or neither."""
        total = Decimal(self.chance.randint(100, 99_900)) / 100
        cursor = await conn.execute(PLACE, {"customer": customer, "total": total})
        [(order_id, number)] = await cursor.fetchall()
        await self.app.publish(conn, OrderPlaced(order_id=order_id, customer=customer, number=number, total=total))

    # Customers

    async def buy(self, customer: str) -> None:
        async with self.app.connect() as conn, conn.transaction():
            await self.place(conn, customer)

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
        """The events have their numbers at once, but nobody can see them until the customer has paid."""
        async with self.app.connect() as conn, conn.transaction():
            await self.place(conn, customer)
            await self.place(conn, customer)
            await pause(closing, self.chance.uniform(0.5, 3))

    async def serve(self, closing: asyncio.Event) -> None:
        ways = [self.buy, self.change_mind, self.drop_an_item, self.buy_in_bulk]
        while not closing.is_set():
            [way] = self.chance.choices(ways, weights=[80, 12, 6, 2])
            await way(self.chance.choice(CUSTOMERS))
            await pause(closing, self.chance.expovariate(40))

    async def serve_hesitant(self, customer: str, closing: asyncio.Event) -> None:
        while not closing.is_set():
            await self.hesitate(customer, closing)

    # Clerks

    async def read(self, partition: int) -> str:
        """What is seen and how far it was read are committed together, or neither."""
        clumsy = self.chance.random() < 0.05
        async with self.app.connect() as conn, conn.transaction(force_rollback=clumsy), conn.cursor() as cursor:
            batch = await self.orders.take(conn, partition=partition)
            orders = [(envelope, envelope.decode(OrderPlaced)) for envelope in batch.events]
            rows = [(partition, e.seq, o.order_id, o.customer, o.number, e.occurred_at) for e, o in orders]
            await cursor.executemany(SEE, rows)
        if clumsy:
            self.read_again += len(rows)
        return batch.outcome

    async def clerk(self, closed: asyncio.Event) -> None:
        """Reads whatever partition is free, until the shop is closed and nothing is left to read."""
        while True:
            last_round = closed.is_set()
            partitions = self.chance.sample(range(PARTITIONS), PARTITIONS)
            outcomes = {await self.read(partition) for partition in partitions}
            if last_round and outcomes == {"idle"}:
                return
            if "more" not in outcomes:
                await asyncio.sleep(0.02)


async def pause(until: asyncio.Event, seconds: float | None) -> None:
    """At most so long; not at all once the event has come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until.wait()
