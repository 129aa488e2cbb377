"""docs/rollups.md cannot lie: its program is the app, its commands run, and what they print is compared.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_rollups.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.cli import inprocess
from tests.docs.test_docs import ROOT, python_blocks
from tests.docs.test_monitoring import BLOCK, Reader
from tests.postgres.embedded.conftest import place
from tests.processes import clean

pytestmark = pytest.mark.verify

__all__ = ["place"]

PAGE = ROOT / "docs" / "rollups.md"
CALM = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?": "2026-07-04 03:12:09+00:00",
    r"; \d+ ms": "; 4 ms",
    r"\b\d+ s ago": "2 s ago",
    r"(PASS|FAIL)  pg_cron .*": "PASS  pg_cron         NOT_AVAILABLE  the server has no pg_cron: workers tick",
}


class Operator(Reader):
    """Whoever follows the page, with its program as the app."""

    def _run(self, command: str) -> str:
        first, *rest = shlex.split(command)
        if first != "outrider":
            return re.sub(r" +$", "", self._shell(command), flags=re.MULTILINE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "110")
            done = inprocess.run(self._folder, *rest, "--dsn", self._dsn, "--app", "hub:app")
        said = done.stdout + done.stderr
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said)
        return said


def test_the_page_says_what_happens(tmp_path: Path, database: str) -> None:
    page = PAGE.read_text()
    (tmp_path / "hub.py").write_text(python_blocks(PAGE))
    played = "".join(_played(Operator(tmp_path, database), page, database))
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        PAGE.write_text(played)
        return
    assert played == page


def test_the_program_runs_on_a_postgres_of_its_own(place: Path) -> None:
    (place / "hub.py").write_text(python_blocks(PAGE))
    env = clean() | {"OUTRIDER_EMBEDDED": "1"}
    done = subprocess.run(
        [sys.executable, "hub.py"], cwd=place, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"^It prints `(.*)` and `(.*)`\.$", PAGE.read_text(), re.MULTILINE)
    assert told is not None
    assert done.stdout.splitlines() == list(told.groups())


def _played(reader: Operator, page: str, dsn: str) -> list[str]:
    """In the order of the page; the settings in SQL are put back, since the text goes on with what was declared."""
    parts, place = [], 0
    for block in re.finditer(r"^```(sh|sql|console)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        parts.append(page[place : block.start()])
        place = block.end()
        if block.group(1) == "sql":
            with psycopg.connect(dsn, autocommit=True) as conn:
                for each in block.group(2).splitlines():
                    assert conn.execute(each.encode()).rowcount == 1
                conn.execute("update outrider.setting set entered = null")
            parts.append(block.group())
        else:
            parts.append(BLOCK.sub(reader.follow, block.group()))
    return [*parts, page[place:]]
