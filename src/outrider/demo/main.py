"""Opens the shop in a fresh database on the project's embedded Postgres, watches it, closes it and checks it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rich.console import Console
from rich.live import Live

from outrider.app import Outrider
from outrider.demo import draw
from outrider.demo.catalogue import HANDS, import_document
from outrider.demo.crew import Crew, TroubleMaker
from outrider.demo.draw import INTRODUCTION, Activity, Figures, News, next_steps, summary
from outrider.demo.ledger import Ledger
from outrider.demo.shop import HESITANT, Shop, open_shop, pause
from outrider.errors import EmbeddedError
from outrider.postgres.connection import connect_sync
from outrider.postgres.embedded import Embedded

DATABASE = "outrider_demo"
PIPED_SECONDS = 10.0
TILLS = 4
WORKERS = 2
PATIENCE = 10.0
"""Seconds without progress, after the shop has closed, until the demo stops waiting."""
LOOK = 0.1


def run(seconds: float | None) -> bool:
    """Returns whether every check passed. Without `seconds` it runs until Ctrl-C, or for ten seconds when piped."""
    live = sys.stdout.isatty()
    with Embedded() as server, fresh_database(server) as dsn:
        print_line(server.describe(DATABASE))
        print_line(f"\n{INTRODUCTION}")
        print_line("Ctrl-C closes the shop.\n" if live and seconds is None else "")
        try:
            return asyncio.run(keep_shop(dsn, seconds if live or seconds else PIPED_SECONDS, live=live))
        except ExceptionGroup as several:  # without the server all fail at once, and for the same reason
            raise several.exceptions[0] from several


@contextmanager
def fresh_database(server: Embedded) -> Iterator[str]:
    """Empty at every start, apart from the developer's own data, and used by one demo at a time."""
    with connect_sync(server.dsn(), autocommit=True) as conn:
        [(mine,)] = conn.execute("select pg_try_advisory_lock(hashtext(%s))", [DATABASE]).fetchall()
        if not mine:
            raise EmbeddedError(
                "Another outrider demo runs in this folder. Stop it, or start this one in another folder."
            )
        conn.execute(f"drop database if exists {DATABASE} with (force)")
        conn.execute(f"create database {DATABASE}")
        yield server.dsn(DATABASE)


async def keep_shop(dsn: str, seconds: float | None, *, live: bool) -> bool:
    closing, closed = asyncio.Event(), asyncio.Event()
    close_on_signals(closing)
    app = open_shop(dsn, pool_size=TILLS + len(HESITANT) + HANDS + 3)  # 3: thieves, trouble, watch
    shop, crew = Shop(app), Crew(dsn, WORKERS)
    async with app, shown(app, live=live), asyncio.TaskGroup() as tasks:
        await shop.furnish()
        workers = [tasks.create_task(crew.employ()) for _ in range(WORKERS)]
        await crew.complete.wait()
        news = News()
        trouble = TroubleMaker(app, crew, news.tell_trouble)
        watch = Watch(shop, crew, trouble, news, live=live)
        watching = tasks.create_task(watch.keep(closed))
        visitors = [tasks.create_task(shop.serve(closing)) for _ in range(TILLS)]
        visitors += [tasks.create_task(shop.serve_hesitant(name, closing)) for name in HESITANT]
        visitors += [tasks.create_task(shop.serve_thieves(closing)), tasks.create_task(trouble.make(closing))]
        visitors.append(tasks.create_task(import_document(app, news.tell_late)))
        await pause(closing, seconds)
        closing.set()
        await asyncio.gather(*visitors)
        closed.set()
        figures = await watching
        crew.dismiss()
        await asyncio.gather(*workers)
    print_line(f"\n{summary(figures, watch.activity())}\n\n{next_steps(dsn)}")
    return figures.exact


@asynccontextmanager
async def shown(app: Outrider, *, live: bool) -> AsyncIterator[None]:
    """The dashboard, for people at a terminal who have its packages. Read-only: an action would falsify the count."""
    try:
        from outrider.dashboard import Dashboard
        from outrider.dashboard.server import serving
    except ImportError:
        if live:
            print_line("For a dashboard beside it: pip install 'outrider[dashboard]'\n")
        live = False
    if not live:
        yield
        return
    token = secrets.token_urlsafe(16)
    async with Dashboard(app, token=token) as board, serving(board, port=0) as address:
        print_line(f"The dashboard: {address}/login#token={token}\n")
        yield


def close_on_signals(closing: asyncio.Event) -> None:
    """The first Ctrl-C closes the shop and checks everything. The second one ends the process at once."""
    loop, cancel = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def close() -> None:
        closing.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, close)


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
