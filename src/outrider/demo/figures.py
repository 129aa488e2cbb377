"""What the books say at one moment, and whether that is right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    orders: int = 0
    published: int = 0
    invoices: int = 0
    rewarded: int = 0
    """Orders for which points were granted."""
    points: int = 0
    failed: int = 0
    """Orders that wait for their next attempt."""
    behind: int = 0
    """Orders that wait for one of those, of the same customer."""
    dead: int = 0
    stolen: int = 0
    """Orders that must become dead letters."""
    lost: int = 0
    """A later order of the same customer has its invoice, or the shop is closed; and this one has none."""
    doubled: int = 0
    disordered: int = 0
    ghosts: int = 0
    """Invoices whose order was never committed."""
    articles: int = 0
    imports: int = 0
    """Events that tell of a whole document."""
    singles: int = 0
    """Events that tell of one article."""
    announced: int = 0
    """What came of these events."""
    told: int = 0
    """The articles of which those tell."""
    receipts: int | None = None
    """This and the next: only when the shop is closed."""
    earned: int | None = None

    @property
    def all_handled(self) -> bool:
        announced = self.announced >= self.imports + self.singles and self.told >= self.articles
        return announced and self.invoices + self.dead >= self.orders <= self.rewarded and not self.failed + self.behind

    @property
    def exact(self) -> bool:
        """When the shop is closed."""
        faults = self.lost + self.doubled + self.disordered + self.ghosts
        balanced = (self.published, self.dead, self.invoices, self.rewarded, self.points) == (
            self.orders, self.stolen, self.receipts, self.orders, self.earned,
        )  # fmt: skip
        rolled_up = (self.told, self.announced, self.imports) == (
            self.articles, self.imports + self.singles, bool(self.articles),
        )  # fmt: skip
        return balanced and rolled_up and not faults
