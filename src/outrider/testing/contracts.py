"""`contract_test`: `outrider contracts check` as a test of your own suite, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PATIENCE = 120.0
"""Seconds that loading the apps and checking them may take."""


def contract_test(
    *apps: str,
    dir: str | Path | None = None,  # noqa: A002
    against: Iterable[str | Path] = (),
) -> Callable[[pytest.Config], None]:
    """Make a test that fails when an event has broken its contract: `test_contracts = contract_test("shop.app:app")`.

    `dir` and `against` are the options of the command; relative folders are those of pytest's root directory. Without an
    app the one of OUTRIDER_APP or pyproject.toml is checked. It runs in an interpreter of its own, because this one also
    has the events that tests declare; what is importable here is importable there.
    """
    if isinstance(against, str | Path):
        against = [against]
    command = [sys.executable, "-m", "outrider", "contracts", "check"]
    command += [part for app in apps for part in ("--app", app)]
    command += [] if dir is None else ["--dir", str(dir)]
    command += [part for folder in against for part in ("--against", str(folder))]

    def test_contracts(pytestconfig: pytest.Config) -> None:
        import pytest

        here = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        done = subprocess.run(
            command,
            cwd=pytestconfig.rootpath,
            env=here,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail((done.stdout + done.stderr).strip(), pytrace=False)

    return test_contracts
