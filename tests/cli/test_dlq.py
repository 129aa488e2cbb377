"""`outrider dlq`: what it shows, what it asks before it does something, and what it leaves as it was."""

from __future__ import annotations

import getpass
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import MAIN, Run, Start
from tests.postgres.test_dead_letters import BURIED, query
from tests.processes import clean, until

APP = """
from outrider import Event, Outrider

class Placed(Event, type="cli.dead"):
    n: int
    note: str = ""

app = Outrider(context="shop")

@app.handler(Placed, name="shop.one", order="none")
async def one(event: Placed) -> None: ...

@app.handler(Placed, name="shop.two", order="none")
async def two(event: Placed) -> None: ...
"""
HOSTILE = "\x9b31mred\x1b[2J\u202eevil [bold]loud[/] :bomb:\r\n\tend"
PENDING = "select subscription, count(*) from outrider.delivery where status = 'pending' group by 1 order by 1"


class Desk:
    """An operator at work in a folder with the app, on a database with two dead letters for each of three events."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn

    def dlq(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(self.folder, "dlq", *arguments, "--dsn", self.dsn)

    def json(self, *arguments: str) -> Any:
        done = self.dlq(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str) -> str:
        """One sentence, nothing on stdout, nothing done."""
        before = query(self.dsn, "select * from outrider.delivery order by id")
        done = self.dlq(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert query(self.dsn, "select * from outrider.delivery order by id") == before
        return done.stderr

    def event(self, number: int = 1) -> str:
        ((event_id,),) = query(self.dsn, f"select id from outrider.outbox where seq = {number}")
        return str(event_id)

    def editor(self, script: str) -> None:
        """What $EDITOR does with the file that it is given, $1."""
        (self.folder / "editor").write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / "editor").chmod(0o700)


@pytest.fixture
def desk(database: str, tmp_path: Path) -> Desk:
    (tmp_path / "shop.py").write_text(APP)
    inprocess.run(tmp_path, "migrate", "--app", "shop:app", "--dsn", database)
    bury(database, 3)
    return Desk(tmp_path, database)


def bury(dsn: str, events: int) -> None:
    with psycopg.connect(dsn) as conn:
        for n in range(events):
            conn.execute("select outrider.publish('cli.dead', %s, key => 'k')", [json.dumps({"n": n + 1})])
        conn.execute(BURIED, {})


def handle(dsn: str, subscription: str, seq: int) -> None:
    """Its idempotency key gets a receipt."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
               select %s, id::text, id, seq, 0, 'internal' from outrider.outbox where seq = %s""",
            [subscription, seq],
        )


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("command", ["list", "show", "replay", "discard"])
def test_help_teaches(command: str, tmp_path: Path) -> None:
    done = inprocess.run(tmp_path, "dlq", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Example", f"outrider dlq {command}"):
        assert taught in done.stdout
    assert "dlq" in inprocess.run(tmp_path, "--help").stdout


# List and show


def test_list_by_cause(desk: Desk) -> None:
    done = desk.dlq("list")
    assert "6 dead letters in 2 groups" in done.stdout
    for shown in ("shop.one", "shop.two", "cli.dead", "code timeout", "did not answer", f"sample {desk.event(3)}"):
        assert shown in done.stdout
    answer = desk.json("list", "--subscription", "shop.one")
    [group] = answer["groups"]
    assert (answer["letters"], group["letters"], group["sample"]) == (3, 3, desk.event(3))
    assert desk.json("list", "--fingerprint", group["fingerprint"])["letters"] == 6


def test_list_one_by_one(desk: Desk) -> None:
    answer = desk.json("list", "--each", "--subscription", "shop.two")
    assert [letter["event_id"] for letter in answer["each"]] == [desk.event(n) for n in (1, 2, 3)]
    done = desk.dlq("list", "--each", "--limit", "2")
    assert "6 dead letters, the first 2 shown" in done.stdout
    assert desk.event(1) in done.stdout


def test_ids_are_never_broken(desk: Desk) -> None:
    """They are there to be copied, also at 80 columns beside a long name."""
    query(
        desk.dsn,
        "update outrider.subscription set name = 'worlds.scan_completed_indexer_of_everything' where name = 'shop.one'",
    )
    for options in ((), ("--each",)):
        done = desk.dlq("list", *options)
        assert desk.event(3) in done.stdout
        assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_list_filters(desk: Desk) -> None:
    query(desk.dsn, "update outrider.delivery set buried_at = '2026-07-31T10:00+00' where seq = 1")
    for options, expected in (
        (["--type", "cli.dead"], 6),
        (["--type", "cli.other"], 0),
        (["--code", "timeout"], 6),
        (["--workspace", "w1"], 0),
        (["--generation", "0"], 6),
        (["--since", "2026-07-31T10:00+00:00", "--until", "2026-07-31T10:00:01+00:00"], 2),
        (["--since", "1h"], 4 if query(desk.dsn, "select now() > '2026-07-31T11:00+00'") == [(True,)] else 6),
    ):
        assert desk.json("list", *options)["letters"] == expected, options
    assert desk.dlq("list", "--type", "cli.other").stdout == "no dead letters match\n"
    done = desk.dlq("list", "--since", "yesterday")
    assert (done.returncode, done.stdout) == (2, "")
    assert "neither a time" in done.stderr


def test_none_at_all(desk: Desk) -> None:
    query(desk.dsn, "delete from outrider.delivery")
    assert desk.dlq("list").stdout.startswith("no dead letters; ")
    assert desk.dlq("replay", "--all").stdout == "no dead letters match: nothing was replayed\n"


def test_a_misspelt_subscription_is_no_clean_slate(desk: Desk) -> None:
    for command in (
        ["list"],
        ["show", desk.event()],
        ["replay"],
        ["replay", desk.event()],
        ["discard", "--reason", "x"],
    ):
        assert "there are: shop.one, shop.two" in desk.refused(*command, "--subscription", "shop.won")


def test_show_tells_everything(desk: Desk) -> None:
    event = desk.event()
    desk.dlq("replay", event, "--subscription", "shop.one", "--by", "an operator")
    query(
        desk.dsn,
        """update outrider.delivery set status = 'failed', buried_at = now(), payload = '{"n": 99}', attempts = 2,
               failure_history = failure_history || outrider.failure(2, 1, 'other', 'Other: again', 'w')
           where subscription = 'shop.one' and seq = 1""",
    )
    done = desk.dlq("show", event, "--subscription", "shop.one")
    shown = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "THEN", done.stdout)
    for line in (
        f"event         {event}, cli.dead version 1",
        "published     THEN by sql, log position 1",
        "key           k",
        "status        dead letter, generation 0",
        "attempts      2 in cycle 2",
        "  cycle 1  attempt 1  THEN  timeout: TimeoutError  (a worker)",
        "  cycle 1  replayed THEN by an operator",
        "  cycle 2  attempt 1  THEN  other: Other: again  (w)",
    ):
        assert line in shown
    [beside] = [line for line in shown.splitlines() if '"n": 1' in line]
    assert '"n": 99' in beside
    both = desk.json("show", event)
    assert [(each["subscription"], each["payload"], each["edited"]) for each in both["letters"]] == [
        ("shop.one", {"n": 1}, {"n": 99}),
        ("shop.two", {"n": 1}, None),
    ]
    assert "handled" not in shown
    handle(desk.dsn, "shop.two", 1)
    assert "a replay would be skipped" in desk.dlq("show", event, "--subscription", "shop.two").stdout


def test_show_prints_where_it_was_raised_and_what_to_do_next(database: str, tmp_path: Path) -> None:
    failing = APP.replace(
        "async def one(event: Placed) -> None: ...", "async def one(event):\n    return charge(event)"
    )
    failing += "\ndef charge(event):\n    raise ValueError(f'order {event.n} has no price')\n"
    failing += "\nclass Mail(Job, type='cli.mail'):\n    pass\n"
    failing += "\n@app.job(Mail, retry=RetryPolicy(retries=0))\ndef mail(job):\n    charge(job)  # no such field\n"
    failing = failing.replace("import Event, Outrider", "import Event, Job, Outrider\nfrom outrider import RetryPolicy")
    failing = failing.replace('name="shop.one"', 'name="shop.one", retry=RetryPolicy(retries=0)')
    (tmp_path / "shop.py").write_text(
        failing
        + """
