"""docs/adopting.md and docs/alembic.md cannot lie: their commands run from top to bottom, and their output is compared.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_adopting.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.cli.test_init import counted
from tests.cli.test_worker import end
from tests.preloaded import Preloaded
from tests.processes import clean, until

from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
CALM = {
    r"\d+\.\d+s$": "0.41s",
    r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}$": "01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a",
    r"[0-9a-f]{12}_outrider": "3f2a81c0d9b7_outrider",
    r'in database "\w+"': 'in database "billing"',
}


class Reader:
    """Whoever follows the page."""

    def __init__(self, folder: Path, dsn: str, server: str, preloaded: Preloaded) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), str(Embedded().bin), os.environ["PATH"]])
        self._folder = folder
        self._shell = preloaded.shell
        self._dsn = dsn
        self._env = clean() | {"PATH": path, "OUTRIDER_DSN": dsn, "OUTRIDER_TEST_DSN": server}

    def follow(self, block: re.Match[str]) -> str:
        """The block as it should be: the same commands, with what they really said."""
        kind, text = block.groups()
        if kind == "console":
            said = "".join(f"$ {command}\n{self.run(command)}" for command in COMMAND.findall(text))
            return f"```console\n{said}```"
        for command in text.splitlines():
            if command == "python -m billing":
                self._serve(command)
            elif not command.startswith("export "):
                self.run(command)
        return block.group()

    def run(self, command: str) -> str:
        done = self._shell(command, self._folder, self._env)
        assert "Traceback" not in done.stderr
        assert (done.returncode == 1) == done.stderr.startswith("outrider: "), done.stderr
        said = (done.stdout + done.stderr).replace(str(self._folder), "~/billing")
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said, flags=re.MULTILINE)
        return re.sub(r" +$", "", said, flags=re.MULTILINE)

    def _serve(self, command: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self._folder, env=self._env, stderr=subprocess.PIPE, text=True
            )
            try:
                until(lambda: counted(conn) == [("apple", 1)], process)
                process.terminate()
                assert end(process)[0] == 0
            finally:
                process.kill()
                process.communicate()


def follow(path: Path, reader: Reader) -> None:
    page = path.read_text()
    played = BLOCK.sub(reader.follow, page)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        path.write_text(played)
    else:
        assert played == page


@pytest.mark.timeout(300)
def test_the_page_on_alembic_says_what_happens(
    tmp_path: Path, empty_database: str, server: str, preloaded: Preloaded
) -> None:
    folder = tmp_path / "billing"
    folder.mkdir()
    reader = Reader(folder, empty_database, server, preloaded)
    reader.run("outrider init --service billing")
    follow(DOCS / "alembic.md", reader)


@pytest.mark.timeout(300)
def test_the_page_says_what_happens(tmp_path: Path, empty_database: str, server: str, preloaded: Preloaded) -> None:
    folder = tmp_path / "billing"
    folder.mkdir()
    follow(DOCS / "adopting.md", Reader(folder, empty_database, server, preloaded))
    with psycopg.connect(empty_database) as conn:
        assert counted(conn) == [("apple", 1)]
        assert conn.execute("select to_regnamespace('outrider')").fetchone() == (None,)
