"""`outrider generations`: what it lists, and what moving one says and does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.cli.test_migrate import query

from outrider.postgres import generations

APP = """
from outrider import Event, Outrider

class Placed(Event, type="cli.placed", key="n"):
    n: int

app = Outrider(context="shop", generation=41)

@app.handler(Placed, name="shop.count", start="beginning", partitions=2)
async def handle(event: Placed) -> None: ...

app.reader(Placed, name="shop.reader")
"""
WORKER = """insert into outrider.worker (id, host, pid, version, generation, subscriptions)
            values (gen_random_uuid(), 'here', %s, 'test', %s, '{shop.count}')"""


@pytest.fixture
def outrider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "160")
    return partial(inprocess.run, tmp_path)


@pytest.fixture
def shop(outrider: Run, database: str, tmp_path: Path) -> str:
    """A database whose app was migrated with generation 41, and one worker of 42."""
    (tmp_path / "shop.py").write_text(APP)
    done = outrider("migrate", "--app", "shop:app", "--dsn", database)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database) as conn:
        conn.execute("""select outrider.publish('cli.placed', '{"n": 1}')""")
        conn.execute(WORKER, [1, 42])
    return database


def test_list(outrider: Run, shop: str) -> None:
    listed = json.loads(outrider("generations", "--dsn", shop, "--json").stdout)
    line = {"subscription": "shop.count", "lag": 1, "waiting": 0, "dead": 0, "workers": []}
    assert listed == {
        "schema": "outrider",
        "generations": [
            line | {"generation": each, "owner": each, "adopted_by": {"42": ["here:1"]}} for each in (0, 41)
        ],
    }
    query_(shop, WORKER, 2, 41)
    query_(shop, "update outrider.worker set unable = '{shop.count}' where pid = 1")
    zero, one = json.loads(outrider("generations", "--dsn", shop, "--json").stdout)["generations"]
    assert (zero["workers"], zero["adopted_by"]) == ([], {"41": ["here:2"]})
    assert (one["workers"], one["adopted_by"]) == (["here:2"], {})
    table = outrider("generations", "--dsn", shop).stdout
    assert "adopted by here:2 of 41" in table
    query_(shop, "update outrider.worker set stopping = true")
    assert "nobody" in outrider("generations", "--dsn", shop).stdout


def test_move_and_move_back(outrider: Run, shop: str) -> None:
    served = "select distinct generation, served_by from outrider.cursor where subscription = 'shop.count' order by 1"
    moved = outrider("generations", "move", "41", "42", "--by", "me", "--dsn", shop)
    assert (moved.returncode, moved.stderr) == (0, "")
    assert moved.stdout == (
        "shop.count: events of generation 41 are handled by the workers of generation 42, who notice it within 10 s; "
        "0 waiting events move with it\n"
    )
    assert query(shop, served) == [(0, None), (41, 42)]
    assert "moved to 42: here:1" in outrider("generations", "--dsn", shop).stdout
    back = outrider("generations", "move", "41", "41", "--subscription", "shop.count", "--dsn", shop)
    assert "handled by its own workers" in back.stdout
    assert "warning: generation 41 has no worker for shop.count" in back.stderr
    assert query(shop, served) == [(0, None), (41, None)]
    audit = query(
        shop, "select action, subscription, details ->> 'from', details ->> 'to' from outrider.audit order by id"
    )
    assert audit == [("move_generation", "shop.count", "41", "42"), ("move_generation", "shop.count", "41", "41")]
    assert query(shop, "select by from outrider.audit order by id")[0] == ("me",)


def test_what_is_not_there_cannot_be_moved(outrider: Run, shop: str) -> None:
    for arguments, said in (
        (["7", "8"], "there is no generation 7 with a position of its own; there are: 0, 41"),
        (["41", "8", "--subscription", "shop.reader"], "there is no generation 41 of shop.reader"),
        (["--", "-1", "8"], "greater than or equal to 0"),
    ):
        done = outrider("generations", "move", "--dsn", shop, *arguments)
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert said in done.stderr
    assert query(shop, "select count(*) from outrider.cursor where served_by is not null") == [(0,)]


def test_a_batch_that_does_not_end_is_named(outrider: Run, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "PATIENCE", "50ms")
    with psycopg.connect(shop) as conn:
        conn.execute("select from outrider.cursor where generation = 41 for update")
        done = outrider("generations", "move", "41", "42", "--dsn", shop)
    assert done.returncode == 1
    assert "shop.count was being read, or a job of it enqueued, for 50ms" in done.stderr


@pytest.mark.parametrize("command", [["generations"], ["generations", "move"]])
def test_help_teaches(outrider: Run, command: list[str]) -> None:
    done = outrider(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Example", f"outrider {' '.join(command)}"):
        assert taught in done.stdout


def query_(dsn: str, statement: str, *params: object) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement.encode(), params or None)
