"""Export and erase: no payload of the tenant is left in any table, its receipts hold, and nobody meets a hole."""

from __future__ import annotations

import asyncio
import json
import re
from getpass import getuser
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess

from outrider import Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy
from outrider.errors import TenantsRefused
from outrider.postgres.admin import tenants
from outrider.postgres.admin.tenants import Whose

pytestmark = pytest.mark.also_on(15)

NEVER = RetryPolicy(retries=0)
LATER = RetryPolicy(retries=3, base="1h", cap="1h", jitter="none")
TABLES = """
select relname from pg_class
where relnamespace = 'outrider'::regnamespace and relkind in ('r', 'p') and not relispartition order by 1
"""


REPLAYED = """
insert into outrider.stream_replayed (subscription, seq, event_id, event_type, payload, cycle, failure_history)
select 'erase.out', seq, id, event_type, payload, 1, jsonb_build_array(jsonb_build_object('message', payload ->> 'text'))
from outrider.outbox where aggregate_id = 'bob'
"""


class Note(Event, type="erase.note", key="about"):
    about: str
    text: str
    fate: str = "fine"


class Errand(Job, type="erase.errand", key="about"):
    about: str
    text: str


class Desk:
    """An app whose handlers do what an event says, and remember what they were given."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.met: list[str] = []
        self.broken = False
        self.app = Outrider(context="erase", dsn=dsn)

        @self.app.handler(Note, name="erase.ledger", retry=LATER)
        async def ledger(note: Note, ctx: HandlerContext) -> None:
            self.met.append(note.text)
            if note.fate == "later" and ctx.attempt == 1:
                raise RuntimeError(f"cannot read {note.text}")

        @self.app.handler(Note, name="erase.strict", retry=NEVER)
        async def strict(note: Note, ctx: HandlerContext) -> None:
            self.met.append(note.text)
            if note.fate == "dead":
                raise RuntimeError(f"cannot read {note.text}")

        @self.app.job(on=Note, name="erase.routed", retry=NEVER)
        async def routed(note: Note, ctx: JobContext) -> str:
            self.met.append(note.text)
            self.read(note.text)
            return f"did {note.text}"

        @self.app.job(Errand, retry=NEVER)
        async def errand(errand: Errand, ctx: JobContext) -> str:
            self.met.append(errand.text)
            ctx.progress(0.5, f"half of {errand.text}")
            self.read(errand.text)
            return f"did {errand.text}"

        for tenant in ("acme", "busy"):
            errand_of = Errand(about="ann", text=f"secret of {tenant}.ann, each year")
            self.app.schedule("0 3 1 1 *", errand_of, name=f"erase.yearly_{tenant}", workspace_id=tenant)

    def read(self, text: str) -> None:
        if self.broken:
            raise RuntimeError(f"cannot read {text}")

    def rows(self, query: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def left(self, text: str) -> dict[str, int]:
        found = {}
        with psycopg.connect(self.dsn) as conn:
            for (table,) in conn.execute(TABLES).fetchall():
                query = f"select count(*) from outrider.{table} as t where t::text like %s".encode()
                [[number]] = conn.execute(query, [f"%{text}%"]).fetchall()
                if number:
                    found[table] = number
        return found

    async def publish(self, tenant: str, about: str, fate: str = "fine", key: str | None = None) -> None:
        async with self.app.connect() as conn, conn.transaction():
            note = Note(about=about, text=f"secret of {tenant}.{about}", fate=fate)
            await self.app.publish(conn, note, workspace_id=tenant, idempotency_key=key, aggregate_kind="person")

    async def lived_in(self) -> None:
        """Two tenants with every kind of trace: handled, failed, edited, withdrawn, unread; jobs that wait and run."""
        await self.app.migrate()
        self.rows("select outrider.register('erase.reader', 'reader', 'erase', null, 1, 'beginning')")
        self.rows("select outrider.register('erase.out', 'relay', 'erase', null, 1, 'beginning')")
        for tenant in ("acme", "busy"):
            for about, fate in (("ann", "fine"), ("bob", "later"), ("cat", "dead"), ("dan", "dead")):
                await self.publish(tenant, about, fate, key=f"k-{about}")
        await self.app.drain()
        self.rows("select from outrider.take('erase.reader')")
        for tenant in ("acme", "busy"):
            [[cat]] = self.rows(
                "select id from outrider.outbox where workspace_id = %s and aggregate_id = 'cat'", [tenant]
            )
            edited = {"about": "cat", "text": f"secret of {tenant}.cat, edited", "fate": "dead"}
            await self.app.replay(cat, subscription="erase.strict", payload=edited)
            await self.app.drain()
            [[dan]] = self.rows(
                "select id from outrider.outbox where workspace_id = %s and aggregate_id = 'dan'", [tenant]
            )
            await self.app.withdraw(dan, reason="test")
        for tenant in ("acme", "busy"):
            await self.publish(tenant, "eve")
            async with self.app.connect() as conn, conn.transaction():
                for about, hours in (("ann", 0), ("bob", 1)):
                    errand = Errand(about=about, text=f"secret of {tenant}.{about}, a job")
                    await self.app.enqueue(conn, errand, workspace_id=tenant, delay=f"{hours}h" if hours else None)
            self.rows(
                "insert into outrider.rollup_pending (rollup, workspace_id, carried) values ('r', %s, %s)",
                [tenant, json.dumps({"text": f"secret of {tenant}"})],
            )
        self.rows("select from outrider.claim(gen_random_uuid(), '{erase.errand}', 10)")  # they run somewhere else
        self.rows(
            "update outrider.cursor set seq = (select max(seq) from outrider.outbox) where subscription = 'erase.out'"
        )
        self.rows(REPLAYED)


async def erased(desk: Desk, whose: Whose, **options: Any) -> tenants.Rows:
    async with await psycopg.AsyncConnection.connect(desk.dsn, autocommit=True) as conn:
        asked: Any = {"reason": "they left", "by": "me", "tell": lambda _: None} | options
        return await tenants.erase(conn, whose, "outrider", **asked)


@pytest.mark.verify
async def test_nothing_is_left_and_nothing_is_done_twice(database: str) -> None:
    desk = Desk(database)
    async with desk.app:
        await desk.lived_in()
        receipts = "select handler_name, idempotency_key from outrider.event_handled order by 1, 2"
        before, others = desk.rows(receipts), desk.left("secret of busy")
        assert set(desk.left("secret of acme")) >= {
            "outbox", "delivery", "job", "event_handled", "audit", "rollup_pending", "schedule", "stream_replayed",
        }  # fmt: skip
        delivered = "select event_id, subscription from outrider.event_status where status = 'delivered' order by 1, 2"
        fates = desk.rows(delivered)
        stop, calls = asyncio.Event(), []

        def enough(rows: tenants.Rows) -> None:
            calls.append(rows)
            if len(calls) == 2:
                stop.set()

        part = await erased(desk, Whose("acme"), page=2, tell=enough, stop=stop)
        assert 0 < part.events < 5
        rest = await erased(desk, Whose("acme"), page=2)
        assert (part.events + rest.events, rest.jobs) == (5, 2)
        assert await erased(desk, Whose("acme")) == tenants.Rows(audit=(rest.audit or 0) + 1), "again, it finds nothing"
        assert desk.left("secret of acme") == {}
        assert desk.left("secret of busy") == others
        schedules = "select details -> 'schedules' from outrider.audit where action = 'erase' and details ? 'schedules'"
        assert desk.rows(schedules) == [(["erase.yearly_acme"],)]
        assert desk.rows(receipts) == before
        assert desk.rows(delivered) == fates
        audit = """select by, details ->> 'reason', details ->> 'workspace', details -> 'events', details -> 'jobs',
                          details ? 'finished_at'
                   from outrider.audit where action = 'erase' order by id"""
        assert desk.rows(audit)[:2] == [
            ("me", "they left", "acme", part.events, 0, False), ("me", "they left", "acme", rest.events, 2, True),
        ]  # fmt: skip

        desk.met.clear()
        for table in ("delivery", "job"):
            desk.rows(f"update outrider.{table} set run_at = now() where status = 'pending'")
        for about in ("ann", "bob", "cat"):  # the same keys again: of what was handled, and of what was not
            await desk.publish("acme", about, key=f"k-{about}")
        await desk.app.drain()
        paused = "select name from outrider.schedule where paused_at is not null"
        assert desk.rows(paused) == [("erase.yearly_acme",)], "also after a worker that declares it has looked"
        assert "" not in desk.met
        assert [text for text in desk.met if "acme.ann" in text] == [], "its receipts hold"
        assert sum("busy" in text for text in desk.met) >= 3
        [[ann]] = desk.rows(
            "select id from outrider.outbox where workspace_id = 'acme' and aggregate_id = 'ann' order by seq limit 1"
        )
        asked: list[Any] = [{}, {"subscription": "erase.ledger", "force": True}]
        for options in asked:
            assert [each.outcome for each in await desk.app.replay(ann, **options)] == ["erased"]
        dead = [row[0] for row in desk.rows("select id from outrider.owed where last_error_code = '(erased)'")]
        told = desk.rows("select distinct outcome from outrider.replay(%s, p_force => true)", [dead])
        assert told == [("erased",)]
        # A reader, or a relay, that goes back to the beginning meets none of it.
        desk.rows("update outrider.cursor set seq = 0, floor = 0 where subscription = 'erase.reader'")
        read = desk.rows("select payload from outrider.take('erase.reader') where seq is not null")
        assert read
        assert "{}" not in {payload for (payload,) in read}
        story = await desk.app.event(ann)
        assert story is not None
        assert story.erased_at is not None
        assert {fate.subscription: fate.status for fate in story.fates}["erase.reader"] == "delivered"


@pytest.mark.verify
async def test_a_subject_and_its_jobs(database: str) -> None:
    desk = Desk(database)
    async with desk.app:
        await desk.lived_in()
        assert (await erased(desk, Whose("acme", "person", "ann"))).events == 1
        assert set(desk.left("secret of acme.ann")) == {"job", "schedule"}, (
            "an enqueued job says of whom it is, not what"
        )
        assert (await erased(desk, Whose(None, "person", "ann", jobs=True))).jobs == 2
        assert desk.left("secret of acme.ann") == desk.left("secret of busy.ann") == {}
        assert desk.left("secret of acme.bob")
        # Segments that retention has detached are looked through as well.
        desk.rows("alter table outrider.outbox detach partition outrider.outbox_s0")
        desk.rows("update outrider.segment set detached_at = now() where name = 'outbox_s0'")
        assert (await erased(desk, Whose("acme"))).events == 4
        assert desk.left("secret of acme") == {}
        assert desk.left("secret of busy.bob")["outbox_s0"]
        for wrong in ((None,), (None, "person"), ("", None, "ann")):
            with pytest.raises(TenantsRefused):
                Whose(*wrong)


async def test_nothing_is_left_in_odd_places(database: str) -> None:
    """Of jobs: trace contexts, a class of errors that is called like what erase leaves, edits of what is done since. Of
    rollups: why a row was set aside. Receipts of subscriptions that were retired. And a name that is too long to notify."""
    desk = Desk(database)
    secret = "secret of acme.odd"
    job = """insert into outrider.job (subscription, event_id, event_version, source, workspace_id, status, run_at, queue,
                 payload, trace_context, last_error_code, buried_at, last_traceback)
             values (%s, gen_random_uuid(), 1, 's', 'acme', 'failed', now(), 'default', %s, %s, 'erased', now(),
                 'in secret of acme') returning id"""
    async with desk.app:
        await desk.lived_in()
        payload = json.dumps({"about": "odd", "text": secret})
        desk.rows("alter table outrider.job disable trigger refuse_unbounded")
        for name in ("erase.errand", "x" * 9000):
            [[entry]] = desk.rows(job, [name, payload, json.dumps({"tracestate": secret})])
            desk.rows("update outrider.job set status = 'pending' where id = %s and length(subscription) > 99", [entry])
        [[edited]] = desk.rows(job, ["erase.errand", payload, None])
        desk.rows("select from outrider.replay(array[%s::bigint], p_payload => %s)", [edited, payload])
        desk.rows("delete from outrider.job where id = %s", [edited])  # it is done
        desk.rows(
            "insert into outrider.rollup_pending (rollup, workspace_id, carried, set_aside_at, error)"
            " values ('r', 'acme', '{\"a\": 1}', now(), %s)",
            [secret],
        )
        desk.rows("select outrider.retire('erase.routed', true)")
        assert set(desk.left(secret)) == {"job", "audit", "rollup_pending"}
        assert "event_handled" in desk.left("secret of acme")
        await erased(desk, Whose("acme"))
    assert desk.left("secret of acme") == {}


async def test_nothing_is_left_of_jobs_that_failed_and_are_done(database: str) -> None:
    """Their receipts hold what errors said and what they returned; the audit, the error of what was discarded. Neither the
    job nor its event is there any more to say whose it was."""
    desk = Desk(database)
    async with desk.app:
        await desk.app.migrate()
        desk.broken = True
        ids = {}
        for tenant in ("acme", "busy"):
            for about in ("ann", "bob"):
                await desk.publish(tenant, about, key=f"k-{about}" if about == "bob" else None)
                async with desk.app.connect() as conn, conn.transaction():
                    errand = Errand(about=about, text=f"secret of {tenant}.{about}, a job")
                    job = await desk.app.enqueue(conn, errand, workspace_id=tenant, unique_key=about)
                    ids[tenant, about] = job.id
        await desk.app.drain()
        for tenant in ("acme", "busy"):  # this one will be gone without a receipt, with its entries in the audit
            dead = "select id from outrider.job where event_id = %s"
            [[letter]] = desk.rows(dead, [ids[tenant, "bob"]])
            desk.rows("select outrider.discard(array[%s::bigint], 'me', 'no use')", [letter])
            desk.rows("delete from outrider.job where id = %s", [letter])
        desk.broken = False
        desk.rows("select outrider.replay(array(select id from outrider.owed where status = 'failed'))")
        await desk.app.drain()
        contents = """select handler_name, count(result), count(failure_history) from outrider.event_handled
                      where handler_name in ('erase.routed', 'erase.errand') group by 1 order by 1"""
        assert desk.rows(contents) == [("erase.errand", 2, 2), ("erase.routed", 4, 4)]
        # One of the segments went a while ago, before its receipts.
        desk.rows("delete from outrider.outbox where aggregate_id = 'ann'")
        assert set(desk.left("secret of acme")) >= {"event_handled", "audit", "outbox"}
        others = desk.left("secret of busy")
        await erased(desk, Whose("acme"), page=1)
        assert desk.left("secret of acme") == {}
        assert desk.left("secret of busy") == others
        assert desk.rows("select count(*) from outrider.event_handled where handler_name = 'erase.errand'") == [(2,)]
        kept = "select details ->> 'reason' from outrider.audit where action = 'discard' and event_id = %s"
        assert desk.rows(kept, [ids["acme", "bob"]]) == [("no use",)], "what the operator said stays"
        assert (await erased(desk, Whose(None, "person", "bob", jobs=True))).events == 1
        assert desk.left("secret of busy.bob") == {}
        await erased(desk, Whose(None, "person", "ann"))
        assert desk.left("secret of busy.ann, a job")
        await erased(desk, Whose("busy", "person", "ann", jobs=True))
        assert desk.left("secret of busy.ann, a job") == {}


async def test_a_segment_that_comes_back_meanwhile_is_not_missed(database: str) -> None:
    desk = Desk(database)
    async with desk.app:
        await desk.lived_in()
    desk.rows("alter table outrider.outbox detach partition outrider.outbox_s0")
    desk.rows("update outrider.segment set detached_at = now() where name = 'outbox_s0'")
    attached: list[Any] = []

    def meanwhile(rows: tenants.Rows) -> None:
        if not attached:
            attached.extend(desk.rows("select * from outrider.attach_segment('outbox_s0')"))

    with pytest.raises(Exception, match="run erase again"):
        await erased(desk, Whose("acme"), tell=meanwhile)
    await erased(desk, Whose("acme"))
    assert desk.left("secret of acme") == {}


@pytest.mark.verify
def test_the_commands(database: str, tmp_path: Path) -> None:
    desk = Desk(database)

    async def fill() -> None:
        async with desk.app:
            await desk.lived_in()

    asyncio.run(fill())

    def run(*arguments: str) -> tuple[int, str]:
        done = inprocess.run(tmp_path, *arguments, "--dsn", database)
        return done.returncode, done.stdout + done.stderr

    code, said = run("tenants", "export", "acme", "--out", "acme.jsonl")
    assert (code, re.sub(r"\d+$", "N", said.strip())) == (
        0,
        "5 events and 2 jobs of workspace acme in acme.jsonl; audit N",
    )
    lines = [json.loads(line) for line in (tmp_path / "acme.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["event"] * 5 + ["job"] * 2
    assert {line["workspace_id"] for line in lines} == {"acme"}
    assert lines[0]["payload"]["text"] == "secret of acme.ann"
    assert [each.name for each in tmp_path.iterdir()] == ["acme.jsonl"]
    assert "acme.jsonl exists" in run("tenants", "export", "acme", "--out", "acme.jsonl")[1]
    noted = (
        """select by, details - 'finished_at', details ? 'finished_at' from outrider.audit where action = 'export'"""
    )
    assert desk.rows(noted) == [(getuser(), {"workspace": "acme", "events": 5, "jobs": 2}, True)]
    code, said = run("tenants", "erase", "acme", "--dry-run")
    [[owed]] = desk.rows(
        """select (select count(distinct o.seq) from outrider.outbox as o join outrider.event_status as e using (seq)
                   where o.workspace_id = 'acme' and e.status in ('pending', 'in_flight', 'failed'))
                + (select count(*) from outrider.job where seq is null and workspace_id = 'acme')"""
    )
    assert owed > 2, "events and jobs"
    foretold = f"5 events and 2 jobs of workspace acme, {owed} of them not handled yet, which nobody will handle"
    assert said == f"would erase {foretold}; nothing was changed (dry run)\n"
    assert "add --yes" in run("tenants", "erase", "acme", "--reason", "r")[1]
    assert desk.left("secret of acme")
    code, said = run("tenants", "erase", "--subject", "person", "bob", "--reason", "r", "--yes", "--json")
    assert json.loads(said)["events"] == 2
    code, said = run("tenants", "erase", "acme", "--reason", "r", "--yes")
    assert said.startswith("erased 4 events and 2 jobs of workspace acme; audit ")
    [[ann]] = desk.rows("select id from outrider.outbox where workspace_id = 'acme' and aggregate_id = 'ann'")
    assert "its payload is gone" in run("event", "show", str(ann))[1]
    assert "erased: its payload is gone" in run("dlq", "replay", str(ann), "--yes")[1]


@pytest.mark.verify
def test_an_export_that_ends_early_is_in_the_audit(database: str) -> None:
    """The entry is there before the first row leaves; another's, or one that is finished, is not written to."""
    desk = Desk(database)

    async def fill() -> None:
        async with desk.app:
            await desk.lived_in()
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            with pytest.raises(OSError, match="no room"):
                await tenants.export(
                    conn, Whose("acme"), "outrider", write=full, tell=lambda _: None, by="ann", reason="asked"
                )

    def full(line: str) -> None:
        raise OSError("no room")

    asyncio.run(fill())
    noted = "select id, by, details from outrider.audit where action = 'export'"
    [(entry, by, details)] = desk.rows(noted)
    assert (by, details) == ("ann", {"workspace": "acme", "reason": "asked"})
    for wrong in (entry + 1, -1):
        with pytest.raises(psycopg.Error, match="audit entry"):
            desk.rows("select outrider.note_export('acme', null, null, p_audit => %s)", [wrong])
    for whose, events in (("'other', null, null", 1), ("'acme', null, null", -1)):
        with pytest.raises(psycopg.Error, match="audit entry"):
            desk.rows(
                f"select outrider.note_export({whose}, p_audit => %s, p_events => %s, p_jobs => 0)", [entry, events]
            )
    closing = "select outrider.note_export('acme', null, null, p_audit => %s, p_events => 1, p_jobs => 0)"
    desk.rows(closing, [entry])
    with pytest.raises(psycopg.Error, match="audit entry"):
        desk.rows(closing, [entry])
    with pytest.raises(psycopg.Error, match="whose"):
        desk.rows("select outrider.note_export(null, null, null)")


def test_an_erase_is_in_the_audit_whoever_asks(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select outrider.publish('erase.note', '{\"text\": \"x\"}', workspace_id => 'acme')")
        conn.execute("insert into outrider.audit (by, action) values ('ann', 'pause')")
        with pytest.raises(psycopg.Error, match="whose"):
            conn.execute("select outrider.erase(null, null, null, false, 'rest', 0, 10, 'why', 'bob')")
        for entry in (-1, 1):
            with pytest.raises(psycopg.Error, match="audit entry"):
                conn.execute(
                    "select outrider.erase('acme', null, null, false, 'events', 0, 10, 'why', 'bob', %s)", [entry]
                )
        conn.execute("select outrider.erase('acme', null, null, false, 'events', 0, 10, repeat('w', 9000), '')")
        told = conn.execute("select by = role, length(details ->> 'reason') from outrider.audit where action = 'erase'")
        assert told.fetchall() == [(True, 2000)]
