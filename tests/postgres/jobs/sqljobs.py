"""Jobs as their SQL sees them: the functions of the schema by name, and what must hold of their rows at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from outrider.postgres import statement
from outrider.postgres.jobs import SETTLED, ClaimRequest

Conn = psycopg.Connection[Any]
Row = dict[str, Any]

CLAIM = statement.call("claim", "outrider", ClaimRequest.__slots__)
SETTLE = statement.call("settle_jobs", "outrider", SETTLED)
RENEW = statement.call("renew", "outrider", ("worker", "names"))

WRONG = {
    "a lease that is nobody's, or two": """
        select id from outrider.job
        where (status = 'in_flight') <> (lease_token is not null and lease_expires_at is not null and locked_by is not null
                                         and locked_at is not null)""",
    "two pending jobs with one unique key": """
        select subscription, unique_key from outrider.job
        where status = 'pending' and unique_key is not null and not closed
        group by subscription, unique_key, seq is null having count(*) > 1""",
    "two jobs of one event's key": """
        select subscription, unique_key from outrider.job
        where status in ('pending', 'in_flight') and unique_key is not null and seq is not null
        group by 1, 2 having count(*) > 1""",
    "more running than the type may": """
        select s.name, count(*) from outrider.job as d join outrider.subscription as s on s.name = d.subscription
        where d.status = 'in_flight' group by s.name having count(*) > s.concurrency""",
    "more running than the key may": """
        select s.name, d.job_key, count(*) from outrider.job as d
        join outrider.subscription as s on s.name = d.subscription
        where d.status = 'in_flight' and d.job_key is not null
        group by s.name, d.job_key having count(*) > s.key_concurrency""",
    "something waits that is not pending": "select id from outrider.job where waits_for is not null and status <> 'pending'",
    "a job that may be claimed before its time": """
        select id from outrider.job where status = 'pending' and waits_for is null and run_at > clock_timestamp()""",
    "a dead letter without its time, or the time without it": """
        select id from outrider.job
        where status = 'failed' and buried_at is null or status in ('pending', 'in_flight') and buried_at is not null""",
    "somebody wants to stop what does not run": """
        select id from outrider.job where cancelled_at is not null and status <> 'in_flight'""",
    "three crashes and still tried": """
        select id from outrider.job where crashes >= 3 and status in ('pending', 'in_flight')""",
    "attempts that the history does not tell of": """
        select d.id, d.attempts, told.failures from outrider.job as d
        cross join lateral (
            select count(*) as failures from jsonb_array_elements(coalesce(d.failure_history, '[]')) as h
            where (h ->> 'cycle')::integer = d.cycle and h ->> 'code' = 'ValueError') as told
        where d.status in ('pending', 'in_flight') and d.attempts - (d.status = 'in_flight')::integer > told.failures
          and jsonb_array_length(coalesce(d.failure_history, '[]')) < 100""",
}


@dataclass(frozen=True)
class Lease:
    """A job in the hands of a worker."""

    delivery: int
    token: int
    job_type: str
    id: UUID
    attempt: int
    crashes: int
    queue: str
    payload: Any


@dataclass(frozen=True)
class Claim:
    """What a claim returned."""

    due_in: float | None
    cancelled: list[int]
    jobs: list[Lease] = field(default_factory=list)

    @property
    def names(self) -> list[Any]:
        return [job.payload["n"] for job in self.jobs]


def register(
    conn: Conn,
    name: str,
    *,
    concurrency: int | None = None,
    key_concurrency: int | None = None,
    lease: str | None = None,
    timeout: str | None = None,
    keep: str | None = None,
) -> None:
    conn.execute("select outrider.register(%s, 'job', 'mail', '{}')", [name])
    conn.execute(
        "select outrider.register_job(%s, %s, %s, %s, %s, %s)",
        [name, lease, timeout, concurrency, key_concurrency, keep],
    )


def enqueue(
    conn: Conn,
    job_type: str = "mail.send",
    n: object = 0,
    *,
    ago: float = 0,
    priority: int = 0,
    key: str | None = None,
    unique_key: str | None = None,
    on_conflict: str = "keep",
    queue: str = "default",
    generation: int = 0,
) -> tuple[UUID, str]:
    """The job's id, and what became of it. ago: so many seconds it has been due; negative, so many until it is."""
    row = conn.execute(
        """select (e).job_id, (e).outcome from (select outrider.enqueue_one(
               %s, %s, null, clock_timestamp() - %s * interval '1 second', %s, %s, %s, %s, %s,
               p_generation => %s) as e) as made""",
        [job_type, json.dumps({"n": n}), ago, priority, unique_key, on_conflict, queue, key, generation],
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def enqueue_many(conn: Conn, job_type: str, many: int, *, keys: Sequence[str | None] = (None,), lanes: int = 1) -> None:
    """So many due jobs, keys, queues and priorities in turn; numbered in the order in which they became due."""
    conn.execute(
        """insert into outrider.job (
               subscription, event_id, event_version, source, run_at, queue, priority, job_key, payload)
           select %s, gen_random_uuid(), 1, 'sql',
                  clock_timestamp() - interval '1 hour' + n * interval '1 millisecond',
                  ('{default,b,c,d}'::text[])[1 + n %% %s], n %% %s,
                  (%s::text[])[1 + n %% %s], jsonb_build_object('n', n)
           from generate_series(0, %s - 1) as n""",
        [job_type, lanes, lanes, list(keys), len(keys), many],
    )


def claim(
    conn: Conn,
    limit: int = 1,
    names: Iterable[str] = ("mail.send",),
    *,
    worker: UUID | None = None,
    generation: int = 0,
    queues: list[str] | None = None,
    suspect: bool = True,
    strict: bool = False,
) -> Claim:
    asked = {
        "worker": worker or uuid4(),
        "names": list(names),
        "limit": limit,
        "generation": generation,
        "queues": queues,
        "suspect": suspect,
        "strict": strict,
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        *rows, head = cursor.execute(CLAIM, asked).fetchall()
    assert head["delivery"] is None
    jobs = [
        Lease(
            r["delivery"],
            r["token"],
            r["subscription"],
            r["id"],
            r["attempt"],
            r["crashes"],
            r["queue"],
            None if r["payload"] is None else json.loads(r["payload"]),
        )
        for r in rows
    ]
    return Claim(head["head"].get("due_in"), head["head"]["stop"], jobs)


def done(conn: Conn, *jobs: Lease, result: object = None) -> dict[int, str]:
    """result: what each of them returned."""
    return settle_all(conn, jobs, [], names={job.job_type for job in jobs}, result=result)


def settle(conn: Conn, job: Lease, verdict: str, **details: Any) -> str | None:
    """What became of it; None: the lease was lost and nothing was written."""
    other = {"delivery": job.delivery, "token": job.token, "verdict": verdict, **details}
    return settle_all(conn, [], [other], names={job.job_type}).get(job.delivery)


def fail(conn: Conn, job: Lease, delay: float = 0) -> str | None:
    return settle(conn, job, "later", delay=delay, code="ValueError", message="no")


def settle_all(
    conn: Conn,
    ended: Sequence[Lease],
    others: list[Row],
    *,
    names: Iterable[str] = ("mail.send",),
    result: object = None,
) -> dict[int, str]:
    """What became of each, in one settlement: those that are done, and the others."""
    asked = {
        "names": sorted(names),
        "done": [job.delivery for job in ended],
        "tokens": [job.token for job in ended],
        "results": [None if result is None else json.dumps(result) for _ in ended],
        "others": json.dumps(others),
        "worker": "w",
    }
    landed = conn.execute(SETTLE, asked).fetchall()
    assert len(landed) == len({delivery for delivery, _ in landed})
    all_done = dict.fromkeys((job.delivery for job in ended), "done") if (None, "done") in landed else {}
    return all_done | {delivery: outcome for delivery, outcome in landed if delivery is not None}


def renew(conn: Conn, worker: UUID, names: Iterable[str] = ("mail.send",)) -> dict[int, tuple[int, float, bool]]:
    """Of each job that it holds: the token, the seconds of its lease, whether somebody wants it to stop."""
    rows = conn.execute(RENEW, {"worker": worker, "names": list(names)}).fetchall()
    return {delivery: (token, lease, cancelled) for delivery, token, lease, cancelled in rows}


def reap(conn: Conn, names: Iterable[str] = ("mail.send",), worker: UUID | None = None) -> int:
    row = conn.execute("select outrider.reap(%s, %s)", [list(names), worker]).fetchone()
    assert row is not None
    return int(row[0])


def expire(conn: Conn, *jobs: Lease) -> None:
    """Their leases ran out a moment ago."""
    conn.execute(
        "update outrider.job set lease_expires_at = clock_timestamp() - interval '1 second' where id = any (%s)",
        [[job.delivery for job in jobs]],
    )


def cancel(conn: Conn, job: UUID) -> str:
    row = conn.execute("select outcome from outrider.cancel(%s)", [job]).fetchone()
    assert row is not None
    return str(row[0])


def run_now(conn: Conn, job: UUID) -> str:
    row = conn.execute("select outcome from outrider.run_now(%s)", [job]).fetchone()
    assert row is not None
    return str(row[0])


def replay(conn: Conn, *deliveries: int, force: bool = False) -> list[str]:
    rows = conn.execute("select outcome from outrider.replay(%s, 'me', p_force => %s)", [list(deliveries), force])
    return [row[0] for row in rows]


def serve(conn: Conn, worker: UUID, *names: str, generation: int = 0, ago: float = 0) -> None:
    """A worker's own row, as of its last heartbeat."""
    conn.execute(
        """insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at)
           values (%s, 'h', 1, '1', %s, %s, clock_timestamp() - %s * interval '1 second')
           on conflict (id) do update set seen_at = excluded.seen_at""",
        [worker, generation, list(names), ago],
    )


def jobs(conn: Conn) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("select * from outrider.job order by id").fetchall()


def job(conn: Conn, delivery: int) -> Row:
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("select * from outrider.job where id = %s", [delivery]).fetchone()
    assert row is not None
    return row


def receipts(conn: Conn) -> list[UUID]:
    return [row[0] for row in conn.execute("select event_id from outrider.event_handled")]


def sound(conn: Conn) -> None:
    """What must hold between any two transactions."""
    for what, query in WRONG.items():
        found = conn.execute(query.encode()).fetchall()
        assert not found, f"{what}: {found}"
