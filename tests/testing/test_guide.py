"""The tests that docs/testing.md shows, run as a user's project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.verify
def test_the_tests_on_the_page_pass(server: str, tmp_path: Path) -> None:
    conftest, shop, tests = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_orders.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", str(tmp_path)]
    elsewhere = "postgresql://127.0.0.1:1/production"
    environ = {**os.environ, "OUTRIDER_TEST_DSN": server, "OUTRIDER_DSN": elsewhere, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
