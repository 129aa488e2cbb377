"""Draws the figures and the news: a live table for a terminal, a line a second for a pipe, a summary at the end."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.demo.figures import Figures

HEIGHT = 22
NEWEST = 5


@dataclass(slots=True)
class News:
    """The newest happenings of each kind, with the second in which they became known."""

    trouble: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NEWEST))
    failures: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NEWEST))
    late: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NEWEST))
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
class Floor:
    """What the books do not hold."""

    rolled_back: int = 0
    workers: int = 0
    killed: int = 0
    cut: int = 0
    rate: float = 0


def table(figures: Figures, floor: Floor, news: News) -> RenderableType:
    sides = Table.grid(expand=True)
    sides.add_column(width=36)
    sides.add_column(ratio=1)
    sides.add_row(
        Panel(counts(figures, floor), title="the shop", border_style="cyan", height=HEIGHT),
        Panel(happenings(news), title="what happened", border_style="cyan", height=HEIGHT),
    )
    return sides


def counts(figures: Figures, floor: Floor) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", min_width=8)
    grid.add_row("orders committed", f"{figures.orders:,}")
    grid.add_row("orders rolled back", f"{floor.rolled_back:,}")
    grid.add_row("events published", f"{figures.published:,}")
    grid.add_row("invoices", f"[bold]{figures.invoices:,}[/]")
    grid.add_row("invoices per second", f"{floor.rate:,.0f}")
    grid.add_row("loyalty points", f"{figures.points:,}")
    grid.add_row("wait for a retry", f"[yellow]{figures.failed:,}[/]")
    grid.add_row("  and behind them", f"{figures.behind:,}")
    grid.add_row(f"dead letters, of {figures.stolen:,} due", f"[yellow]{figures.dead:,}[/]")
    grid.add_row("pieces imported", f"{figures.articles:,}")
    grid.add_row("  told of by events", f"[bold]{figures.imports + figures.singles:,}[/]")
    grid.add_row()
    grid.add_row("workers at work", f"{floor.workers}")
    grid.add_row("workers killed", f"[red]{floor.killed:,}[/]")
    grid.add_row("listeners cut", f"[red]{floor.cut:,}[/]")
    grid.add_row()
    for name, number in faults(figures).items():
        grid.add_row(name, Text(f"{number:,}", style="bold red" if number else "bold green"))
    return grid


def happenings(news: News) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=7)
    grid.add_column(no_wrap=True)
    for told, style in ((news.trouble, "red"), (news.failures, "yellow"), (news.late, "cyan")):
        for second, text in told:
            grid.add_row(f"{second:.1f} s", Text(text, style=style))
        for _ in range(NEWEST + 1 - len(told)):
            grid.add_row()
    return grid


def faults(figures: Figures) -> dict[str, int]:
    return {
        "lost": figures.lost,
        "doubled": figures.doubled,
        "out of order": figures.disordered,
        "rolled back but seen": figures.ghosts,
    }


def line(figures: Figures, floor: Floor, news: News) -> str:
    return (
        f"{news.seconds:5.1f} s  {figures.orders:,} orders ({floor.rolled_back:,} rolled back)  "
        f"{figures.invoices:,} invoices ({floor.rate:,.0f}/s)  {figures.failed} to retry  {figures.dead} dead  "
        f"{floor.killed} killed  {floor.cut} cut  lost {figures.lost}  doubled {figures.doubled}  "
        f"out of order {figures.disordered}"
    )


def summary(figures: Figures, floor: Floor) -> str:
    verdict = "Nothing lost, nothing doubled, nothing out of order."
    if not figures.exact:
        verdict = "WRONG: " + ", ".join(f"{name} {number:,}" for name, number in faults(figures).items()) + "."
    return (
        f"{verdict}\n"
        f"  orders        {figures.orders:,} committed, {floor.rolled_back:,} rolled back, "
        f"{figures.published:,} events published\n"
        f"  invoices      {figures.invoices:,} with {figures.receipts:,} receipts\n"
        f"  points        {figures.points:,} granted, {figures.earned:,} earned, for {figures.rewarded:,} orders\n"
        f"  dead letters  {figures.dead:,} (expected {figures.stolen:,})\n"
        f"  documents     {figures.articles - figures.singles:,} pieces of one document arrived as {figures.imports:,} "
        f"event, {figures.singles:,} single piece as {figures.singles:,}\n"
        f"  trouble       {floor.killed:,} workers killed, {floor.cut:,} listeners cut"
    )