import asyncio, sys

async def main():
    async with app:
        await app.migrate()
        async with app.connect() as conn:
            await app.publish(conn, Placed(n=7))
            await app.enqueue(conn, Mail())
        await app.drain()

if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    env = os.environ | {"OUTRIDER_DSN": database}
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=env, check=True, capture_output=True)
    desk = Desk(tmp_path, database)
    event = desk.event()
    shown = desk.dlq("show", event).stdout
    where, _, rest = shown.partition("traceback, innermost call last\n")[2].partition("\nhistory\n")
    assert re.fullmatch(
        r'  File ".*/shop\.py", line \d+, in one\n    return charge\(event\)\n( +\^+\n)?'
        r'  File ".*/shop\.py", line \d+, in charge\n    raise ValueError\(f\'order {event\.n} has no price\'\)\n',
        where,
    )
    assert rest.partition("\nnext\n")[2].splitlines() == [
        f"  outrider dlq replay {event} --subscription shop.one  # handle it again, when the cause is mended",
        f"  outrider dlq replay {event} --subscription shop.one --edit  # with another payload",
        f"  outrider dlq discard {event} --subscription shop.one --reason TEXT  # give it up",
    ]
    ((job,),) = query(database, "select event_id from outrider.job where subscription = 'cli.mail'")
    assert ", in charge\n" in desk.json("show", str(job))["letters"][0]["traceback"]
    desk.dlq("discard", event, "--reason", "a test", "--yes")
    assert f"replay {event} --subscription shop.one --force" in desk.dlq("show", event).stdout


