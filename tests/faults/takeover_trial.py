"""Three old systems under load are taken over by the commands of docs/takeover.md, each command killed at every point.

`python -m tests.faults.takeover_trial` prints what went in and what came out. A subclass of `Trial` is one old system: its
table, its producers, its own dispatcher, and the app that takes it over.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
from redis import Redis
from tests.brokers import RedisServer
from tests.preloaded import Preloaded
from tests.processes import clean

from outrider.postgres.embedded import Embedded

ROOT = Path(__file__).parents[2]
KILLED = str(Path(__file__).with_name("takeover_killed.py"))
PRODUCERS = 4
DEADLINE = 120.0
PAUSE = 0.01
LEASE = 0.7
"""Seconds for which a worker of the old job queue has a row."""
MOST_POINTS = 400


@dataclass
class TrialResult:
    system: str
    rows: int
    by_old: int
    by_outrider: int
    lost: int
    doubled: int
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def exact(self) -> bool:
        return (self.lost, self.doubled) == (0, 0) and min(self.by_old, self.by_outrider) > 0

    def line(self) -> str:
        kills = ", ".join(f"{verb} {number}" for verb, number in self.kills.items())
        return (
            f"| {self.system} | {self.rows:,} | {self.by_old:,} | {self.by_outrider:,} | {self.lost} | {self.doubled} | "
            f"{kills} |"
        )


HEAD = """| old system | rows in | out by the old dispatcher | out by Outrider | lost | doubled | kills |
|---|---|---|---|---|---|---|"""


class Trial(ABC):
    system: ClassVar[str]
    table: ClassVar[str]
    ddl: ClassVar[str]
    unclaimed: ClassVar[str]
    """Rows that are still to be dispatched, and that no old worker has."""
    program: ClassVar[str]
    """The app that takes over, as the page declares it."""

    def __init__(self, dsn: str, folder: Path, preloaded: Preloaded, *, stride: int = 1, seed: int = 1) -> None:
        self.dsn, self.folder, self.stride = dsn, folder, stride
        self._preloaded = preloaded
        self._random = random.Random(seed)
        self._numbers = count(1)
        self.committed: list[str] = []
        self.kills: Counter[str] = Counter()
        self._env = clean() | {"OUTRIDER_DSN": dsn, "OUTRIDER_APP": "old:app", "PYTHONPATH": str(ROOT)}

    # The old system

    @abstractmethod
    def insert(self, conn: psycopg.Connection, number: str) -> None: ...

    @abstractmethod
    def dispatch(self, conn: psycopg.Connection) -> bool:
        """One round of the old dispatcher. False: there was nothing to do."""

    def produce(self, over: threading.Event) -> None:
        chance = random.Random(self._random.random())
        with psycopg.connect(self.dsn) as conn:
            while not over.is_set():
                numbers = [str(next(self._numbers)) for _ in range(chance.randint(1, 3))]
                for number in numbers:
                    self.insert(conn, number)
                over.wait(chance.choice([0, 0.005, 0.02, 0.3]))  # the transaction stays open
                if chance.random() < 0.15:
                    conn.rollback()
                else:
                    conn.commit()
                    self.committed += numbers
                over.wait(0.02)  # slower than rows are brought

    def run_dispatcher(self, over: threading.Event) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while not over.is_set():
                if not self.dispatch(conn):
                    over.wait(PAUSE)

    @contextmanager
    def running(self, *targets: Callable[[threading.Event], None]) -> Iterator[None]:
        """Threads that end with the block. What one of them has begun, it finishes."""
        over, failed = threading.Event(), list[BaseException]()

        def guarded(target: Callable[[threading.Event], None]) -> None:
            try:
                target(over)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=[each]) for each in targets]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in threads:
                each.join()
        if failed:
            raise failed[0]

    def producing(self) -> Any:
        return self.running(*[self.produce] * PRODUCERS)

    def dispatching(self) -> Any:
        return self.running(self.run_dispatcher)

    # The commands

    def run(self, *arguments: str) -> str:
        done = self._preloaded.run(["outrider", *arguments], self.folder, self._env)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def until_done(self, *arguments: str) -> None:
        """Killed at one point after the other, until it ends by itself."""
        verb = " ".join(each for each in arguments[:2] if each != "takeover")
        for point in range(self._random.randrange(self.stride), MOST_POINTS, self.stride):
            done = self._preloaded.run(["python", KILLED, str(point), *arguments], self.folder, self._env)
            if done.returncode != -signal.SIGKILL:
                break
            self.kills[verb] += 1
        done_before = "nothing to abort, the phase is not started" in done.stderr  # it had committed when it died
        assert done.returncode == 0 or done_before, (arguments, done.stdout, done.stderr)

    def takeover(self, verb: str, *options: str) -> None:
        self.until_done("takeover", verb, f"public.{self.table}", *options)

    @contextmanager
    def worker(self) -> Iterator[None]:
        command = [sys.executable, "-P", "-m", "outrider", "worker", "--grace", "20s"]
        with (self.folder / "worker.log").open("w") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self._env, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                process.wait(timeout=DEADLINE)

    def drain(self) -> None:
        code = (
            "import asyncio, old\nasync def main():\n  async with old.app: await old.app.drain()\nasyncio.run(main())"
        )
        done = self._preloaded.run(["python", "-c", code], self.folder, self._env)
        assert done.returncode == 0, done.stderr

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute(query.encode()).fetchall()

    def await_more(self, query: str, more: int = 20) -> None:
        """Until the number that the query returns has grown."""
        [(before,)] = self.ask(query)
        deadline = time.monotonic() + DEADLINE
        while self.ask(query)[0][0] < before + more:
            assert time.monotonic() < deadline, f"{query} has not grown by {more}"
            time.sleep(PAUSE)

    def none_is_left(self) -> None:
        """After the cut-over there is no row that nobody has, whoever was about to commit it."""
        left = self.ask(self.unclaimed)
        assert not left, f"left to nobody: {left[:5]}"

    def setup(self) -> None:
        (self.folder / "old.py").write_text(self.program.format(**vars(self)))
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(self.ddl.encode())
            conn.execute("create table effect (number text not null, by text not null)")
        self.run("migrate")

    @abstractmethod
    def play(self) -> TrialResult: ...

    def result(self, effects: list[tuple[str, str]]) -> TrialResult:
        out = Counter(number for number, _ in effects)
        by = Counter(by for _, by in effects)
        strange = set(out) - set(self.committed)
        assert not strange, f"never committed: {sorted(strange)[:5]}"
        lost, doubled = len(set(self.committed) - set(out)), sum(number - 1 for number in out.values())
        return TrialResult(self.system, len(self.committed), by["old"], by["new"], lost, doubled, self.kills)


OLD_EFFECTS = "select count(*) from effect where by = 'old'"
NEW_EFFECTS = "select count(*) from effect where by = 'new'"


class OutboxTrial(Trial):
    """The old dispatcher reads, sends and then marks, without a lock on the row."""

    system = "an outbox with `published_at`"
    table = "orders_outbox"
    unclaimed = "select id, order_id from orders_outbox where published_at is null"
    ddl = """create table orders_outbox (id bigint generated always as identity primary key, topic text not null,
        order_id text, body json not null, created_at timestamptz not null default now(), published_at timestamptz)"""
    program = """
