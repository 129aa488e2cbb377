"""What the command says about itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run
from typer.main import get_command

from outrider.cli.main import COMMANDS, cli

MIGRATIONS = Path(__file__).parents[2] / "src/outrider/postgres/migrations"


def test_version(outrider: Run) -> None:
    newest = max(int(file.name[:4]) for file in MIGRATIONS.glob("*.sql"))
    assert outrider("--version").stdout == f"outrider {version('outrider')}, schema version {newest}\n"


def every_command(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from every_command(command, *path, name)
        if getattr(command, "invoke_without_command", True):
            yield (*path, name)


def test_help_teaches(tmp_path: Path) -> None:
    found = list(every_command(get_command(cli)))
    assert len(found) > 50
    for command in found:
        done = inprocess.run(tmp_path, *command, "--help")
        assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False)
        missing = [each for each in ("Needs:", "Example", f"outrider {' '.join(command)}") if each not in done.stdout]
        assert not missing, done.stdout


def test_help_lists_the_commands(outrider: Run) -> None:
    done = outrider("--help")
    assert all(command in done.stdout for command in ("demo", "dev", "migrate", "worker", "subscription", "job", "dlq"))


def test_the_list_shows_the_first_sentence_of_each_command() -> None:
    group: Any = get_command(cli)
    for sentences in COMMANDS.values():
        for name, sentence in sentences.items():
            assert group.get_command(None, name).help.partition("\n\n")[0] == sentence


@pytest.mark.verify
def test_the_command_line_declares_no_events() -> None:
    """A user's event may have any name, also one that the demo uses."""
    program = "import outrider.cli.main; from outrider.registry import registry; print(list(registry))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert ran.stdout == "[]\n", ran.stderr
