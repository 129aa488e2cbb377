"""`outrider event waiting`: what waits for a retry, and what waits behind it; in Python too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess
from tests.dashboard.shop import make_app

PUBLISH = (
    "select outrider.publish('dash.placed', jsonb_build_object('order_id', %s::text, 'total', %s::text), key => %s)"
)


@pytest.fixture
async def ids(database: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Orders 2 and 7 wait for a retry, the next three of order 2 behind the first."""
    monkeypatch.setenv("COLUMNS", "200")
    app = make_app(database)
    async with app:
        await app.migrate()
        with psycopg.connect(database) as conn:
            for key, total in (("2", "9.90"), ("2", "1"), ("2", "2"), ("2", "3"), ("7", "9.90"), ("8", "1")):
                conn.execute(PUBLISH, [key, total, key])
        await app.drain()
        found = await app.waiting_events("dash.invoice")
        assert [(each.key, each.behind, each.attempts) for each in found] == [("2", 3, 1), ("7", 0, 1)]
        [second] = await app.waiting_events(after=found[0].place)
        assert second.key == "7"
        behind = await app.waiting_behind(found[0].event_id, limit=2)
        assert len(behind) == 2
        [last] = await app.waiting_behind(found[0].event_id, after=behind[-1].seq)
        assert last.seq > behind[-1].seq
    with psycopg.connect(database) as conn:
        return [str(each) for (each,) in conn.execute("select id from outrider.outbox order by seq").fetchall()]


def run(tmp_path: Path, database: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return inprocess.run(tmp_path, "event", "waiting", *arguments, "--dsn", database)


def test_the_list_says_why_and_how_many_wait_behind(ids: list[str], database: str, tmp_path: Path) -> None:
    told = run(tmp_path, database).stdout
    for text in (ids[0], ids[4], "dash.invoice", "key 2", "the bank does not answer", "1 attempt", "3"):
        assert text in told
    assert ids[1] not in told
    first = run(tmp_path, database, "--limit", "1").stdout
    place = first.partition("--after ")[2].strip()
    told = run(tmp_path, database, "--after", place).stdout
    assert ids[0] not in told
    assert ids[4] in told
    listed: list[dict[str, Any]] = json.loads(run(tmp_path, database, "--json").stdout)["events"]
    assert [each["event_id"] for each in listed] == [ids[0], ids[4]]


def test_ids_are_whole_on_a_narrow_terminal(
    ids: list[str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert ids[0] in run(tmp_path, database).stdout
    assert ids[1] in run(tmp_path, database, ids[0]).stdout


def test_one_event_shows_what_waits_behind_it(ids: list[str], database: str, tmp_path: Path) -> None:
    told = run(tmp_path, database, ids[0]).stdout
    assert all(each in told for each in ids[1:4])
    assert "no event waits behind" in run(tmp_path, database, ids[4]).stdout
    found = json.loads(run(tmp_path, database, ids[0], "--limit", "2", "--json").stdout)["behind"]
    assert [each["event_id"] for each in found] == ids[1:3]


def test_what_is_wrong_is_one_sentence(ids: list[str], database: str, tmp_path: Path) -> None:
    wrong = run(tmp_path, database, "--after", "x")
    assert (wrong.returncode, wrong.stderr) == (1, "outrider: 'x' is not the place of a waiting event\n")
    assert "there is no subscription" in run(tmp_path, database, "--subscription", "no.such").stderr
    assert run(tmp_path, database, ids[0], "--after", "x").returncode == 2


def test_an_empty_list(database: str, tmp_path: Path) -> None:
    assert run(tmp_path, database).stdout == "no event waits for a retry\n"
