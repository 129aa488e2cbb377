"""`contract_test` in pytest runs of its own, as a user's project has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from outrider import Event, Outrider

class Placed(Event, type="orders.placed"):
    order_id: str

app = Outrider(context="shop")
"""
TESTS = """
from outrider import Event
from outrider.testing import contract_test

class OnlyInTests(Event, type="tests.only"):
    pass

test_contracts = contract_test("shop.app:app")
test_again = contract_test("shop.app:app", dir="contracts", against=["contracts"])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with its code under src, its tests in a folder, and its snapshots beside them."""
    (tmp_path / "src" / "shop").mkdir(parents=True)
    (tmp_path / "src" / "shop" / "app.py").write_text(SHOP)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_contracts.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    env = {**environ(), "PYTHONPATH": "src"}
    command = [sys.executable, "-m", "outrider.cli", "contracts", "snapshot", "--app", "shop.app:app"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    return tmp_path


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PYTEST_"))}


def run(project: Path, cwd: str = ".") -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(project / "tests")]
    env = environ() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=project / cwd, env=env, capture_output=True, text=True, timeout=80, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("cwd", [".", "tests"])
def test_it_passes_while_the_contracts_hold_wherever_it_is_run(project: Path, cwd: str) -> None:
    """Events that the tests declare are none of its business."""
    assert "2 passed" in run(project, cwd)


def test_it_fails_with_the_report(project: Path) -> None:
    file = project / "src" / "shop" / "app.py"
    file.write_text(file.read_text().replace("order_id: str", "order_id: int"))
    said = run(project)
    assert "2 failed" in said
    assert "order_id: was text, is whole number" in said
    assert "fix: leave version 1 as it was" in said
    assert "Traceback" not in said


def test_it_fails_when_the_app_cannot_be_loaded(project: Path) -> None:
    (project / "src" / "shop" / "app.py").write_text("raise ValueError('broken')")
    said = run(project)
    assert "2 failed" in said
    assert "importing 'shop.app' failed with ValueError: broken" in said
