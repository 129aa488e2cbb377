"""Counts what was ordered and what became of it, from the tables alone and in one snapshot.

A ledger continues where it stopped, so that a look costs what is new. A new ledger reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

from outrider.demo.draw import Figures
from outrider.demo.shop import HESITANT
from outrider.postgres.connection import AsyncSession

Tell = Callable[[str], None]

ORDERS = "select name, orders from customer"
STOLEN = "select count(*) from placed_order where card = 'stolen'"
POINTS = "select coalesce(sum(orders), 0), coalesce(sum(points), 0) from loyalty"
# Every transaction below the oldest running one has ended: its events are counted once and for all.
PUBLISHED = """
select oldest, count(*) filter (where tx < oldest), count(*) filter (where tx >= oldest)
from pg_snapshot_xmin(pg_current_snapshot()) as oldest
left join outrider.outbox on tx >= %s::xid8 and event_type = 'shop.order_placed' group by oldest
"""
# All invoices of a customer are written under the lock of one partition: a higher id is committed later.
INVOICES = """
select i.customer, i.id, i.number, o.id is not null, extract(epoch from i.made_at - o.placed_at)::float
from unnest(%(customers)s::text[], %(read)s::bigint[]) as customer (name, read)
cross join lateral (select * from invoice where invoice.customer = customer.name and invoice.id > customer.read) as i
left join placed_order as o on (o.id, o.customer, o.number) = (i.order_id, i.customer, i.number)
order by i.id
"""
DELIVERIES = """
select d.status, d.attempts, d.last_error, extract(epoch from d.run_at - now())::float,
       o.payload ->> 'customer', (o.payload ->> 'number')::integer, o.payload ->> 'card'
from outrider.delivery as d join outrider.outbox as o using (seq)
where d.subscription = 'shop.invoice' order by d.id
"""
CATALOGUE = """
select articles, imports, singles, announced, told
from (select count(*) as articles from article),
     (select coalesce(sum(groups_emitted), 0) as imports, coalesce(sum(pieces_emitted), 0) as singles
      from outrider.rollup_log),
     (select count(*) as announced, coalesce(sum(pieces), 0) as told from announcement)
"""
RECEIPTS = "select count(*) from outrider.event_handled where handler_name = 'shop.invoice'"
EARNED = "select coalesce(sum(floor(total)), 0) from placed_order"


@dataclass(slots=True)
class Waiting:
    """Orders in `delivery`."""

    failed: int = 0
    behind: int = 0
    dead: int = 0
    buried: set[tuple[str, int]] = field(default_factory=set)
    """Dead letters of stolen cards: customer and number."""


@dataclass(slots=True)
class CustomerInvoices:
    """Of one customer. Orders are numbered 1, 2, 3, …; a rolled-back order leaves no gap."""

    read: int = 0
    """The id of the last invoice that was read."""
    newest: int = 0
    missing: set[int] = field(default_factory=set)


def ignore(_: str) -> None:
    """For a ledger whose news nobody reads."""


class Ledger:
    def __init__(self, tell_failure: Tell = ignore, tell_late: Tell = ignore) -> None:
        self._tell_failure = tell_failure
        self._tell_late = tell_late
        self._customers: dict[str, CustomerInvoices] = {}
        self._invoices = self._doubled = self._disordered = self._ghosts = 0
        self._published = 0
        self._ended_before = "0"
        self._told: set[tuple[str, int, int]] = set()

    async def read_on(self, conn: AsyncSession, *, closed: bool) -> Figures:
        async with conn.transaction():
            await conn.execute("set transaction isolation level repeatable read")
            orders = dict(await rows(conn, ORDERS))
            [(rewarded, points)] = await rows(conn, POINTS)
            await self._read_invoices(conn, list(orders))
            waiting = await self._read_deliveries(conn)
            [(articles, imports, singles, announced, told)] = await rows(conn, CATALOGUE)
            return Figures(
                orders=sum(orders.values()),
                published=await self._count_published(conn),
                invoices=self._invoices,
                rewarded=int(rewarded),
                points=int(points),
                failed=waiting.failed,
                behind=waiting.behind,
                dead=waiting.dead,
                stolen=await number(conn, STOLEN),
                lost=len(self._lacking(orders if closed else {}) - waiting.buried),
                doubled=self._doubled,
                disordered=self._disordered,
                ghosts=self._ghosts,
                articles=articles,
                imports=int(imports),
                singles=int(singles),
                announced=announced,
                told=int(told),
                receipts=await number(conn, RECEIPTS) if closed else 0,
                earned=await number(conn, EARNED) if closed else 0,
            )

    async def _read_invoices(self, conn: AsyncSession, customers: list[str]) -> None:
        read = [self._customers.setdefault(name, CustomerInvoices()).read for name in customers]
        for customer, place, order, real, waited in await rows(conn, INVOICES, {"customers": customers, "read": read}):
            invoiced = self._customers[customer]
            invoiced.read = place
            self._invoices += 1
            if not real:
                self._ghosts += 1
                continue
            if order > invoiced.newest:
                invoiced.missing.update(range(invoiced.newest + 1, order))
                invoiced.newest = order
            elif order in invoiced.missing:
                invoiced.missing.remove(order)
                self._disordered += 1
            else:
                self._doubled += 1
            if customer in HESITANT:
                self._tell_late(f"order {order} of {customer}: committed late, invoiced after {waited:.1f} s")

    def _lacking(self, closed: Mapping[str, int]) -> set[tuple[str, int]]:
        """Orders without an invoice. `closed`: the number of orders of each customer, once no more will come."""
        lacking = {(name, order) for name, invoiced in self._customers.items() for order in invoiced.missing}
        for name, orders in closed.items():
            lacking |= {(name, order) for order in range(self._customers[name].newest + 1, orders + 1)}
        return lacking

    async def _read_deliveries(self, conn: AsyncSession) -> Waiting:
        waiting, told = Waiting(), set()
        for status, attempts, error, due_in, customer, order, card in await rows(conn, DELIVERIES):
            if status == "failed":
                waiting.dead += 1
                what = "now a dead letter"
                if card == "stolen":
                    waiting.buried.add((customer, order))
            elif attempts:
                waiting.failed += 1
                what = f"next attempt in {max(due_in, 0):.1f} s"
            else:
                waiting.behind += 1
                continue
            told.add(failure := (customer, order, attempts))
            if failure not in self._told:
                self._tell_failure(f"order {order} of {customer}: {error.removeprefix('CardDeclined: ')}, {what}")
        self._told = told
        return waiting

    async def _count_published(self, conn: AsyncSession) -> int:
        [(self._ended_before, ended, recent)] = await rows(conn, PUBLISHED, [self._ended_before])
        self._published += ended
        return self._published + int(recent)


async def rows(conn: AsyncSession, query: LiteralString, params: Any = None) -> list[Any]:
    cursor = await conn.execute(query, params)
    return await cursor.fetchall()


async def number(conn: AsyncSession, query: LiteralString) -> int:
    [(counted,)] = await rows(conn, query)
    return int(counted)
