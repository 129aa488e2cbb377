"""The figures of the shop, what is expected of them, and the news.

Drawn as a live screen for a terminal, a line a second for a pipe, a summary at the end.

Everything fits into 80 columns, also when the numbers have seven digits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

MOST_NEWS = 5
"""Of each kind, where the screen is high enough."""
INTRODUCTION = """\
Customers place orders. Two workers write an invoice for each. Meanwhile the
demo kills workers, cuts connections, declines cards and rolls orders back.
Every committed order must get exactly one invoice, or become a dead letter."""
COMPARED = """\
{orders:,} orders were committed, {rolled_back:,} more were rolled back.
What the handlers wrote is compared with the orders in the shop's own table.
There are fewer invoices than orders: stolen cards are declined at all three
attempts, on purpose, and these orders become dead letters.
"""
REASSURANCE = """\
The demo killed {killed:,} workers and cut {cut:,} of the sessions in which
workers listen. Neither matters. A handler's rows and its receipt commit in one
transaction, so Postgres rolls back what a killed worker had begun, and another
worker does it again. A worker that listens again looks for what it has missed."""
NEXT = """\
What to type next. This starts the demo's Postgres again; leave it running:
  {outrider} dev
It shows a dashboard of a new database. In another terminal, for the demo's:
  export OUTRIDER_DSN={dsn}
  {outrider} status       how far each subscription has read
  {outrider} dlq list     what failed
  {outrider} dashboard    all of it
The data stays until the next demo. A service of your own, to begin with:
  {outrider} init --service billing"""


@dataclass(slots=True)
class News:
    """The newest happenings of each kind, with the second in which they became known."""

    trouble: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_NEWS))
    failures: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_NEWS))
    late: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_NEWS))
    opened: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the shop opened."""
        return time.monotonic() - self.opened

    def tell_trouble(self, text: str) -> None:
        self.trouble.appendleft((self.seconds, text))

    def tell_failure(self, text: str) -> None:
        self.failures.appendleft((self.seconds, text))

    def tell_late(self, text: str) -> None:
        self.late.appendleft((self.seconds, text))


@dataclass(frozen=True, slots=True)
class Activity:
    """Numbers that the database does not hold."""

    rolled_back: int = 0
    workers: int = 0
    killed: int = 0
    cut: int = 0
    rate: float = 0


