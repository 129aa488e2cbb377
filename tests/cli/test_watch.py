"""`outrider status --watch`: one block per look, with rates; it outlives an outage and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
from typing import IO

import psycopg
import pytest
from tests.cli.conftest import Start
from tests.proxy import Proxy


def block(out: IO[str]) -> list[str]:
    lines: list[str] = []
    while line := out.readline().rstrip():
        lines.append(line)
    return lines


def test_one_block_per_look(start: Start, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, Proxy(database) as proxy:
        conn.execute("select outrider.register('a.reader', 'reader', 'a', null)")
        watching = start("status", "--watch", "--every", "0.1", "--dsn", proxy.dsn, env={"COLUMNS": "150"})
        assert watching.stdout is not None
        first = block(watching.stdout)
        assert first[2:4] == [
            "1 subscription; 0 workers",
            "0 log positions used (? a second); 0 waiting for retry; 0 dead letters",
        ]
        assert [cell.strip() for cell in first[5].strip("┃").split("┃")][:4] == [
            "subscription",
            "state",
            "lag",
            "read/s",
        ]
        conn.execute("select outrider.publish('a.b', '{}') from generate_series(1, 1000)")
        conn.execute("update outrider.cursor set seq = 1000")
        drawn, read = 0.0, 0.0
        while not (drawn and read):
            seen = block(watching.stdout)
            drawn = drawn or float(seen[3].partition("(")[2].split()[0])
            read = read or float(next(line for line in seen if "a.reader" in line).split("│")[4])
        assert seen[3].startswith("1,000 log positions used (")
        proxy.refuse()
        proxy.cut()
        while not (lost := block(watching.stdout))[0].startswith("no answer: "):
            pass
        assert len(lost) == 1
        proxy.heal()
        while not block(watching.stdout)[-1].startswith("└"):
            pass
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=200)
        assert (watching.returncode, said) == (0, "")


@pytest.mark.verify
def test_one_line_per_look(start: Start, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('a.reader', 'reader', 'a', null)")
    with Proxy(database) as proxy:
        watching = start("status", "--watch", "--every", "0.1", "--json", "--dsn", proxy.dsn)
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        proxy.refuse()
        proxy.cut()
        while "error" not in (lost := json.loads(watching.stdout.readline())):
            pass
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=200)
    assert (watching.returncode, first["rates"], second["rates"]["drawn"], len(lost)) == (0, None, 0.0, 1)
    assert second["rates"]["read"] == [{"subscription": "a.reader", "generation": 0, "rate": 0.0}]


@pytest.mark.verify
def test_a_first_look_that_fails_is_an_error(start: Start) -> None:
    watching = start("status", "--watch", "--dsn", "postgresql://127.0.0.1:1/nowhere")
    out, said = watching.communicate(timeout=200)
    assert (watching.returncode, out) == (1, "")
    assert said.startswith("outrider: nothing listens at 127.0.0.1:1")
