"""The Flask example as its reader runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.postgres.embedded.conftest import place

pytestmark = pytest.mark.verify

__all__ = ["place"]

ROOT = Path(__file__).parents[2]


def test_it_runs(database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.flask_shop", database], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "lamp     -> 201" in lines[0]
    assert lines[1] == "POST /orders unicorn  -> 409 {'error': 'out of stock'}"
    assert lines[-2:] == [
        "2 handled, 0 to retry, 0 dead letters, 0 duplicates skipped",
        "GET /invoices          -> ['19.90', '149.00']",
    ]
    with psycopg.connect(database) as conn:
        for table in ("orders", "invoice", "outrider.outbox"):
            assert conn.execute(f"select count(*) from {table}".encode()).fetchone() == (2,)


def test_it_runs_without_a_database(place: Path) -> None:
    """On the embedded Postgres, in a folder of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.flask_shop"],
        cwd=place,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert "['19.90', '149.00']" in ran.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "flask.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_shows_code_of_the_shop(number: int) -> None:
    assert BLOCKS[number] in (ROOT / "examples" / "flask_shop" / "shop.py").read_text()
