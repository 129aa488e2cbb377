"""The Django shop as its reader runs it, in real processes; and the page on Django shows its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres.embedded.conftest import place

pytestmark = pytest.mark.verify

__all__ = ["place"]

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "django_shop"
PAGE = ROOT / "docs" / "django.md"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PG", "DJANGO_"))}


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=CLEAN | env, capture_output=True, text=True, timeout=200, check=False
    )


def test_the_story(place: Path) -> None:
    """An order placed over HTTP is invoiced by a worker, which ends when told; a refused one leaves nothing."""
    done = run("-m", "examples.django_shop", cwd=place, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused: {'error': 'too much; neither the order nor its event exists'}" in done.stdout
    assert "invoiced: {'id': 2, 'customer': 'ada', 'total': '9.90', 'invoice': {'number': 1, " in done.stdout
    assert "manage.py outrider ended with code 0" in done.stdout


def test_the_shops_own_tests(empty_database: str, tmp_path: Path) -> None:
    done = run(str(SHOP / "manage.py"), "test", "shop", cwd=tmp_path, DATABASE_URL=empty_database)
    assert (done.returncode, "Ran 2 tests" in done.stderr) == (0, True), done.stderr


def test_no_migration_is_missing(empty_database: str, tmp_path: Path) -> None:
    done = run(
        str(SHOP / "manage.py"), "makemigrations", "--check", "--dry-run", cwd=tmp_path, DATABASE_URL=empty_database
    )
    assert (done.returncode, done.stdout.strip()) == (0, "No changes detected")


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_shows_code_of_the_shop(number: int) -> None:
    shown = (SHOP, ROOT / "examples" / "django_tasks")
    code = "\n".join(file.read_text() for example in shown for file in sorted(example.rglob("*.py")))
    assert BLOCKS[number] in code
