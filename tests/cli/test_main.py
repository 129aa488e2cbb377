"""What the command says about itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from tests.cli.conftest import Run


def test_version(outrider: Run) -> None:
    assert outrider("--version").stdout == f"outrider {version('outrider')}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["migrate"],
        ["migrate", "status"],
        ["dev"],
        ["demo"],
        ["worker"],
        *(["subscription", verb] for verb in ("list", "pause", "resume", "rename", "retire")),
        *(["job", verb] for verb in ("list", "show", "cancel", "run-now")),
        *(["dlq", verb] for verb in ("list", "show", "replay", "discard")),
        *(["rollup", verb] for verb in ("preflight", "install", "verify", "status", "run", "uninstall")),
        ["generations"],
        ["generations", "move"],
    ],
)
def test_help_teaches(outrider: Run, command: list[str]) -> None:
    done = outrider(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Example", f"outrider {' '.join(command)}"):
        assert taught in done.stdout
    assert "\x1b" not in done.stdout


def test_help_lists_the_commands(outrider: Run) -> None:
    done = outrider("--help")
    assert all(command in done.stdout for command in ("demo", "dev", "migrate", "worker", "subscription", "job", "dlq"))


def test_the_command_line_declares_no_events() -> None:
    """A user's event may have any name, also one that the demo uses."""
    program = "import outrider.cli.main; from outrider.registry import registry; print(list(registry))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr
