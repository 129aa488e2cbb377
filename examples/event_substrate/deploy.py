"""A rolling deploy: two releases side by side, each with a generation of its own and two workers, one per channel class."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any
from uuid import uuid4

from outrider import Envelope, Outrider

from . import billing, orders
from .commands import outrider


async def roll(dsn: str) -> None:
    print("5. A rolling deploy")
    old, new = (Release(dsn, generation) for generation in (41, 42))
    async with old.opened(), new.opened(), new.at_work():
        async with old.at_work():
            for release in (old, new):
                placed = [await release.place() for _ in range(3)]
                channels = sorted({each.channel for each in placed})
                print(f"   {release.number} publishes 3 orders on {', '.join(channels)}: {await release.done(placed)}")
        last = [await old.place()]
        print(f"   the workers of 41 are gone, and it publishes an order: {await old.done(last, wait=False)}")
        answer = await asyncio.to_thread(outrider, "doctor", "--json", "--dsn", dsn)
        advices = [each["advice"] for each in json.loads(answer.stdout)["findings"] if each["check"] == "generations"]
        for command in (advice.partition(": outrider ")[2] for advice in advices):
            print(f"   the doctor says: outrider {command}")
            await asyncio.to_thread(outrider, *command.split(), "--dsn", dsn)
        print(f"   moved: {await new.done(last)}")


class Release:
    """One release of orders and billing: its web process publishes, and two workers share the work by channel class."""

    def __init__(self, dsn: str, number: int) -> None:
        self.number = number
        self.orders = Outrider(context="orders", dsn=dsn, generation=number)
        self.billing = billing.make(dsn=dsn, generation=number, generations="strict")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with self.orders, self.billing:
            await self.billing.migrate()
            yield

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """`worker --only-class` runs what is of no class, `worker --class model --only-class` the model."""
        async with self.billing.worker(only_class=True), self.billing.worker(classes=["model"], only_class=True):
            yield

    async def place(self) -> Envelope:
        event = orders.OrderPlaced(order_id=uuid4(), total=Decimal("10.00"), currency="EUR")
        async with self.orders.connect() as conn, conn.transaction():
            return await self.orders.publish(conn, event)

    async def done(self, placed: list[Envelope], *, wait: bool = True) -> str:
        """Who has handled these orders; once they are handled, if `wait`."""
        async with self.orders.connect() as conn:
            while True:
                found = [await self._handled(conn, table, placed) for table in ("invoice", "risk")]
                if not wait or all(sum(each.values()) == len(placed) for each in found):
                    break
                await asyncio.sleep(0.05)
        told = [", ".join(f"{n} by {release}" for release, n in sorted(each.items())) or "none" for each in found]
        return f"invoiced {told[0]}; scored {told[1]}"

    async def _handled(self, conn: Any, table: str, placed: list[Envelope]) -> Counter[int]:
        query = f"select release from {table} where order_id = any (%s::uuid[])"
        rows = await conn.execute(query, [[each.key for each in placed]])
        return Counter(release for (release,) in await rows.fetchall())
