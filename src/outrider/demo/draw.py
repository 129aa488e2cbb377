"""Draws the figures and the news: a live screen for a terminal, a line a second for a pipe, a summary at the end.

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

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.demo.figures import Figures

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
In another terminal: how far each subscription has read, and what failed:
  export OUTRIDER_DSN={dsn}
  {outrider} status
  {outrider} dlq list
The data stays until the next demo. To write your own: docs/guide.md."""


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
        f"{figures.failed} to retry  {figures.dead} dead  {sum(fault.found for fault in figures.faults)} faults"
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
