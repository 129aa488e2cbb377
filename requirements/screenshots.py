"""`make screenshots`: pictures of the dashboard, taken by Chromium while the demo's shop runs, into docs/images."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from outrider.dashboard import ACTIONS, Dashboard
from outrider.dashboard.server import serving
from outrider.demo.catalogue import HANDS, import_document
from outrider.demo.crew import Crew
from outrider.demo.main import TILLS, WORKERS, fresh_database
from outrider.demo.shop import HESITANT, Shop, open_shop
from outrider.postgres.admin import waiting
from outrider.postgres.embedded import Embedded

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TOKEN = "a token for these pictures only"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
RUNNING, PAUSED = ("now", "topology", "event"), ("dead-letters",)
OPEN_FOR = 100.0
"""Seconds for the shop to make some history, and for the doctor's second round."""


async def main(dsn: str) -> None:
    closing = asyncio.Event()
    app = open_shop(dsn, pool_size=TILLS + len(HESITANT) + HANDS + 3)
    shop, crew = Shop(app), Crew(dsn, WORKERS)
    board = Dashboard(app, token=TOKEN, actions=ACTIONS)
    async with app, board, serving(board, port=0) as address, asyncio.TaskGroup() as tasks:
        await shop.furnish()
        workers = [tasks.create_task(crew.employ()) for _ in range(WORKERS)]
        await crew.complete.wait()
        with board.poller.watching():
            visitors = [tasks.create_task(shop.serve(closing)) for _ in range(TILLS)]
            visitors += [tasks.create_task(shop.serve_thieves(closing))]
            visitors += [tasks.create_task(import_document(app, lambda _: None))]
            await asyncio.sleep(OPEN_FOR)
            async with async_playwright() as playwright:
                chromium = shutil.which("chromium") or shutil.which("google-chrome")
                browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                for scheme in ("light", "dark"):
                    await take(browser, address, scheme)
                await hold_up(shop)
                for scheme in ("light", "dark"):
                    await take(browser, address, scheme, PAUSED)
                await app.resume("shop.invoice")
                await browser.close()
        closing.set()
        await asyncio.gather(*visitors)
        crew.dismiss()
        await asyncio.gather(*workers)


async def hold_up(shop: Shop) -> None:
    """Pauses the handler while an order with a stolen card waits for its retry, and others of its customer behind it."""
    while True:
        async with shop.app.connect() as conn, conn.transaction():
            await shop.place(conn, "amber", "stolen")
            for _ in range(5):
                await shop.place(conn, "amber", "good")
        await asyncio.sleep(0.1)
        await shop.app.pause("shop.invoice")
        async with shop.app.connect() as conn:
            if any(each.behind for each in await waiting.events(conn, "outrider", subscription="shop.invoice")):
                return
        await shop.app.resume("shop.invoice")


async def take(browser: Browser, address: str, scheme: str, wanted: tuple[str, ...] = RUNNING) -> None:
    context = await browser.new_context(
        base_url=address, color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 800}
    )
    page = await context.new_page()
    await page.goto(f"/login#name=ada&token={TOKEN.replace(' ', '+')}")
    await page.wait_for_selector("nav")
    await page.goto("/dead-letters")
    event = await page.locator("small a.id").first.get_attribute("href")
    for name, path in (
        ("now", "/"),
        ("topology", "/topology"),
        ("dead-letters", "/dead-letters"),
        ("event", event or "/"),
    ):
        if name not in wanted:
            continue
        await page.goto(path)
        await page.wait_for_load_state()
        await page.screenshot(path=IMAGES / f"dashboard-{name}-{scheme}.png")
    await context.close()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with Embedded() as server, fresh_database(server) as dsn:
        asyncio.run(main(dsn))
