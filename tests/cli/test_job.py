"""`outrider job`: what it shows of jobs in every state, and what it says of what it does."""

from __future__ import annotations

import getpass
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run, Start
from tests.postgres.jobs import sqljobs
from tests.processes import until

from outrider.postgres.statement import ONE_MOMENT, statement

HOSTILE = "\x9b31mred\x1b[2J\u202eevil [bold]loud[/] :bomb:\r\n\tend"
NOBODY = "00000000-0000-7000-8000-000000000000"


class Desk:
    """An operator at work on a database in which mail.send is registered; the test claims and settles by SQL."""

    def __init__(self, folder: Path, dsn: str, conn: sqljobs.Conn) -> None:
        self.folder = folder
        self.dsn = dsn
        self.conn = conn

    def job(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(self.folder, "job", *arguments, "--dsn", self.dsn)

    def said(self, *arguments: str, code: int = 0) -> str:
        done = self.job(*arguments)
        assert (done.returncode, done.stderr) == (code, ""), done
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """One sentence, nothing on stdout, nothing done."""
        before = sqljobs.jobs(self.conn)
        done = self.job(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert sqljobs.jobs(self.conn) == before
        return done.stderr

    def enqueue(self, *arguments: Any, **options: Any) -> str:
        return str(sqljobs.enqueue(self.conn, *arguments, **options)[0])

    def claim(self, limit: int = 1, **options: Any) -> list[sqljobs.Lease]:
        return sqljobs.claim(self.conn, limit, **options).jobs

    def listed(self, *arguments: str) -> list[str]:
        return [each["id"] for each in self.json("list", *arguments)["jobs"]]


@pytest.fixture
def desk(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("COLUMNS", "200")
    with psycopg.connect(database, autocommit=True) as conn:
        sqljobs.register(conn, "mail.send")
        yield Desk(tmp_path, database, conn)


# List


def test_an_empty_list(desk: Desk) -> None:
    assert desk.said("list") == "no jobs\n0 running, 0 pending, 0 failed\n"
    assert desk.said("list", "--state", "failed") == "no jobs match\n0 running, 0 pending, 0 failed\n"


def test_the_list_shows_what_runs_then_what_will_then_what_failed(desk: Desk) -> None:
    dead, running = desk.enqueue(n="dead"), desk.enqueue(n="running")
    [first, second] = desk.claim(2, worker=(worker := uuid4()))
    assert sqljobs.settle(desk.conn, first, "dead", code="refused", message="the box is full") == "buried"
    sqljobs.serve(desk.conn, worker, "mail.send")
    desk.conn.execute(
        "update outrider.job set progress = %s where id = %s",
        ['{"fraction": 0.4, "message": "page 4 of 10"}', second.delivery],
    )
    later = desk.enqueue(n="later", ago=-3000, queue="bulk")
    soon = desk.enqueue(n="soon", ago=3)
    urgent = desk.enqueue(n="urgent", priority=5, key="k")
    assert desk.listed() == [running, urgent, soon, later, dead]
    rows = _rows(desk.said("list"))
    assert [row[0] for row in rows[:3]] == [
        f"{running} mail.send",
        f"{urgent} mail.send key k",
        f"{soon} mail.send",
    ]
    assert rows[0][1:] == ("running", "default, priority 0 1 attempt on h:1 [####......] 40% page 4 of 10")
    assert re.fullmatch(r"pending: due for \d+ s", rows[1][1])
    assert rows[1][2:] == ("default, priority 5 0 attempts",)
    assert rows[3][1:] == ("pending: due in 49 min", "bulk, priority 0 0 attempts")
    assert rows[4][1:] == ("failed: a dead letter", "default, priority 0 1 attempt refused: the box is full")
    assert desk.said("list").splitlines()[-1] == "1 running, 3 pending, 1 failed"


def _rows(text: str) -> list[tuple[str, ...]]:
    """Of a table, with the lines of a cell joined."""
    body = text[text.index("┡") : text.index("└")].split("\n", 1)[1]
    rows = []
    for chunk in re.split(r"├.*┤\n", body):
        cells = zip(
            *([cell.strip() for cell in line.strip("│").split("│")] for line in chunk.splitlines()), strict=True
        )
        rows.append(tuple(" ".join(" ".join(cell).split()) for cell in cells))
    return rows


def test_why_a_job_waits_is_said(desk: Desk) -> None:
    sqljobs.register(desk.conn, "mail.send", key_concurrency=1)
    for n in range(2):
        desk.enqueue(n=n, key="k", ago=5)
    worker = uuid4()
    assert len(desk.claim(2, worker=worker)) == 1
    assert _rows(desk.said("list", "--state", "pending"))[0][1] == "pending: waiting for its key, nobody serves it"
    sqljobs.serve(desk.conn, worker, "mail.send")
    inprocess.run(desk.folder, "subscription", "pause", "mail.send", "--dsn", desk.dsn)
    inprocess.run(desk.folder, "subscription", "pause", "--all", "--dsn", desk.dsn)
    [row] = _rows(desk.said("list", "--state", "pending"))
    assert row[1] == "pending: everything is paused, paused, waiting for its key"
    assert desk.json("list")["counts"] == {"running": 1, "pending": 1, "failed": 0}


def test_the_filters(desk: Desk) -> None:
    desk.enqueue(n=1)
    bulk = desk.enqueue(n=2, queue="bulk")
    stranger = desk.enqueue("never.registered", 3)
    assert desk.listed("--queue", "bulk") == [bulk]
    assert desk.listed("--type", "never.registered") == [stranger]
    assert stranger in desk.listed()
    assert desk.listed("--queue", "bulk", "--type", "never.registered") == []
    assert "nobody serves it" in desk.said("list", "--type", "never.registered")
    found = desk.json("list", "--queue", "bulk")
    assert found["counts"] == {"running": 0, "pending": 1, "failed": 0}
    said = desk.said("list", "--limit", "2").splitlines()[-1]
    assert said == "0 running, 3 pending, 0 failed; the first 2 shown"
    assert desk.refused("list", "--type", "mail.snd") == (
        "outrider: there is no job type 'mail.snd'; there are: mail.send, never.registered\n"
    )


def test_the_order_is_that_of_the_claim(desk: Desk) -> None:
    """Over lanes, suspects and what waits for its key: a step of priority is a minute."""
    for n, (ago, priority) in enumerate([(0, 0), (30, 0), (0, 1), (90, 0), (0, -1), (300, 2), (0, 5)]):
        desk.enqueue(n=n, ago=ago, priority=priority, queue="abc"[n % 3])
    listed = desk.listed()
    assert [str(job.id) for job in desk.claim(10)] == listed
    assert [str(job.id) for job in desk.claim(10)] == []


def test_what_is_done_or_was_given_up_is_listed_when_asked(desk: Desk) -> None:
    ids = [desk.enqueue(n=n, unique_key="one" if n == 3 else None) for n in range(4)]
    jobs = desk.claim(4)
    by_id = {str(job.id): job for job in jobs}
    sqljobs.done(desk.conn, by_id[ids[0]], by_id[ids[1]], result="sent")
    sqljobs.cancel(desk.conn, UUID(ids[2]))
    assert sqljobs.settle(desk.conn, by_id[ids[2]], "cancelled") == "cancelled"
    newer = desk.enqueue(n=9, unique_key="one")
    assert sqljobs.fail(desk.conn, by_id[ids[3]]) == "superseded"
    assert desk.listed() == [newer]
    assert desk.listed("--state", "done") == [ids[1], ids[0]]
    assert desk.listed("--state", "done", "--queue", "default") == []
    found = desk.json("list", "--state", "cancelled")["jobs"]
    assert [(each["id"], each["state"]) for each in found] == [(ids[3], "superseded"), (ids[2], "cancelled")]
    assert "superseded: a newer one" in desk.said("list", "--state", "cancelled")


def test_counts_end_somewhere(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.postgres.admin.jobs.MOST", 3)
    monkeypatch.setattr("outrider.cli.output.jobs.MOST", 3)
    sqljobs.enqueue_many(desk.conn, "mail.send", 5, lanes=4)
    assert desk.said("list").splitlines()[-1] == "0 running, 3+ pending, 0 failed"


def test_a_long_list_reads_what_it_shows(desk: Desk) -> None:
    """Not all that is pending of a type: of each lane as many as are shown."""
    sqljobs.enqueue_many(desk.conn, "mail.send", 20_000, lanes=3)
    desk.conn.execute("analyze outrider.job")
    params: dict[str, Any] = {"names": ["mail.send"], "queue": None, "most": 10_000, "ids": [], "limit": 5}
    params["states"] = ["running", "pending"]
    with psycopg.connect(desk.dsn) as conn:
        conn.execute(ONE_MOMENT)
        explain = b"explain (analyze, format json, costs off) " + statement("jobs/jobs", "outrider")
        row = conn.execute(explain, params).fetchone()
    assert row is not None
    assert max(_rows_read(row[0][0]["Plan"])) <= 20


def _rows_read(plan: dict[str, Any]) -> Iterator[int]:
    """Of each node over all its loops, with what it threw away."""
    yield int((plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"])
    for each in plan.get("Plans", ()):
        yield from _rows_read(each)


# Show


def test_show_has_everything(desk: Desk) -> None:
    sqljobs.serve(desk.conn, worker := uuid4(), "mail.send")
    job_id = desk.enqueue(n=1, key="k", unique_key="u", priority=3)
    [job] = desk.claim(worker=worker)
    assert sqljobs.fail(desk.conn, job) == "retry"
    [job] = desk.claim(worker=worker)
    desk.conn.execute("update outrider.job set progress = %s", ['{"fraction": 1, "message": ""}'])
    said = desk.said("show", job_id)
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert re.fullmatch(
        rf"""job        {job_id}, mail\.send version 1
state      running
enqueued   {when} by sql
queue      default, priority 3
key        k
unique key u
attempts   2 attempts
worker     h:1, since {when}
lease      until {when}, renewed while it runs
progress   \[##########\] 100%
error      ValueError
  no

history
  cycle 1  attempt 1  {when}  ValueError: no  \(w\)

payload
  \{{
      "n": 1
  \}}
""",
        said,
    ), said
    sqljobs.cancel(desk.conn, UUID(job_id))
    assert "state      running, cancelling\n" in desk.said("show", job_id)
    [found] = desk.json("show", job_id)["jobs"]
    assert (found["state"], found["payload"], found["worker_name"]) == ("running", {"n": 1}, "h:1")


def test_show_of_a_dead_one_names_the_way_back(desk: Desk) -> None:
    job_id = desk.enqueue(n=1)
    [job] = desk.claim()
    sqljobs.settle(desk.conn, job, "dead", code="refused", message="no")
    assert desk.said("show", job_id).endswith(f"\nto let it run again: outrider dlq replay {job_id}\n")
    done = inprocess.run(desk.folder, "dlq", "replay", job_id, "--by", "me", "--dsn", desk.dsn)
    assert (done.returncode, done.stdout) == (0, "mail.send: replayed\n")
    said = desk.said("show", job_id)
    assert re.search(r"\nstate      pending: due for \d+ s, nobody serves it\n", said)
    assert re.search(r"cycle 1  replayed \S+ \S+ by me\n", said)
    assert "0 attempts in cycle 2" in said


def test_show_of_a_done_one_has_the_result(desk: Desk) -> None:
    job_id = desk.enqueue(n=1)
    [job] = desk.claim()
    sqljobs.done(desk.conn, job, result={"sent": HOSTILE})
    said = desk.said("show", job_id)
    assert re.match(rf"job        {job_id}, mail\.send\nstate      done\ndone       \S+ \S+\n\nresult\n", said)
    assert not set("\x1b\x9b\u202e\r") & set(said)
    assert desk.json("show", job_id)["jobs"][0]["result"] == {"sent": HOSTILE}


def test_an_event_that_is_two_jobs_is_shown_twice(desk: Desk) -> None:
    for name in ("mail.one", "mail.two"):
        desk.conn.execute("select outrider.register(%s, 'job', 'mail', '{orders.placed}')", [name])
    row = desk.conn.execute("select outrider.publish('orders.placed', '{\"n\": 7}', key => 'k')").fetchone()
    assert row is not None
    for name in ("mail.one", "mail.two"):
        desk.conn.execute("select outrider.route(%s, 10, 100, '{orders.placed}', 'default', 0)", [name])
    said = desk.said("show", str(row[0]))
    assert re.findall(r"^of events +(\S+)$", said, re.MULTILINE) == ["mail.one", "mail.two"]
    assert said.count('"n": 7') == 2
    assert "\n\njob " in said


def test_what_there_is_not(desk: Desk) -> None:
    no_trace = f'outrider: no trace of the job {NOBODY} is kept in the schema "outrider"'
    assert desk.refused("show", NOBODY).startswith(no_trace)
    assert desk.job("show", "7").returncode == 2


def test_of_a_plain_job_that_is_done_there_is_no_trace(desk: Desk) -> None:
    job_id = desk.enqueue(n=1)
    sqljobs.done(desk.conn, *desk.claim())
    said = desk.refused("show", job_id)
    assert f"no trace of the job {job_id} is kept" in said
    assert "a job without a result and without a failure leaves none (set keep= in @app.job to see it)" in said
    assert "the id is unknown here" in said
    for command in (("cancel", job_id, "--yes"), ("run-now", job_id)):
        done = desk.job(*command)
        assert (done.returncode, done.stdout) == (1, f"{job_id}: no trace of it is kept: it is done, or unknown\n")
    assert desk.listed("--state", "done") == []
    desk.conn.execute("select outrider.register_job('mail.send', null, null, null, null, '7 days')")
    kept = desk.enqueue(n=2)
    sqljobs.done(desk.conn, *desk.claim())
    assert desk.listed("--state", "done") == [kept]
    assert desk.json("show", kept)["jobs"][0]["state"] == "done"


def test_nothing_hidden_acts(desk: Desk) -> None:
    job_id = desk.enqueue(n=HOSTILE, key=HOSTILE)
    [job] = desk.claim()
    desk.conn.execute("update outrider.job set progress = %s", [json.dumps({"fraction": 9, "message": HOSTILE})])
    listed, shown = desk.said("list"), desk.said("show", job_id)
    sqljobs.settle(desk.conn, job, "dead", code="code", message=HOSTILE.replace("\0", ""))
    for said in (listed, shown, desk.said("list"), desk.said("show", job_id)):
        assert not set("\x1b\x9b\u202e\r") & set(said)
        assert "[bold]loud[/] :bomb:" in " ".join(said.split())
    [found] = desk.json("list")["jobs"]
    assert found["error"] == HOSTILE


def test_progress_of_any_shape(desk: Desk) -> None:
    desk.enqueue(n=1)
    desk.claim()
    for stored, shown in (('{"fraction": "x"}', "[..........] 0%"), ('{"fraction": -1, "message": 5}', "0%  5")):
        desk.conn.execute("update outrider.job set progress = %s", [stored])
        assert shown in desk.said("list")


# Cancel and run now


def test_cancel_says_what_became_of_each(desk: Desk) -> None:
    running, pending, ready = (desk.enqueue(n=n, ago=ago) for n, ago in enumerate((9, -60, 5)))
    [_, finished] = desk.claim(2)
    sqljobs.done(desk.conn, finished, result=1)
    said = desk.said("cancel", running, pending, ready, pending, "--by", "me", "--reason", "a test", "--yes")
    assert said == (
        f"{running} mail.send: cancelling: it is running, and its worker was told to stop it\n"
        f"{pending} mail.send: cancelled\n"
        f"{ready} mail.send: done, too late\n"
    )
    audit = "select by, action, event_id::text, details ->> 'reason' from outrider.audit order by id"
    assert desk.conn.execute(audit).fetchall() == [("me", "cancel", each, "a test") for each in (running, pending)]
    assert re.search(r"cycle 1  cancelled \S+ \S+ by me: a test\n", desk.said("show", pending))
    assert desk.json("show", pending)["jobs"][0]["state"] == "cancelled"


def test_cancel_asks(desk: Desk) -> None:
    job_id = desk.enqueue(n=1)
    assert desk.refused("cancel", job_id) == (
        "outrider: nothing was cancelled: there is no terminal to ask at; to do it, add --yes "
        f"(Cancel {job_id} (1 pending)?)\n"
    )
    assert "(Cancel 2 jobs (1 pending, 1 without a trace)?)" in desk.refused("cancel", job_id, NOBODY)


def test_who_cancels_is_whoever_is_logged_in(desk: Desk) -> None:
    desk.said("cancel", desk.enqueue(n=1), "--yes")
    assert desk.conn.execute("select by from outrider.audit").fetchall() == [(getpass.getuser(),)]


def test_cancel_of_what_there_is_not(desk: Desk) -> None:
    job_id = desk.enqueue(n=1)
    assert (
        desk.said("cancel", NOBODY, job_id, "--yes", code=1)
        == f"{NOBODY}: no trace of it is kept: it is done, or unknown\n{job_id} mail.send: cancelled\n"
    )
    done = desk.job("cancel", NOBODY, "--yes", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"outcomes": [{"job_id": NOBODY, "subscription": None, "outcome": "not_found"}]}


def test_run_now(desk: Desk) -> None:
    later = desk.enqueue(n=1, ago=-3600)
    assert desk.claim() == []
    assert desk.said("run-now", later) == f"{later} mail.send: due now\n"
    [job] = desk.claim()
    assert desk.said("run-now", later) == f"{later} mail.send: running already\n"
    sqljobs.settle(desk.conn, job, "dead", code="refused", message="no")
    assert desk.said("run-now", later, code=1) == (
        f"{later} mail.send: not due: it is a dead letter; outrider dlq replay lets it run again\n"
    )
    sqljobs.cancel(desk.conn, UUID(later))
    assert desk.said("run-now", later, code=1) == f"{later} mail.send: not due: it was cancelled\n"
    assert desk.said("run-now", NOBODY, code=1) == f"{NOBODY}: no trace of it is kept: it is done, or unknown\n"


def test_a_cancelled_job_comes_back_by_force(desk: Desk) -> None:
    """As the help says."""
    job_id = desk.enqueue(n=1)
    desk.said("cancel", job_id, "--yes")
    assert desk.claim() == []
    words = ["dlq", "replay", job_id, "--subscription", "mail.send", "--force", "--yes", "--dsn", desk.dsn]
    done = inprocess.run(desk.folder, *words)
    assert (done.returncode, done.stdout) == (0, "mail.send: replayed\n"), done
    [job] = desk.claim()
    assert str(job.id) == job_id


def test_a_dead_job_whose_unique_key_is_taken_stays_dead(desk: Desk) -> None:
    job_id = desk.enqueue(n=1, unique_key="u")
    [job] = desk.claim()
    sqljobs.settle(desk.conn, job, "dead", code="refused", message="no")
    desk.enqueue(n=2, unique_key="u")
    done = inprocess.run(desk.folder, "dlq", "replay", job_id, "--dsn", desk.dsn)
    assert (done.returncode, done.stdout) == (0, "mail.send: skipped: another job has its unique key\n")
    assert desk.json("show", job_id)["jobs"][0]["state"] == "failed"
    shown = inprocess.run(desk.folder, "dlq", "show", job_id, "--dsn", desk.dsn).stdout
    assert re.match(rf"job +{job_id}, mail\.send version 1\nenqueued +\S+ \S+ by sql\nsubscription ", shown), shown


def test_of_dead_jobs_with_one_unique_key_the_newest_is_replayed(desk: Desk) -> None:
    for n, key in enumerate(("u", "u", "v", None)):
        desk.enqueue(n=n, unique_key=key)
        [job] = desk.claim()
        sqljobs.settle(desk.conn, job, "dead", code="refused", message="no")
    desk.enqueue(n=9, unique_key="v")
    words = ["dlq", "replay", "--subscription", "mail.send", "--yes", "--dsn", desk.dsn]
    done = inprocess.run(desk.folder, *words)
    said = "2 replayed, 0 skipped because handled, 2 skipped because another job has the unique key, 0 not found"
    assert (done.returncode, done.stdout) == (0, f"4 of 4\n{said}\n")
    again = json.loads(inprocess.run(desk.folder, *words, "--json").stdout)
    assert (again["replayed"], again["superseded"], again["not_found"]) == (0, 2, 0)
    assert [row["payload"]["n"] for row in sqljobs.jobs(desk.conn) if row["status"] == "failed"] == [0, 2]


# Jobs of events


def _of_an_event(desk: Desk, n: int, **options: str) -> UUID:
    """An event that became a job of mail.notify."""
    desk.conn.execute("select outrider.register('mail.notify', 'job', 'mail', '{orders.placed}')")
    given = "".join(f", {name} => '{value}'" for name, value in options.items())
    row = desk.conn.execute(f"select outrider.publish('orders.placed', '{{\"n\": {n}}}'{given})".encode()).fetchone()
    assert row is not None
    desk.conn.execute("select outrider.route('mail.notify', 10, 100, '{orders.placed}', 'default', 0)")
    return UUID(str(row[0]))


def _life(desk: Desk, event: UUID) -> list[str]:
    """What `outrider event show` says of its job, times left out."""
    done = inprocess.run(desk.folder, "event", "show", str(event), "--dsn", desk.dsn)
    assert (done.returncode, done.stderr) == (0, ""), done
    said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+\d\d:\d\d", "T", done.stdout)
    [(first, rest)] = re.findall(r"^mail\.notify: (.*)\n((?:  .*\n)*)", said, re.MULTILINE)
    return [first, *(line.strip() for line in rest.splitlines())]


def _fate(desk: Desk, event: UUID) -> tuple[Any, ...]:
    done = inprocess.run(desk.folder, "event", "show", str(event), "--json", "--dsn", desk.dsn)
    [fate] = json.loads(done.stdout)["fates"]
    return fate["status"], fate["why"], [each["what"] for each in fate["history"]]


def test_the_life_of_an_event_that_is_a_job(desk: Desk) -> None:
    event, worker = _of_an_event(desk, 1), uuid4()
    assert _life(desk, event) == ["pending: due now, no worker serves the subscription"]
    sqljobs.serve(desk.conn, worker, "mail.notify")
    assert _life(desk, event) == ["pending: due now"]
    [job] = desk.claim(names=["mail.notify"], worker=worker)
    assert _life(desk, event) == ["running, attempt 1"]
    assert _fate(desk, event) == ("running", [], [])
    assert sqljobs.settle(desk.conn, job, "crashed") == "retry"
    assert _life(desk, event)[0] == "pending: a worker died while it ran, so it runs alone, due now"
    [job] = desk.claim(names=["mail.notify"], worker=worker)
    sqljobs.cancel(desk.conn, event)
    assert _life(desk, event)[0] == "running, attempt 1, cancelling"
    assert sqljobs.settle(desk.conn, job, "cancelled") == "cancelled"
    assert _life(desk, event)[0] == "cancelled"


def test_the_life_of_an_event_whose_job_was_cancelled_before_it_ran(desk: Desk) -> None:
    event = _of_an_event(desk, 1)
    desk.said("cancel", str(event), "--by", "me", "--reason", "a test", "--yes")
    assert _life(desk, event) == ["cancelled", "T  cancelled by me: a test"]
    assert _fate(desk, event) == ("discarded", [], ["cancelled"])


def test_an_event_with_the_key_of_one_whose_job_runs(desk: Desk) -> None:
    event = _of_an_event(desk, 1, idempotency_key="same")
    [job] = desk.claim(names=["mail.notify"])
    again = _of_an_event(desk, 2, idempotency_key="same")
    assert _life(desk, event) == ["running, attempt 1"]
    sqljobs.done(desk.conn, job)
    assert _life(desk, again)[0].startswith("delivered")


def test_the_life_of_an_event_whose_job_waits_for_its_key(desk: Desk) -> None:
    _of_an_event(desk, 1, key="k")
    desk.conn.execute("update outrider.subscription set key_concurrency = 1 where name = 'mail.notify'")
    event = _of_an_event(desk, 2, key="k")
    assert len(desk.claim(2, names=["mail.notify"])) == 1
    assert _life(desk, event) == ["pending: waits for its key, no worker serves the subscription"]


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "the producer's own"}], ids=["plain", "idempotency_key"])
def test_a_done_job_of_an_event_is_done(desk: Desk, options: dict[str, str]) -> None:
    """Its receipt is under the producer's idempotency key, if it has one."""
    event = _of_an_event(desk, 1, **{name: value.replace("'", "''") for name, value in options.items()})
    [job] = desk.claim(names=["mail.notify"])
    sqljobs.done(desk.conn, job)
    assert desk.json("show", str(event))["jobs"][0]["state"] == "done"
    assert desk.said("cancel", str(event), "--yes") == f"{event} mail.notify: done, too late\n"
    assert sqljobs.run_now(desk.conn, event) == "done"


def test_an_event_whose_job_was_done_as_that_of_another_is_done(desk: Desk) -> None:
    first, second = (_of_an_event(desk, n, idempotency_key="same") for n in (1, 2))
    [job] = desk.claim(names=["mail.notify"])
    sqljobs.done(desk.conn, job)
    for event in (first, second):
        assert sqljobs.cancel(desk.conn, event) == "done"
        assert sqljobs.run_now(desk.conn, event) == "done"
    assert sqljobs.cancel(desk.conn, uuid4()) == "not_found"


# Beside the others


def test_status_and_subscriptions_count_jobs(desk: Desk) -> None:
    desk.conn.execute("select outrider.publish('orders.placed', '{}')")
    desk.enqueue("never.registered")
    for n in range(3):
        desk.enqueue(n=n, ago=300)
    [dead] = desk.claim()
    sqljobs.settle(desk.conn, dead, "dead", code="refused", message="no")
    desk.claim(worker=(worker := uuid4()))
    sqljobs.serve(desk.conn, worker, "mail.send")
    status = inprocess.run(desk.folder, "status", "--dsn", desk.dsn).stdout
    assert "\njobs: 1 running, 2 pending, 1 failed (outrider job list)\n" in status
    assert "0 waiting for retry; 0 dead letters" in status
    row = re.search(r"│(mail\.send *│.*)\n│(.*)│", status)
    assert row is not None
    assert [cell.strip() for cell in row.group(1).split("│")][:7] == [
        "mail.send", "running", "", "5 min", "1 pending", "1", "1 worker"
    ]  # fmt: skip
    assert "1 running" in row.group(2)
    [found] = json.loads(inprocess.run(desk.folder, "status", "--json", "--dsn", desk.dsn).stdout)["subscriptions"]
    assert (found["lag"], found["waiting"], found["running"], found["dead"]) == (0, 2, 1, 1)
    listed = inprocess.run(desk.folder, "subscription", "list", "--dsn", desk.dsn).stdout
    assert re.search(r"│mail\.send│ *│job of mail│ *│1 pending│1 +│1 ", listed), listed
    [found] = json.loads(inprocess.run(desk.folder, "subscription", "list", "--json", "--dsn", desk.dsn).stdout)[
        "subscriptions"
    ]
    assert (found["lag"], found["waiting"], found["running"]) == (0, 2, 1)


def test_a_job_type_without_a_worker_is_said(desk: Desk) -> None:
    assert "nobody serves it" in inprocess.run(desk.folder, "status", "--dsn", desk.dsn).stdout


# The worker

APP = """
import asyncio
from outrider import Job, JobContext, Outrider

class Send(Job, type="mail.send"):
    n: int

app = Outrider(context="mail")

@app.job(Send)
async def send(job: Send, ctx: JobContext) -> None:
    async with ctx.connect() as conn:
        await conn.execute("insert into begun values (%s)", [job.n])
    while True:
        async with ctx.connect() as conn:
            if (await (await conn.execute("select from going")).fetchone()) is not None:
                return
        await asyncio.sleep(0.05)
"""


def _numbers(conn: sqljobs.Conn, query: str) -> list[int]:
    return [n for (n,) in conn.execute(query.encode()).fetchall()]


@pytest.mark.verify
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_worker_of_jobs_keeps_to_its_slots_and_queues(desk: Desk, start: Start, processes: int) -> None:
    """Also as a parent of several: what it was told, its children are told."""
    desk.conn.execute("create table begun (n int); create table going ()")
    (desk.folder / "mail.py").write_text(APP)
    jobs = [(n, queue) for n in range(4) for queue in ("default", "bulk", "slow")]
    for n, queue in jobs:
        desk.enqueue(n=n, queue=queue)
    options = ["--slots", "2", "--queue", "bulk", "--queue", "slow", "--processes", str(processes)]
    worker = start("worker", "--app", "mail:app", "--dsn", desk.dsn, *options, cwd=desk.folder)
    running = "select count(*) from outrider.job where status = 'in_flight'"
    begun = "select n from begun"
    until(lambda: len(_numbers(desk.conn, begun)) == 2 * processes, worker)
    assert _numbers(desk.conn, running) == [2 * processes]
    desk.conn.execute("insert into going default values")
    until(lambda: len(_numbers(desk.conn, begun)) == 8, worker)
    until(lambda: _numbers(desk.conn, running) == [0], worker)
    worker.terminate()
    worker.communicate(timeout=200)
    assert worker.returncode == 0
    assert [row["queue"] for row in sqljobs.jobs(desk.conn)] == ["default"] * 4


def test_a_worker_says_what_is_wrong_with_its_jobs(desk: Desk, outrider: Run) -> None:
    (desk.folder / "mail.py").write_text(APP)
    (desk.folder / "empty.py").write_text("from outrider import Outrider\napp = Outrider()\n")
    for words, wrong in (
        (
            ["empty:app"],
            "the app declares no handler and no job: decorate a function with @app.handler(YourEvent, name=...) or",
        ),
        (["mail:app", "--exclude", "mail.*"], "no handler or job is left: --exclude takes away all that --handlers"),
        (["mail:app", "--queue", "Fast"], "--queue: 'Fast' is not a lower-case word"),
    ):
        done = outrider("worker", "--app", *words, "--dsn", desk.dsn, cwd=desk.folder)
        assert done.returncode == 1
        assert done.stderr.startswith(f"outrider: {wrong}")
