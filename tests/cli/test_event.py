"""`outrider event`: a life that a human can read, whatever the payload holds; and withdrawing with a word of warning."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import pty
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import MAIN, Run
from tests.cli.test_migrate import query
from tests.postgres.test_story import later, never, published
from tests.processes import clean
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider.postgres.admin import event_history

HOSTILE = "\x1b[2J\x9b31m\u202e[bold red]you are root[/]\x07"


def shown(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def handlers(shop: Shop) -> None:
    """Three that want it, and a reader."""
    for name in ("shop.effect", "shop.broken", "shop.dead"):

        def handle(shop: Shop = shop, name: str = name) -> Any:
            async def handled(event: Placed) -> None:
                if name in shop.wrong:
                    shop.wrong[name]()

            return handled

        shop.app.handler(Placed, name=name, retry=SOON)(handle())
    shop.app.reader(name="shop.audit")


async def _lived(dsn: str) -> UUID:
    """An event that was handled at one place, waits at another, is dead at a third, and unread at a fourth."""
    async with opened(dsn, handlers) as shop:
        shop.wrong |= {"shop.broken": later, "shop.dead": never}
        [event] = await published(shop, "a1", idempotency_key="once", workspace_id="w")
        await shop.app.drain()
        await shop.app.replay(event, by="an operator")
        await shop.app.drain()
    return event


def lived(dsn: str) -> UUID:
    return asyncio.run(_lived(dsn))


# list


@pytest.fixture
def busy(database: str) -> str:
    """Ten events of two orders and two tenants, three days of them."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('shop.pay', 'handler', 'shop', array['shop.placed'], 1, 'beginning')")
        for n in range(10):
            kind, key, whose = (
                ("shop.paid" if n % 5 == 4 else "shop.placed"),
                f"o{n % 2}",
                ("acme" if n < 6 else "busy"),
            )
            conn.execute(
                "select outrider.publish(%s, %s, key => %s, workspace_id => %s)",
                [kind, json.dumps({"n": n}), key, whose],
            )
        conn.execute("update outrider.outbox set occurred_at = now() - (10 - seq) * interval '6 hours'")
    return database


def listed(dsn: str, folder: Path, *options: str) -> Any:
    return json.loads(shown(inprocess.run(folder, "event", "list", "--dsn", dsn, "--json", *options)))


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        (("--key", "o1"), [10, 8, 6, 4, 2]),
        (("--key", "o1", "--workspace", "acme"), [6, 4, 2]),
        (("--type", "shop.paid"), [10, 5]),
        (("--since", "20h"), [10, 9, 8, 7]),
        (("--key", "o1", "--type", "shop.paid", "--since", "1d"), [10]),
        (("--key", "nobody"), []),
        (("--limit", "3"), [10, 9, 8]),
        (("--before", "5", "--key", "o0"), [3, 1]),
    ],
)
def test_what_happened_to_an_order(busy: str, tmp_path: Path, options: tuple[str, ...], numbers: list[int]) -> None:
    told = listed(busy, tmp_path, *options)
    assert [each["seq"] for each in told["events"]] == numbers
    assert told["before"] == (8 if "--limit" in options else None)


def test_a_list_of_events_for_people(busy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with psycopg.connect(busy) as conn:
        conn.execute("update outrider.outbox set aggregate_id = %s where seq = 10", [HOSTILE])
    said = shown(inprocess.run(tmp_path, "event", "list", "--since", "20h", "--dsn", busy))
    assert "shop.pay pending" in said
    assert said.endswith("\n4 events match; no older ones do\n")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)
    said = shown(inprocess.run(tmp_path, "event", "list", "--limit", "1", "--key", "o0", "--dsn", busy))
    assert said.endswith("\n1 event matches; older ones: --before 9\n")
    said = shown(inprocess.run(tmp_path, "event", "list", "--key", "o7", "--dsn", busy))
    assert said == "no event matches\n"


