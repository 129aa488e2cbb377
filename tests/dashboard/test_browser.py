"""The dashboard in a real Chromium: live updates, a replay by keyboard alone, hostile texts, dark and narrow screens."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import psycopg
import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect
from tests.dashboard.conftest import TOKEN
from tests.processes import processes

from outrider import Outrider

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
MAIN = "from outrider.cli import main; main()"
PATHS = ("/", "/topology", "/subscriptions", "/subscriptions/dash.invoice", "/log", "/dead-letters", "/jobs", "/workers",
         "/contracts", "/contracts/dash.placed", "/schedules", "/streams", "/rollups", "/audit")  # fmt: skip

MANY = """
select outrider.publish('dash.placed', '{"order_id": "x", "total": "1"}') from generate_series(1, 60)
"""
BURY = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at, attempts,
                               buried_at, last_error_code, last_error)
select 'dash.search', 0, o.seq, o.id, o.event_type, 'failed', false, false, now(), 1, now(), 'timeout', 'slow'
from outrider.outbox as o where o.seq > 4
"""

MORE = """
insert into outrider.subscription (name, kind, context) values ('dash.out', 'relay', 'dash'), ('dash.in', 'inbox', 'dash');
insert into outrider.stream (subscription, name, position, events)
values ('dash.out', 'orders', '7-0', 7), ('dash.in', 'parcels', '9-0', 9);
insert into outrider.stream_refused (subscription, stream, position, data, message)
values ('dash.in', 'parcels', '8-0', 'x', 'not JSON');
insert into outrider.rollup (name, slug, context, spec, scheduler, every)
values ('dash.rolled', 'rolled', 'dash', '{"table": "row", "single": "dash.one", "rollup": "dash.many"}', 'worker', '1 min');
insert into outrider.rollup_pending (rollup, group_key, carried)
select 'dash.rolled', 'k' || n % 3, '{}' from generate_series(1, 9) as n;
insert into outrider.rollup_pending (rollup, group_key, carried, set_aside_at, error)
values ('dash.rolled', 'k', '{}', now(), 'no');
insert into outrider.rollup_log (rollup, result, pending_pre, pending_post, duration_ms)
values ('dash.rolled', 'processed', 9, 0, 1.5);
insert into outrider.schedule (name, context, job_type, cron, time_zone, missed, fired_at)
values ('dash.nightly', 'dash', 'dash.mail', '0 3 * * *', 'UTC', 'once', now());
insert into outrider.worker (id, host, pid, version, generation, subscriptions, unable, stopping, seen_at, reported_at,
                             report)
select gen_random_uuid(), 'here', n, '1', n, '{dash.search,dash.mail}', '{dash.search}', n = 2,
       now() - case n when 3 then interval '1 h' else '0' end, now(),
       '{"doing": {"name": "dash.mail", "seconds": 40}, "unknown": {"dash.search": ["dash.returned"]}, "troubles": [
           {"kind": "failing", "name": "dash.mail", "code": "smtp", "message": "no", "in_a_row": 9, "seconds": 60}]}'
from generate_series(1, 3) as n
"""
"""A relay, an inbox, a rollup, a schedule; workers that run, stop and are lost."""

pytestmark = pytest.mark.xdist_group("browser")
expect.set_options(timeout=60_000)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        await found.close()


@pytest.fixture
def address(shop: Outrider, dsn: str) -> Iterator[str]:
    """The address of `outrider dashboard`, run as a process of its own."""
    env = {"OUTRIDER_DSN": dsn, "OUTRIDER_DASHBOARD_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", MAIN, "dashboard", "--app", "tests.dashboard.shop:app", "--port", "0"]
    with processes() as begin:
        process = begin([*command, "--enable-actions"], ROOT, env)
        assert process.stdout is not None
        told = process.stdout.readline()
        assert told.startswith("The dashboard: http://127.0.0.1:"), process.communicate()
        yield told.split()[-1].rstrip("/")
        process.terminate()
        print(*process.communicate())  # why a page failed


Visit = Callable[..., Awaitable[Page]]


