"""`outrider inbox`: how far each has read, what it could not read, and reading that again with other code."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from redis import Redis
from tests.brokers import RedisServer
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.relay.conftest import name, redis_server

from outrider.cli.commands.inbox import SHOWN, start_of

__all__ = ["name", "redis_server"]

HOSTILE = b"\x1b[2J\xe2\x80\xaeevil [bold]loud[/]\r\n\tend"
APP = """
from outrider import Event, HandlerContext, Outrider
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.redis import RedisStreams
from outrider.streams.replica import ReplicaCodec

class Sent(Event, type="depot.sent", foreign=True):
    n: int

class Lenient(EnvelopeCodec):
    def decode(self, data):
        return super().decode(data.replace(b"new:", b""))

app = Outrider(context="shop")
app.inbox("shop.in", RedisStreams("{url}", stream="{name}", codec={codec}()))
app.replica("shop.copy", RedisStreams("{url}", stream="{name}-copy", codec=ReplicaCodec()), table="copy")

@app.handler(Sent, name="shop.handled", start="beginning")
async def handle(event: Sent, ctx: HandlerContext) -> None:
    await ctx.tx.execute("insert into effect values (%s)", [event.n])
"""
TABLE = """create table copy (
    aggregate_kind text not null, aggregate_id text not null, entity_version bigint not null, topic text not null,
    payload jsonb not null, event_id uuid not null, committed_at timestamptz not null,
    primary key (aggregate_kind, aggregate_id))"""


def entry(n: int, event_id: str | None = None) -> bytes:
    fields = {"v": 1, "id": event_id or str(uuid4()), "event_type": "depot.sent", "event_version": 1, "source": "depot"}
    return json.dumps(fields | {"content_class": "internal", "payload": {"n": n}}).encode()


class Desk:
    """An operator at the shop, whose inbox reads what the test writes into a stream."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str, redis: Any, stream: str, folder: Path) -> None:
        self.conn = conn
        self.dsn = dsn
        self.redis = redis
        self.stream = stream
        self.folder = folder

    def code(self, url: str, codec: str = "EnvelopeCodec") -> None:
        text = APP.replace("{url}", url).replace("{name}", self.stream).replace("{codec}", codec)
        (self.folder / "shop.py").write_text(text)

    def comes(self, *data: bytes, stream: str = "") -> None:
        for each in data:
            self.redis.xadd(self.stream + stream, {"event": each})

    def drain(self) -> None:
        program = "import asyncio, shop\nasync def main():\n async with shop.app as app:\n  await app.migrate()\n"
        program += "  await app.drain()\nasyncio.run(main())"
        env = {**os.environ, "OUTRIDER_DSN": self.dsn}
        subprocess.run([sys.executable, "-c", program], cwd=self.folder, env=env, check=True, timeout=200)

    def inbox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(self.folder, "inbox", *arguments, "--dsn", self.dsn)

    def said(self, *arguments: str, code: int = 0) -> str:
        done = self.inbox(*arguments)
        assert (done.returncode, done.stderr) == (code, ""), done
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.said(*arguments, "--json", code=code))

    def refused(self, *arguments: str) -> str:
        """One sentence, and nothing has changed."""
        before = self.kept()
        done = self.inbox(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert self.kept() == before
        return done.stderr

    def retry(self, *arguments: str, code: int = 0) -> Any:
        return self.json("retry", "shop.in", "--yes", "--app", "shop:app", *arguments, code=code)

    def kept(self) -> list[int]:
        return [each for (each,) in self.conn.execute("select id from outrider.stream_refused order by id").fetchall()]

    def position(self) -> list[Any]:
        return self.conn.execute("select name, position from outrider.stream order by name").fetchall()

    def events(self) -> list[int]:
        query = "select (payload ->> 'n')::int from outrider.outbox where origin = 'shop.in' order by seq"
        return [n for (n,) in self.conn.execute(query).fetchall()]


@pytest.fixture
def desk(
    database: str, tmp_path: Path, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setenv("COLUMNS", "200")
    with psycopg.connect(database, autocommit=True) as conn, Redis.from_url(redis_server.url) as redis:
        conn.execute("create table effect (n int)")
        conn.execute(TABLE)
        desk = Desk(conn, database, redis, name, tmp_path)
        desk.code(redis_server.url)
        yield desk


# List


@pytest.mark.verify
def test_the_list(desk: Desk) -> None:
    assert desk.said("list") == "no inboxes\n"
    inprocess.run(desk.folder, "migrate", "--app", "shop:app", "--dsn", desk.dsn)
    assert "not read yet" in desk.said("list")
    desk.comes(entry(1), b"nonsense", entry(2))
    desk.drain()
    rows = [line.strip("│").split("│") for line in desk.said("list").splitlines() if line.startswith("│")]
    found = {row[0].strip(): [cell.strip() for cell in row] for row in rows}
    [last] = desk.redis.xrevrange(desk.stream, count=1)
    shown = found["shop.in"]
    assert shown[1:4] == [desk.stream, last[0].decode(), "2"]
    assert shown[5:] == ["1", "nobody serves it"]
    told = {each["name"]: each for each in desk.json("list")["inboxes"]}
    assert [(each["events"], each["refused"]) for each in told["shop.in"]["streams"]] == [(2, 1)]
    assert told.keys() == {"shop.in", "shop.copy"}
    status = inprocess.run(desk.folder, "status", "--dsn", desk.dsn).stdout
    [row] = [line for line in status.splitlines() if f"│{desk.stream} " in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert (cells[1], cells[3], cells[5]) == ("read by shop.in", "2", "1")


# Refused


@pytest.mark.verify
def test_what_was_refused(desk: Desk) -> None:
    assert desk.said("refused") == "no entry was refused\n"
    desk.comes(HOSTILE, b"\xff\x00bytes", entry(1), b"x" * 2 * SHOWN)
    desk.drain()
    said = desk.said("refused")
    for wrong in ("\x1b", "\u202e", "\r", "\t", "\x00"):
        assert wrong not in said
    assert "[bold]loud[/]" in said
    assert r"\xff\x00bytes" in said
    assert "x…" in said.replace("\n", "")
    told = desk.json("refused", "shop.in")["refused"]
    assert [base64.b64decode(each["data"]) for each in told][:2] == [HOSTILE, b"\xff\x00bytes"]
    assert [each["id"] for each in told] == desk.kept()
    assert {(each["inbox"], each["stream"]) for each in told} == {("shop.in", desk.stream)}
    assert all(each["message"] for each in told)
    first = desk.said("refused", "--limit", "1")
    assert f"the first 1; for more: --after {told[0]['id']}" in first
    assert [each["id"] for each in desk.json("refused", "--after", str(told[0]["id"]))["refused"]] == desk.kept()[1:]
    assert desk.json("refused", "shop.copy")["refused"] == []
    assert "there is no subscription 'shop.no'" in desk.refused("refused", "shop.no")


def test_the_start_of_an_entry_is_not_cut_in_a_character() -> None:
    assert start_of("ä".encode()) == "ä"
    assert start_of(("a" * (SHOWN - 1) + "ä").encode()) == "a" * (SHOWN - 1) + "…"
    assert start_of(b"") == ""


def test_the_start_of_an_entry_is_one_safe_line() -> None:
    assert start_of(b"a\nb") == "a\\nb"
    assert "\x1b" not in start_of(b"\x1b[2J")


# Retry


@pytest.mark.verify
def test_what_can_be_read_by_now_comes_in_and_leaves_the_list(desk: Desk, redis_server: RedisServer) -> None:
    twice = entry(3)
    desk.comes(entry(1), b"new:" + entry(2), b"nonsense", twice, b"new:" + twice)
    desk.drain()
    assert len(desk.kept()) == 3
    before = desk.position()
    assert desk.retry(code=1)["ingested"] == 0, "nothing has changed yet"
    assert len(desk.kept()) == 3
    desk.code(redis_server.url, "Lenient")
    said = desk.refused("retry", "shop.in", "--app", "shop:app")
    assert "there is no terminal to ask at" in said
    done = desk.retry(code=1)
    assert (done["ingested"], done["known"]) == (1, 1)
    [left] = done["refused"]
    assert "data" not in left, "inbox refused shows it"
    assert desk.kept() == [left["id"]]
    assert desk.events() == [1, 3, 2], "it comes after what came in meanwhile, and nothing is doubled"
    assert desk.position() == before
    desk.comes(entry(4))
    desk.drain()
    assert desk.events() == [1, 3, 2, 4]
    assert [n for (n,) in desk.conn.execute("select n from effect order by n").fetchall()] == [1, 2, 3, 4]
    [counted] = [each["streams"] for each in desk.json("list")["inboxes"] if each["name"] == "shop.in"]
    assert counted[0]["events"] == 4


@pytest.mark.verify
def test_one_that_the_database_refuses_stays_and_the_others_come_in(desk: Desk, redis_server: RedisServer) -> None:
    desk.comes(b"new:" + entry(1), b"new:" + entry(2), b"new:" + entry(3))
    desk.drain()
    desk.conn.execute("""alter table outrider.outbox add constraint not_two check (payload <> '{"n": 2}')""")
    desk.code(redis_server.url, "Lenient")
    said = desk.said("retry", "shop.in", "--app", "shop:app", "--yes", code=1)
    assert said.startswith("2 came in, 0 had come in before, 1 still refused\n")
    assert "the database refuses it" in said
    assert (desk.kept(), desk.events()) == ([desk.kept()[0]], [1, 3])


@pytest.mark.verify
def test_a_replica_reads_again_what_it_refused(desk: Desk) -> None:
    change = {
        "event_id": str(uuid4()), "topic": "depot.sent", "aggregate_kind": "parcel", "aggregate_id": "a",
        "entity_version": 1, "payload": {"n": 1}, "stream_id": "1-0", "committed_at": "2026-07-31T04:30:00.000Z",
    }  # fmt: skip
    desk.comes(json.dumps(change).encode(), b"nonsense", stream="-copy")
    desk.drain()
    assert len(desk.kept()) == 1
    newer = json.dumps(change | {"entity_version": 2, "payload": {"n": 2}}).encode()
    desk.conn.execute("update outrider.stream_refused set data = %s", [newer])
    done = desk.json("retry", "shop.copy", "--yes", "--app", "shop:app")
    assert (done["ingested"], done["refused"], desk.kept()) == (1, [], [])
    assert desk.conn.execute("select payload from copy").fetchall() == [({"n": 2},)]


@pytest.mark.verify
def test_a_paused_inbox_reads_nothing_again(desk: Desk, redis_server: RedisServer) -> None:
    desk.comes(b"new:" + entry(1))
    desk.drain()
    desk.code(redis_server.url, "Lenient")
    inprocess.run(desk.folder, "subscription", "pause", "shop.in", "--dsn", desk.dsn)
    said = desk.refused("retry", "shop.in", "--app", "shop:app", "--yes")
    assert "nothing was ingested: shop.in is paused" in said
    assert desk.events() == []


def test_what_is_wrong_is_said(desk: Desk) -> None:
    assert "no app" in desk.refused("retry", "shop.in", "--yes")
    said = desk.refused("retry", "shop.handled", "--app", "shop:app", "--yes")
    assert "'shop.handled' is no inbox of the app; it declares: shop.in, shop.copy" in said
    assert "there is no subscription 'shop.in'" in desk.refused("retry", "shop.in", "--app", "shop:app", "--yes")


def test_its_help(outrider: Run) -> None:
    for arguments in (["inbox"], ["inbox", "list", "-h"], ["inbox", "refused", "-h"], ["inbox", "retry", "-h"]):
        assert "outrider inbox" in outrider(*arguments).stdout
