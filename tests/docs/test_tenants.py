"""docs/tenants.md as it stands: its tables and roles, its program, run by a worker that is nobody special."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.docs.test_docs import ROOT, python_blocks
from tests.postgres.roles.house import opened

pytestmark = pytest.mark.verify

PAGE = ROOT / "docs" / "tenants.md"
SQL = re.compile(r"^```sql\n(.*?)^```", re.DOTALL | re.MULTILINE)
INVOICES = """insert into invoice (workspace_id, number)
              values ('acme', '7'), ('acme', '8'), ('globex', '7'), ('globex', '8')"""


@pytest.fixture
def worker(database: str) -> Iterator[str]:
    """The DSN of the page's worker, in a database where its SQL has been run."""
    with psycopg.connect(database, autocommit=True) as owner, opened(owner) as house:
        for block in SQL.findall(PAGE.read_text()):
            owner.execute(block.replace("outrider_", house.prefix).encode())
        try:
            yield make_conninfo(database, user="billing_worker")
        finally:
            owner.execute("drop owned by tenant_app, billing_worker; drop role tenant_app, billing_worker")


def test_the_page_does_what_it_says(database: str, worker: str, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(python_blocks(PAGE))

    def run(dsn: str, *command: str) -> str:
        environ = os.environ | {"OUTRIDER_DSN": dsn}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(database, "-m", "outrider", "migrate", "--app", "billing:app")
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(INVOICES)
        assert "2 handled, 0 to retry" in run(worker, "billing.py")
        paid = owner.execute("select workspace_id, number from invoice where paid").fetchall()
    assert paid == [("acme", "7")]
