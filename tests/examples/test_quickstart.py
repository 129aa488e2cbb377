"""The code that the README shows, run as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.postgres.embedded.conftest import place

__all__ = ["place"]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_invoices_its_order_at_every_run(place: Path) -> None:
    for _ in range(2):
        command = [sys.executable, str(QUICKSTART)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        invoiced, drained = done.stdout.splitlines()
        assert invoiced.startswith("invoiced 9.90 for order ")
        assert drained == "1 handled, 0 parked, 0 buried, 0 conceded"
