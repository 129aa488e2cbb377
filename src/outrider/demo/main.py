"""Opens the shop in a fresh database on the project's embedded Postgres, watches it, closes it and checks it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.demo.catalogue import HANDS, import_document
from outrider.demo.crew import Crew
from outrider.demo.draw import INTRODUCTION, News, next_steps, summary
from outrider.demo.handlers import open_shop
from outrider.demo.shop import HESITANT, Shop, pause
from outrider.demo.trouble import TroubleMaker
from outrider.demo.watch import Watch, print_line
from outrider.errors import EmbeddedError
from outrider.postgres.connection import connect_sync
from outrider.postgres.embedded import Embedded

DATABASE = "outrider_demo"
PIPED_SECONDS = 10.0
TILLS = 4
WORKERS = 2


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
    async with app, asyncio.TaskGroup() as tasks:
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


def close_on_signals(closing: asyncio.Event) -> None:
    """The first Ctrl-C closes the shop and checks everything. The second one ends the process at once."""
    loop, cancel = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def close() -> None:
        closing.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, close)
