"""The oracle of the fault tests: what was published, what came of it, and the invariants that must hold between the two.

The producer writes every attempt and its outcome to an fsynced file. Effects go to a table without a unique constraint,
so that doubles show; effects outside the database go to an append-only file. `blame` keeps what a delivery held while it
lived: attempts, suspicion, its end. After a scenario: heal, drain (`subject.heal`), then `check`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg

Outcome = Literal["ok", "failed", "unknown"]
Fact = tuple[str, int]
"""(key, n): the n-th event that a producer tried to publish for a key."""

SETUP = """
create table effect (at bigint generated always as identity, subscription text not null, key text not null,
                     n bigint not null, seq bigint not null, made_at timestamptz not null default clock_timestamp());
create table blame (at bigint generated always as identity, subscription text, seq bigint, attempts integer,
                    suspect boolean, status text, code text);
create function blame() returns trigger language plpgsql as $$
begin
    insert into public.blame (subscription, seq, attempts, suspect, status, code)
    values (new.subscription, new.seq, new.attempts, new.suspect, new.status, new.last_error_code);
    return null;
end $$;
create trigger blame after insert or update on outrider.delivery for each row
    when (new.attempts > 0 or new.suspect or new.status = 'failed') execute function blame();
"""
EFFECT = "insert into effect (subscription, key, n, seq) values (%s, %s, %s, %s)"

PENDING = "select count(*) from outrider.delivery where status = 'pending'"
STUCK = """
select format('%s %s: run_at %s', d.subscription, d.seq, d.run_at) from outrider.delivery as d
where d.status = 'pending' and d.head and d.run_at > now() + interval '1 minute'
union all
select format('%s %s: nothing before it in line %s', d.subscription, d.seq, d.ordering_key) from outrider.delivery as d
where d.status = 'pending' and not d.head and not exists (
    select from outrider.delivery as h
    where h.subscription = d.subscription and h.generation = d.generation and h.ordering_key = d.ordering_key
      and h.status = 'pending' and h.head)
union all
select format('%s %s: in flight, and handlers have no leases', d.subscription, d.seq) from outrider.delivery as d
where d.status = 'in_flight'
"""
SETTLED = """
select s.name, o.aggregate_id, o.seq, r.seq is not null, d.status, d.attempts, d.last_error_code, d.failure_history
from outrider.outbox as o
cross join outrider.subscription as s
left join outrider.event_handled as r
       on r.handler_name = s.name
      and r.idempotency_key = coalesce(
          coalesce(length(o.workspace_id) || ':' || o.workspace_id || ':', '') || o.event_type || ':'
              || o.idempotency_key, o.id::text)
left join outrider.delivery as d on d.subscription = s.name and d.seq = o.seq
where s.event_types is null or o.event_type = any (s.event_types)
"""
HELD = """
select format('session %s: %s: %s', pid, state, query) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
union all
select format('lock %s on %s by %s', mode, relation::regclass, pid) from pg_locks
where database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()
union all
select format('prepared transaction %s', gid) from pg_prepared_xacts where database = current_database()
"""


@dataclass
class Oracle:
    """One file of attempts, one of outside effects, in a folder of the test's own."""

    folder: Path
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def attempts_file(self) -> Path:
        return self.folder / "attempts.jsonl"

    @property
    def outside_file(self) -> Path:
        return self.folder / "outside.log"

    def next(self, key: str) -> Fact:
        self.counts[key] += 1
        return key, self.counts[key]

    def write(self, facts: Iterable[Fact], outcome: Outcome) -> None:
        """`unknown` before the commit is sent; the later word counts."""
        lines = "".join(json.dumps({"key": key, "n": n, "outcome": outcome}) + "\n" for key, n in facts)
        append(self.attempts_file, lines, sync=True)

    def attempts(self) -> dict[Fact, Outcome]:
        if not self.attempts_file.exists():
            return {}
        lines = map(json.loads, self.attempts_file.read_text().splitlines())
        return {(line["key"], line["n"]): line["outcome"] for line in lines}

    def outside(self) -> Counter[tuple[str, Fact]]:
        """How often each (subscription, fact) was seen outside the database."""
        if not self.outside_file.exists():
            return Counter()
        rows = [line.split("\t") for line in self.outside_file.read_text().splitlines()]
        return Counter((name, (key, int(n))) for name, key, n in rows)


