"""docs/takeover.md cannot lie: its commands run from top to bottom, and their output is compared.

After a deliberate change: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_takeover.py
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psycopg
import pytest
from tests.preloaded import Preloaded
from tests.processes import clean

from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

PAGE = Path(__file__).parents[2] / "docs" / "takeover.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
PROGRAM = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_says_what_happens(tmp_path: Path, empty_database: str, preloaded: Preloaded) -> None:
    page = PAGE.read_text()
    (tmp_path / "shop.py").write_text(PROGRAM.findall(page)[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Embedded().bin), os.environ["PATH"]])
    env = clean() | {"PATH": path, "OUTRIDER_DSN": empty_database, "OUTRIDER_APP": "shop:app", "COLUMNS": "100"}

    def said(command: str) -> str:
        done = preloaded.shell(command, tmp_path, env)
        assert "Traceback" not in done.stderr, done.stderr
        told = re.sub(r'in database "\w+"', 'in database "shop"', done.stdout + done.stderr)
        return re.sub(r"^.*(rows brought|bringing rows).*\d:\d\d:\d\d\n|[ ]+$", "", told, flags=re.MULTILINE)

    def follow(block: re.Match[str]) -> str:
        return "```console\n" + "".join(f"$ {each}\n{said(each)}" for each in COMMAND.findall(block.group(1))) + "```"

    played = BLOCK.sub(follow, page)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        PAGE.write_text(played)
    assert played == page or os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1"
    exec(PROGRAM.findall(page)[1], {})  # the declaration of the jobs
    with psycopg.connect(empty_database) as conn:
        invoices = conn.execute("select count(*), min(order_id), max(order_id) from invoice").fetchone()
    assert invoices == (101, 901, 1001)
