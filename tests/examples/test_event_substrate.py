"""The walk-through as its reader runs it; what its README shows is what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from outrider.testing import contract_test

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "event_substrate"

test_contracts = contract_test(
    "examples.event_substrate.orders:app", "examples.event_substrate.billing:app", dir=EXAMPLE / "contracts"
)


def test_it_runs_and_its_readme_is_true(database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.event_substrate", database],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert ran.returncode == 0, ran.stderr
    printed = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "...", ran.stdout).splitlines()
    shown = re.findall(r"^```\n((?:   |\d\.).*?)^```", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(shown).splitlines()
    assert len(lines) > 15
    assert [line for line in lines if line not in printed] == []
    assert "lost" not in ran.stdout
    with psycopg.connect(database) as conn:
        assert conn.execute("select count(*), count(distinct order_id) from invoice").fetchone() == (3, 3)
        assert conn.execute("select count(*) from outrider.delivery").fetchone() == (0,)


def test_billing_imports_nothing_of_orders() -> None:
    assert "orders import" not in (EXAMPLE / "billing.py").read_text()