@pytest.fixture
async def visit(browser: Browser, address: str) -> AsyncIterator[Visit]:
    """A page of a browser that has logged in. No page may complain: an inline script or style would."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    async def opened(path: str = "/", **options: Any) -> Page:
        context = await browser.new_context(base_url=address, **options)
        context.set_default_timeout(60_000)
        page = await context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"/login?next={path}#name=ada&token={TOKEN.replace(' ', '+')}")
        await page.wait_for_selector("nav")
        await page.wait_for_load_state()  # its script hears keys
        return page

    yield opened
    assert complaints == []


async def test_the_first_page_is_live(visit: Visit, dsn: str) -> None:
    """Of make test: it starts, it is drawn, and what happens arrives without a reload."""
    page = await visit("/")
    await expect(page.locator("h1")).to_have_text("Now")
    await expect(page.locator(".chart")).to_have_count(6)
    await expect(page.locator("#live")).to_contain_text("dash.invoice")
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.register('dash.newcomer', 'reader', 'dash', null)")
    await expect(page.locator("#live")).to_contain_text("dash.newcomer")


@pytest.mark.verify
async def test_a_page_is_live_again_after_an_error_of_a_proxy(browser: Browser, address: str) -> None:
    """A browser gives up a stream whose answer is an error."""
    context = await browser.new_context(base_url=address)
    context.set_default_timeout(60_000)
    page = await context.new_page()
    await page.route("**/live/**", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    await page.goto(f"/login#name=ada&token={TOKEN.replace(' ', '+')}")
    await expect(page.locator(".only-stale")).to_be_visible()
    await page.unroute("**/live/**")
    await expect(page.locator("html")).to_have_attribute("data-updates", re.compile("[1-9]"))
    await expect(page.locator(".only-stale")).to_be_hidden()
    await context.close()


@pytest.mark.verify
async def test_the_log_says_that_there_are_newer_events(visit: Visit, dsn: str) -> None:
    page = await visit("/log")
    await expect(page.locator("#newer")).to_be_hidden()
    rows = await page.locator("tbody tr").count()
    with psycopg.connect(dsn) as conn:
        conn.execute(MANY)
    await expect(page.locator("#newer")).to_have_text("60 newer log positions. Show them")
    assert await page.locator("tbody tr").count() == rows, "what is read does not move"
    await page.get_by_role("link", name="Show them").click()
    await expect(page.locator("tbody tr")).to_have_count(50)


@pytest.mark.verify
async def test_the_verdict_comes_and_findings_have_remedies(visit: Visit) -> None:
    page = await visit("/")
    await expect(page.locator(".verdict")).to_contain_text("need")
    await expect(page.locator(".findings").first).to_contain_text("→")


@pytest.mark.verify
async def test_what_is_open_and_focused_stays_so_during_updates(visit: Visit) -> None:
    page = await visit("/")
    await page.wait_for_selector("#live details")
    await page.locator("#live summary").first.click()
    await page.locator("#live td a").first.focus()
    seen = int(await page.evaluate("Number(document.documentElement.dataset.updates || 0)"))
    later = re.compile("|".join(str(seen + more) for more in range(3, 60)))
    await expect(page.locator("html")).to_have_attribute("data-updates", later)
    assert await page.evaluate("document.querySelector('#live details').open")
    assert await page.evaluate("document.activeElement.closest('#live td') !== null")


@pytest.mark.verify
async def test_a_dead_letter_is_replayed_by_keyboard_alone(
    visit: Visit, shop: Outrider, events: list[str], dsn: str
) -> None:
    page = await visit("/")
    await page.keyboard.press("/")
    await page.keyboard.type(events[3])
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("dash.placed")
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.id") == "replay-1":
            break
    await page.keyboard.type("the bank says it is valid")
    await page.keyboard.press("Enter")
    await expect(page.locator("#done")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("dash.invoice: replayed")
    with psycopg.connect(dsn) as conn:
        found = conn.execute("select by, details ->> 'reason' from outrider.audit where action = 'replay'").fetchall()
    assert found == [("ada", "the bank says it is valid")]


@pytest.mark.verify
async def test_many_are_replayed_with_a_preview_and_progress(visit: Visit, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(MANY)
        conn.execute(BURY)
    page = await visit("/dead-letters")
    row = page.locator("tr", has_text="dash.search")
    await row.get_by_role("link", name="Replay").click()
    await expect(page.locator("h1")).to_have_text("Replay 60 dead letters?")
    await page.get_by_label("Why").fill("the index is back")
    await page.get_by_label("At most, per second").fill("30")
    with psycopg.connect(dsn) as conn:  # it cannot end before its progress is seen
        conn.execute("select from outrider.delivery where subscription = 'dash.search' for key share")
        await page.get_by_role("button", name="Replay 60").click()
        await expect(page.locator("progress")).to_be_visible()
        await page.evaluate("window.same = true")
    await expect(page.locator("#done")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("60 replayed")
    assert await page.evaluate("window.same"), "the page follows the action without a reload: the focus stays"


@pytest.mark.verify
async def test_hostile_texts_do_not_run(visit: Visit, events: list[str]) -> None:
    page = await visit("/")
    for path in (*PATHS, f"/event/{events[3]}"):
        await page.goto(path)
        await page.wait_for_load_state()
        assert await page.evaluate("window.owned") is None, path


@pytest.mark.verify
async def test_without_a_login_nothing_is_shown(browser: Browser, address: str) -> None:
    context = await browser.new_context(base_url=address)
    page = await context.new_page()
    for path in PATHS:
        await page.goto(path)
        assert "/login" in page.url
        assert "dash.search" not in await page.content()
    await page.get_by_label("Token").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_have_text("This is not the token.")
    await context.close()


@pytest.mark.verify
async def test_the_printed_address_logs_in_also_in_a_tab_that_shows_the_login(browser: Browser, address: str) -> None:
    context = await browser.new_context(base_url=address)
    page = await context.new_page()
    await page.goto("/login")
    await page.goto(f"/login#name=ada&token={TOKEN.replace(' ', '+')}")
    await expect(page.locator("nav")).to_be_visible()
    assert "token" not in page.url
    await context.close()


@pytest.mark.verify
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_fits_every_screen_and_has_names_for_everything(
    visit: Visit, events: list[str], scheme: str
) -> None:
    """From a phone to a wide screen nothing sticks out; text has contrast; every field and button has a name."""
    page = await visit("/", color_scheme=scheme)
    for path in (*PATHS, f"/event/{events[3]}", "/dead-letters/act?verb=replay"):
        for width in (360, 800, 1920):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        assert await page.evaluate(UNNAMED) == [], path
        assert await page.evaluate(PALE) == [], path
        assert await page.evaluate("document.querySelectorAll('h1').length") == 1
        assert await page.evaluate(TWICE) == [], path


@pytest.mark.verify
async def test_on_a_phone_states_errors_and_buttons_are_in_sight(visit: Visit) -> None:
    """Rows of these tables become blocks: nobody has to scroll to the side to see what is wrong, or to act."""
    page = await visit("/", viewport={"width": 390, "height": 844})
    for path in ("/", "/subscriptions", "/dead-letters", "/jobs", "/log", "/audit"):
        await page.goto(path)
        assert await page.evaluate(SIDEWAYS) == [], path
    await page.goto("/")
    row = page.locator("#live tr", has_text="dash.invoice").first
    box = await row.locator(".state").first.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
    await page.goto("/dead-letters")
    await page.get_by_role("link", name="Replay …").first.scroll_into_view_if_needed()
    await expect(page.get_by_role("link", name="Replay …").first).to_be_in_viewport(ratio=1)


@pytest.mark.verify
async def test_spans_of_time_stay_spans_when_the_script_counts_on(visit: Visit, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("update outrider.subscription set paused_at = now() - interval '3 d' where name = 'dash.mail'")
    page = await visit("/subscriptions/dash.mail")
    await expect(page.locator("html")).to_have_attribute("data-updates", re.compile("[1-9]"))
    await expect(page.locator("#live time[data-age]").first).to_have_text("3 d")


@pytest.mark.verify
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_problem(visit: Visit, events: list[str], dsn: str, scheme: str) -> None:
    with psycopg.connect(dsn) as conn:
        [(job,)] = conn.execute("select event_id from outrider.job limit 1").fetchall()
        conn.execute(MORE)
    page = await visit("/", color_scheme=scheme, bypass_csp=True)
    others = ("/log?type=no.such", "/dead-letters?subscription=dash.invoice",
              "/dead-letters/act?verb=discard", f"/event/{events[2]}", f"/event/{events[3]}", f"/jobs/{job}",
              "/rollups/dash.rolled")  # fmt: skip
    found = []
    for path in (*PATHS, *others):
        await page.goto(path)
        await page.evaluate("() => document.querySelectorAll('details').forEach((each) => (each.open = true))")
        found += [(path, *each) for each in await page.evaluate(f"async () => {{ {AXE}; return await ({SERIOUS})() }}")]
    await page.context.clear_cookies()
    await page.goto("/login")
    found += [("/login", *each) for each in await page.evaluate(f"async () => {{ {AXE}; return await ({SERIOUS})() }}")]
    assert found == []


AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
SERIOUS = """async () => (await axe.run()).violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => [each.id, each.nodes.map((node) => node.html.slice(0, 160))])"""
SIDEWAYS = """
[...document.querySelectorAll('table.stack')].map((each) => each.parentElement)
    .filter((card) => card.scrollWidth > card.clientWidth).map((card) => card.innerText.slice(0, 100))
"""
TWICE = "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, n, all) => all.indexOf(id) !== n)"
UNNAMED = """
[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a, summary, progress, [role=img]')]
    .filter(e => !(e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.textContent.trim()))
    .map(e => e.outerHTML.slice(0, 200))
"""
PALE = """
(() => {
    const numbers = text => text.match(/[\\d.]+/g).map(Number);
    const light = rgb => rgb.slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
    const behind = e => {
        for (; e; e = e.parentElement) {
            const found = numbers(getComputedStyle(e).backgroundColor);
            if (found.length === 3 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('main *, nav *')].filter(e =>
        e.checkVisibility() && !e.closest('svg, :disabled') &&
        [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
    ).map(e => {
        const [one, two] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
        return [(one + .05) / (two + .05), e.outerHTML.slice(0, 120)];
    }).filter(([ratio]) => ratio < 4.5);
})()
"""
