"""The documentation as a site, built as `make docs` does: nothing is loaded from elsewhere, and everything is found.

To build it takes 15 s.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_docs import ROOT

pytestmark = [pytest.mark.verify, pytest.mark.xdist_group("site"), pytest.mark.timeout(240)]

LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|link)\b[^>]*?\b(?:src|href)=\"?([^\s\">]+)")
"""What a page loads by itself. Links that a reader follows are <a>."""
PRODUCTION = [
    "Checklist",
    "Roles",
    "Tenants",
    "Retention",
    "Capacity and scaling",
    "PgBouncer",
    "Managed Postgres",
    "Monitoring",
]
RECIPES = ["FastAPI", "Django", "SQLAlchemy and other drivers", "Alembic", "Flask", "Multi-tenant", "Rolling deploys"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert 'class="mermaid"' not in text  # the theme would load what draws it
        for target in LOADED.findall(text):
            assert not re.match(r"(?:https?:)?//", target), f"{page.name} loads {target}"
            if not target.startswith("data:") and page.name != "404.html":
                assert (page.parent / target.partition("?")[0].partition("#")[0]).exists(), f"{page.name}: {target}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_the_order_of_the_pages(site: Path) -> None:
    sections = re.findall(r"^## (.+)\n\n((?:- .+\n?)+)", (site / "llms.txt").read_text(), re.MULTILINE)
    titles = {name: re.findall(r"^- \[(.+?)\]", listed, re.MULTILINE) for name, listed in sections}
    assert [*titles] == ["Start", "Learn", "Recipes", "Production", "Troubleshooting", "Reference", "Understand"]
    assert [each for each in titles["Recipes"] if each in RECIPES] == RECIPES
    assert titles["Production"][: len(PRODUCTION)] == PRODUCTION
    shown = (site / "index.html").read_text()
    assert [shown.index(f"\n    {name}\n") for name in titles] == sorted(
        shown.index(f"\n    {name}\n") for name in titles
    )


def test_every_page_is_found_by_the_search(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}
    assert {each["location"].partition("#")[0] or "index.html" for each in found} == pages


def test_llms_txt_lists_pages_that_exist(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert text.startswith("# Outrider\n\n> ")
    targets = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    assert len(targets) > 50
    assert [each for each in targets if not (site / each).exists()] == []


def test_light_and_dark(site: Path) -> None:
    page = (site / "index.html").read_text()
    schemes = re.findall(
        r'data-md-color-media="?\(prefers-color-scheme: (light|dark)\)"? data-md-color-scheme="?(\w+)', page
    )
    assert schemes == [("light", "default"), ("dark", "slate")]
