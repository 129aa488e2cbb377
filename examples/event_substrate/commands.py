"""The command line, as a reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def outrider(*command: str) -> subprocess.CompletedProcess[str]:
    """The command line, in the root of the repository."""
    command = (sys.executable, "-m", "outrider", *command)
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def apps(*names: str) -> list[str]:
    return [f"--app=examples.event_substrate.{each}:app" for each in names]
