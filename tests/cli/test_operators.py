"""The roles that the guide lists for those who operate may do all that it says, and the doctor is silent about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.test_docs import ROOT

APP = """
from outrider import Event, Job, Outrider

class Placed(Event, type="ops.placed", key="n"):
    n: int

class Stored(Event, type="ops.stored"):
    n: int

class Send(Job, type="ops.send"):
    n: int

app = Outrider(context="shop", generation=41)

@app.handler(Placed, Stored, name="shop.count", start="beginning")
async def count(event: Placed | Stored) -> None: ...

@app.handler(Placed, name="shop.gone", start="beginning")
async def gone(event: Placed) -> None: ...

@app.job(Send)
async def send(job: Send) -> None: ...

app.rollup("shop.pieces", table="piece", key=["document"], single="ops.one", rollup="ops.many")
"""
WORLD = """
select outrider.publish('ops.placed', jsonb_build_object('n', n)) from generate_series(1, 4) as n;
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at,
                               last_error_code, last_error, buried_at)
select 'shop.count', 0, o.seq, o.id, o.event_type, 'failed', false, true, now(), 'value_error', 'no', now()
from outrider.outbox as o where o.seq <= 3;
update outrider.cursor set seq = 3 where subscription = 'shop.count';
"""


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """The suffix of the roles, and the owner's session; there are dead letters, jobs, a rollup, a generation."""
    (tmp_path / "shop.py").write_text(APP)
    blocks = re.findall(
        r"^```sql\n(create role (?:viewer|operator);.*?)^```", (ROOT / "docs/guide.md").read_text(), re.M | re.S
    )
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("create table piece (document text)")
        for command in ("migrate", "rollup install shop.pieces"):
            done = inprocess.run(tmp_path, *command.split(), "--app", "shop:app", "--dsn", database)
            assert done.returncode == 0, done
        owner.execute(WORLD)
        suffix = owner.info.dbname
        owner.execute(re.sub(r"\b(viewer|operator)\b", rf"\1_{suffix}", "".join(blocks)).encode())
        owner.execute(f"alter role viewer_{suffix} login; alter role operator_{suffix} login".encode())
        yield suffix, owner
        for role in (f"operator_{suffix}", f"viewer_{suffix}"):
            owner.execute(f"drop owned by {role}; drop role {role}".encode())


def test_they_may_do_what_the_guide_says(shop: tuple[str, psycopg.Connection[Any]], tmp_path: Path) -> None:
    suffix, owner = shop
    ids = [str(each) for (each,) in owner.execute("select id from outrider.outbox order by seq")]
    later = "select outrider.enqueue('ops.send', '{\"n\": 1}', run_at => now() + interval '1 day')"
    [job, other] = [str(owner.execute(later).fetchall()[0][0]) for _ in range(2)]
    looks = f"""
        status; subscription list; generations; relay list; inbox list; inbox refused; rollup status
        event show {ids[0]}; dlq list; dlq show {ids[0]}; dlq replay --all --dry-run; job list; job show {job}
        migrate status"""
    acts = f"""
        subscription pause shop.count; subscription resume shop.count; subscription pause --all; subscription resume --all
        dlq replay {ids[1]}; dlq replay --subscription shop.count --since 1h --dry-run; generations move 41 42
        event withdraw {ids[3]} --yes --reason x; job cancel {job} --yes --reason x; job run-now {other}
        dlq discard {ids[0]} --yes --reason x; rollup run shop.pieces --retry; subscription narrow shop.count ops.stored
        subscription retire shop.gone --force --yes"""

    def run(role: str, command: str) -> Any:
        dsn = make_conninfo(owner.info.dsn, user=f"{role}_{suffix}")
        return inprocess.run(tmp_path, *command.split(), "--dsn", dsn)

    refused = [
        f"{role}: {command}: {done.stderr or done.stdout}"
        for role, commands in (("viewer", looks), ("operator", acts))
        for command in re.split(r"[;\n]\s*", commands.strip())
        if (done := run(role, command)).returncode
    ]
    assert refused == [], "\n".join(refused)
    for role in ("viewer", "operator"):
        told = json.loads(run(role, "doctor --json --app shop:app").stdout)["findings"]
        assert [each for each in told if "could not be looked at" in each["found"] or each["check"] == "rights"] == []
        assert [each["severity"] for each in told if each["check"] == "rollups"] == ["ok"]
        assert [each["severity"] for each in told if each["check"] == "privileges"] == ["ok"]
    for command in ("subscription pause shop.count", f"event withdraw {ids[0]} --yes --reason x"):
        assert run("viewer", command).returncode == 1
