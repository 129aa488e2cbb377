"""The FastAPI example as its reader runs it: a real server, real requests, a real worker inside it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]


def test_it_runs(database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.fastapi_shop", database], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "lamp     -> 201" in lines[0]
    assert lines[1] == "POST /orders unicorn  -> 409 {'detail': 'out of stock'}"
    assert lines[-1] == "GET /invoices          -> ['19.90', '149.00']"
    with psycopg.connect(database) as conn:
        count = "select (select count(*) from orders), (select count(*) from invoice), (select count(*) from {})"
        assert conn.execute(count.format("outrider.outbox").encode()).fetchone() == (2, 2, 2)
        assert conn.execute(count.format("outrider.event_handled").encode()).fetchone() == (2, 2, 2)


def test_it_runs_without_a_database(tmp_path: Path) -> None:
    """On the embedded Postgres, in a folder of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.fastapi_shop"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert "['19.90', '149.00']" in ran.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "fastapi.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_shows_code_of_the_shop(number: int) -> None:
    assert BLOCKS[number] in (ROOT / "examples" / "fastapi_shop" / "shop.py").read_text()
