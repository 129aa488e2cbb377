"""Live updates in a real Chromium: the focus stays on the same thing, a part is what was sent; and labels."""

from __future__ import annotations

import re
from itertools import permutations

import psycopg
import pytest
from playwright.async_api import expect
from tests.dashboard.test_browser import MANY, Visit, address, browser, visit

__all__ = ["address", "browser", "visit"]
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.verify]

PARTS = (
    "",
    "<p>a</p>",
    '<p data-key="a">a</p>\n<p data-key="b">b</p>\n<p data-key="c">c</p>',
    '<p data-key="c">c</p>\n<p>x</p><p data-key="b">B <b>b</b></p>',
    '<p data-key="n">n</p>\n<p data-key="c">c</p>\n<i>x</i><p data-key="a">a</p>',
    '<b data-key="c">other</b><p data-key="a">a</p><p data-key="a">again</p> text',
)
OFF_PAPER = """
[...document.querySelectorAll('text.label')].filter(text => {
    const [inner, paper] = [text.getBBox(), text.previousElementSibling.getBBox()];
    return inner.x < paper.x || inner.x + inner.width > paper.x + paper.width;
}).map(text => text.textContent)
"""


@pytest.mark.parametrize(("path", "place"), [("/subscriptions", "td a"), ("/", "td a"), ("/topology", "svg a")])
async def test_the_focus_stays_on_the_same_thing_when_others_come_and_go(
    visit: Visit, dsn: str, path: str, place: str
) -> None:
    page = await visit(path)
    link = page.locator(f"#live {place}", has_text="dash.search").first
    await expect(page.locator("html")).to_have_attribute("data-updates", re.compile("[1-9]"))
    await link.focus()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for change in ("select outrider.register('dash.aaa', 'reader', 'dash', null)",
                       "select outrider.retire('dash.audit', true)"):  # fmt: skip
            conn.execute(change.encode())
            shown = expect(page.locator("#live"))
            await (
                shown.to_contain_text("dash.aaa") if "register" in change else shown.not_to_contain_text("dash.audit")
            )
            focused = await page.evaluate("document.activeElement.closest('a')?.textContent")
            assert "dash.search" in (focused or ""), change
    names = await page.locator(f"#live {place}").all_text_contents()
    assert len(names) == len(set(names)), "nothing is left behind"


async def test_what_becomes_due_says_so(visit: Visit) -> None:
    """The script of the page counts on."""
    page = await visit("/audit")
    time = "<time datetime=${new Date(Date.now() + %d).toISOString()} data-due>?</time>"
    parts = time % -5_000 + time % 2_000 + time % 90_000
    await page.evaluate(f"apply({{content: `{parts}`}})")
    times = page.locator("#content time")
    await expect(times.nth(0)).to_have_text("due now")
    await expect(times.nth(1)).to_have_text("due now")
    await expect(times.nth(2)).to_have_text(re.compile(r"in \d+ s"))


async def test_a_part_is_the_same_after_any_change(visit: Visit) -> None:
    """Rows with and without keys that come, go, change places and have the same key; compared with what was sent."""
    page = await visit("/audit")
    for one, two in permutations(PARTS, 2):
        await page.evaluate("one => document.getElementById('content').innerHTML = `<div id=probe>${one}</div>`", one)
        await page.evaluate("two => apply({probe: two})", two)
        assert await page.evaluate("document.getElementById('probe').innerHTML") == two, one


async def test_labels_in_the_topology_lie_on_paper(visit: Visit, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(MANY)
    page = await visit("/topology", viewport={"width": 1280, "height": 800})
    await expect(page.locator("text.label").first).to_have_text(re.compile(r"/s"))
    assert await page.evaluate(OFF_PAPER) == []
    wide = "(which) => document.querySelector(which).getBoundingClientRect().width"
    assert await page.evaluate(wide, "svg.topology") > 0.9 * await page.evaluate(wide, "main")
