"""`outrider subscription`: what it lists, and what it refuses until one insists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.cli.test_migrate import NEWEST, psql, query

APP = """
from outrider import Event, Outrider

class Placed(Event, type="cli.subscribed"):
    n: int

app = Outrider(context="shop")

@app.handler(Placed, name="{name}", start="beginning")
async def handle(event: Placed) -> None: ...
"""


@pytest.fixture
def shop(outrider: Run, database: str, tmp_path: Path) -> str:
    """A database with the handler shop.count, which one event waits for."""
    (tmp_path / "shop.py").write_text(APP.format(name="shop.count"))
    outrider("migrate", "--app", "shop:app", "--dsn", database)
    with psycopg.connect(database) as conn:
        conn.execute("""select outrider.publish('cli.subscribed', '{"n": 1}')""")
    return database


def rename_in_the_code(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.format(name="shop.renamed"))


def test_list(outrider: Run, shop: str, tmp_path: Path) -> None:
    listed = json.loads(outrider("subscription", "list", "--app", "shop:app", "--dsn", shop, "--json").stdout)
    assert listed == {
        "schema": "outrider",
        "subscriptions": [
            {
                "name": "shop.count", "kind": "handler", "context": "shop", "event_types": ["cli.subscribed"],
                "partitions": 1, "order": "key", "paused_at": None, "lag": 1, "waiting": 0, "dead": 0, "workers": 0,
                "running": 0, "orphaned": False,
            }
        ],
    }  # fmt: skip
    rename_in_the_code(tmp_path)
    table = outrider("subscription", "list", "--app", "shop:app", "--dsn", shop, env={"COLUMNS": "200"}).stdout
    assert "shop.count" in table
    assert "orphaned" in table
    alone = json.loads(outrider("subscription", "list", "--dsn", shop, "--json").stdout)
    assert alone["subscriptions"][0]["orphaned"] is None


def test_pause_and_resume(outrider: Run, shop: str) -> None:
    paused = "select paused_at is not null from outrider.subscription"
    done = outrider("subscription", "pause", "shop.count", "--dsn", shop)
    assert (done.returncode, "subscription resume shop.count" in done.stdout) == (0, True)
    assert query(shop, paused) == [(True,)]
    assert "paused" in outrider("subscription", "list", "--dsn", shop, env={"COLUMNS": "200"}).stdout
    assert outrider("subscription", "resume", "shop.count", "--dsn", shop).returncode == 0
    assert query(shop, paused) == [(False,)]


def test_pause_and_resume_everything(outrider: Run, shop: str) -> None:
    switch = "select value from outrider.setting where name = 'paused'"
    done = outrider("subscription", "pause", "--all", "--dsn", shop)
    assert done.stdout == "all subscriptions are paused; to resume: outrider subscription resume --all\n"
    assert query(shop, switch) == [(1,)]
    one = outrider("subscription", "resume", "shop.count", "--dsn", shop)
    assert (one.returncode, one.stdout) == (0, "shop.count is resumed\n")
    assert "everything is paused" in one.stderr
    outrider("subscription", "pause", "shop.count", "--dsn", shop)
    done = outrider("subscription", "resume", "--all", "--dsn", shop)
    assert done.stdout == "all subscriptions are resumed, except shop.count\n"
    assert query(shop, switch) == [(0,)]
    assert outrider("subscription", "pause", "--dsn", shop).returncode == 2
    assert outrider("subscription", "pause", "shop.count", "--all", "--dsn", shop).returncode == 2


def test_a_rename_in_the_code_is_refused_until_the_database_follows(outrider: Run, shop: str, tmp_path: Path) -> None:
    rename_in_the_code(tmp_path)
    common = ("--app", "shop:app", "--dsn", shop)
    for command in (["migrate"], ["migrate", "--dry-run"], ["worker"]):
        refused = outrider(*command, *common)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "outrider subscription rename shop.count shop.renamed" in refused.stderr
    renamed = outrider("subscription", "rename", "shop.count", "shop.renamed", "--dsn", shop)
    assert renamed.stdout == "shop.count is now shop.renamed; 0 receipts moved with it\n"
    assert "shop.renamed: unchanged" in outrider("migrate", *common).stdout


def test_a_rename_in_the_code_is_refused_beside_the_old_worker(outrider: Run, shop: str, tmp_path: Path) -> None:
    query(shop, "update outrider.cursor set seq = 1000 returning seq")
    query(
        shop,
        "insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at) "
        "values (gen_random_uuid(), 'elsewhere', 1, 'x', 0, array['shop.count'], now()) returning id",
    )
    rename_in_the_code(tmp_path)
    for command in (["migrate"], ["migrate", "--dry-run"], ["worker"]):
        refused = outrider(*command, "--app", "shop:app", "--dsn", shop)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "outrider subscription rename shop.count shop.renamed" in refused.stderr
        assert "outrider subscription retire shop.count" in refused.stderr
        assert "1 worker serves it" in refused.stderr
    assert query(shop, "select name from outrider.subscription") == [("shop.count",)]


def test_the_script_refuses_a_rename_in_the_code(outrider: Run, shop: str, tmp_path: Path) -> None:
    psql(shop, outrider("migrate", "--sql", "--after", str(NEWEST), "--app", "shop:app").stdout)
    rename_in_the_code(tmp_path)
    script = outrider("migrate", "--sql", "--after", str(NEWEST), "--app", "shop:app")
    with pytest.raises(AssertionError, match=r"shop\.renamed is new and wants the same events as shop\.count"):
        psql(shop, script.stdout)
    outrider("subscription", "rename", "shop.count", "shop.renamed", "--dsn", shop)
    psql(shop, script.stdout)
    assert query(shop, "select name from outrider.subscription") == [("shop.renamed",)]


def test_revisions_of_alembic_are_not_written_for_a_rename_in_the_code(
    outrider: Run, shop: str, tmp_path: Path
) -> None:
    write = ("migrate", "--alembic", "--versions", "versions", "--app", "shop:app", "--dsn", shop)
    assert outrider(*write).returncode == 0
    rename_in_the_code(tmp_path)
    refused = outrider(*write)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "select outrider.rename('shop.count', 'shop.renamed')" in refused.stderr
    (tmp_path / "versions" / "renamed.py").write_text(
        f"""