def test_show_of_what_is_no_dead_letter(desk: Desk) -> None:
    assert "is not a dead letter" in desk.refused("show", str(uuid4()))
    desk.dlq("replay", desk.event(), "--subscription", "shop.one")
    assert "no dead letter: it waits for a retry" in desk.dlq("show", desk.event(), "--subscription", "shop.one").stdout


def test_nothing_in_the_data_acts_on_the_terminal(desk: Desk, wide: None) -> None:
    """Escapes are shown, not obeyed; what looks like markup is text; a line break is no new line of ours."""
    with psycopg.connect(desk.dsn) as conn:
        conn.execute("alter table outrider.outbox disable trigger user")
        conn.execute(
            "update outrider.outbox set payload = %s, aggregate_id = %s, workspace_id = %s, idempotency_key = %s",
            [json.dumps({"n": 1, HOSTILE: HOSTILE}), HOSTILE, HOSTILE, HOSTILE],
        )
        entry = {"cycle": 1, "attempt": 1, "at": HOSTILE, "code": HOSTILE, "message": HOSTILE, "worker": HOSTILE}
        mark = {"cycle": 1, "replayed_at": HOSTILE, "by": HOSTILE}
        conn.execute(
            """update outrider.delivery set last_error = %s, last_error_code = %s, payload = %s, failure_history = %s""",
            [HOSTILE, HOSTILE, json.dumps({HOSTILE: HOSTILE}), json.dumps([entry, mark])],
        )
    for command in (["list"], ["list", "--each"], ["show", desk.event()], ["replay", "--all", "--dry-run"]):
        done = desk.dlq(*command)
        assert done.returncode == 0
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout), command
        assert "[bold]loud[/] :bomb:" in done.stdout
        assert "\\x9b31mred\\x1b[2J\\u202eevil" in done.stdout or "\\x9b31mred\\u001b[2J\\u202eevil" in done.stdout
        assert not re.search(r"^\s*end", done.stdout, re.MULTILINE) or command[0] == "show"


# Replay


def test_replay_of_one_event(desk: Desk) -> None:
    event = desk.event()
    handle(desk.dsn, "shop.two", 1)
    done = desk.dlq("replay", event)
    assert (done.returncode, done.stdout) == (
        0,
        "shop.one: replayed\nshop.two: skipped: its idempotency key has been handled\n",
    )
    marks = "select failure_history -> 1 ->> 'by' from outrider.delivery where status = 'pending'"
    assert query(desk.dsn, marks) == [(getpass.getuser(),)]
    again = desk.dlq("replay", event, "--subscription", "shop.one")
    assert (again.returncode, again.stderr) == (1, "")
    assert again.stdout == "shop.one: not found: it is neither a dead letter nor handled there\n"
    nobody = desk.dlq("replay", str(UUID(int=7)), "--json")
    assert (nobody.returncode, json.loads(nobody.stdout)["outcomes"]) == (
        1,
        [{"subscription": None, "outcome": "not_found"}],
    )


