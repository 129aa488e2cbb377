"""Runs the real `outrider` command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.preloaded import Preloaded
from tests.processes import clean, processes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

MAIN = "from outrider.cli import main; main()"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes() as begin:
        yield lambda *arguments, cwd=tmp_path, env=None: begin(
            [sys.executable, "-P", "-c", MAIN, *arguments], cwd, env or {}
        )


@pytest.fixture
def outrider(preloaded: Preloaded, tmp_path: Path) -> Run:
    def run(
        *arguments: str, cwd: Path = tmp_path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return preloaded.run(["outrider", *arguments], cwd, {**clean(), **(env or {})})

    return run


@pytest.fixture
def owner(server: str) -> Iterator[str]:
    """A role without any privilege beyond logging in."""
    name = f"owner_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create role {name} login".encode())
        yield name
        conn.execute(f"drop role {name}".encode())


@pytest.fixture
def owned_database(owner: str, empty_database: str) -> str:
    """A database as that role, who owns it. Dropped before the role, since it is made after it."""
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} owner to {owner}".encode())
    return make_conninfo(empty_database, user=owner)
