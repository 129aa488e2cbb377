"""`outrider schedule`: what it shows, and what it says of what it does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess

APP = """
from outrider import Job, Outrider

class Report(Job, type="sales.report"):
    kind: str = "daily"

app = Outrider(context="sales")
app.schedule("0 3 * * *", Report(), name="sales.daily", time_zone="Europe/Berlin", missed="skip")
app.schedule("0 6 * * MON", Report(kind="weekly"), name="sales.weekly")
"""

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "sales.py").write_text(APP)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return inprocess.run(tmp_path, *arguments, "--dsn", database)

    assert run("migrate", "--app", "sales:app").returncode == 0
    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_the_list_shows_times_and_the_next_one(call: Call, database: str) -> None:
    told = said(call("schedule", "list"))
    for text in ("sales.daily", "0 3 * * *", "Europe/Berlin", "sales.report", "skip", "none yet", "in "):
        assert text in told
    listed: list[dict[str, Any]] = json.loads(said(call("schedule", "list", "--json")))["schedules"]
    assert [each["name"] for each in listed] == ["sales.daily", "sales.weekly"]
    assert all(each["next_at"] and each["paused_at"] is None for each in listed)
    with psycopg.connect(database) as conn:
        conn.execute("delete from outrider.schedule")
    assert said(call("schedule", "list")) == "no schedules\n"


def test_pause_and_resume(call: Call) -> None:
    paused = said(call("schedule", "pause", "sales.daily", "--by", "ada", "--reason", "the month is closed"))
    assert paused == "sales.daily is paused; to resume: outrider schedule resume sales.daily\n"
    assert "paused since" in said(call("schedule", "list"))
    assert "the schedule sales.daily is paused since" in said(call("status"))
    told = said(call("audit"))
    assert "pause_schedule" in told
    assert "the month is closed" in told
    assert said(call("schedule", "resume", "sales.daily")) == "sales.daily is resumed\n"
    assert said(call("schedule", "resume", "sales.daily")) == "sales.daily was not paused\n"
    assert "paused" not in said(call("status"))


def test_run_now_names_the_job(call: Call) -> None:
    told = json.loads(said(call("schedule", "run-now", "sales.weekly", "--json")))
    [job] = json.loads(said(call("job", "list", "--json")))["jobs"]
    assert (job["id"], job["subscription"]) == (told["job_id"], "sales.report")
    assert "sales.weekly: enqueued " in said(call("schedule", "run-now", "sales.weekly"))
    assert "ago" in said(call("schedule", "list"))


def test_an_unknown_schedule_is_one_sentence(call: Call) -> None:
    for verb in ("pause", "resume", "run-now"):
        done = call("schedule", verb, "no.such")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "there are: sales.daily, sales.weekly" in done.stderr
