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


@pytest.mark.timeout(180)
def test_it_runs_and_its_readme_is_true(database: str) -> None:
    """Takes some 15 s: real workers of two releases, which notice within 10 s that events were moved to them."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.event_substrate", database],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    printed = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "...", ran.stdout).splitlines()
    shown = re.findall(r"^```\n((?:   |\d\.).*?)^```", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(shown).splitlines()
    assert len(lines) > 15
    assert [line for line in lines if line not in printed] == []
    assert "lost" not in ran.stdout
    with psycopg.connect(database) as conn:
        for table in ("invoice", "risk"):
            query = f"select count(*), count(distinct order_id) from {table}"
            assert conn.execute(query.encode()).fetchone() == (3 + 7, 3 + 7), "nothing is lost or doubled"
            strangers = f"""select o.generation, t.release, count(*) from {table} as t
                            join outrider.outbox as o on o.aggregate_id = t.order_id::text and o.event_type = 'orders.placed'
                            where o.generation <> t.release group by 1, 2"""
            assert conn.execute(strangers.encode()).fetchall() == [(41, 42, 1)], "only what was moved"
        assert conn.execute("select count(*) from outrider.owed").fetchone() == (0,)


def test_billing_imports_nothing_of_orders() -> None:
    assert "orders import" not in (EXAMPLE / "billing.py").read_text()
