"""The example of Django's tasks as its reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
README = ROOT / "examples" / "django_tasks" / "README.md"


def test_it_prints_what_its_page_says(empty_database: str) -> None:
    """A task of a transaction that was rolled back is never seen; the other one runs, and its result is kept."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.django_tasks", empty_database],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"```\n{ran.stdout}```\n" in README.read_text()
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select count(*) from outrider.event_handled").fetchone() == (1,)
        assert conn.execute("select count(*) from outrider.job").fetchone() == (0,)