from outrider import Event, HandlerContext, Outrider

class OrderPlaced(Event, type="orders.placed", key="order_id"):
    order_id: str

app = Outrider(context="shop")
app.takeover("public.orders_outbox", type="case topic when 'OrderPlaced' then 'orders.placed' end", key="order_id",
    payload="body", occurred_at="created_at", owed="published_at is null", done="published_at = now()")

@app.handler(OrderPlaced, name="shop.effect", start="beginning")
async def effect(event: OrderPlaced, ctx: HandlerContext) -> None:
    await ctx.tx.execute("insert into effect values (%s, 'new')", [event.order_id])
"""

    def insert(self, conn: psycopg.Connection, number: str) -> None:
        query = """insert into orders_outbox (topic, order_id, body)
            values ('OrderPlaced', %s, json_build_object('order_id', %s::text))"""
        conn.execute(query, [number, number])

    def dispatch(self, conn: psycopg.Connection) -> bool:
        query = "select id, order_id from orders_outbox where published_at is null order by id limit 1"
        rows = conn.execute(query).fetchall()
        for row, number in rows:
            self.send(conn, number)
            conn.execute("update orders_outbox set published_at = now() where id = %s", [row])
        return bool(rows)

    def send(self, conn: psycopg.Connection, number: str) -> None:
        conn.execute("insert into effect values (%s, 'old')", [number])

    def play(self) -> TrialResult:
        self.setup()
        with self.producing(), self.worker():
            with self.dispatching():
                self.await_more(OLD_EFFECTS)
                self.takeover("plan")
                self.takeover("start")
                self.takeover("abort")
                self.takeover("start")
            self.takeover("cutover")
            self.await_more(NEW_EFFECTS)
            self.none_is_left()
            self.takeover("abort")  # all goes back
            with self.dispatching():
                self.await_more(OLD_EFFECTS)
                self.takeover("start")
            self.takeover("cutover")
            self.await_more(NEW_EFFECTS)
            self.none_is_left()
        self.takeover("finish", "--force")
        self.drain()
        return self.result(self.ask("select number, by from effect"))


class JobsTrial(Trial):
    """Old workers lease rows; some die with a lease in hand. Effect and mark of an old worker are one transaction."""

    system = "a job queue with leases"
    table = "enrichment_outbox"
    unclaimed = "select id, item from enrichment_outbox where status = 'pending'"
    ddl = """create table enrichment_outbox (id uuid primary key default gen_random_uuid(), item text not null,
        status text not null default 'pending', attempts int not null default 0, locked_by text,
        lease_expires_at timestamptz, created_at timestamptz not null default clock_timestamp())"""
    program = """
