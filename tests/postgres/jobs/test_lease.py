"""A job is its worker's own while the lease lasts, and nobody else's: tokens, renewals, reaping, crashes, cancelling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.mutants import changed
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import (
    Conn,
    Lease,
    cancel,
    claim,
    done,
    enqueue,
    expire,
    fail,
    job,
    reap,
    receipts,
    register,
    renew,
    replay,
    run_now,
    serve,
    settle,
    sound,
)

from outrider.postgres.statement import statement

pytestmark = pytest.mark.also_on(15)

PROGRESS = statement("jobs/progress", "outrider")
FAREWELL = statement("handlers/farewell", "outrider")
VERDICTS = ["later", "dead", "back", "lapsed", "crashed", "cancelled"]


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with psycopg.connect(database, autocommit=True) as conn:
        register(conn, "mail.send")
        yield conn
        sound(conn)


def one(conn: Conn) -> Lease:
    (lease,) = claim(conn).jobs
    return lease


def codes(conn: Conn, delivery: int) -> list[tuple[int, str]]:
    return [(entry["attempt"], entry["code"]) for entry in job(conn, delivery)["failure_history"] if "code" in entry]


@pytest.mark.parametrize("verdict", ["done", *VERDICTS])
def test_an_old_token_lands_nothing(conn: Conn, verdict: str) -> None:
    """Reaped, and claimed by another: whatever the first one says is not written, and it is told."""
    enqueue(conn)
    old = one(conn)
    expire(conn, old)
    new = one(conn)
    before = job(conn, new.delivery)
    assert (new.id, new.token > old.token) == (old.id, True)
    assert (done(conn, old) if verdict == "done" else settle(conn, old, verdict)) in ({}, None)
    assert job(conn, new.delivery) == before
    assert done(conn, new) == {new.delivery: "done"}


@pytest.mark.parametrize("verdict", ["done", *VERDICTS])
def test_a_reaped_job_is_nobodys_to_settle(conn: Conn, verdict: str) -> None:
    enqueue(conn)
    old = one(conn)
    expire(conn, old)
    assert reap(conn) == 1
    before = job(conn, old.delivery)
    assert (done(conn, old) if verdict == "done" else settle(conn, old, verdict)) in ({}, None)
    assert job(conn, old.delivery) == before
    assert not receipts(conn)


def test_without_the_token_a_zombie_settles(conn: Conn) -> None:
    """Broken on purpose: the name of the job is enough."""
    conn.execute(changed("settle_done", ("d.lease_token = named.token", "d.lease_token is not null")).encode())
    enqueue(conn)
    old = one(conn)
    expire(conn, old)
    one(conn)
    assert done(conn, old) == {old.delivery: "done"}


def test_a_batch_says_which_landed(conn: Conn) -> None:
    for n in range(4):
        enqueue(conn, n=n)
    leases = claim(conn, 4).jobs
    expire(conn, leases[1], leases[2])
    reap(conn)
    assert done(conn, *leases) == {leases[0].delivery: "done", leases[3].delivery: "done"}
    assert {row["payload"]["n"] for row in sqljobs.jobs(conn)} == {1, 2}


def test_a_failure_uses_an_attempt_and_waits(conn: Conn) -> None:
    enqueue(conn)
    first = one(conn)
    assert fail(conn, first, delay=60) == "retry"
    assert claim(conn).due_in == pytest.approx(60, abs=5)
    assert run_now(conn, first.id) == "due"
    second = one(conn)
    assert (first.attempt, second.attempt) == (1, 2)
    assert settle(conn, second, "dead", code="ValueError", message="no") == "buried"
    assert job(conn, first.delivery)["attempts"] == 2
    assert codes(conn, first.delivery) == [(1, "ValueError"), (2, "ValueError")]


def test_handed_back_uses_no_attempt(conn: Conn) -> None:
    enqueue(conn, ago=50)
    run_at = sqljobs.jobs(conn)[0]["run_at"]
    lease = one(conn)
    assert settle(conn, lease, "back") == "back"
    row = job(conn, lease.delivery)
    assert (row["attempts"], row["run_at"], row["failure_history"]) == (0, run_at, None)
    assert one(conn).attempt == 1


def test_snoozed_uses_no_attempt(conn: Conn) -> None:
    enqueue(conn)
    lease = one(conn)
    assert settle(conn, lease, "later", delay=100, counted=False) == "retry"
    assert claim(conn).due_in == pytest.approx(100, abs=5)
    run_now(conn, lease.id)
    assert one(conn).attempt == 1


def test_the_jobs_of_a_worker_that_was_told_to_stop_count_no_crash(conn: Conn) -> None:
    """It was killed with its side process when its time was over, as a container is."""
    worker = uuid4()
    enqueue(conn)
    (lease,) = claim(conn, worker=worker).jobs
    serve(conn, worker, "mail.send", ago=600)
    conn.execute("update outrider.worker set stopping = true")
    expire(conn, lease)
    assert reap(conn) == 1
    row = job(conn, lease.delivery)
    assert (row["status"], row["attempts"], row["crashes"], row["failure_history"]) == ("pending", 0, 0, None)


def test_renewing_extends_only_ones_own(conn: Conn) -> None:
    register(conn, "mail.send", lease="100s")
    mine, other = uuid4(), uuid4()
    enqueue(conn, n="mine")
    enqueue(conn, n="other")
    (ours,) = claim(conn, worker=mine).jobs
    (theirs,) = claim(conn, worker=other).jobs
    conn.execute("update outrider.job set lease_expires_at = clock_timestamp() + interval '10 seconds'")
    held = renew(conn, mine)
    assert list(held) == [ours.delivery]
    token, seconds, cancelled = held[ours.delivery]
    assert (token, cancelled) == (ours.token, False)
    assert seconds == pytest.approx(100, abs=5)
    assert renew(conn, other, ["mail.none"]) == {}
    expiries = conn.execute(
        """select (lease_expires_at > clock_timestamp() + interval '50 seconds') from outrider.job
           where id = any (%s) order by id""",
        [[ours.delivery, theirs.delivery]],
    ).fetchall()
    assert expiries == [(True,), (False,)]


def test_a_lease_that_ran_out_but_was_not_reaped_may_be_renewed(conn: Conn) -> None:
    enqueue(conn)
    (lease,) = claim(conn, worker=(worker := uuid4())).jobs
    expire(conn, lease)
    assert renew(conn, worker)[lease.delivery][1] > 200
    assert reap(conn) == 0


def test_what_was_reaped_is_not_renewed(conn: Conn) -> None:
    enqueue(conn)
    (lease,) = claim(conn, worker=(worker := uuid4())).jobs
    expire(conn, lease)
    reap(conn)
    assert renew(conn, worker) == {}
    one(conn)
    assert renew(conn, worker) == {}


@pytest.mark.parametrize(("ran", "renewed"), [(149, True), (151, False)])
def test_past_its_timeout_and_a_lease_it_is_left_to_run_out(conn: Conn, ran: int, renewed: bool) -> None:
    """Told in any case, with what is left."""
    register(conn, "mail.send", lease="50s", timeout="100s")
    enqueue(conn)
    (lease,) = claim(conn, worker=(worker := uuid4())).jobs
    conn.execute(
        """update outrider.job set locked_at = clock_timestamp() - %s * interval '1 second',
                  lease_expires_at = clock_timestamp() + interval '10 seconds'""",
        [ran],
    )
    assert renew(conn, worker)[lease.delivery][1] == pytest.approx(50 if renewed else 10, abs=5)


def test_renewing_does_not_wait_for_who_settles(conn: Conn) -> None:
    """What is being settled needs no lease; and to wait, holding others, would be a circle."""
    worker = uuid4()
    for n in range(3):
        enqueue(conn, n=n)
    leases = claim(conn, 3, worker=worker).jobs
    conn.execute("update outrider.job set lease_expires_at = clock_timestamp() + interval '10 seconds'")
    with psycopg.connect(conn.info.dsn) as settling:
        assert done(settling, leases[1]) == {leases[1].delivery: "done"}
        conn.execute("set lock_timeout = '2s'")
        held = renew(conn, worker)
        assert [held[lease.delivery][1] > 200 for lease in leases] == [True, False, True]


def test_progress_does_not_wait_for_who_settles(conn: Conn) -> None:
    """In whichever order jobs report: nobody who waits, no deadlock. What is passed over is said again soon."""
    for n in range(3):
        enqueue(conn, n=n)
    leases = claim(conn, 3).jobs
    stranger = Lease(**{**vars(leases[0]), "token": leases[0].token + 1000})
    asked = [leases[2], stranger, leases[1], leases[0]]
    params = {
        "deliveries": [each.delivery for each in asked],
        "tokens": [each.token for each in asked],
        "progress": [f'{{"message": "{n}"}}' for n in range(4)],
    }
    with psycopg.connect(conn.info.dsn) as settling:
        settling.execute("select 1 from outrider.job where id = %s for update", [leases[1].delivery])
        conn.execute("set lock_timeout = '100ms'")
        conn.execute(PROGRESS, params)
    said = {each["id"]: (each["progress"] or {}).get("message") for each in sqljobs.jobs(conn)}
    assert said == {leases[0].delivery: "3", leases[1].delivery: None, leases[2].delivery: "0"}
    conn.execute(PROGRESS, params)
    assert job(conn, leases[1].delivery)["progress"] == {"message": "2"}


def test_lapsed_when_its_worker_was_seen_since(conn: Conn) -> None:
    serve(conn, worker := uuid4(), "mail.send")
    enqueue(conn)
    (lease,) = claim(conn, worker=worker).jobs
    expire(conn, lease)
    serve(conn, worker, "mail.send")
    assert reap(conn) == 1
    row = job(conn, lease.delivery)
    assert (row["attempts"], row["crashes"], row["last_error_code"]) == (0, 0, "lease_lost")
    assert codes(conn, lease.delivery) == [(1, "lease_lost")]


@pytest.mark.parametrize("known", [False, True], ids=["no row", "not seen since"])
def test_crashed_when_its_worker_was_not(conn: Conn, known: bool) -> None:
    worker = uuid4()
    enqueue(conn)
    (lease,) = claim(conn, worker=worker).jobs
    if known:
        serve(conn, worker, "mail.send", ago=60)
    expire(conn, lease)
    assert reap(conn) == 1
    row = job(conn, lease.delivery)
    assert (row["attempts"], row["crashes"], row["last_error_code"]) == (0, 1, "worker_crash")
    assert row["failure_history"][0]["worker"] == str(worker)


def test_a_dead_workers_jobs_are_reaped_at_once(conn: Conn) -> None:
    dead, alive = uuid4(), uuid4()
    for n in range(4):
        enqueue(conn, n=n)
    claim(conn, 2, worker=dead)
    claim(conn, 2, worker=alive)
    assert reap(conn, worker=dead) == 2
    assert [(row["status"], row["crashes"]) for row in sqljobs.jobs(conn)] == [("pending", 1)] * 2 + [
        ("in_flight", 0)
    ] * 2
    assert reap(conn, ["mail.none"], worker=alive) == 0


def test_three_crashes_bury_with_the_whole_history(conn: Conn) -> None:
    enqueue(conn)
    workers = [uuid4() for _ in range(3)]
    for crashes, worker in enumerate(workers):
        (lease,) = claim(conn, worker=worker).jobs
        assert (lease.attempt, lease.crashes) == (1, crashes)
        expire(conn, lease)
        assert reap(conn) == 1
    row = job(conn, lease.delivery)
    assert (row["status"], row["last_error_code"], row["crashes"]) == ("failed", "worker_crash", 3)
    assert [(entry["code"], entry["worker"]) for entry in row["failure_history"]] == [
        ("worker_crash", str(worker)) for worker in workers
    ]
    assert replay(conn, lease.delivery) == ["replayed"]
    assert (one(conn).crashes, job(conn, lease.delivery)["cycle"]) == (0, 2)


def test_an_honest_failure_clears_the_suspicion(conn: Conn) -> None:
    enqueue(conn)
    expire(conn, one(conn))
    suspect = one(conn)
    assert suspect.crashes == 1
    assert fail(conn, suspect) == "retry"
    assert one(conn).crashes == 0


def test_suspects_one_at_a_time(conn: Conn) -> None:
    register(conn, "mail.other")
    names = ["mail.other", "mail.send"]
    worker = uuid4()
    for n in range(3):
        enqueue(conn, n=n)
        enqueue(conn, "mail.other", n)
    assert len(claim(conn, 6, names, worker=worker).jobs) == 6
    assert reap(conn, names, worker=worker) == 6
    for n in range(3):
        enqueue(conn, n=f"healthy {n}")
    assert claim(conn, 9, names, suspect=False).names == ["healthy 0", "healthy 1", "healthy 2"]
    for _ in range(6):
        (lease,) = claim(conn, 9, names).jobs
        assert lease.crashes == 1
        done(conn, lease)
    assert not claim(conn, 9, names).jobs


def test_a_suspect_needs_room_too(conn: Conn) -> None:
    register(conn, "mail.keyed", concurrency=2, key_concurrency=1)
    names = ["mail.keyed"]
    worker = uuid4()
    enqueue(conn, "mail.keyed", "suspect", key="k")
    claim(conn, 1, names, worker=worker)
    reap(conn, names, worker=worker)
    enqueue(conn, "mail.keyed", "same key", key="k")
    enqueue(conn, "mail.keyed", "other key", key="l")
    enqueue(conn, "mail.keyed", "third key", key="m")
    assert claim(conn, 9, names, suspect=False).names == ["same key", "other key"]
    assert not claim(conn, 9, names).jobs
    sound(conn)


def test_the_suspect_counts_against_the_limits(conn: Conn) -> None:
    register(conn, "mail.keyed", concurrency=2, key_concurrency=1)
    names = ["mail.keyed"]
    worker = uuid4()
    enqueue(conn, "mail.keyed", "suspect", key="k")
    claim(conn, 1, names, worker=worker)
    reap(conn, names, worker=worker)
    for n, key in enumerate(["k", "l", "m"]):
        enqueue(conn, "mail.keyed", n, key=key)
    assert sorted(map(str, claim(conn, 9, names).names)) == ["1", "suspect"]


def test_cancelled_before_it_runs(conn: Conn) -> None:
    pending, _ = enqueue(conn, ago=-100)
    assert cancel(conn, pending) == "cancelled"
    assert cancel(conn, pending) == "cancelled"
    assert run_now(conn, pending) == "cancelled"
    assert claim(conn).due_in is None
    (row,) = sqljobs.jobs(conn)
    assert (row["status"], row["last_error_code"]) == ("discarded", "cancelled")
    assert conn.execute("select count(*) from outrider.audit where action = 'cancel'").fetchone() == (1,)


def test_a_cancelled_dead_letter_is_none_any_more(conn: Conn) -> None:
    enqueue(conn)
    lease = one(conn)
    settle(conn, lease, "dead", code="ValueError", message="no")
    assert run_now(conn, lease.id) == "dead"
    assert cancel(conn, lease.id) == "cancelled"
    assert replay(conn, lease.delivery) == ["not_found"]
    assert replay(conn, lease.delivery, force=True) == ["replayed"]
    assert one(conn).attempt == 1


@pytest.mark.parametrize(
    ("verdict", "told", "status"),
    [
        ("later", "cancelled", "discarded"),
        ("back", "cancelled", "discarded"),
        ("lapsed", "cancelled", "discarded"),
        ("crashed", "cancelled", "discarded"),
        ("cancelled", "cancelled", "discarded"),
        ("dead", "buried", "failed"),
    ],
)
def test_cancelled_while_it_runs(conn: Conn, verdict: str, told: str, status: str) -> None:
    """The worker hears of it by its next claim or renewal; it does not come back, however it ends."""
    enqueue(conn)
    worker = uuid4()
    (lease,) = claim(conn, worker=worker).jobs
    assert cancel(conn, lease.id) == "cancelling"
    assert renew(conn, worker)[lease.delivery][2] is True
    assert claim(conn, worker=worker).cancelled == [lease.delivery]
    assert claim(conn).cancelled == []
    assert run_now(conn, lease.id) == "running"
    assert settle(conn, lease, verdict, code="ValueError", message="no") == told
    assert job(conn, lease.delivery)["status"] == status
    sound(conn)


def test_done_although_cancelled(conn: Conn) -> None:
    enqueue(conn)
    lease = one(conn)
    cancel(conn, lease.id)
    assert done(conn, lease, result=1) == {lease.delivery: "done"}
    assert cancel(conn, lease.id) == "done"
    assert run_now(conn, lease.id) == "done"
    assert (cancel(conn, uuid4()), run_now(conn, uuid4())) == ("not_found", "not_found")


def test_the_history_of_failures_is_capped(conn: Conn) -> None:
    enqueue(conn)
    for _ in range(103):
        lease = one(conn)
        fail(conn, lease)
    history = job(conn, lease.delivery)["failure_history"]
    assert [entry["attempt"] for entry in history] == list(range(4, 104))


KEYED = "mail.keyed"


@pytest.mark.parametrize("end", ["done", *VERDICTS, "reap", "worker", "cancel", "replay", "unique", "discarded"])
@pytest.mark.parametrize("key_concurrency", [1, 2])
def test_nothing_is_left_waiting(conn: Conn, end: str, key_concurrency: int) -> None:
    """However the running ones end, the waiting ones come, each in its turn."""
    register(conn, KEYED, key_concurrency=key_concurrency)
    worker = uuid4()
    for n in range(key_concurrency):
        enqueue(conn, KEYED, n, key="k", unique_key=f"u{n}")
    for n in range(3):
        enqueue(conn, KEYED, f"waits {n}", key="k")
    running = claim(conn, 9, [KEYED], worker=worker).jobs
    assert len(running) == key_concurrency
    assert sum(row["waits_for"] == "key" for row in sqljobs.jobs(conn)) == 3
    for lease in running:
        match end:
            case "done":
                done(conn, lease)
            case "reap":
                expire(conn, lease)
                assert reap(conn, [KEYED]) == 1
            case "worker":
                reap(conn, [KEYED], worker=worker)
            case "cancel":
                cancel(conn, lease.id)
                settle(conn, lease, "back")
            case "replay":
                settle(conn, lease, "dead", code="ValueError", message="no")
                assert replay(conn, lease.delivery) == ["replayed"]
            case "unique":
                enqueue(conn, KEYED, "newer", unique_key=f"u{lease.payload['n']}", key="other")
                assert fail(conn, lease) == "superseded"
            case "discarded":
                settle(conn, lease, "dead", code="ValueError", message="no")
                conn.execute("select outrider.discard(%s)", [[lease.delivery]])
            case verdict:
                assert settle(conn, lease, verdict, delay=1000, code="ValueError", message="no")
        sound(conn)
    seen: set[object] = set()
    while jobs := claim(conn, 9, [KEYED]).jobs:
        sound(conn)
        seen |= {lease.payload["n"] for lease in jobs}
        done(conn, *jobs)
    assert {"waits 0", "waits 1", "waits 2"} <= seen


@pytest.mark.parametrize("how", ["replace", "debounce", "cancel"])
def test_who_leaves_a_key_lets_the_next_come(conn: Conn, how: str) -> None:
    """The first of its key, which others went before: it gets another key, or goes."""
    register(conn, KEYED, key_concurrency=1)
    first, _ = enqueue(conn, KEYED, "first", key="k", unique_key="u")
    enqueue(conn, KEYED, "second", key="k")
    for n in range(2):
        enqueue(conn, KEYED, n, priority=9)
    assert claim(conn, 2, [KEYED]).names == [0, 1]
    if how == "cancel":
        cancel(conn, first)
    else:
        assert enqueue(conn, KEYED, "first", key="l", unique_key="u", on_conflict=how)[1] == how.rstrip("e") + "ed"
    sound(conn)
    assert "second" in claim(conn, 9, [KEYED]).names


def test_without_admitting_a_key_is_stranded(conn: Conn) -> None:
    """Broken on purpose."""
    conn.execute(changed("admit", ("set waits_for = null", "set waits_for = 'key'")).encode())
    register(conn, KEYED, key_concurrency=1)
    for n in range(2):
        enqueue(conn, KEYED, n, key="k")
    (lease,) = claim(conn, 9, [KEYED]).jobs
    done(conn, lease)
    assert not claim(conn, 9, [KEYED]).jobs


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"key_concurrency": 1}], ids=str)
def test_room_wakes_a_suspect_too(conn: Conn, database: str, limits: dict[str, Any]) -> None:
    register(conn, "mail.send", **limits)
    serve(conn, worker := uuid4(), "mail.send")
    enqueue(conn, n="suspect", key="k", ago=5)
    claim(conn, worker=worker)
    reap(conn, worker=worker)
    enqueue(conn, n="healthy", key="k")
    [job] = claim(conn, 1, suspect=False).jobs
    assert claim(conn, 1).jobs == []
    with psycopg.connect(database, autocommit=True) as hearing:
        hearing.execute("listen outbox_default")
        done(conn, job)
        assert [each.payload for each in hearing.notifies(timeout=60, stop_after=1)] == ["mail.send"]


@pytest.mark.parametrize("what", ["retry", "buried", "resume", "resume all", "limits", "moved", "farewell"])
def test_who_sleeps_hears_of_what_may_be_claimed(conn: Conn, database: str, what: str) -> None:
    """Though nothing was enqueued: of a retry that its worker may have no room for, of room, of what rested."""
    register(conn, "mail.send", concurrency=1 if what == "buried" else None)
    serve(conn, worker := uuid4(), "mail.send")
    if what in ("resume", "resume all"):
        conn.execute("select outrider.pause_all()" if what == "resume all" else "select outrider.pause('mail.send')")
    else:
        enqueue(conn)
        conn.execute("update outrider.job set crashes = 2")
        [lease] = claim(conn, worker=worker).jobs
        enqueue(conn, generation=7 if what == "moved" else 0)
    with psycopg.connect(database, autocommit=True) as hearing:
        hearing.execute("listen outbox_default")
        match what:
            case "retry":
                assert fail(conn, lease, delay=1000) == "retry"
            case "buried":
                assert reap(conn, worker=worker) == 1
            case "resume":
                conn.execute("select outrider.resume('mail.send')")
            case "resume all":
                conn.execute("select outrider.resume_all()")
            case "limits":
                register(conn, "mail.send", concurrency=2)
            case "moved":
                conn.execute("select outrider.move_generation(7, 0)")
            case _:
                serve(conn, leaving := uuid4(), "mail.send", generation=1)
                conn.execute(FAREWELL, {"id": leaving})
        assert "mail.send" in [each.payload for each in hearing.notifies(timeout=60, stop_after=1)]


@pytest.mark.parametrize("limits", [{}, {"concurrency": 9}, {"key_concurrency": 9}], ids=str)
@pytest.mark.parametrize("crashes", [0, 1])
def test_what_somebody_holds_is_looked_for_again_soon(
    conn: Conn, database: str, limits: dict[str, Any], crashes: int
) -> None:
    """Whoever lets go of it without a change tells nobody."""
    register(conn, "mail.send", **limits)
    enqueue(conn, key="k")
    conn.execute("update outrider.job set crashes = %s", [crashes])
    with psycopg.connect(database) as holding:
        holding.execute("select from outrider.job for key share")
        found = claim(conn, 2)
    assert (found.jobs, found.due_in) == ([], 1)
    assert len(claim(conn, 2).jobs) == 1


def test_what_there_is_no_room_for_is_not_looked_for(conn: Conn) -> None:
    """Its worker says when there is."""
    register(conn, "mail.send", concurrency=1)
    for _ in range(2):
        enqueue(conn)
    found = claim(conn, 2)
    assert (len(found.jobs), found.due_in) == (1, None)


def test_a_key_is_not_stranded_by_who_keeps_its_next_job(conn: Conn, database: str) -> None:
    register(conn, KEYED, key_concurrency=1)
    enqueue(conn, KEYED, "first", key="k")
    enqueue(conn, KEYED, "second", key="k", unique_key="u")
    [lease] = claim(conn, 9, [KEYED]).jobs
    with psycopg.connect(database) as producer:
        assert enqueue(producer, KEYED, "third", key="k", unique_key="u")[1] == "kept"
        done(conn, lease)
        assert claim(conn, 9, [KEYED]).jobs == [], "it shall see what the producer writes"
        producer.commit()
    assert claim(conn, 9, [KEYED]).names == ["second"]
