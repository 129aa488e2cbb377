"""Opens the shop in a fresh database on the project's embedded Postgres, watches it, and closes it in good order."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from outrider import Outrider
from outrider.demo import watch
from outrider.demo.shop import HESITANT, Shop, pause
from outrider.demo.watch import Figures
from outrider.errors import EmbeddedError
from outrider.postgres.embedded import Embedded
from outrider.postgres.session import connect_sync

DATABASE = "outrider_demo"
PIPED_SECONDS = 10.0
TILLS = 4
CLERKS = 3


def run(seconds: float | None) -> bool:
    """Whether nothing was lost, doubled or out of order. Without `seconds`: until Ctrl-C, or ten when piped."""
    live = sys.stdout.isatty()
    with Embedded() as server, fresh_database(server) as dsn:
        print_line(server.describe(DATABASE))
        print_line("\nCtrl-C closes the shop.\n" if live and seconds is None else "")
        try:
            return asyncio.run(keep_shop(dsn, seconds if live or seconds else PIPED_SECONDS, live=live))
        except ExceptionGroup as several:  # without the server all fail at once, and for the same reason
            raise several.exceptions[0] from several


@contextmanager
def fresh_database(server: Embedded) -> Iterator[str]:
    """Empty at every start, and apart from the developer's own data. Held by one demo at a time."""
    with connect_sync(server.dsn(), autocommit=True) as conn:
        [(mine,)] = conn.execute("select pg_try_advisory_lock(hashtext(%s))", [DATABASE]).fetchall()
        if not mine:
            raise EmbeddedError("another outrider demo runs in this folder: end it, or start this one elsewhere")
        conn.execute(f"drop database if exists {DATABASE} with (force)")
        conn.execute(f"create database {DATABASE}")
        yield server.dsn(DATABASE)


async def keep_shop(dsn: str, seconds: float | None, *, live: bool) -> bool:
    closing, closed, all_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
    people_at_once = TILLS + len(HESITANT) + CLERKS + 1
    app = Outrider(context="shop", dsn=dsn, schema="outrider", generation=0, pool_size=people_at_once)
    shop = Shop(app)
    async with app, asyncio.TaskGroup() as people:
        await shop.furnish()
        close_on_signals(closing)
        watching = people.create_task(keep_watch(shop, all_read, live=live))
        clerks = [people.create_task(shop.clerk(closed)) for _ in range(CLERKS)]
        customers = [people.create_task(shop.serve(closing)) for _ in range(TILLS)]
        customers += [people.create_task(shop.serve_hesitant(name, closing)) for name in HESITANT]
        await pause(closing, seconds)
        closing.set()
        await asyncio.gather(*customers)
        closed.set()
        await asyncio.gather(*clerks)
        all_read.set()
        figures = await watching
    print_line(watch.summary(figures, shop.rolled_back))
    return figures.exact


async def keep_watch(shop: Shop, all_read: asyncio.Event, *, live: bool) -> Figures:
    with screen(live=live) as show:
        begun = time.monotonic()
        figures, counted = Figures(), begun
        while True:
            last = all_read.is_set()
            async with shop.app.connect() as conn:
                before, then = figures, counted
                counted = time.monotonic()
                figures = await watch.count(conn, closed=last)
                fresh = await watch.newest(conn, late=False) if live else []
                late = await watch.newest(conn, late=True) if live else []
            rate = (figures.read - before.read) / max(counted - then, 0.1)
            if live:
                show(watch.draw(figures, shop.rolled_back, shop.read_again, rate, fresh, late))
            else:
                show(watch.line(counted - begun, figures, shop.rolled_back, rate))
            if last:
                return figures
            # Counting reads everything there is: it may take a quarter of the time, no more.
            cost = time.monotonic() - counted
            await pause(all_read, max(0.25 if live else 1.0, 3 * cost))


@contextmanager
def screen(*, live: bool) -> Iterator[Callable[..., None]]:
    if not live:
        yield print_line
        return
    with Live(console=Console(), auto_refresh=False) as picture:
        yield lambda drawing: picture.update(drawing, refresh=True)


def close_on_signals(closing: asyncio.Event) -> None:
    """The first Ctrl-C closes the shop in good order; a second one just ends it."""
    loop = asyncio.get_running_loop()

    def close() -> None:
        closing.set()
        loop.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, close)


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