async def test_a_list_looks_at_so_many_events_and_says_where_it_ended(busy: str) -> None:
    async with await psycopg.AsyncConnection.connect(busy, autocommit=True) as conn:
        found = await event_history.listed(conn, "outrider", key="o0", most=4, page=3)
        assert ([each.seq for each in found.events], found.scanned, found.before) == ([9, 7], 4, 7)
        found = await event_history.listed(conn, "outrider", key="o0", before=found.before, most=100, page=3)
        assert ([each.seq for each in found.events], found.scanned, found.before) == ([5, 3, 1], 6, None)
        # A segment that was closed before is not looked at.
        await conn.execute(
            """insert into outrider.segment (name, first_seq, last_seq, closed_at)
               values ('older', 0, 4, now() - interval '40 hours')"""
        )
        found = await event_history.listed(conn, "outrider", since=timedelta(hours=30), most=100, page=3)
        assert ([each.seq for each in found.events], found.before) == ([10, 9, 8, 7, 6], None)
        assert found.scanned == 6


# show


def test_the_life_of_an_event(database: str, tmp_path: Path) -> None:
    event = lived(database)
    said = shown(inprocess.run(tmp_path, "event", "show", str(event), "--dsn", database))
    assert said.startswith(f"dispatch.placed version 1, log position 1\n  id               {event}\n")
    for fact in (
        "source           shop",
        "key              a",
        "idempotency key  once",
        "workspace        w",
        "25 bytes",
    ):
        assert fact in said
    assert '    {\n        "n": 1,\n        "customer": "a"\n    }\n' in said
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+\d\d:\d\d"
    for line in (
        r"shop\.audit: pending: not read yet",
        rf"shop\.broken: pending: waits for a retry at {when}, in 59 min, no worker serves the subscription; .*",
        rf"  {when}  attempt 1 failed: value_error, on drain",
        r"      ValueError: not today",
        rf"shop\.dead: failed: a dead letter since {when}, bury after 1 attempt",
        rf"  {when}  replayed by an operator",
        rf"  {when}  attempt 1 of cycle 2 failed: bury, on drain",
        rf"shop\.effect: delivered {when}",
    ):
        assert re.search(rf"^{line}$", said, re.MULTILINE), line
    assert re.search(
        r"^what operators did\n  \d{4}-.*  replay for shop\.dead by an operator \(role postgres\)\n\Z",
        said,
        re.MULTILINE,
    )


def test_the_jobs_that_its_handlers_enqueued(busy: str, tmp_path: Path) -> None:
    [[event]] = query(busy, "select id from outrider.outbox where seq = 1")
    asked = f"select job_id from outrider.enqueue_one('shop.mail', '{{}}', p_caused_by => '{event}')"
    [[job]] = query(busy, asked)
    said = shown(inprocess.run(tmp_path, "event", "show", str(event), "--dsn", busy))
    assert f"\nunfinished jobs that its handlers enqueued\n  {job}  shop.mail: pending\n" in said
    told = json.loads(shown(inprocess.run(tmp_path, "event", "show", str(event), "--dsn", busy, "--json")))
    assert told["jobs"] == [{"id": str(job), "job_type": "shop.mail", "status": "pending"}]


def test_the_same_for_programs(database: str, tmp_path: Path) -> None:
    event = lived(database)
    told = json.loads(shown(inprocess.run(tmp_path, "event", "show", str(event), "--dsn", database, "--json")))
    assert told["schema"] == "outrider"
    assert (told["event"]["id"], told["event"]["payload"]) == (str(event), {"n": 1, "customer": "a"})
    fates = {each["subscription"]: each for each in told["fates"]}
    assert {name: (each["status"], each["why"]) for name, each in fates.items()} == {
        "shop.audit": ("pending", ["unread"]),
        "shop.broken": ("pending", ["retry", "no_worker"]),
        "shop.dead": ("failed", []),
        "shop.effect": ("delivered", []),
    }
    assert [each["what"] for each in fates["shop.dead"]["history"]] == ["failed", "replayed", "failed"]
    assert (told["withdrawal"], told["payload_bytes"]) == (None, 25)
    assert [(each["action"], each["subscription"]) for each in told["acts"]] == [("replay", "shop.dead")]


