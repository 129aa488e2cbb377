"""What a filter finds, an action on all that match acts on; and a list goes on until its end."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urlencode

import psycopg
import pytest
from tests.dashboard.conftest import Serve, act, log_in
from tests.dashboard.test_verbs import confirmed, many, rows

from outrider.dashboard import ACTIONS
from outrider.dashboard.text import exact_value, shown

__all__ = ["many"]
OTHER = "a\u202eb\x85 \U0001f600+&=%;"
"""A key and a tenant that a page shows with escapes."""


@pytest.mark.usefixtures("many")
async def test_a_preview_and_its_action_have_the_same_filter(serve: Serve, dsn: str) -> None:
    """A page shows hidden characters as escapes, and cuts long texts. What a form carries must stay as it is."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """update outrider.job set workspace_id = null,
                   job_key = case when id %% 2 = 0 then %s else %s end where queue = 'bulk'""",
            [OTHER, shown(OTHER)],
        )
        conn.execute("update outrider.delivery set workspace_id = %s where status = 'failed'", [shown(OTHER)])
    async with serve(actions=ACTIONS) as client:
        await log_in(client)
        preview = f"/jobs/act?{urlencode({'verb': 'cancel', 'key': OTHER})}"
        page = (await client.get(preview)).text
        assert "Cancel: 150 jobs?" in page
        done = await act(client, "/jobs/act", preview, **confirmed(page), reason="x")
        assert "150 cancelled" in done.text
        letters = f"/dead-letters/act?{urlencode({'verb': 'discard', 'workspace_id': OTHER})}"
        page = (await client.get(letters)).text
        assert "Discard 0 dead letters?" in page
        assert (
            "Nothing was done." in (await act(client, "/dead-letters/act", letters, **confirmed(page), reason="x")).text
        )
        for path, field in (("/jobs", "key"), ("/log", "key"), ("/dead-letters", "workspace_id"), ("/audit", "by")):
            form = (await client.get(path, params={field: "a\u202eb" + "c" * 9000})).text
            found = re.search(rf'<input [^>]*name="{field}"[^>]*value="([^"]*)"', form)
            assert found is not None
            assert unescape(found[1]) == "a\u202eb" + "c" * 9000, path
        long = "\u20ac" * 30_000
        assert unescape(exact_value(long)) == long
        for path, verb in (("/jobs/act", "cancel"), ("/dead-letters/act", "discard")):
            assert (await act(client, path, "/jobs", verb=verb, reason="x")).status_code == 400, "no filter: not all"
    assert rows(dsn, "select distinct job_key from outrider.job where status = 'discarded'") == [(OTHER,)]
    assert rows(dsn, "select count(*) from outrider.owed where status = 'failed'") == [(1,)]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("path", "number"), [("/jobs", 301), ("/jobs?queue=bulk&after=0", 300), ("/jobs?state=pending&type=dash.mail", 301)]
)
async def test_the_pages_of_a_list_show_every_job_once(serve: Serve, path: str, number: int) -> None:
    async with serve() as client:
        await log_in(client)
        following: re.Match[str] | None = re.match(r"(.+)", path)
        if "after=" not in path:  # the first page is by state
            first = (await client.get(path)).text
            assert "These are the first 100." in first
            following = re.search(r'rel="next" href="([^"]+)">All, the oldest first<', first)
        seen: list[str] = []
        while following is not None:
            page = (await client.get(unescape(following[1]))).text
            seen += re.findall(r'<td class="id"><a href="/jobs/([0-9a-f-]{36})"', page)
            following = re.search(r'rel="next" href="([^"]+)"', page)
        assert len(seen) == len(set(seen)) == number