from outrider import Job, JobContext, Outrider

class EnrichItem(Job, type="archive.enrich_item", key="item"):
    item: str

app = Outrider(context="vault")
app.takeover("public.enrichment_outbox", job=EnrichItem, payload="jsonb_build_object('item', item)", key="item",
    owed="status in ('pending', 'processing')", free="status = 'pending' or lease_expires_at < now()",
    done="status = 'taken_over'", order="created_at, id")

@app.job(EnrichItem)
async def enrich(job: EnrichItem, ctx: JobContext) -> None:
    async with app.connect() as conn:
        await conn.execute("insert into effect values (%s, 'new')", [job.item])
"""

    def insert(self, conn: psycopg.Connection, number: str) -> None:
        conn.execute("insert into enrichment_outbox (item) values (%s)", [number])

    def dispatch(self, conn: psycopg.Connection) -> bool:
        me = str(uuid4())
        claim = """update enrichment_outbox set status = 'processing', attempts = attempts + 1, locked_by = %s,
            lease_expires_at = now() + make_interval(secs => %s)
            where id = (select id from enrichment_outbox
                        where status = 'pending' or (status = 'processing' and lease_expires_at < now())
                        order by created_at, id limit 1 for update skip locked) returning id, item"""
        rows = conn.execute(claim, [me, LEASE]).fetchall()
        for row, number in rows:
            if random.random() < 0.1:
                continue  # it dies: the lease stays
            with conn.transaction():
                done = """update enrichment_outbox set status = 'done'
                    where id = %s and locked_by = %s and status = 'processing'"""
                if conn.execute(done, [row, me]).rowcount:
                    conn.execute("insert into effect values (%s, 'old')", [number])
        return bool(rows)

    def dispatching(self) -> Any:
        return self.running(*[self.run_dispatcher] * 2)

    def play(self) -> TrialResult:
        self.setup()
        with self.producing(), self.worker():
            with self.dispatching():
                self.await_more(OLD_EFFECTS)
                self.takeover("plan")
                self.takeover("start")
                self.takeover("abort")
                self.takeover("start")
            self.takeover("cutover")
            self.await_more(NEW_EFFECTS)
            self.none_is_left()
            self.takeover("abort")
            with self.dispatching():
                self.await_more(OLD_EFFECTS)
                self.takeover("start")
                self.takeover("cutover")  # beside old workers: leases decide
            self.await_more(NEW_EFFECTS)
            self.none_is_left()
        leased = "select from enrichment_outbox where status = 'processing' and lease_expires_at >= now()"
        while self.ask(leased):
            time.sleep(PAUSE)
        self.takeover("finish", "--force")
        self.drain()
        return self.result(self.ask("select number, by from effect"))


class StreamTrial(OutboxTrial):
    """The old dispatcher drains the outbox to a Redis stream; a reader follows the stream all the time.

    It dies once between its XADD and its mark.
    """

    system = "a Redis stream and its reader"
    program = """
