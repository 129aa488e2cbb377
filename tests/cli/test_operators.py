"""The roles of those who look and of those who act may do all that they should, and the doctor is silent about them.

So may those who have what the guide listed before, of whom it makes a note."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess
from tests.postgres.roles.house import before, opened

from outrider.cli.options import who
from outrider.postgres.statement import statement

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


@dataclass(frozen=True)
class Shop:
    owner: psycopg.Connection[Any]
    logins: dict[str, str]
    """Of who looks, and of who acts."""


@pytest.fixture(params=["made by roles", "made before"])
def shop(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Shop]:
    """There are dead letters, jobs, a rollup, a generation."""
    (tmp_path / "shop.py").write_text(APP)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("create table piece (document text)")
        for command in ("migrate", "rollup install shop.pieces"):
            done = inprocess.run(tmp_path, *command.split(), "--app", "shop:app", "--dsn", database)
            assert done.returncode == 0, done
        owner.execute(WORLD)
        if request.param == "made by roles":
            with opened(owner) as house:
                yield Shop(owner, {"viewer": house.login("dashboard"), "operator": house.login("operator")})
            return
        suffix = owner.info.dbname
        owner.execute(re.sub(r"\b(viewer|operator)\b", rf"\1_{suffix}", before("operating")).encode())
        owner.execute(statement("schema/inherit_grants", "outrider"))
        owner.execute(f"alter role viewer_{suffix} login; alter role operator_{suffix} login".encode())
        yield Shop(owner, {role: f"{role}_{suffix}" for role in ("viewer", "operator")})
        for role in (f"operator_{suffix}", f"viewer_{suffix}"):
            owner.execute(f"drop owned by {role}; drop role {role}".encode())


@pytest.mark.verify
def test_they_may_do_what_they_should(shop: Shop, tmp_path: Path) -> None:
    owner, new = shop.owner, not shop.logins["operator"].startswith("operator_")
    ids = [str(each) for (each,) in owner.execute("select id from outrider.outbox order by seq")]
    later = "select outrider.enqueue('ops.send', '{\"n\": 1}', run_at => now() + interval '1 day')"
    [job, other] = [str(owner.execute(later).fetchall()[0][0]) for _ in range(2)]
    looks = f"""
        status; subscription list; generations; relay list; inbox list; inbox refused; rollup status; event list
        event show {ids[0]}; dlq list; dlq show {ids[0]}; dlq replay --all --dry-run; job list; job show {job}
        migrate status; audit; setting list"""
    acts = f"""
        subscription pause shop.count; subscription resume shop.count; subscription pause --all; subscription resume --all
        dlq replay {ids[1]}; dlq replay --subscription shop.count --since 1h --dry-run; generations move 41 42
        event withdraw {ids[3]} --yes --reason x; job cancel {job} --yes --reason x; job run-now {other}
        dlq discard {ids[0]} --yes --reason x; rollup run shop.pieces --retry; subscription narrow shop.count ops.stored
        subscription retire shop.gone --force --yes; subscription rename shop.count shop.counted
        setting set payload_max_bytes 2048; dlq replay {ids[0]} --force --subscription shop.counted --yes; audit"""

    def run(role: str, command: str) -> Any:
        dsn = make_conninfo(owner.info.dsn, user=shop.logins[role])
        return inprocess.run(tmp_path, *command.split(), "--dsn", dsn)

    refused = [
        f"{role}: {command}: {done.stderr or done.stdout}"
        for role, commands in (("viewer", looks if new else "status"), ("operator", acts))
        for command in re.split(r"[;\n]\s*", commands.strip())
        if (done := run(role, command)).returncode
    ]
    assert refused == [], "\n".join(refused)
    for role in ("viewer", "operator"):
        told = json.loads(run(role, "doctor --json --app shop:app").stdout)["findings"]
        assert [each for each in told if "could not be checked" in each["found"] or each["check"] == "rights"] == []
        assert [each["severity"] for each in told if each["check"] == "rollups"] == ["ok"]
        rights = {each["severity"] for each in told if each["check"] == "privileges"}
        assert rights == {"ok" if new else "note"}
    for command in ("subscription pause shop.count", f"event withdraw {ids[0]} --yes --reason x"):
        assert run("viewer", command).returncode == 1
    noted = owner.execute("select action, role, by <> '' from outrider.audit order by id").fetchall()
    assert [action for action, _, _ in noted] == [
        "pause", "resume", "pause_all", "resume_all", "replay", "move_generation", "move_generation", "withdraw",
        "cancel", "run_now", "discard",
        "rollup_retry", "rollup_run", "narrow", "retire", "rename", "set_setting", "force_replay",
    ]  # fmt: skip
    assert {each[1:] for each in noted} == {(shop.logins["operator"], True)}
    assert owner.execute("select distinct by from outrider.audit").fetchall() == [(who(None),)]
