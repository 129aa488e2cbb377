"""`outrider relay` as a process beside a real broker, and what it says of relays; `adopt`."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis
from tests.brokers import RedisServer
from tests.cli import inprocess
from tests.cli.conftest import Run, Start
from tests.processes import until
from tests.relay.conftest import name, redis_server

__all__ = ["name", "redis_server"]

APP = """
from outrider import Event, Outrider
from outrider.streams.redis import RedisStreams

class Sent(Event, type="cli.sent", key="parcel"):
    parcel: str

app = Outrider(context="depot")
app.relay("depot.out", RedisStreams("{url}", stream="{name}"), start="beginning")
app.relay("audit.out", RedisStreams("{url}", stream="{name}-audit"), start="beginning")

@app.handler(Sent, name="depot.handled", start="beginning")
async def handle(event, ctx):
    await ctx.tx.execute("insert into effect values (%s)", [event.parcel])
"""
NO_RELAY = """
from outrider import Outrider
app = Outrider(context="depot")
"""


class Desk:
    """The database and the broker as the test sees them, and the folder of the app."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str, redis: Any, name: str, folder: Path) -> None:
        self.conn = conn
        self.dsn = dsn
        self.redis = redis
        self.stream = name
        self.folder = folder

    def publish(self, *parcels: str) -> None:
        for each in parcels:
            payload = json.dumps({"parcel": each})
            self.conn.execute("select outrider.publish('cli.sent', %s::jsonb, key => %s)", [payload, each])

    def sent(self, stream: str | None = None) -> list[str]:
        entries: Any = self.redis.xrange(stream or self.stream)
        return [json.loads(fields[b"event"])["key"] for _, fields in entries]

    def committed(self) -> int:
        row = self.conn.execute("select coalesce(sum(events), 0) from outrider.stream").fetchone()
        assert row is not None
        return int(row[0])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(self.folder, *arguments, "--dsn", self.dsn)

    def said(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def refused(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        return done.stderr


@pytest.fixture
def desk(
    database: str, tmp_path: Path, redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "depot.py").write_text(APP.replace("{url}", redis_server.url).replace("{name}", name))
    (tmp_path / "bare.py").write_text(NO_RELAY)
    with psycopg.connect(database, autocommit=True) as conn, Redis.from_url(redis_server.url) as redis:
        conn.execute("create table effect (parcel text)")
        yield Desk(conn, database, redis, name, tmp_path)


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    return process.returncode


# Run


def test_it_runs_relays_and_nothing_else(desk: Desk, start: Start) -> None:
    process = start("relay", "--app", "depot:app", "--dsn", desk.dsn)
    desk.publish("a", "b")
    until(lambda: desk.committed() == 4, process)
    desk.publish("c")
    until(lambda: desk.committed() == 6, process)
    assert end(process) == 0
    assert desk.sent() == desk.sent(f"{desk.stream}-audit") == ["a", "b", "c"]
    assert desk.conn.execute("select from effect").rowcount == 0
    served = desk.conn.execute("select from outrider.subscription where name = 'depot.handled'").rowcount
    assert served == 0, "what it does not run it does not register"


def test_the_status_tells_what_it_owes_by_topic(desk: Desk) -> None:
    desk.said("migrate", "--app", "depot:app")
    desk.publish("a", "b")
    rows = [re.split(r" *│ *", line.strip("│ ")) for line in desk.said("status").splitlines() if "cli.sent" in line]
    assert [(*row[:3], *row[4:]) for row in rows] == [
        ("cli.sent", of, "2", "0", "0") for of in ("audit.out", "depot.out")
    ]
    assert all(re.fullmatch(r"\d+ s", row[3]) for row in rows)
    told = json.loads(desk.said("relay", "list", "--json"))["relays"]
    assert [[(each["name"], each["depth"]) for each in relay["topics"]] for relay in told] == [[("cli.sent", 2)]] * 2


@pytest.mark.verify
@pytest.mark.parametrize("names", [["depot.out"], ["dep*.out"], ["run", "depot.out"]])
def test_it_runs_those_that_are_named(desk: Desk, start: Start, names: list[str]) -> None:
    process = start("relay", *names, "--app", "depot:app", "--dsn", desk.dsn)
    desk.publish("a")
    until(lambda: desk.committed() == 1, process)
    query = "select subscriptions from outrider.worker"
    assert desk.conn.execute(query).fetchall() == [(["depot.out"],)]
    assert end(process) == 0
    assert (desk.sent(), desk.sent(f"{desk.stream}-audit")) == (["a"], [])


@pytest.mark.verify
def test_another_one_takes_over_when_it_is_killed(desk: Desk, start: Start) -> None:
    arguments = ("relay", "depot.out", "--app", "depot:app", "--dsn", desk.dsn)
    first, second = start(*arguments), start(*arguments)
    until(lambda: desk.conn.execute("select from outrider.worker").rowcount == 2, first)
    desk.publish("a")
    until(lambda: desk.committed() == 1, first)
    first.kill()
    desk.publish("b", "c")
    until(lambda: desk.committed() == 3, second)
    assert end(second) == 0
    assert desk.sent() == ["a", "b", "c"]


@pytest.mark.verify
def test_the_worker_runs_relays_too(desk: Desk, start: Start) -> None:
    process = start("worker", "--app", "depot:app", "--dsn", desk.dsn)
    desk.publish("a")
    until(lambda: desk.committed() == 2 and desk.conn.execute("select from effect").rowcount == 1, process)
    assert end(process) == 0


def test_what_is_wrong_is_said(desk: Desk) -> None:
    run = ("relay", "--app")
    assert "no app" in desk.refused("relay")
    assert "the app declares no relay: app.relay(" in desk.refused(*run, "bare:app")
    assert "the app declares no handler and no job" in desk.refused("worker", "--app", "bare:app")
    said = desk.refused(*run, "depot:app", "depot.in")
    assert "is called 'depot.in'; the app declares:" in said
    said = desk.refused(*run, "depot:app", "depot.handled")
    assert "none of depot.handled is a relay; the app declares: depot.out, audit.out" in said
    assert "--grace: " in desk.refused(*run, "depot:app", "--grace", "soon")
    assert "list must come first: outrider relay list" in desk.refused(*run, "depot:app", "list")


def test_its_help(outrider: Run) -> None:
    for arguments in (["relay", "--help"], ["relay", "run", "-h"], ["relay", "list", "-h"], ["relay", "adopt", "-h"]):
        done = outrider(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "adopt" in done.stdout if arguments == ["relay", "--help"] else "outrider relay" in done.stdout


# List


def drain(desk: Desk) -> None:
    """As a worker would, in a process of its own."""
    program = "import asyncio, depot\nasync def main():\n async with depot.app as app:\n  await app.migrate()\n"
    program += "  await app.drain(handlers=['*.out'])\nasyncio.run(main())"
    env = {**os.environ, "OUTRIDER_DSN": desk.dsn}
    subprocess.run([sys.executable, "-c", program], cwd=desk.folder, env=env, check=True, timeout=200)


@pytest.mark.verify
def test_the_list(desk: Desk) -> None:
    assert desk.said("relay", "list") == "no relays\n"
    assert json.loads(desk.said("relay", "list", "--json"))["relays"] == []
    desk.said("migrate", "--app", "depot:app")
    assert "none yet" in desk.said("relay", "list")
    desk.publish("a", "b")
    drain(desk)
    desk.publish("c")
    rows = [line.strip("│").split("│") for line in desk.said("relay", "list").splitlines() if line.startswith("│")]
    found = {row[0].strip(): [cell.strip() for cell in row] for row in rows}
    [last] = desk.redis.xrevrange(desk.stream, count=1)
    shown = found["depot.out"]
    assert shown[1:4] == [desk.stream, last[0].decode(), "2"]
    assert shown[4].endswith("s ago")
    assert shown[5:] == ["1", "0", "0", "nobody serves it"]
    told = json.loads(desk.said("relay", "list", "--json"))
    [relay] = [each for each in told["relays"] if each["name"] == "depot.out"]
    assert (relay["states"], relay["lag"]) == (["no_worker"], 1)
    assert [(each["name"], each["events"]) for each in relay["streams"]] == [(desk.stream, 2)]


@pytest.mark.verify
def test_status_shows_the_streams(desk: Desk) -> None:
    desk.said("migrate", "--app", "depot:app")
    desk.publish("a", "b")
    drain(desk)
    said = desk.said("status")
    [row] = [line for line in said.splitlines() if f"│{desk.stream} " in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "written by depot.out"
    assert (cells[3], cells[5]) == ("2", "")


# Adopt


@pytest.mark.verify
def test_a_relay_goes_on_after_what_is_in_a_stream(desk: Desk) -> None:
    desk.said("migrate", "--app", "depot:app")
    position: Any = desk.redis.xadd(desk.stream, {"event": '{"key": "old"}'})
    desk.publish("a")
    adopt = ("relay", "adopt", "depot.out", desk.stream, "--app", "depot:app")
    said = desk.refused(*adopt)
    assert f"Let depot.out continue in {desk.stream} after {position.decode()}, where it ends?" in said
    assert desk.conn.execute("select from outrider.stream").rowcount == 0
    assert desk.said(*adopt, "--yes") == f"depot.out continues in {desk.stream} after {position.decode()}\n"
    drain(desk)
    assert desk.sent() == ["old", "a"]
    audit = desk.conn.execute("select by, action, subscription, details from outrider.audit").fetchall()
    details = {"stream": desk.stream, "before": None, "position": position.decode()}
    assert audit == [(getpass.getuser(), "adopt_stream", "depot.out", details)]


@pytest.mark.verify
def test_adopting_says_what_is_lost_or_stays(desk: Desk) -> None:
    desk.said("migrate", "--app", "depot:app")
    desk.publish("a")
    drain(desk)
    adopt = ("relay", "adopt", "depot.out", desk.stream, "--app", "depot:app")
    desk.redis.xadd(desk.stream, {"event": '{"key": "theirs"}'})
    assert "the entries after that will stay. Let depot.out continue" in desk.refused(*adopt)
    desk.redis.delete(desk.stream)
    assert "what the stream has lost of that will not be sent again. Let depot.out continue" in desk.refused(*adopt)
    done = json.loads(desk.said(*adopt, "--yes", "--json", "--by", "somebody"))
    assert (done["relay"], done["stream"], done["position"]) == ("depot.out", desk.stream, "0-0")
    desk.publish("b")
    drain(desk)
    assert desk.sent() == ["b"]


def test_adopting_needs_a_relay_that_there_is(desk: Desk) -> None:
    said = desk.refused("relay", "adopt", "depot.handled", "x", "--app", "depot:app", "--yes")
    assert "'depot.handled' is no relay of the app; it declares: depot.out, audit.out" in said
    said = desk.refused("relay", "adopt", "depot.out", "x", "--app", "depot:app", "--yes")
    assert "there is no subscription 'depot.out'" in said