import json
from uuid import UUID
from outrider import Event, Outrider
from outrider.envelope import Envelope
from outrider.streams.redis import RedisStreams

class OrderPlaced(Event, type="orders.placed", key="order_id"):
    order_id: str

class OldEntries:
    content_type = "application/json"

    def encode(self, envelope, position):
        return json.dumps({{"order_id": envelope.payload["order_id"], "id": str(envelope.id)}}).encode()

    def decode(self, data):
        raise NotImplementedError

    def id_of(self, data):
        found = json.loads(data).get("id")
        return None if found is None else UUID(found)

app = Outrider(context="shop")
app.relay("shop.out", RedisStreams("{url}", stream="orders", codec=OldEntries()), events=[OrderPlaced])
app.takeover("public.orders_outbox", type="case topic when 'OrderPlaced' then 'orders.placed' end", key="order_id",
    payload="body", occurred_at="created_at", owed="published_at is null", done="published_at = now()")
"""

    def __init__(self, *args: Any, url: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = url
        self.redis = Redis.from_url(url)
        self.seen: list[tuple[str, str]] = []
        """What the reader got: order and by whom."""

    def send(self, conn: psycopg.Connection, number: str) -> None:  # noqa: ARG002
        self.redis.xadd("orders", {"event": json.dumps({"order_id": number})})

    def read(self, over: threading.Event) -> None:
        last = "0"
        while True:
            ended = over.is_set()
            entries: Any = self.redis.xread({"orders": last}, block=50)
            for each, fields in entries[0][1] if entries else ():
                last, entry = each, json.loads(fields[b"event"])
                self.seen.append((entry["order_id"], "new" if "id" in entry else "old"))
            if ended and not entries:
                return

    def await_seen(self, by: str, more: int = 20) -> None:
        before, deadline = len(self.seen), time.monotonic() + DEADLINE
        while sum(each == by for _, each in self.seen[before:]) < more:
            assert time.monotonic() < deadline
            time.sleep(PAUSE)

    def die_before_the_mark(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            query = "select order_id from orders_outbox where published_at is null order by id limit 1"
            while not (rows := conn.execute(query).fetchall()):
                time.sleep(PAUSE)
            self.send(conn, rows[0][0])

    def compare(self) -> None:
        """As the page says: owed rows that are among the last entries of the stream are marked."""
        entries: Any = self.redis.xrevrange("orders", count=1000)
        sent = [json.loads(fields[b"event"])["order_id"] for _, fields in entries]
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(
                "update orders_outbox set published_at = now() where published_at is null and order_id = any(%s)",
                [sent],
            )

    def play(self) -> TrialResult:
        self.setup()
        with self.running(self.read):
            with self.producing():
                with self.dispatching():
                    self.await_seen("old")
                    self.takeover("plan")
                    self.takeover("start")
                    self.takeover("abort")
                    self.takeover("start")
                self.die_before_the_mark()
                self.compare()
                self.takeover("cutover")
                self.until_done("relay", "adopt", "shop.out", "orders", "--yes")
                with self.worker():
                    self.await_seen("new")
                    self.none_is_left()
            self.takeover("finish", "--force")
            self.drain()
        self.redis.close()
        return self.result(self.seen)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    with Embedded.temporary() as server, RedisServer() as redis, Preloaded() as preloaded:
        print(HEAD)
        trials: list[tuple[type[Trial], dict[str, Any]]] = [
            (OutboxTrial, {}),
            (JobsTrial, {}),
            (StreamTrial, {"url": redis.url}),
        ]
        for kind, options in trials:
            name = kind.__name__.lower()
            server.ensure_database(name)
            with tempfile.TemporaryDirectory() as folder:
                print(kind(server.dsn(name), Path(folder), preloaded, **options).play().line(), flush=True)


if __name__ == "__main__":
    main()
