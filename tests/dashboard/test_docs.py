"""The app on docs/dashboard.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.dashboard.conftest import act

from outrider import Outrider
from outrider.dashboard.server import serving

PAGE = Path(__file__).parents[2] / "docs" / "dashboard.md"


async def test_the_app_on_the_page_mounts_it(shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DSN", dsn)
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    program: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), program)
    api = program["api"]
    async with (
        api.router.lifespan_context(api),
        serving(api, port=0) as address,
        httpx.AsyncClient(base_url=address, headers={"X-Admin": "ada"}) as client,
    ):
        assert "dash.invoice" in (await client.get("/outrider/subscriptions")).text
        page = "/outrider/subscriptions/dash.search"
        assert "Paused" in (await act(client, f"{page}/pause", page, reason="x")).text
        refused = await act(client, "/outrider/dead-letters/act", page, verb="discard", reason="x")
        assert refused.status_code == 403
        assert (await client.get("/outrider/", headers={"X-Admin": ""})).status_code == 401
