"""Publish an event inside your own transaction, and read it back exactly once. Run it: python examples/quickstart.py"""

import asyncio
from decimal import Decimal
from uuid import UUID, uuid4

from outrider import Event, Outrider


class OrderPlaced(Event, type="orders.placed", version=1, key="order_id"):  # events with the same key stay in order
    order_id: UUID
    total: Decimal


app = Outrider(context="shop", embedded=True)  # in production: dsn=... or OUTRIDER_DSN
orders = app.reader(OrderPlaced, name="shop.invoices")


async def main() -> None:
    async with app:
        await app.migrate()  # the schema, the subscription and its cursor

        async with app.connect() as conn, conn.transaction():  # any psycopg connection of yours does
            await conn.execute("create table if not exists invoice (order_id uuid primary key, total numeric)")
            await app.publish(conn, OrderPlaced(order_id=uuid4(), total=Decimal("9.90")))

        async with app.connect() as conn, conn.transaction():  # what you write and how far you read commit together
            batch = await orders.take(conn)
            for order in (envelope.decode(OrderPlaced) for envelope in batch.events):
                await conn.execute("insert into invoice values (%s, %s)", [order.order_id, order.total])
                print(f"invoiced {order.total} for order {order.order_id}")


if __name__ == "__main__":
    asyncio.run(main())
