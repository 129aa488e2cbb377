"""A shop that runs with the code of either release. Its effects say which code had them, and for whom.

`python shop.py publish NAME` publishes until SIGTERM, then says how much; `python shop.py tour` uses what there is, once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

import outrider
from outrider import Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy

CODE = str(Path(outrider.__file__).parents[1])
CUSTOMERS = 5

logging.getLogger("outrider").addHandler(logging.NullHandler())  # nobody empties the pipe while it runs


class Placed(Event, type="upgrade.placed", key="customer"):
    customer: str
    n: int


class Chore(Job, type="shop.chore"):
    n: int


app = Outrider(context="shop", pool_size=4)
reader = app.reader(Placed, name="shop.reader", start="beginning")


@app.handler(
    Placed, name="shop.effect", partitions=4, start="beginning",
    retry=RetryPolicy(retries=2, base="5ms", cap="5ms", jitter="none"),
)  # fmt: skip
async def effect(event: Placed, ctx: HandlerContext) -> None:
    values = [event.customer, event.n, CODE, os.getpid(), ctx.attempt]
    await ctx.tx.execute("insert into effect (customer, n, code, pid, attempt) values (%s, %s, %s, %s, %s)", values)
    if event.n % 5 == 3 and ctx.attempt == 1:
        raise RuntimeError("the first time")
    if event.n % 11 == 7 and not os.environ.get("MENDED"):
        raise RuntimeError("every time")


@app.job(Chore, retry=RetryPolicy(retries=0))
async def chore(job: Chore, ctx: JobContext) -> None:
    if job.n == 13:
        raise RuntimeError("every time")
    async with ctx.connect() as conn:
        await conn.execute("insert into effect (n, code) values (%s, %s)", [job.n, CODE])


async def publish(name: str) -> None:
    """Transactions of one event and of several, and now and then one that is rolled back."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    n = 0
    async with app, app.connect() as conn:
        while not stopped.is_set():
            n += 1
            each = [Placed(customer=f"{name} {customer}", n=n) for customer in range(CUSTOMERS)]
            if n % 7 == 0:
                await app.publish(conn, each[0])
                await conn.rollback()
            if n % 2:
                await app.publish_many(conn, each)
            else:
                for event in each:
                    await app.publish(conn, event)
            await conn.commit()
            await asyncio.sleep(0.1)  # a slow machine keeps up with it too
    print(json.dumps({"rounds": n, "code": CODE}))


async def tour() -> None:
    """Everything in one process: what it comes to is the same with either code."""
    seen: dict[str, object] = {"code": CODE}
    async with app:
        seen["registered"] = sorted((each.name, each.outcome) for each in await app.migrate())
        async with app.connect() as conn, conn.transaction():
            dead = [await app.publish(conn, Placed(customer="a", n=n)) for n in (1, 3, 7, 8)][2]
        async with app.connect() as conn, conn.transaction():
            seen["read"] = [envelope.decode(Placed).n for envelope in (await reader.take(conn)).events]
        handled = 0
        while handled < 3:
            handled += (await app.drain()).handled
        os.environ["MENDED"] = "1"
        seen["replayed"] = [each.outcome for each in await app.replay(dead.id, by="tests")]
        seen["again"] = (await app.drain()).handled
        await app.pause("shop.effect")
        await app.resume("shop.effect")
    print(json.dumps(seen))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["publish", name]:
            asyncio.run(publish(name))
        case ["tour"]:
            asyncio.run(tour())
