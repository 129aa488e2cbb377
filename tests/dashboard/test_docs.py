"""The apps on docs/dashboard.md run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.dashboard.conftest import act
from tests.processes import processes

from outrider import Outrider
from outrider.dashboard.server import serving

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dashboard.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def test_the_app_on_the_page_mounts_it(shop: Outrider, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DSN", dsn)
    block = BLOCKS[0]
    program: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), program)
    api = program["api"]
    async with (
        api.router.lifespan_context(api),
        serving(api, port=0) as address,
        httpx.AsyncClient(base_url=address, headers={"X-Admin": "ada"}, timeout=60) as client,
    ):
        assert "dash.invoice" in (await client.get("/outrider/subscriptions")).text
        page = "/outrider/subscriptions/dash.search"
        assert "Paused" in (await act(client, f"{page}/pause", page, reason="x")).text
        refused = await act(client, "/outrider/dead-letters/act", page, verb="discard", reason="x")
        assert refused.status_code == 403
        assert (await client.get("/outrider/", headers={"X-Admin": ""})).status_code == 401


@pytest.mark.verify
async def test_the_app_on_the_page_mounts_it_into_django(shop: Outrider, dsn: str, tmp_path: Path) -> None:
    """In a process of its own, because Django can be configured only once."""
    del shop
    (tmp_path / "asgi.py").write_text(BLOCKS[1])
    env = {"OUTRIDER_DSN": dsn, "DJANGO_SETTINGS_MODULE": "tests.dashboard.django_site",
           "PYTHONPATH": f"{tmp_path}:{ROOT / 'tests' / 'dashboard' / 'django_shop'}:{ROOT}"}  # fmt: skip
    with processes() as begin:
        process = begin([sys.executable, "-m", "tests.dashboard.django_site"], tmp_path, env)
        assert process.stdout is not None
        told = process.stdout.readline().split()
        assert len(told) == 3, process.communicate()
        address, boss, clerk = told
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            assert (await client.get("/hello")).text == "hello from Django"
            for cookie in ("", "sessionid=x", f"sessionid={clerk}"):
                assert (await client.get("/outrider/", headers={"Cookie": cookie})).status_code == 401
            client.cookies.set("sessionid", boss)
            assert "dash.invoice" in (await client.get("/outrider/subscriptions")).text
            page = "/outrider/subscriptions/dash.search"
            assert "Paused" in (await act(client, f"{page}/pause", page, reason="x")).text
            assert "ada" in (await client.get("/outrider/audit")).text
        process.terminate()
        process.communicate()
