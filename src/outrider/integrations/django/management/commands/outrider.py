"""`manage.py outrider …` is the outrider command, for the app and the database that Django's settings name."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

BOOT = "outrider.integrations.django.boot"


class Command(BaseCommand):
    help = "The outrider command: worker, migrate, subscription and the others; `manage.py outrider --help` lists them."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """This process becomes the outrider command, with its help, signals and exit codes."""
        command, environ = _outrider(argv[2:])
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, environ)  # noqa: S606

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: object, **options: Any) -> None:
        """`call_command("outrider", "migrate")` runs it in a process of its own."""
        command, environ = _outrider(options["arguments"])
        code = subprocess.run(command, env=environ, check=False).returncode
        if code:
            raise CommandError(f"outrider {' '.join(options['arguments'])} ended with code {code}", returncode=code)


def _outrider(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line, and an environment with the same import path."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for mine in ("--settings", "--pythonpath", "--app"):  # Django has obeyed the first two
        parser.add_argument(mine)
    asked, rest = parser.parse_known_args(arguments)
    environ = {**os.environ, "OUTRIDER_APP": f"{BOOT}:{asked.app or 'app'}"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return [sys.executable, "-P", "-m", "outrider", *rest], environ