@dataclass(frozen=True, slots=True)
class DemoScreen:
    figures: Figures
    activity: Activity
    news: News

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shop = Panel(counts(self.figures, self.activity), title="the shop", border_style="cyan")
        room = console.size.height - len(console.render_lines(shop, options)) - 2
        each = max(1, min(MOST_NEWS, room // 3))
        yield shop
        yield Panel(happenings(self.news, each), title="what happened", border_style="cyan")


def counts(figures: Figures, activity: Activity) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", min_width=9)
    grid.add_column(style="dim")
    grid.add_row("orders committed", f"{figures.orders:,}", "each with its event, in one transaction")
    grid.add_row("orders rolled back", f"{activity.rolled_back:,}", "they must never be seen")
    grid.add_row(
        "invoices", f"[bold]{figures.invoices:,}[/]", f"{activity.rate:,.0f} a second; workers: {activity.workers}"
    )
    grid.add_row("waiting for retry", f"[yellow]{figures.failed:,}[/]", "the card was declined")
    grid.add_row("waiting behind them", f"{figures.behind:,}", "the next orders of these customers")
    grid.add_row("dead letters", f"[yellow]{figures.dead:,}[/]", "on purpose: stolen cards, declined 3 times")
    grid.add_row()
    for fault in figures.faults:
        style = "bold green" if fault.passed else "bold red"
        grid.add_row(fault.name, Text(f"{fault.found:,}", style=style), fault.meaning)
    grid.add_row()
    grid.add_row("workers killed", f"[red]{activity.killed:,}[/]", "another worker does their work again")
    grid.add_row("listeners cut", f"[red]{activity.cut:,}[/]", "they reconnect, and miss nothing")
    grid.add_row("loyalty points", f"{figures.points:,}", "a second handler of the same orders")
    events = f"announced by {figures.imports + figures.singles:,} events: a rollup"
    grid.add_row("articles imported", f"{figures.articles:,}", events)
    return grid


def happenings(news: News, of_each: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=7)
    grid.add_column()
    for told, style in ((news.trouble, "red"), (news.failures, "yellow"), (news.late, "cyan")):
        newest = list(told)[:of_each]
        for second, text in newest:
            grid.add_row(f"{second:.1f} s", Text(text, style=style))
        for _ in range(of_each - len(newest)):
            grid.add_row()
    return grid


def line(figures: Figures, news: News) -> str:
    return (
        f"{news.seconds:5.1f} s  {figures.orders:,} orders  {figures.invoices:,} invoices  "
        f"{figures.failed} to retry  {figures.dead} dead  {sum(fault.found for fault in figures.faults)} wrong"
    )


def summary(figures: Figures, activity: Activity) -> str:
    """Each check with what was found and what was expected."""
    wrong = [each for each in figures.checks if not each.passed]
    verdict = "Nothing was lost, doubled or out of order."
    if wrong:
        verdict = (
            "WRONG: " + ", ".join(f"{each.name} {each.found:,} instead of {each.expected:,}" for each in wrong) + "."
        )
    rows = [f"  {'':20}{'found':>12}{'expected':>12}"]
    rows += [f"  {each.name:20}{each.found:>12,}{each.expected:>12,}  {each.meaning}" for each in figures.checks]
    return "\n".join(
        [
            COMPARED.format(orders=figures.orders, rolled_back=activity.rolled_back),
            *rows,
            "",
            verdict,
            "",
            REASSURANCE.format(killed=activity.killed, cut=activity.cut),
        ]
    )


def next_steps(dsn: str, command: str = sys.argv[0]) -> str:
    """`command`: how the demo was started, in case that outrider is not on the PATH."""
    outrider = "outrider"
    if Path(command).name == outrider and not shutil.which(outrider):
        outrider = min(os.path.relpath(command), command, key=len)
    return NEXT.format(outrider=outrider, dsn=shlex.quote(dsn))


class FigureCheck(NamedTuple):
    name: str
    found: int
    expected: int
    meaning: str

    @property
    def passed(self) -> bool:
        return self.found == self.expected


@dataclass(frozen=True, slots=True)
class Figures:
    orders: int = 0
    """Orders that were committed, counted in the shop's own tables."""
    published: int = 0
    invoices: int = 0
    rewarded: int = 0
    """Orders for which points were granted."""
    points: int = 0
    failed: int = 0
    """Orders that wait for their next attempt."""
    behind: int = 0
    """Orders that wait behind one of those, of the same customer."""
    dead: int = 0
    stolen: int = 0
    """Orders paid with a stolen card. They must become dead letters."""
    lost: int = 0
    """Orders without an invoice and without a dead letter.

    While the shop is open, an order counts only if a later order of the same customer has its invoice.
    """
    doubled: int = 0
    disordered: int = 0
    ghosts: int = 0
    """Invoices whose order was never committed."""
    articles: int = 0
    imports: int = 0
    """Events that announce a whole document."""
    singles: int = 0
    """Events that announce one article."""
    announced: int = 0
    """Announcements written by the handler of these events."""
    told: int = 0
    """Articles in those announcements."""
    receipts: int = 0
    """Counted only when the shop is closed, as is `earned`."""
    earned: int = 0

    @property
    def all_handled(self) -> bool:
        announced = self.announced >= self.imports + self.singles and self.told >= self.articles
        return announced and self.invoices + self.dead >= self.orders <= self.rewarded and not self.failed + self.behind

    @property
    def faults(self) -> list[FigureCheck]:
        """Must be 0 at every moment."""
        return [
            FigureCheck("lost", self.lost, 0, "neither invoice nor dead letter"),
            FigureCheck("doubled", self.doubled, 0, "more than one invoice"),
            FigureCheck("out of order", self.disordered, 0, "invoiced after a later order"),
            FigureCheck("rolled back but seen", self.ghosts, 0, "invoiced, but not committed"),
        ]

    @property
    def checks(self) -> list[FigureCheck]:
        """Must hold when the shop is closed and everything is handled."""
        return [
            FigureCheck("events published", self.published, self.orders, "one per committed order"),
            FigureCheck("invoices", self.invoices, self.orders - self.stolen, "one per order that was paid"),
            FigureCheck("receipts", self.receipts, self.invoices, "one per invoice"),
            FigureCheck("dead letters", self.dead, self.stolen, "on purpose: stolen cards"),
            *self.faults,
            FigureCheck("orders with points", self.rewarded, self.orders, "a second handler, all orders"),
            FigureCheck("points", self.points, self.earned, "order totals, rounded down"),
            FigureCheck("articles announced", self.told, self.articles, "rows of a table: a rollup"),
            FigureCheck("announcements", self.announced, self.imports + self.singles, "one per rollup event"),
            FigureCheck("documents announced", self.imports, int(self.articles > 0), "many rows, one event"),
        ]

    @property
    def exact(self) -> bool:
        return all(each.passed for each in self.checks)
