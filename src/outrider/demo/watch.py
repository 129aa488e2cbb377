"""Counts what happened, in the database and in one snapshot, and draws it. Knows nothing of what the shop intended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.columns import Columns
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.postgres.session import AsyncSession

# Late: a higher number of its partition had been read before. Lost: a later order of the same customer has been read
# and this one has not, or the shop is closed and it was never read. Ghost: seen, but its order was never committed.
COUNT = """
with line as (
    select order_id, seq, number,
           max(seq)    over (partition by partition order by place rows between unbounded preceding and 1 preceding)
               as highest_seq,
           max(number) over (partition by customer order by place rows between unbounded preceding and 1 preceding)
               as highest_number
    from seen
), newest as (
    select customer, max(number) as number from seen group by customer
)
select (select count(*) from placed_order),
       (select count(*) from outrider.outbox),
       count(*),
       count(*) filter (where seq < highest_seq),
       (select count(*) from placed_order as o left join newest using (customer)
        where not exists (select from seen where seen.order_id = o.id) and (%(closed)s or o.number < newest.number)),
       count(*) - count(distinct order_id),
       count(*) filter (where number < highest_number),
       count(*) filter (where not exists (select from placed_order as o where o.id = order_id))
from line
"""
NEWEST = """
select s.seq, s.customer, s.number, extract(epoch from s.seen_at - s.occurred_at)::float
from seen as s
where s.place > (select max(place) - 2000 from seen)
  and %(late)s = exists (select from seen as before
                           where before.partition = s.partition and before.seq > s.seq and before.place < s.place)
order by place desc limit 6
"""


@dataclass(frozen=True, slots=True)
class Figures:
    orders: int = 0
    published: int = 0
    read: int = 0
    late: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    ghosts: int = 0

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.ghosts)


async def count(conn: AsyncSession, *, closed: bool) -> Figures:
    cursor = await conn.execute(COUNT, {"closed": closed})
    [row] = await cursor.fetchall()
    return Figures(**{field.name: value for field, value in zip(fields(Figures), row, strict=True)})


async def newest(conn: AsyncSession, *, late: bool) -> list[Any]:
    cursor = await conn.execute(NEWEST, {"late": late})
    return await cursor.fetchall()


def draw(
    figures: Figures, rolled_back: int, read_again: int, rate: float, fresh: Sequence[Any], late: Sequence[Any]
) -> RenderableType:
    counts = Table.grid(padding=(0, 2))
    counts.add_column()
    counts.add_column(justify="right", min_width=8)
    counts.add_row("orders committed", f"{figures.orders:,}")
    counts.add_row("orders rolled back", f"{rolled_back:,}")
    counts.add_row("events published", f"{figures.published:,}")
    counts.add_row("events read", f"[bold]{figures.read:,}[/]")
    counts.add_row("  of them late", f"[yellow]{figures.late:,}[/]")
    counts.add_row("reads rolled back", f"{read_again:,}")
    counts.add_row("events per second", f"{rate:,.0f}")
    counts.add_row()
    for name, number in (
        ("lost", figures.lost),
        ("doubled", figures.doubled),
        ("out of order", figures.disordered),
        ("rolled back but seen", figures.ghosts),
    ):
        counts.add_row(name, Text(f"{number:,}", style="bold red" if number else "bold green"))

    events = Table(box=None, padding=(0, 1), pad_edge=False)
    events.add_column("number", justify="right")
    events.add_column("customer", min_width=8)
    events.add_column("order", justify="right", min_width=6)
    events.add_column("read after", justify="right", min_width=10)
    for rows, style in ((fresh, ""), (late, "yellow")):
        for seq, customer, order, waited in rows:
            after = f"{waited:,.1f} s" if waited >= 1 else f"{waited * 1000:,.0f} ms"
            events.add_row(str(seq), customer, f"#{order}", after, style=style)
    return Columns(
        [
            Panel(counts, title="the shop", border_style="cyan", height=15),
            Panel(events, title="newest events, [yellow]newest late ones[/]", border_style="cyan", height=15),
        ]
    )


def line(seconds: float, figures: Figures, rolled_back: int, rate: float) -> str:
    return (
        f"{seconds:5.1f} s  {figures.orders:,} orders ({rolled_back:,} rolled back)  {figures.read:,} events read "
        f"({figures.late:,} late, {rate:,.0f}/s)  lost {figures.lost}  doubled {figures.doubled}  "
        f"out of order {figures.disordered}"
    )


def summary(figures: Figures, rolled_back: int) -> str:
    verdict = "Nothing lost, nothing doubled, nothing out of order."
    if not figures.exact:
        verdict = (
            f"WRONG: lost {figures.lost}, doubled {figures.doubled}, out of order {figures.disordered}, "
            f"rolled back but seen {figures.ghosts}."
        )
    return (
        f"{verdict}\n"
        f"  orders  {figures.orders:,} committed, {rolled_back:,} rolled back\n"
        f"  events  {figures.published:,} published, {figures.read:,} read, {figures.late:,} of them late"
    )