revision = "renamed"
down_revision = {head(tmp_path / "versions")!r}

def upgrade() -> None:
    op.execute("select outrider.rename('shop.count', 'shop.renamed')")
"""
    )
    assert outrider(*write).returncode == 0


@pytest.mark.parametrize("types", [("", "Subscribed, "), ("Subscribed, ", "")], ids=["lists types now", "listed types"])
def test_neither_writes_a_reader_of_everything_that_is_renamed_and_changed(
    outrider: Run, database: str, tmp_path: Path, types: tuple[str, str]
) -> None:
    code = """
from outrider import Event, Job, Outrider

class Subscribed(Event, type="cli.subscribed"):
    n: int

class Pack(Job, type="cli.pack"):
    pass

app = Outrider(context="shop")
app.reader(%sname="shop.%s")
app.job(%s)(print)
"""
    alembic = ("migrate", "--alembic", "--versions", "versions", "--app", "shop:app", "--dsn", database)
    script = ("migrate", "--sql", "--after", str(NEWEST), "--app", "shop:app")
    # The job reads no events at first: that is not the same as all.
    (tmp_path / "shop.py").write_text(code % (types[0], "audit", "Pack"))
    assert outrider(*alembic).returncode == 0
    psql(database, outrider(*script).stdout)
    (tmp_path / "shop.py").write_text(code % (types[0], "audit", 'on=Subscribed, name="shop.pack"'))
    assert outrider(*alembic).returncode == 0
    psql(database, outrider(*script).stdout)
    (tmp_path / "shop.py").write_text(code % (types[1], "archive", "Pack"))
    assert "shop.archive is new and wants the same events as shop.audit" in outrider(*alembic).stderr
    with pytest.raises(AssertionError, match=r"shop\.archive is new and wants the same events as shop\.audit"):
        psql(database, outrider(*script).stdout)


def head(versions: Path) -> str:
    [last] = versions.glob("*_subscriptions.py")
    return last.name.partition("_")[0]


def test_a_second_one_on_purpose(outrider: Run, shop: str, tmp_path: Path) -> None:
    rename_in_the_code(tmp_path)
    done = outrider("migrate", "--app", "shop:app", "--dsn", shop, env={"OUTRIDER_ALLOW_ORPHANS": "1"})
    assert "shop.renamed: created" in done.stdout


def test_retire_needs_force_and_yes(outrider: Run, shop: str) -> None:
    for insisting, said in ([], "1 unread, 0 waiting for retry, 0 dead letters"), (["--force"], "add --yes"):
        refused = outrider("subscription", "retire", "shop.count", "--dsn", shop, *insisting)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert said in refused.stderr
    done = outrider("subscription", "retire", "shop.count", "--force", "--yes", "--app", "shop:app", "--dsn", shop)
    assert "lost: 1 unread" in done.stdout
    assert "still declares shop.count" in done.stdout
    assert query(shop, "select name from outrider.subscription") == []


def test_an_unknown_name(outrider: Run, shop: str) -> None:
    for command in (["pause", "x"], ["resume", "x"], ["rename", "x", "y"], ["retire", "x"], ["retire", "x", "--force"]):
        done = outrider("subscription", *command, "--dsn", shop)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), command
        assert "there are: shop.count" in done.stderr


def test_for_programs(shop: str, tmp_path: Path) -> None:
    def told(*arguments: str) -> dict[str, Any]:
        done = inprocess.run(tmp_path, "subscription", *arguments, "--dsn", shop, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return dict(json.loads(done.stdout))

    assert told("pause", "shop.count") == {"schema": "outrider", "subscription": "shop.count", "paused": True}
    assert told("pause", "--all")["subscription"] is None
    resumed = {"schema": "outrider", "subscription": None, "paused": False, "still_paused": ["shop.count"]}
    assert told("resume", "--all") == resumed | {"all_paused": False}
    assert told("resume", "shop.count")["still_paused"] == []
    assert told("rename", "shop.count", "shop.sum") == {
        "schema": "outrider", "old": "shop.count", "new": "shop.sum", "receipts": 0,
    }  # fmt: skip
    lost = told("retire", "shop.sum", "--force", "--yes")
    assert (lost["subscription"], lost["lost"]["unread"], lost["still_declared"]) == ("shop.sum", 1, False)


def test_narrowing_loses_nothing_without_yes(shop: str, tmp_path: Path) -> None:
    """The count comes first."""
    query(shop, "select outrider.register('shop.count', 'handler', 'shop', '{shop.more}')")
    query(shop, "select outrider.publish('shop.more', '{}', source => 'shop')")
    narrow = ["subscription", "narrow", "shop.count", "shop.more", "--dsn", shop, "--json"]
    for insisting in ([], ["--force"], ["--yes"]):
        refused = inprocess.run(tmp_path, *narrow, *insisting)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "has 1 unread events of shop.more" in refused.stderr
        assert "--force --yes" in refused.stderr
    done = json.loads(inprocess.run(tmp_path, *narrow, "--force", "--yes").stdout)
    assert done == {"schema": "outrider", "subscription": "shop.count", "types": ["shop.more"], "lost": 1}
