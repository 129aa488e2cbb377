"""Builds the distributions, and loads the scripts beside the pins."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EPOCH = "1700000000"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(source: Path, into: Path, *targets: str) -> dict[str, bytes]:
    """The files by their names."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    done = subprocess.run(
        [*command, *(part for each in targets for part in ("-t", each))],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.name: file.read_bytes() for file in into.iterdir()}
