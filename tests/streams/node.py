"""A real Node that answers: one process for a whole test, a line of JSON for each question."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

LOOP = """
require('readline').createInterface({input: process.stdin}).on('line', (line) =>
  process.stdout.write(JSON.stringify(JSON.parse(line).map(answer)) + '\\n'))
"""


class Ask(Protocol):
    def __call__(self, questions: Sequence[Any]) -> list[Any]: ...


@contextmanager
def node(program: str) -> Iterator[Ask]:
    """`program` defines the function `answer`; yields what asks it several questions at once."""
    found = shutil.which("node") or shutil.which("nodejs")
    if found is None:
        pytest.fail(
            "this test compares with a real Node: install it (Debian: apt-get install nodejs; macOS: brew install node)"
        )
    with subprocess.Popen([found, "-e", program + LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(questions: Sequence[Any]) -> list[Any]:
            stdin.write(json.dumps(list(questions)).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
            assert line, f"Node has ended with {process.wait()}: its error is above"
            answers: list[Any] = json.loads(line)
            return answers

        yield ask
