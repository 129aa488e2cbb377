"""docs/jobs.md cannot lie: its program and its commands run, their output is compared, and its picture is walked.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_jobs.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.docs.test_recovery import BLOCK, Operator
from tests.postgres.jobs import sqljobs
from tests.postgres.roles.house import before
from tests.preloaded import Preloaded

import outrider
from outrider import Event, Job, JobContext, Outrider, RetryPolicy
from outrider.errors import SchemaMismatch
from outrider.postgres.statement import statement

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = "# run.py\n"
CALM = {r"\([\w.-]+:\d+:[0-9a-f]{8}\)": "(host:4711:edeeaa5a)"}


class Follower(Operator):
    def __init__(self, folder: Path, dsn: str, preloaded: Preloaded) -> None:
        super().__init__(folder, dsn, preloaded, long=True)
        self._env["COLUMNS"] = "110"

    def _run(self, command: str) -> str:
        said = super()._run(command)
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said)
        return said


@pytest.mark.verify
def test_the_page_says_what_happens(tmp_path: Path, empty_database: str, preloaded: Preloaded) -> None:
    page = PAGE.read_text()
    blocks = PROGRAM.findall(page)
    (tmp_path / "shop.py").write_text("\n\n".join(each for each in blocks if not each.startswith(RUN)))
    [program] = [each for each in blocks if each.startswith(RUN)]
    (tmp_path / "run.py").write_text(program)
    played = BLOCK.sub(Follower(tmp_path, empty_database, preloaded).follow, page)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        PAGE.write_text(played)
        return
    assert played == page


def test_the_sql_on_the_page_runs(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        for each in STATEMENT.findall(PAGE.read_text()):
            if not each.startswith("grant"):
                conn.execute(each.encode())
        [job] = sqljobs.jobs(conn)
    assert (job["subscription"], job["unique_key"], job["priority"]) == ("mail.send_receipt", "receipt-8", 5)


class Granted(Job, type="docs.granted_job", key="name"):
    name: str


class Wanted(Event, type="docs.wanted"):
    name: str


async def test_the_rights_that_an_application_had_are_enough(database: str) -> None:
    """A role without any other enqueues, works, retries, routes, runs now."""
    with psycopg.connect(database, autocommit=True) as owner:
        role = f"role_{owner.info.dbname}"
        limits = RetryPolicy(base="0s")
        ran: list[str] = []

        def declared(dsn: str) -> Outrider:
            app = Outrider(context="docs", dsn=dsn)

            @app.job(Granted, key_concurrency=1, retry=limits)
            async def work(job: Granted, ctx: JobContext) -> None:
                ran.append(job.name)
                if ctx.attempt == 1 and job.name == "failing":
                    raise ValueError("once")

            @app.job(on=Wanted, name="docs.wanting")
            async def want(event: Wanted) -> None:
                ran.append(event.name)

            return app

        async with declared(database) as app:
            await app.migrate()
        owner.execute(f"create role {role} login".encode())
        try:
            owner.execute(re.sub(r"\bapp\b", role, before("app")).encode())
            owner.execute(f"grant execute on function outrider.run_now to {role}".encode())
            owner.execute(statement("schema/inherit_grants", "outrider"))
            async with declared(make_conninfo(database, user=role)) as app:
                async with app.connect() as conn, conn.transaction():
                    await app.enqueue(conn, Granted(name="failing"))
                    await app.enqueue_many(conn, [Granted(name="many"), Granted(name="many")])
                    for way in ("keep", "replace"):
                        await app.enqueue(conn, Granted(name="unique"), unique_key="u", on_conflict=way)
                    await conn.execute("select outrider.enqueue('docs.granted_job', '{\"name\": \"sql\"}')")
                    later = await app.enqueue(conn, Granted(name="later"), delay="1h")
                    await app.publish(conn, Wanted(name="event"))
                assert [each.outcome for each in await app.jobs.run_now(later.id)] == ["due"]
                while len(ran) < 8:
                    await app.drain()
                async with app.worker():
                    pass
            assert sorted(ran) == ["event", "failing", "failing", "later", "many", "many", "sql", "unique"]
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_the_rights_that_a_producer_had_are_enough_and_no_more(database: str) -> None:
    app = Outrider(context="docs")
    with psycopg.connect(database, autocommit=True) as owner:
        role = f"role_{owner.info.dbname}"
        owner.execute(f"create role {role} login".encode())
        try:
            *few, last = re.sub(r"\bproducer\b", role, before("enqueuing")).splitlines()
            owner.execute("\n".join(few).encode())
            owner.execute(statement("schema/inherit_grants", "outrider"))  # as the next migration does
            async with await psycopg.AsyncConnection.connect(make_conninfo(database, user=role)) as conn:
                async with conn.transaction():
                    await app.enqueue_many(conn, [Granted(name="a"), Granted(name="b")])
                with pytest.raises(SchemaMismatch, match="enqueue_one"):
                    async with conn.transaction():
                        await app.enqueue(conn, Granted(name="c"), unique_key="u")
                owner.execute(last.encode())
                owner.execute(statement("schema/inherit_grants", "outrider"))
                outcomes = []
                for way in ("keep", "keep", "replace", "debounce"):
                    async with conn.transaction():
                        made = await app.enqueue(conn, Granted(name=way), unique_key="u", on_conflict=way, key=way)
                    outcomes.append(made.outcome)
                assert outcomes == ["created", "kept", "replaced", "debounced"]
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await conn.execute("select outrider.claim(gen_random_uuid(), '{docs.granted_job}', 1)")
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}".encode())


# The picture


class Life:
    """One job, and what can happen to it."""

    def __init__(self, conn: sqljobs.Conn) -> None:
        self.conn = conn
        self.worker = uuid4()
        self.lease: sqljobs.Lease | None = None
        self.verbs: dict[str, Callable[[], object]] = {
            "enqueue": lambda: sqljobs.enqueue(conn, unique_key="u"),
            "route": self._route,
            "claim": self._claim,
            "renew": self._renew,
            "settle": lambda: sqljobs.done(conn, self._held),
            "fail": lambda: sqljobs.fail(conn, self._held),
            "snooze": lambda: sqljobs.settle(conn, self._held, "later", delay=9, counted=False),
            "hand back": lambda: sqljobs.settle(conn, self._held, "back"),
            "lapse": self._lapse,
            "crash": lambda: sqljobs.reap(conn, worker=self.worker),
            "third crash": self._third_crash,
            "bury": lambda: sqljobs.settle(conn, self._held, "dead", code="no", message="no"),
            "supersede": self._supersede,
            "cancel": self._cancel,
            "discard": lambda: conn.execute("select outrider.discard(%s, 'me', 'no')", [[self.row["id"]]]),
            "replay": lambda: sqljobs.replay(conn, self.row["id"]),
            "replay by force": lambda: sqljobs.replay(conn, self.row["id"], force=True),
            "run now": self._run_now,
            **{
                way: lambda way=way: sqljobs.enqueue(conn, n=1, unique_key="u", on_conflict=way)  # type: ignore[misc]
                for way in ("replace", "debounce")
            },
        }
        self.ways: dict[str, tuple[str, ...]] = {
            "[*]": (),
            "pending": ("enqueue",),
            "in_flight": ("enqueue", "claim"),
            "failed": ("enqueue", "claim", "bury"),
            "discarded": ("enqueue", "cancel"),
        }
        """How it gets into each state."""

    @property
    def row(self) -> dict[str, Any]:
        return sqljobs.jobs(self.conn)[0]

    @property
    def state(self) -> str:
        if found := sqljobs.jobs(self.conn):
            return str(found[0]["status"])
        return "[*]" if self.lease is None else "gone"

    @property
    def _held(self) -> sqljobs.Lease:
        assert self.lease is not None
        return self.lease

    def _claim(self) -> None:
        [self.lease] = sqljobs.claim(self.conn, worker=self.worker).jobs

    def _renew(self) -> None:
        self.conn.execute("update outrider.job set lease_expires_at = now() + interval '1 second'")
        assert sqljobs.renew(self.conn, self.worker)[self._held.delivery][1] > 1

    def _run_now(self) -> None:
        self.conn.execute("update outrider.job set run_at = now() + interval '1 hour'")
        assert sqljobs.run_now(self.conn, self.row["event_id"]) == "due"
        assert self.conn.execute("select from outrider.job where run_at <= now()").rowcount == 1

    def _route(self) -> None:
        self.conn.execute(
            "select outrider.register('mail.welcome', 'job', 'mail', '{user.came}', p_start => 'beginning')"
        )
        self.conn.execute("select outrider.publish('user.came', '{}')")
        self.conn.execute("select outrider.route('mail.welcome', 9, 9, '{user.came}', 'default', 0)")

    def _lapse(self) -> None:
        sqljobs.expire(self.conn, self._held)
        sqljobs.serve(self.conn, self.worker, "mail.send")
        sqljobs.reap(self.conn)

    def _third_crash(self) -> None:
        for _ in range(2):
            assert sqljobs.reap(self.conn, worker=self.worker) == 1
            self._claim()
        sqljobs.reap(self.conn, worker=self.worker)

    def _supersede(self) -> None:
        sqljobs.enqueue(self.conn, unique_key="u")
        assert sqljobs.fail(self.conn, self._held) == "superseded"

    def _cancel(self) -> None:
        sqljobs.cancel(self.conn, UUID(str(self.row["event_id"])))
        if self.state == "in_flight":
            sqljobs.settle(self.conn, self._held, "cancelled")


def arrows() -> list[tuple[str, str, str]]:
    """From, verb, to, as the page draws them."""
    [picture] = PICTURE.findall(PAGE.read_text())
    drawn = re.findall(r"^ +(\S+) --> (\S+): (.*)$", picture, re.MULTILINE)
    return [(before, verb, after) for before, after, verbs in drawn for verb in verbs.split(", ")]


@pytest.mark.parametrize("arrow", arrows(), ids=lambda arrow: " ".join(arrow))
def test_every_arrow_leads_there(database: str, arrow: tuple[str, str, str]) -> None:
    before, verb, after = arrow
    with psycopg.connect(database, autocommit=True) as conn:
        sqljobs.register(conn, "mail.send")
        life = Life(conn)
        for step in life.ways[before]:
            life.verbs[step]()
        assert life.state == before
        changed = json.dumps(sqljobs.jobs(conn), default=str)
        life.verbs[verb]()
        assert life.state == after
        assert json.dumps(sqljobs.jobs(conn), default=str) != changed
        sqljobs.sound(conn)


def test_every_verb_is_drawn_and_explained(database: str) -> None:
    drawn = {verb for _, verb, _ in arrows()}
    with psycopg.connect(database) as conn:
        assert drawn == set(Life(conn).verbs)
    table = PAGE.read_text().partition("| verb | who | what |")[2].partition("\n\n")[0]
    explained = {verb for row in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for verb in row.split(", ")}
    assert drawn - {"third crash", "replay by force"} == explained


def test_the_table_of_retries_counts_right() -> None:
    table = PAGE.read_text().partition("| buried at attempt |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (?:`(.*?)`|the default) \|.*\| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) == 4
    for written, buried_at in rows:
        policy = eval(written or "DEFAULT_RETRY_POLICY", vars(outrider.retry))
        kept = [attempt for attempt in range(1, 100) if policy.delay(attempt, 1.0) is not None]
        assert kept == list(range(1, int(buried_at))), written
