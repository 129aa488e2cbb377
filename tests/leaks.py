"""What tests may leave behind: nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import psycopg
import pytest

ROOT = Path(__file__).parents[1]

HELD = """
select 'session', format('%s in %s: %s', pid, datname, query) from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
union all select 'prepared transaction', gid from pg_prepared_xacts
union all select 'advisory lock', objid::text from pg_locks where locktype = 'advisory'
union all select 'database', datname from pg_database
          where datname not in ('postgres', 'template0', 'template1', 'outrider_whole', 'outrider_template')
"""


def in_server(dsn: str) -> list[str]:
    """A closed session's backend is gone a moment later: look until it is, or until it clearly stays."""
    deadline = time.monotonic() + 60
    with psycopg.connect(dsn, autocommit=True) as conn:
        while found := conn.execute(HELD.replace("%", "%%"), []).fetchall():
            if time.monotonic() > deadline:
                break
    return [f"{kind} {name}" for kind, name in found]


def on_machine(folder: Path) -> list[str]:
    """Servers, detached or not, whose home is below `folder`, and those homes themselves."""
    found = [
        f"process {process.pid}: {' '.join(process.info['cmdline'])[:200]}"
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and str(folder) in " ".join(process.info["cmdline"])
    ]
    return found + [f"folder {home}" for home in folder.glob("outrider-*")]


def children() -> list[str]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            found.append(f"process {child.pid}: {' '.join(child.cmdline())[:200]}")
    return found


class Started:
    """Fails a test that has started a process, directly or through asyncio, and has not waited for it. Names the line.

    Python itself warns only when the object is collected as garbage, which may be during another test.
    """

    def __init__(self) -> None:
        self._started: list[tuple[Any, str]] = []
        self._owners: list[object] = []
        """Objects of shared fixtures. They may restart their process during a test, and end it later."""
        self._shared = 0
        """How many shared fixtures are being set up now."""
        for kind in (subprocess.Popen, BaseSubprocessTransport):
            self._note(kind)

    def _note(self, kind: Any) -> None:
        make = kind.__init__

        def noted(made: Any, *args: Any, **options: Any) -> None:
            make(made, *args, **options)
            frame = _caller()
            owner = frame.f_locals.get("self")
            if self._shared:
                self._owners.append(owner)
            elif owner is None or all(owner is not each for each in self._owners):
                self._started.append((made, f"{frame.f_code.co_filename}:{frame.f_lineno}"))

        kind.__init__ = noted

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        self._shared += fixturedef.scope != "function"
        try:
            return (yield)
        finally:
            self._shared -= fixturedef.scope != "function"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        yield
        started, self._started = self._started, []
        left = [f"{where} started {made!r} and has not {what}" for made, where in started if (what := _lacks(made))]
        assert not left, "\n".join(left)


def _lacks(made: Any) -> str:
    if isinstance(made, BaseSubprocessTransport):
        return "" if made.is_closing() else "closed it"
    return "" if made.returncode is not None else "waited for it"


def _caller() -> FrameType:
    """The innermost frame of our own code."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not _ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _ours(file: str) -> bool:
    return file.startswith((f"{ROOT}/tests/", f"{ROOT}/src/", f"{ROOT}/examples/"))