def test_after_it_was_withdrawn(database: str, tmp_path: Path) -> None:
    event = lived(database)
    inprocess.run(
        tmp_path, "event", "withdraw", str(event), "--dsn", database, "--yes", "--by", "on-call", "--reason", "no"
    )
    said = shown(inprocess.run(tmp_path, "event", "show", str(event), "--dsn", database))
    assert re.search(r"^withdrawn \d{4}-.* by on-call: no$", said, re.MULTILINE)
    assert re.search(r"^shop\.broken: withdrawn$", said, re.MULTILINE)
    assert "attempt 1 failed: value_error" in said, "what it had been through stays known"
    assert re.search(
        r"^what operators did\n(  .*\n)*  \d{4}-.*  withdraw by on-call \(role postgres\): no$", said, re.MULTILINE
    )


def test_hostile_texts_do_nothing(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('a.handler', 'handler', 'a', '{a.one}')")
        row = conn.execute(
            """select outrider.publish('a.one', jsonb_build_object('text', %(text)s::text, %(text)s::text, 1e400),
                   key => %(text)s, workspace_id => E'w\nshop.fake: delivered')""",
            {"text": HOSTILE},
        ).fetchone()
        assert row is not None
        conn.execute(
            """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached,
                                              run_at, attempts, last_error_code, last_error, failure_history)
               select 'a.handler', 0, seq, id, event_type, 'failed', false, true, now(), 1, %(text)s, %(text)s,
                      jsonb_build_array(jsonb_build_object('cycle', 1, 'attempt', 1, 'at', now(), 'code', %(text)s::text,
                                                           'message', %(text)s || E'\nshop.fake: delivered'))
               from outrider.outbox""",
            {"text": HOSTILE},
        )
    said = shown(inprocess.run(tmp_path, "event", "show", str(row[0]), "--dsn", database))
    assert not re.search(r"[^\n -~…]", said)
    assert said.count("\\x1b[2J\\x9b31m\\u202e[bold red]you are root[/]\\x07") >= 3, "as it is, and harmless"
    assert not re.search(r"^shop\.fake", said, re.MULTILINE), "it cannot look like a line of ours"
    told = shown(inprocess.run(tmp_path, "event", "show", str(row[0]), "--dsn", database, "--json"))
    assert not re.search(r"[^\n -~]", told)
    payload = json.loads(told, parse_int=str)["event"]["payload"]
    assert payload == {"text": HOSTILE, HOSTILE: "1" + "0" * 400}


def test_a_long_payload_is_cut(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as conn:
        row = conn.execute(
            """select outrider.publish('a.one', jsonb_build_object(
                   'lines', (select jsonb_agg(n) from generate_series(1, 500) as n), 'a', repeat('x', 5000)))"""
        ).fetchone()
    assert row is not None
    said = shown(inprocess.run(tmp_path, "event", "show", str(row[0]), "--dsn", database))
    assert "… (cut)" in said
    assert "… (405 more lines; --json has all)" in said
    assert max(map(len, said.splitlines())) < 1100
    assert said.endswith(
        "\nno subscription has it: none wants it, those that do came later, or its dead letter has expired\n"
    )
    told = json.loads(shown(inprocess.run(tmp_path, "event", "show", str(row[0]), "--dsn", database, "--json")))
    assert told["event"]["payload"] == {"lines": list(range(1, 501)), "a": "x" * 5000}


@pytest.mark.parametrize("command", ["show", "withdraw"])
def test_no_such_event(outrider: Run, database: str, command: str) -> None:
    event = uuid4()
    done = outrider("event", command, str(event), "--dsn", database, *(["--yes"] if command == "withdraw" else []))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f'outrider: there is no event {event} in the schema "outrider" of this database: the transaction that published it '
        "was rolled back or is still open, or the event is in another schema (--schema) or database\n"
    )


def test_no_event_id(outrider: Run, database: str) -> None:
    done = outrider("event", "show", "7", "--dsn", database)
    assert (done.returncode, done.stdout) == (2, "")
    assert "UUID" in done.stderr


# withdraw


def test_withdraw_asks_first(database: str, tmp_path: Path) -> None:
    event = lived(database)
    refused = inprocess.run(tmp_path, "event", "withdraw", str(event), "--dsn", database)
    assert refused.returncode == 1
    assert "shop.effect: delivered" in refused.stdout
    assert "shop.dead: failed" in refused.stdout
    assert refused.stderr == (
        "outrider: nothing was withdrawn: there is no terminal to ask at; to do it, add --yes "
        "(Withdraw it from 3 of 4 subscriptions?)\n"
    )
    assert query(database, "select count(*) from outrider.withdrawal") == [(0,)]
    done = inprocess.run(tmp_path, "event", "withdraw", str(event), "--dsn", database, "--yes")
    assert shown(done) == (
        "shop.audit: withdrawn\nshop.broken: withdrawn\nshop.dead: withdrawn\nshop.effect: delivered, too late\n"
    )
    assert query(database, "select withdrawn_by, reason from outrider.withdrawal") == [(getpass.getuser(), None)]
    again = inprocess.run(tmp_path, "event", "withdraw", str(event), "--dsn", database)
    assert "Withdraw it from future subscriptions only" in again.stderr


def test_withdraw_for_programs(database: str, tmp_path: Path) -> None:
    event = lived(database)
    options = ("event", "withdraw", str(event), "--dsn", database, "--json", "--by", "robot", "--reason", "wrong")
    assert inprocess.run(tmp_path, *options).returncode == 2
    told = json.loads(shown(inprocess.run(tmp_path, *options, "--yes")))
    assert (told["schema"], told["event_id"]) == ("outrider", str(event))
    assert {each["subscription"]: each["outcome"] for each in told["subscriptions"]} == {
        "shop.audit": "withdrawn",
        "shop.broken": "withdrawn",
        "shop.dead": "withdrawn",
        "shop.effect": "delivered",
    }
    [(by, action, details)] = query(database, "select by, action, details from outrider.audit where action <> 'replay'")
    assert (by, action, details["reason"]) == ("robot", "withdraw", "wrong")


def test_an_event_that_concerns_nobody(database: str, tmp_path: Path) -> None:
    [(event,)] = query(database, "select outrider.publish('a.one', '{}')")
    done = inprocess.run(tmp_path, "event", "withdraw", str(event), "--dsn", database, "--yes")
    assert shown(done) == "withdrawn; no present subscription wanted it\n"


@pytest.mark.verify
@pytest.mark.parametrize(("answer", "withdrawn"), [("n\n", 0), ("y\n", 1)])
def test_at_a_terminal_it_asks(database: str, tmp_path: Path, answer: str, withdrawn: int) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.register('a.handler', 'handler', 'a', '{a.one}')")
        row = conn.execute("select outrider.publish('a.one', '{}')").fetchone()
    assert row is not None
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-c", MAIN, "event", "withdraw", str(row[0]), "--dsn", database]
    try:
        os.write(controller, answer.encode())
        done = subprocess.run(
            command, cwd=tmp_path, env=clean(), stdin=terminal, capture_output=True, text=True, timeout=200, check=False
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert "Withdraw it from 1 of 1 subscriptions? [y/N]:" in done.stderr
    assert done.returncode == 1 - withdrawn
    assert query(database, "select count(*) from outrider.withdrawal") == [(withdrawn,)]
    assert ("nothing was withdrawn" in done.stderr) == (not withdrawn)


@pytest.mark.parametrize("command", [["event", "show"], ["event", "withdraw"], ["status"]])
def test_help_teaches(outrider: Run, command: list[str]) -> None:
    done = outrider(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Example", f"outrider {' '.join(command)}"):
        assert taught in done.stdout