def test_replay_by_filter_asks_first(desk: Desk) -> None:
    said = desk.refused("replay", "--subscription", "shop.one")
    assert "nothing was replayed: there is no terminal to ask at; to do it, add --yes (Replay 3 dead letters?)" in said
    done = desk.dlq("replay", "--subscription", "shop.one", "--yes")
    assert (done.returncode, done.stdout) == (0, "3 of 3\n3 replayed, 0 skipped because handled, 0 not found\n")
    assert query(desk.dsn, PENDING) == [("shop.one", 3)]
    handle(desk.dsn, "shop.two", 1)
    rest = desk.json("replay", "--all", "--yes", "--by", "me")
    counts = {"replayed": 2, "skipped_handled": 1, "superseded": 0, "discarded": 0, "not_found": 0}
    assert rest == {**counts, "stopped": False}
    assert desk.json("replay", "--code", "nothing")["replayed"] == 0


def test_progress_without_a_terminal_is_a_line_for_each_tenth(desk: Desk) -> None:
    bury(desk.dsn, 17)
    done = desk.dlq("replay", "--subscription", "shop.one", "--yes", "--rate", "9999999")
    assert done.stdout.splitlines()[0] == "20 of 20"
    done = desk.dlq("replay", "--subscription", "shop.two", "--yes", "--rate", "19")
    assert done.stdout.splitlines()[:3] == ["2 of 20", "4 of 20", "6 of 20"]


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    handle(desk.dsn, "shop.two", 1)
    before = query(desk.dsn, "select * from outrider.delivery order by id")
    done = desk.dlq("replay", "--all", "--dry-run")
    assert "6 dead letters in 2 groups" in done.stdout
    assert done.stdout.endswith(
        "would replay 6 dead letters, of which 1 would be skipped because handled; nothing was changed (dry run)\n"
    )
    told = desk.json("replay", "--subscription", "shop.two", "--dry-run")
    assert (told["letters"], told["handled"], told["dry_run"]) == (3, 1, True)
    one = desk.dlq("replay", desk.event(), "--dry-run")
    assert one.stdout == (
        "shop.one: would be replayed\nshop.two: would be skipped: its idempotency key has been handled\n"
        "nothing was changed (dry run)\n"
    )
    assert "would discard 6 dead letters; nothing" in desk.dlq("discard", "--all", "--dry-run", "--reason", "x").stdout
    assert (
        "would be discarded at shop.one, shop.two"
        in desk.dlq("discard", desk.event(), "--dry-run", "--reason", "x").stdout
    )
    assert query(desk.dsn, "select * from outrider.delivery order by id") == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["replay"], "--all"),
        (["replay", "EVENT", "--code", "x"], "only --subscription"),
        (["replay", "EVENT", "--all"], "only --subscription"),
        (["replay", "--all", "--code", "x"], "exclude each other"),
        (["replay", "--all", "--force"], "are for one event"),
        (["replay", "--all", "--edit"], "are for one event"),
        (["replay", "--all", "--payload", "-"], "are for one event"),
        (["replay", "EVENT", "--edit", "--payload", "-"], "exclude each other"),
        (["replay", "EVENT", "--force"], "needs --subscription"),
        (["replay", "EVENT", "--rate", "10"], "is for a filter"),
        (["discard", "--all"], "--reason"),
        (["discard", "--reason", "x"], "--all"),
        (["replay", "not-an-id"], "EVENT_ID"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said(arguments: list[str], why: str, tmp_path: Path, wide: None) -> None:
    """Before anything is asked of a database."""
    arguments = [str(UUID(int=1)) if each == "EVENT" else each for each in arguments]
    done = inprocess.run(tmp_path, "dlq", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_a_rate_that_makes_no_sense(desk: Desk) -> None:
    assert "rate: 0.0 is not" in desk.refused("replay", "--all", "--yes", "--rate", "0")


def test_force_says_what_it_does_and_needs_a_yes(desk: Desk) -> None:
    handle(desk.dsn, "shop.one", 1)
    command = ("replay", desk.event(), "--subscription", "shop.one", "--force")
    said = desk.refused(*command)
    assert "moves the receipt of shop.one" in said
    assert "in your tables and outside" in said
    done = desk.dlq(*command, "--yes", "--by", "an operator")
    assert (done.returncode, done.stdout) == (0, "shop.one: replayed\n")
    assert query(desk.dsn, "select action, by from outrider.audit") == [("force_replay", "an operator")]
    assert query(desk.dsn, "select count(*) from outrider.event_handled") == [(0,)]


def test_to_a_generation(desk: Desk) -> None:
    assert "no worker of generation 7" in desk.refused("replay", desk.event(), "--to-generation", "7")
    query(desk.dsn, "select outrider.open_generation('shop.one', 7)")
    desk.dlq("replay", "--subscription", "shop.one", "--to-generation", "7", "--yes")
    assert query(desk.dsn, "select distinct generation from outrider.delivery where subscription = 'shop.one'") == [
        (7,)
    ]


# Edit


def edited(desk: Desk) -> list[tuple[Any, ...]]:
    return query(desk.dsn, "select subscription, payload from outrider.delivery where payload is not null order by 1")


def test_a_payload_from_a_file(desk: Desk) -> None:
    (desk.folder / "new.json").write_text('{"n": 12345678901234567890.10}')
    command = ("replay", desk.event(), "--payload", "new.json")
    assert "is not a Placed: n: " in desk.refused(*command, "--app", "shop:app")
    assert desk.dlq(*command).returncode == 0, "without an app nobody knows better"
    # No digit is lost on the way.
    assert query(desk.dsn, "select distinct payload ->> 'n' from outrider.delivery where payload is not null") == [
        ("12345678901234567890.10",)
    ]
    assert "No such file" in desk.refused("replay", desk.event(2), "--payload", "nowhere.json")
    (desk.folder / "new.json").write_text("[]")
    assert "not a JSON object" in desk.refused("replay", desk.event(2), "--payload", "new.json")


@pytest.mark.verify
def test_a_payload_from_standard_input(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "dlq", "replay", desk.event(), "--subscription", "shop.one", "--payload", "-"],
        cwd=desk.folder, env=clean() | {"OUTRIDER_DSN": desk.dsn, "OUTRIDER_APP": "shop:app"}, input='{"n": 7}',
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "shop.one: replayed\n", "")
    assert edited(desk) == [("shop.one", {"n": 7})]


def test_edit_by_hand(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file that is nobody else's, and gone afterwards."""
    monkeypatch.setenv("EDITOR", "./editor --wait")
    monkeypatch.delenv("VISUAL", raising=False)
    desk.editor(
        '[ "$1" = --wait ] && stat -c "%a" "$2" "$(dirname "$2")" > modes && echo "$2" > where && sed -i s/1/77/ "$2"'
    )
    done = desk.dlq("replay", desk.event(), "--subscription", "shop.one", "--edit", "--app", "shop:app")
    assert (done.returncode, done.stdout) == (0, "shop.one: replayed\n")
    assert edited(desk) == [("shop.one", {"n": 77})]
    assert (desk.folder / "modes").read_text() == "600\n700\n"
    assert not Path((desk.folder / "where").read_text().strip()).exists()
    assert query(desk.dsn, "select payload from outrider.outbox where seq = 1") == [({"n": 1},)]
    assert query(desk.dsn, "select action, details from outrider.audit") == [("edit", {"payload": {"n": 77}})]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "ended with code 3"),
        ('echo nonsense > "$1"', "is not JSON"),
        ('echo "{}" > "$1"', "is not a Placed: n: Field required"),
        ('rm "$1"', "failed"),
    ],
)
def test_an_edit_that_goes_wrong(desk: Desk, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    monkeypatch.setenv("VISUAL", "./editor")
    desk.editor(script)
    command = ("replay", desk.event(), "--subscription", "shop.one", "--edit", "--app", "shop:app")
    assert said in desk.refused(*command)


def test_an_edit_that_changes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "./editor")
    desk.editor("""echo '{"n":1}' > "$1" """)
    done = desk.dlq("replay", desk.event(), "--edit")
    assert (done.returncode, done.stdout) == (0, "unchanged: nothing was replayed\n")
    assert query(desk.dsn, PENDING) == []
    monkeypatch.setenv("VISUAL", "./nowhere")
    assert "the editor './nowhere' failed ($VISUAL or $EDITOR)" in desk.refused("replay", desk.event(), "--edit")


