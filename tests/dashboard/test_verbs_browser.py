"""Bulk actions on jobs, and schedules, in a real Chromium."""

from __future__ import annotations

import psycopg
import pytest
from playwright.async_api import expect
from tests.dashboard.test_browser import PALE, TWICE, UNNAMED, Visit, address, browser, visit
from tests.dashboard.test_verbs import many, nightly, rows

__all__ = ["address", "browser", "many", "nightly", "visit"]
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.verify]

MORE = """
insert into outrider.job (subscription, event_id, event_version, source, run_at, queue, payload)
select 'dash.mail', gen_random_uuid(), 1, 'sql', now() + interval '1 hour', 'bulk', '{"order_id": "x"}'
from generate_series(1, 5000) as n
"""


@pytest.mark.usefixtures("many")
async def test_more_than_200_jobs_are_cancelled_with_a_preview(visit: Visit, dsn: str) -> None:
    page = await visit("/jobs")
    await page.get_by_label("Queue").fill("bulk")
    await page.get_by_label("Payload fields").fill("to.country=DE")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("main")).to_contain_text("The first 100 that match")
    await page.get_by_role("link", name="Cancel …").click()
    await expect(page.locator("h1")).to_have_text("Cancel: 300 jobs?")
    await page.get_by_label("Why").fill("the wrong list")
    await page.get_by_role("button", name="Cancel: 300 jobs").click()
    await expect(page.locator("#done")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("300 cancelled")
    assert rows(dsn, "select count(*) from outrider.job where status = 'discarded'") == [(300,)]
    await page.get_by_role("link", name="Back").click()
    await expect(page.locator("main")).to_contain_text("No job matches.")


async def test_a_long_run_shows_its_progress_and_can_be_stopped(visit: Visit, dsn: str) -> None:
    """It asks several times for jobs that another transaction has locked: at least 1.6 s for each batch."""
    with psycopg.connect(dsn) as conn:
        conn.execute(MORE)
    page = await visit("/jobs")
    await page.goto("/jobs/act?verb=cancel&queue=bulk")
    await expect(page.locator("h1")).to_have_text("Cancel: 5,000 jobs?")
    await page.get_by_label("Why").fill("a test")
    with psycopg.connect(dsn) as other:
        other.execute("select from outrider.job where queue = 'bulk' and id % 500 = 0 for key share")
        await page.get_by_role("button", name="Cancel: 5,000 jobs").click()
        await expect(page.locator("progress")).to_be_visible()
        await page.get_by_role("button", name="Stop after this chunk").click()
        await expect(page.locator("#done")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("Stopped before the last of them.")
        await expect(page.locator("main")).to_contain_text("other transactions have locked them")
    [(left,)] = rows(dsn, "select count(*) from outrider.job where status = 'pending' and queue = 'bulk'")
    assert 0 < left < 5000


async def test_a_schedule_is_run_now_and_paused(visit: Visit, dsn: str, nightly: str) -> None:
    page = await visit("/schedules")
    await page.get_by_label(f"Act on {nightly}").click()
    await page.get_by_label("Why").fill("the boss asks")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator("main")).to_contain_text("Its job is enqueued.")
    await page.locator("main a", has_text="Job ").click()
    await expect(page.locator("h1")).to_contain_text("dash.mail")
    await page.goto("/schedules")
    await page.get_by_label(f"Act on {nightly}").click()
    await page.get_by_label("Why").fill("holidays")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#done")).to_be_visible()
    await page.goto("/schedules")
    await expect(page.locator("tbody")).to_contain_text("paused")
    assert rows(dsn, "select paused_at is not null, enqueued_at is not null from outrider.schedule") == [(True, True)]


@pytest.mark.usefixtures("many", "nightly")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_these_pages_fit_every_screen_too(visit: Visit, events: list[str], scheme: str) -> None:
    page = await visit("/", color_scheme=scheme)
    paths = (
        "/jobs?key=k1", "/jobs/act?verb=cancel", "/jobs/act?verb=run_now&payload=order_id%3Do7", "/schedules",
        "/dead-letters", "/dead-letters/waiting", f"/dead-letters/behind/{events[1]}",
    )  # fmt: skip
    for path in paths:
        for width in (360, 800, 1920):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        for details in await page.locator("main details > summary").all():
            await details.click()
        assert await page.evaluate(UNNAMED) == [], path
        assert await page.evaluate(PALE) == [], path
        assert await page.evaluate("document.querySelectorAll('h1').length") == 1
        assert await page.evaluate(TWICE) == [], path
