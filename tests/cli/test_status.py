"""`outrider status`: everything at one glance, and for programs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.postgres.test_status import worker
from tests.postgres.test_story import later, never
from tests.worker.shop import opened

from outrider.postgres.schema import migrate
from outrider.postgres.schema.migrate import known

APP = """
from outrider import Event, Outrider

class Placed(Event, type="dispatch.placed"):
    n: int

app = Outrider(context="shop")

@app.handler(Placed, name="shop.declared")
async def handle(event: Placed) -> None: ...
"""

HUB = """
from outrider import Outrider

app = Outrider(context="hub")
app.rollup("hub.imports", table="piece", key=["document"], single="hub.born", rollup="hub.imported")
"""


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


async def busy(dsn: str) -> None:
    """One handler with everything that can be owed, served by one worker; another one was lost."""
    async with opened(dsn) as shop:
        shop.wrong |= {"a1": later, "b1": never}
        await shop.publish("a1", "b1", "c1")
        await shop.app.drain()
        await shop.publish("d1")
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await worker(conn, "shop.effect", pid=11, listening=True)
        await worker(conn, "shop.effect", pid=12, seen="now() - interval '5 minutes'")
        await worker(conn, "shop.effect", pid=13, stopping=True, unable=["shop.effect"])


def test_at_one_glance(database: str, tmp_path: Path, wide: None) -> None:
    asyncio.run(busy(database))
    done = inprocess.run(tmp_path, "status", "--dsn", database)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third, *_ = done.stdout.splitlines()
    assert first == f"schema outrider: version {known()[-1].version}, up to date"
    assert second == "1 subscription; 2 workers"
    assert (
        third == "4 log positions used; 1 waiting for retry (outrider event waiting); 1 dead letter (outrider dlq list)"
    )
    rows = [re.split(r" *│ *", line.strip("│").strip()) for line in done.stdout.splitlines() if line.startswith("│")]
    assert rows[0][:3] + rows[0][4:] == ["shop.effect", "running", "1", "1", "1", "read to 3, 1 worker"]
    assert re.fullmatch(r"\d+ s", rows[0][3])
    assert [row[0] for row in rows[1:]] == ["host:11", "host:12", "host:13"]
    assert [(row[4], row[6]) for row in rows[1:]] == [
        ("notifications", "running"),
        ("polling", "lost"),
        ("polling", "stopping; takes nothing from shop.effect"),
    ]
    assert rows[2][5] == "5 min ago"


def test_everything_is_paused_and_one_more_for_itself(database: str, tmp_path: Path, wide: None) -> None:
    asyncio.run(busy(database))
    inprocess.run(tmp_path, "subscription", "pause", "--all", "--dsn", database)
    said = inprocess.run(tmp_path, "status", "--dsn", database).stdout
    assert re.search(r"^everything is paused since \d{4}.*; to resume: outrider subscription resume --all$", said, re.M)
    assert "paused with all" in said
    inprocess.run(tmp_path, "subscription", "pause", "shop.effect", "--dsn", database)
    assert re.search(r"│paused since \d{4}-", inprocess.run(tmp_path, "status", "--dsn", database).stdout)


def test_nobody_serves_it_and_nobody_declares_it(database: str, tmp_path: Path, wide: None) -> None:
    (tmp_path / "app.py").write_text(APP)
    asyncio.run(busy(database))
    with psycopg.connect(database) as conn:
        conn.execute("delete from outrider.worker")
    said = inprocess.run(tmp_path, "status", "--app", "app:app", "--dsn", database).stdout
    assert re.search(r"shop\.effect *│orphaned *│", said)
    assert "nobody serves it" in said
    told = json.loads(inprocess.run(tmp_path, "status", "--app", "app:app", "--dsn", database, "--json").stdout)
    assert [each["orphaned"] for each in told["subscriptions"]] == [True]
    alone = json.loads(inprocess.run(tmp_path, "status", "--dsn", database, "--json").stdout)
    assert [each["orphaned"] for each in alone["subscriptions"]] == [None]


def test_for_programs(database: str, tmp_path: Path) -> None:
    asyncio.run(busy(database))
    told = json.loads(inprocess.run(tmp_path, "status", "--dsn", database, "--json").stdout)
    assert (told["schema"], told["version"], told["pending"], told["seq"]) == ("outrider", known()[-1].version, [], 4)
    assert (told["paused_at"], told["jobs"], told["rollups"]) == (None, {}, [])
    [standing] = told["subscriptions"]
    assert standing.pop("oldest_owed_at") is not None
    assert standing.pop("waiting_since") is not None
    assert standing == {
        "name": "shop.effect", "kind": "handler", "context": "shop", "event_types": ["dispatch.placed"], "partitions": 1,
        "order": "key", "states": ["running"], "paused_at": None, "lag": 1, "oldest_is_certain": True, "waiting": 1,
        "running": 0, "dead": 1, "orphaned": None, "streams": [], "topics": [],
        "topics_are_complete": True, "troubles": [],
        "positions": [
            {"generation": 0, "served_by": 0, "seq": 3, "lag": 1, "failures": 0, "open_until": None,
             "workers": ["host:11"]},
        ],
    }  # fmt: skip
    assert [(each["pid"], each["live"], each["listening"]) for each in told["workers"]] == [
        (11, True, True),
        (12, False, False),
        (13, True, False),
    ]


def test_rollups(database: str, tmp_path: Path, wide: None) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table piece (document text)")
        (tmp_path / "hub.py").write_text(HUB)
        inprocess.run(tmp_path, "rollup", "install", "--app", "hub:app", "--dsn", database)
        conn.execute("insert into piece values ('a'), ('a'), (repeat('x', 600))")
        conn.execute("update outrider.rollup_pending set staged_at = staged_at - interval '1 hour' where id <> 2")

        def row() -> list[str]:
            said = inprocess.run(tmp_path, "status", "--dsn", database).stdout
            [line] = [line for line in said.splitlines() if "hub.imports" in line]
            return [cell.strip() for cell in line.strip("│").split("│")]

        assert row() == ["hub.imports", "public.piece", "workers, every 2 min", "not yet", "3", "60 min", "0", ""]
        conn.execute("select outrider.rollup_tick('hub.imports')")
        shown = row()
        assert (shown[4], shown[5], shown[6], shown[7][:10]) == ("0", "", "1", "processed ")
        told = json.loads(inprocess.run(tmp_path, "status", "--dsn", database, "--json").stdout)
        [rolled] = told["rollups"]
        assert (rolled["name"], rolled["every"], rolled["pending"], rolled["set_aside"]) == ("hub.imports", 120.0, 0, 1)
        assert rolled["last_run"]["groups_emitted"] == 1
        conn.execute("select * from outrider.rollup_uninstall('hub.imports')")
        assert row()[2] == "nobody: uninstalled"


def test_names_are_not_obeyed(database: str, tmp_path: Path, wide: None) -> None:
    """SQL may register anything."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "select outrider.register(%s, 'reader', 'a', null)", ["\x1b[2J[bold]x[/]\nfake"],
        )  # fmt: skip
    said = inprocess.run(tmp_path, "status", "--dsn", database).stdout
    assert "\x1b" not in said
    assert "\\x1b[2J[bold]x[/]\\nfake" in said


def test_what_is_missing(
    outrider: Run, database: str, empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = migrate.Migration(known()[-1].version + 1, "next", False, "-", "")
    steps = (*known(), newer)
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "known", lambda: steps)
        done = inprocess.run(tmp_path, "status", "--dsn", database)
    assert done.returncode == 0
    assert f"pending: {newer.version:04} next (outrider migrate)" in done.stdout
    nothing = outrider("status", "--dsn", empty_database)
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "is not installed here: run outrider migrate" in nothing.stderr