def test_letters_that_were_edited_differently_need_a_name(desk: Desk) -> None:
    query(desk.dsn, """update outrider.delivery set payload = '{"n": 8}' where subscription = 'shop.two'""")
    assert "name one --subscription" in desk.refused("replay", desk.event(), "--edit")


# Discard


def test_discard(desk: Desk) -> None:
    command = ("discard", desk.event(), "--subscription", "shop.one", "--reason", "a test order")
    assert "nothing was discarded: there is no terminal" in desk.refused(*command)
    done = desk.dlq(*command, "--yes")
    assert (done.returncode, done.stdout) == (0, "1 discarded\n")
    assert "is not a dead letter" in desk.refused(*command, "--yes")
    done = desk.dlq("discard", "--type", "cli.dead", "--reason", "all of them", "--yes", "--by", "me")
    assert done.stdout == "5 of 5\n5 discarded, 0 not found\n"
    assert query(desk.dsn, "select status, count(*) from outrider.delivery group by 1") == [("discarded", 6)]
    audit = "select details ->> 'reason', count(*) from outrider.audit where action = 'discard' group by 1 order by 1"
    assert query(desk.dsn, audit) == [("a test order", 1), ("all of them", 5)]
    shown = desk.dlq("show", desk.event(), "--subscription", "shop.one").stdout
    assert "status        discarded" in shown
    assert ": a test order" in shown
    assert desk.dlq("list").stdout.startswith("no dead letters; ")


