"""What the database says at one moment, and whether that is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
