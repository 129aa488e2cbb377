"""docs/monitoring.md cannot lie: its program is written as it stands there, its commands run, their output compared.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_monitoring.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli import inprocess
from tests.processes import clean

from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
BLOCK = re.compile(r"^```(py|sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
IDS = [
    "01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a",
    "01a1dee4-02c9-7d10-9b4e-64c1a8f0a3b2",
    "01a1dee4-9f31-7be2-8c07-2f6d0b9ae1c4",
]
"""Those of the page, in the order in which they are published."""
CALM = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d": "2026-07-04 03:12:09.118+00:00",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d": "2026-07-04 03:12:09+00:00",
    r"since \d{4}-\d\d-\d\d \d\d:\d\d:": "since 2026-07-04 03:12:",
    r"Postgres \d+(\.\d+)*": "Postgres 18.4",
    r"\d+ of \d+ connections": "12 of 300 connections",
    r"last 5 min: [\d.]+ m?s(, only for a short time)?": "last 5 min: 23 ms",
    r"at most [\d,]+ in a table": "at most 3 in a table",
    r", \d+ s ago": ", 41 s ago",
    r"in \d+ min": "in 59 min",
    r"│\d+ s ": "│41 s ",
    r"│41 s {3}│": "│41 s  │",
}


class Reader:
    """Whoever follows the page, in a folder and on a database of their own."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._folder = folder
        self._dsn = dsn
        self._ids: dict[str, str] = {}
        """As the page has them, of those that there really are."""

    def follow(self, block: re.Match[str]) -> str:
        """The block as it should be: the same commands, with what they really said."""
        kind, text = block.groups()
        if kind == "py":
            (self._folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
        elif kind == "sh":
            for command in text.splitlines():
                self._run(command)
        else:
            said = "".join(f"$ {command}\n{self._run(command)}" for command in COMMAND.findall(text))
            return f"```console\n{said}```"
        return block.group()

    def _run(self, command: str) -> str:
        for real, shown in self._ids.items():
            command = command.replace(shown, real)
        first, *rest = shlex.split(command)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "110")
            if first == "outrider":
                done = inprocess.run(self._folder, *rest, "--dsn", self._dsn)
                if rest[0] != "doctor":
                    assert (done.returncode == 1) == done.stderr.startswith("outrider: "), done.stderr
                said = done.stdout + done.stderr
            else:
                said = self._shell(command)
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said)
        for real in ID.findall(said):
            if real not in self._ids and not real.startswith("00000000"):
                self._ids[real] = IDS[len(self._ids)]
        for real, shown in self._ids.items():
            said = said.replace(real, shown)
        return re.sub(r" +$", "", said, flags=re.MULTILINE)

    def _shell(self, command: str) -> str:
        """Without the log, which tells of failures that are meant."""
        path = os.pathsep.join([str(Path(sys.executable).parent), str(Embedded().bin), os.environ["PATH"]])
        env = clean() | {"PATH": path, "OUTRIDER_DSN": self._dsn}
        line = ["/bin/sh", "-c", command]
        done = subprocess.run(line, cwd=self._folder, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_page_says_what_happens(tmp_path: Path, empty_database: str) -> None:
    page = PAGE.read_text()
    played = BLOCK.sub(Reader(tmp_path, empty_database).follow, page)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        PAGE.write_text(played)
        return
    assert played == page