# As a process


@pytest.mark.verify
def test_ctrl_c_ends_it_after_the_chunk(desk: Desk, start: Start) -> None:
    """It says what was done, and goes on where it ended when it is run again."""
    command = ("dlq", "replay", "--all", "--yes", "--dsn", desk.dsn)
    process = start(*command, "--rate", "0.1")
    with psycopg.connect(desk.dsn, autocommit=True) as conn:
        pending = "select count(*) from outrider.delivery where status = 'pending'"
        until(lambda: conn.execute(pending).fetchone() != (0,), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
        assert (process.returncode, err) == (130, "")
        ((done,),) = conn.execute(pending).fetchall()
    assert 0 < done < 6
    assert f"{done} replayed, 0 skipped because handled, 0 not found\nstopped: run it again for the rest\n" in out
    rest = desk.dlq("replay", "--all", "--yes")
    assert f"{6 - done} replayed" in rest.stdout


@pytest.mark.verify
def test_a_lost_database_says_how_far_it_came(desk: Desk, start: Start) -> None:
    process = start("dlq", "replay", "--all", "--yes", "--dsn", desk.dsn, "--rate", "0.5")
    with psycopg.connect(desk.dsn, autocommit=True) as conn:
        pending = "select count(*) from outrider.delivery where status = 'pending'"
        until(lambda: conn.execute(pending).fetchone() != (0,), process)
        conn.execute(
            """select pg_terminate_backend(pid, 5000) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()"""
        )
        _, err = process.communicate(timeout=200)
        ((done,),) = conn.execute(pending).fetchall()
    assert (process.returncode, err.count("\n")) == (1, 1), err
    assert err.startswith(f"outrider: ended after {done} dead letter{'s' * (done > 1)} ({done} replayed")


@contextmanager
def terminal(desk: Desk, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command at a terminal of its own, and our end of it."""
    ours, its = pty.openpty()
    env = clean() | {"OUTRIDER_DSN": desk.dsn, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments], cwd=desk.folder, env=env, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read(terminal_end: int, expected: str | None = None) -> str:
    """Until it says that; else until its end."""
    said = b""
    while expected is None or expected.encode() not in said:
        try:
            chunk = os.read(terminal_end, 4096)
        except OSError:
            break
        if not chunk:
            break
        said += chunk
    assert expected is None or expected.encode() in said, said
    return said.decode()


@pytest.mark.verify
@pytest.mark.parametrize(("answer", "pending"), [("n", []), ("y", [("shop.one", 3)])])
def test_at_a_terminal_it_asks_and_draws_a_bar(desk: Desk, answer: str, pending: list[Any]) -> None:
    with terminal(desk, "dlq", "replay", "--subscription", "shop.one") as (process, end):
        read(end, "Replay 3 dead letters? [y/N]: ")
        os.write(end, f"{answer}\n".encode())
        said = read(end)
        assert process.wait(timeout=200) == (1 if answer == "n" else 0)
    assert ("━" in said, "3/3" in said, "3 replayed" in said) == ((answer == "y"),) * 3
    assert query(desk.dsn, PENDING) == pending


@pytest.mark.verify
def test_a_bad_edit_may_be_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "./editor")
    desk.editor("""[ -e once ] && echo '{"n": 5}' > "$1" || { touch once; echo '{"n": ' > "$1"; }""")
    with terminal(desk, "dlq", "replay", desk.event(), "--subscription", "shop.one", "--edit") as (process, end):
        read(end, "Edit it again? [Y/n]: ")
        os.write(end, b"\n")
        assert "shop.one: replayed" in read(end)
        assert process.wait(timeout=200) == 0
    assert edited(desk) == [("shop.one", {"n": 5})]


@pytest.mark.verify
def test_the_real_command(outrider: Run, desk: Desk) -> None:
    done = outrider("dlq", "list", "--dsn", desk.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 dead letters in 2 groups" in done.stdout
