"""`outrider` in this process, as if it were a new one: what it imports and declares is forgotten after each command.

A process of its own takes most of a second, nearly all of it for imports. The commands that matter are also run as such.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from outrider.cli.main import cli
from outrider.event import Event
from outrider.registry import Registry

COMMAND = get_command(cli)
"""Built once: to build all commands takes longer than to run one."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In that folder, with no setting of Outrider or Postgres in the environment."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("OUTRIDER_", "PG"))]:
            patch.delenv(name)
        fresh: Registry[Event] = Registry()
        patch.setattr("outrider.event.registry", fresh)
        patch.setattr("outrider.job.jobs", Registry())
        patch.setattr("outrider.cli.declarations.registry", fresh)
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(sys, "path", list(sys.path))
        patch.chdir(folder)
        patch.setattr("typer.testing._get_command", lambda _: COMMAND)
        importlib.invalidate_caches()
        try:
            done = CliRunner().invoke(cli, arguments, prog_name="outrider")
        finally:
            places = {name: _places(sys.modules[name]) for name in set(sys.modules) - before}
            for name, found in places.items():
                if any(Path(place).is_relative_to(folder) for place in found):
                    del sys.modules[name]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def _places(module: ModuleType) -> list[str]:
    """Where it comes from; a folder without an `__init__` has no file."""
    file = getattr(module, "__file__", None)
    return [*getattr(module, "__path__", ()), *([] if file is None else [file])]
