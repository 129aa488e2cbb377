"""Shows the figures of the shop until it is closed and everything is handled."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from outrider.demo import draw
from outrider.demo.crew import Crew
from outrider.demo.draw import Activity, News
from outrider.demo.figures import Figures
from outrider.demo.ledger import Ledger
from outrider.demo.shop import Shop, pause
from outrider.demo.trouble import TroubleMaker

PATIENCE = 10.0
"""Seconds without progress, after the shop has closed, until the demo stops waiting."""
LOOK = 0.1


class Watch:
    def __init__(self, shop: Shop, crew: Crew, trouble: TroubleMaker, news: News, *, live: bool) -> None:
        self._shop = shop
        self._crew = crew
        self._trouble = trouble
        self._news = news
        self._live = live
        self._refresh = 0.25 if live else 1.0
        self._rate = 0.0

    async def keep(self, closed: asyncio.Event) -> Figures:
        """Until the shop is closed and everything is handled. Then a new ledger counts everything again."""
        ledger = Ledger(self._news.tell_failure, self._news.tell_late)
        figures, looked = Figures(), time.monotonic()
        with screen(live=self._live) as show:
            while not closed.is_set():
                before, then = figures, looked
                looked = time.monotonic()
                figures = await self._read_on(ledger, closed=False)
                self._rate = (figures.invoices - before.invoices) / max(looked - then, LOOK)
                show(self._view(figures))
                # Counting may take a quarter of the time, no more.
                await pause(closed, max(self._refresh, 3 * (time.monotonic() - looked)))
            await self._until_handled(ledger)
            figures = await self._read_on(Ledger(), closed=True)
            show(self._view(figures))
        return figures

    async def _until_handled(self, ledger: Ledger) -> None:
        before, moved = Figures(), time.monotonic()
        while not (figures := await self._read_on(ledger, closed=False)).all_handled:
            if figures != before:
                before, moved = figures, time.monotonic()
            elif time.monotonic() - moved > PATIENCE:
                return
            await asyncio.sleep(LOOK)

    async def _read_on(self, ledger: Ledger, *, closed: bool) -> Figures:
        async with self._shop.app.connect() as conn:
            return await ledger.read_on(conn, closed=closed)

    def _view(self, figures: Figures) -> object:
        if self._live:
            return draw.DemoScreen(figures, self.activity(), self._news)
        return draw.line(figures, self._news)

    def activity(self) -> Activity:
        return Activity(
            self._shop.rolled_back, len(self._crew.at_work), self._trouble.killed, self._trouble.cut, self._rate
        )


@contextmanager
def screen(*, live: bool) -> Iterator[Callable[..., None]]:
    if not live:
        yield print_line
        return
    with Live(console=Console(), auto_refresh=False) as picture:
        yield lambda drawing: picture.update(drawing, refresh=True)


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
