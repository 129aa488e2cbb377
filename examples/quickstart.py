"""An event in your own transaction, a handler that acts on it exactly once, a job. Run it: python examples/quickstart.py"""

import asyncio
from decimal import Decimal
from uuid import UUID, uuid4

from outrider import Event, HandlerContext, Job, JobContext, Outrider


class OrderPlaced(Event, type="orders.placed", version=1, key="order_id"):  # events with the same key stay in order
    order_id: UUID
    total: Decimal


class SendReceipt(Job, type="mail.send_receipt"):  # a command for later
    order_id: UUID


app = Outrider(context="shop", embedded=True)  # in production: dsn=... or OUTRIDER_DSN


@app.handler(OrderPlaced, name="shop.invoice")
async def invoice(event: OrderPlaced, ctx: HandlerContext) -> None:  # what it writes commits with its receipt
    await ctx.tx.execute("insert into invoice values (%s, %s)", [event.order_id, event.total])
    await app.enqueue(ctx.tx, SendReceipt(order_id=event.order_id))  # the invoice and the job, or neither
    print(f"invoiced {event.total} for order {event.order_id}")


@app.job(SendReceipt, lease="5m", concurrency=4)  # four at a time, over all workers
async def send_receipt(job: SendReceipt, ctx: JobContext) -> None:  # outside of a transaction: at least once
    print(f"mailing the receipt of order {job.order_id}, attempt {ctx.attempt}")


async def main() -> None:
    async with app:
        await app.migrate()  # the schema, the subscriptions and their cursors

        async with app.connect() as conn, conn.transaction():  # any psycopg connection of yours does
            await conn.execute("create table if not exists invoice (order_id uuid primary key, total numeric)")
            await app.publish(conn, OrderPlaced(order_id=uuid4(), total=Decimal("9.90")))

        print(await app.drain())  # do all that is due now; `outrider worker --app shop:app` does it for ever


if __name__ == "__main__":
    asyncio.run(main())
