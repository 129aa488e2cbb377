"""`outrider job cancel`, `run-now` and `retry` by filter: count, dry run, act; `job list` by key, tenant and payload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli.test_job import Desk
from tests.postgres.jobs import sqljobs

LATER = """
insert into outrider.job (subscription, event_id, event_version, source, run_at, queue, job_key, workspace_id, payload)
select 'mail.send', gen_random_uuid(), 1, 'sql', clock_timestamp() + interval '1 hour', 'default', 'k' || n % 3,
       case when n % 2 = 0 then 'acme' end, jsonb_build_object('n', n)
from generate_series(1, 300) as n
"""


@pytest.fixture
def desk(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("COLUMNS", "200")
    with psycopg.connect(database, autocommit=True) as conn:
        sqljobs.register(conn, "mail.send")
        conn.execute(LATER)
        yield Desk(tmp_path, database, conn)


def states(desk: Desk) -> dict[str, int]:
    return dict(desk.conn.execute("select status, count(*) from outrider.job group by 1").fetchall())


def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    told = desk.said("cancel", "--key", "k1", "--dry-run")
    assert told == "would cancel 100 jobs (100 pending); nothing was changed (dry run)\n"
    found = desk.json("cancel", "--workspace", "acme", "--dry-run")
    assert found == {"dry_run": True, "action": "cancel", "jobs": 150, "states": {"pending": 150}, "searched": 300}
    assert states(desk) == {"pending": 300}


def test_more_than_200_are_cancelled_with_who_and_why(desk: Desk) -> None:
    assert "nothing was cancelled: there is no terminal to ask at" in desk.refused("cancel", "--type", "mail.send")
    told = desk.said("cancel", "--type", "mail.send", "--yes", "--by", "ada", "--reason", "a test")
    assert told.splitlines() == ["300 of 300", "300 cancelled"]
    assert states(desk) == {"discarded": 300}
    [(by, details)] = desk.conn.execute("select by, details from outrider.audit").fetchall()
    assert (by, details["reason"], details["jobs"]) == ("ada", "a test", 300)
    assert desk.said("cancel", "--type", "mail.send", "--yes") == "no jobs match: nothing was cancelled\n"


def test_run_now_by_filter(desk: Desk) -> None:
    done = desk.json("run-now", "--payload", "n=7", "--yes")
    assert (done["changed"], done["skipped"]) == (1, 0)
    assert [each.payload["n"] for each in desk.claim(5)] == [7]


def test_retry_by_id_and_by_filter(desk: Desk) -> None:
    desk.conn.execute("update outrider.job set status = 'failed', waits_for = null, buried_at = now() where id % 3 = 0")
    [(dead,)] = desk.conn.execute("select event_id from outrider.job where status = 'failed' limit 1").fetchall()
    [(alive,)] = desk.conn.execute("select event_id from outrider.job where status = 'pending' limit 1").fetchall()
    assert desk.said("retry", str(dead)) == f"{dead} mail.send: pending again\n"
    assert desk.said("retry", str(alive), code=1) == f"{alive} mail.send: not retried: it is pending\n"
    assert (
        desk.said("retry", "--all", "--dry-run") == "would retry 99 jobs (99 failed); nothing was changed (dry run)\n"
    )
    assert "99 retried" in desk.said("retry", "--all", "--yes")
    assert states(desk) == {"pending": 300}


def test_what_makes_no_sense_is_refused(desk: Desk) -> None:
    some = "01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a"
    for arguments, message in (
        (["cancel"], "name jobs or give a filter"),
        (["cancel", some, "--key", "k1"], "not both"),
        (["cancel", "--all", "--key", "k1"], "exclude each other"),
        (["cancel", some, "--dry-run"], "--dry-run is for a filter"),
        (["retry", "--state", "pending"], "retry is for failed jobs"),
        (["cancel", "--state", "done"], "no such state: done"),
        (["cancel", "--payload", "n"], "is not FIELD=VALUE"),
    ):
        done = desk.job(*arguments)
        assert done.returncode == 2, arguments
        assert message in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert "there is no job type 'no.such'" in desk.refused("cancel", "--type", "no.such", "--yes")


def test_the_list_by_key_tenant_and_payload_says_how_many_it_searched(desk: Desk) -> None:
    told = desk.said("list", "--key", "k1", "--workspace", "acme", "--limit", "10")
    assert "the first 10 found; searched 300 jobs; for more: --after " in told
    after = told.strip().rpartition(" ")[2]
    told = desk.said("list", "--key", "k1", "--workspace", "acme", "--after", after)
    assert "40 found; searched" in told
    assert "for more" not in told
    found: dict[str, Any] = json.loads(desk.said("list", "--payload", "n=7", "--json"))
    assert (len(found["jobs"]), found["searched"], found["place"]) == (1, 300, None)
    assert desk.said("list", "--payload", "n=x") == "no jobs match\n0 found; searched 300 jobs\n"
