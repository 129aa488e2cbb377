"""Programs that tests start: in a clean environment, awaited by conditions, none of them left behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

DEADLINE = 120.0
PAUSE = 0.02
"""Seconds between two looks. Without a pause the loop takes the CPU from the process that it waits for."""


class Begin(Protocol):
    def __call__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]: ...


def clean() -> dict[str, str]:
    """The environment without what would point a program at something of ours."""
    ours = ("OUTRIDER_", "PG", "DJANGO_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextmanager
def processes() -> Iterator[Begin]:
    begun: list[subprocess.Popen[str]] = []

    def begin(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**clean(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    try:
        yield begin
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Until it holds; at once an error when the process has ended."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"the process ended: {process.communicate()}")
        assert time.monotonic() < deadline
        time.sleep(PAUSE)
