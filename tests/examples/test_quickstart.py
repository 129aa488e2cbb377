"""The code that the README shows, run as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from tests.postgres.embedded.conftest import place

pytestmark = pytest.mark.verify

__all__ = ["place"]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_invoices_its_order_and_mails_the_receipt_at_every_run(place: Path) -> None:
    for _ in range(2):
        command = [sys.executable, str(QUICKSTART)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=200, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        invoiced, mailed, drained = done.stdout.splitlines()
        order = invoiced.removeprefix("invoiced 9.90 for order ")
        assert str(UUID(order)) == order
        assert mailed == f"mailing the receipt of order {order}, attempt 1"
        counts = (
            "1 handled, 0 to retry, 0 dead letters, 0 duplicates skipped; 1 job done, 0 attempts failed, 0 dead letters"
        )
        assert drained == counts
