"""`contract_test` in a pytest run of its own, as a user's project has it; what it says when it fails, called by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.cli import inprocess

from outrider.testing import contract_test

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
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its code under src, its tests in a folder, and its snapshots beside them."""
    (tmp_path / "src" / "shop").mkdir(parents=True)
    (tmp_path / "src" / "shop" / "app.py").write_text(SHOP)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_contracts.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    monkeypatch.syspath_prepend(tmp_path / "src")
    done = inprocess.run(tmp_path, "contracts", "snapshot", "--app", "shop.app:app")
    assert done.returncode == 0, done.stderr
    return tmp_path


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIDER_", "PYTEST_"))}


def failure(project: Path) -> str:
    test = contract_test("shop.app:app")
    with pytest.raises(pytest.fail.Exception) as failed:
        test(cast(pytest.Config, SimpleNamespace(rootpath=project)))
    assert not failed.value.pytrace
    return str(failed.value)


@pytest.mark.verify
def test_it_passes_while_the_contracts_hold_wherever_it_is_run(project: Path) -> None:
    """Events that the tests declare are none of its business."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(project / "tests")]
    env = environ() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=project / "tests", env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.verify
def test_it_fails_with_the_report(project: Path) -> None:
    file = project / "src" / "shop" / "app.py"
    file.write_text(file.read_text().replace("order_id: str", "order_id: int"))
    said = failure(project)
    assert "order_id: was text, is whole number" in said
    assert "fix: leave version 1 as it was" in said
    assert "Traceback" not in said


@pytest.mark.verify
def test_it_fails_when_the_app_cannot_be_loaded(project: Path) -> None:
    (project / "src" / "shop" / "app.py").write_text("raise ValueError('broken')")
    assert "importing 'shop.app' failed with ValueError: broken" in failure(project)