def append(path: Path, text: str, *, sync: bool = False) -> None:
    """One write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def check(
    dsn: str,
    oracle: Oracle,
    *,
    dead: Collection[tuple[str, Fact]] = (),
    blameless: bool = False,
    unsuspected: bool = False,
    crashes: int | None = None,
    batch: int = 1000,
) -> None:
    """Asserts the invariants, each under its name in faults.md.

    `dead`: the dead letters that there must be, and no others. `blameless`: nothing was the handlers' fault, so that no
    attempt was ever used (I10). `unsuspected`: no worker died, so that no event may be under suspicion. `crashes`: how
    often workers died, which bounds what was done twice outside (I4).
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        named = f"{dsn.rpartition('dbname=')[2]}, {oracle.folder}"
        attempts, orders = oracle.attempts(), _orders(conn)
        effects: Counter[tuple[str, Fact]] = Counter()
        in_order: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for name, key, n, seq in conn.execute("select subscription, key, n, seq from effect order by at"):
            effects[name, (key, n)] += 1
            in_order[name, key].append((n, seq))
        _holds("I3 handled twice", [each for each, times in effects.items() if times > 1], named)
        for name, ordering in orders.items():
            done = {fact for subscription, fact in effects if subscription == name}
            buried = {fact for subscription, fact in dead if subscription == name}
            ok = {fact for fact, outcome in attempts.items() if outcome == "ok"}
            possible = {fact for fact, outcome in attempts.items() if outcome != "failed"}
            _holds(f"I1 {name}: lost", ok - done - buried, named)
            _holds(f"I2 {name}: never committed, or buried", done - (possible - buried), named)
            if ordering != "none":
                found = [key for (of, key), rows in in_order.items() if of == name and rows != sorted(set(rows))]
                _holds(f"I5 {name}: keys out of order", found, named)
        if crashes is not None:
            doubles = sum(times - 1 for times in oracle.outside().values())
            assert doubles <= crashes * batch, f"I4: {doubles} outside doubles after {crashes} crashes ({named})"
        _check_history(conn, dead, named)
        _holds("I7 pending", conn.execute(PENDING.replace("count(*)", "seq")).fetchall(), named)
        _check_blame(conn, blameless=blameless, unsuspected=unsuspected, named=named)
        _holds("I9 leaked", until(lambda: conn.execute(HELD.encode()).fetchall(), empty=True), named)


def stuck(dsn: str) -> list[str]:
    """I7 while something is owed: what nobody would ever come back to."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [row[0] for row in conn.execute(STUCK.encode()).fetchall()]


def until(look: Callable[[], Any], *, empty: bool = False, seconds: float = 30) -> Any:
    """Look until there is something (or nothing), or until it clearly stays as it is; what was seen last."""
    deadline = time.monotonic() + seconds
    while bool(found := look()) is empty and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _orders(conn: psycopg.Connection[Any]) -> dict[str, str]:
    return dict(conn.execute("select name, ordering from outrider.subscription where kind = 'handler'").fetchall())


def _check_history(conn: psycopg.Connection[Any], dead: Collection[tuple[str, Fact]], named: str) -> None:
    """I6: every event is handled or a dead letter with its full history."""
    letters: Counter[tuple[str, str]] = Counter()
    wrong = []
    for name, key, seq, handled, status, attempts, code, history in conn.execute(SETTLED.encode()):
        if handled and status is None:
            continue
        letters[name, key] += 1
        counted = [entry["attempt"] for entry in history or [] if entry["attempt"] > 0]
        complete = status == "failed" and history and history[-1]["code"] == code and counted[-1:] in ([], [attempts])
        if handled or not complete or counted != sorted(set(counted)):
            wrong.append((name, key, seq, handled, status, attempts, code, history))
    _holds("I6 neither handled nor a dead letter with its history", wrong, named)
    expected = Counter((name, key) for name, (key, _) in dead)
    assert letters == expected, f"I6: dead letters {+letters}, expected {+expected} ({named})"


def _check_blame(conn: psycopg.Connection[Any], *, blameless: bool, unsuspected: bool, named: str) -> None:
    query = "select distinct subscription, seq, attempts, suspect, status, code from blame where {} order by 1, 2"
    if blameless:
        rows = conn.execute(query.format("attempts > 0 or status = 'failed'").encode()).fetchall()
        _holds("I10 blamed", rows, named)
    if unsuspected:
        _holds("I10 suspected", conn.execute(query.format("suspect").encode()).fetchall(), named)


def _holds(invariant: str, violations: Collection[Any], named: str) -> None:
    shown = sorted(violations, key=str)[:5]
    assert not violations, f"{invariant}: {len(violations)} ({named}), first: {shown}"
