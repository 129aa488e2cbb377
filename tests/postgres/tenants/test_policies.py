"""Fault 28 on our own tables: every way to another tenant's rows, with the setting unset, empty, another's or spoofed.

Nothing is read and nothing is written across; whoever must see all of them does, or is told, and never sees nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import FeatureNotSupported, InsufficientPrivilege
from tests.cli import inprocess
from tests.postgres.tenants.house import House

from outrider import Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy
from outrider.errors import PublishRefused

pytestmark = pytest.mark.also_on(15, 16)

HIDDEN = "row-level security hides rows"
SOON = RetryPolicy(retries=3, base="0s", cap="0s", jitter="none")
FILLED = """
select outrider.register('house.reader', 'reader', 'house', '{{x.y}}');
select outrider.register('house.handler', 'handler', 'house', '{{x.y}}');
select outrider.publish('x.y', jsonb_build_object('of', w), key => '7', idempotency_key => 'i', workspace_id => w)
from unnest('{{a,b}}'::text[]) as w;
select outrider.enqueue('x.job', jsonb_build_object('of', w), unique_key => 'u', workspace_id => w)
from unnest('{{a,b}}'::text[]) as w;
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached,
    run_at, workspace_id, last_error)
select 'house.handler', 0, o.seq, o.id, o.event_type, '1:' || o.workspace_id || ':7', 'failed', false, true, now(),
       o.workspace_id, 'about ' || o.workspace_id from outrider.outbox as o;
"""
READS = {
    "the log": "select workspace_id from outrider.outbox",
    "what is owed of events": "select workspace_id from outrider.delivery",
    "jobs": "select workspace_id from outrider.job",
    "what is owed": "select workspace_id from outrider.owed",
    "what is to be done": "select 'a' from outrider.unfinished group by 1 having count(*) > 0",
    "what is to be done for another": "select 'b' from outrider.unfinished having count(*) > 1",
    "a job by a known id": "select workspace_id from outrider.owed where event_id = {job}",
    "the status": "select workspace_id from outrider.event_status",
    "its own status": "select distinct 'a' from outrider.tenant_event",
    "by a known id": "select workspace_id from outrider.outbox where id = {other}",
    "its status by a known id": "select workspace_id from outrider.event_status where event_id = {other}",
    "its own status by a known id": "select 'b' from outrider.tenant_event where event_id = {other}",
    "a lock": "select workspace_id from outrider.job for update",
    "with a leaky condition": "select workspace_id from outrider.outbox where 1 / (workspace_id <> 'b')::int = 1",
    "a change": "update outrider.outbox set payload = payload returning workspace_id",
    "a change of a job": "update outrider.job set run_at = now() returning workspace_id",
    "a deletion": "delete from outrider.delivery where workspace_id = 'b' returning workspace_id",
    "a deletion of a job": "delete from outrider.job where workspace_id = 'b' returning workspace_id",
    "an aggregate": "select max(workspace_id) from outrider.outbox having count(*) > 0",
}
SPOOFS = {
    "an insert": "insert into outrider.outbox (event_type, source, payload, workspace_id) values ('x.y', 's', '{{}}', 'b')",
    "nobody's": "insert into outrider.outbox (event_type, source, payload) values ('x.y', 's', '{{}}')",
    "a publish": "select outrider.publish('x.y', '{{}}', workspace_id => 'b')",
    "a job": "select outrider.enqueue('x.job', '{{}}', workspace_id => 'b')",
    "a unique job": "select outrider.enqueue('x.job', '{{}}', unique_key => 'u', on_conflict => 'replace',"
    " workspace_id => 'b')",
    "a gift": "update outrider.job set workspace_id = 'b'",
    "a gift of what is owed": "update outrider.delivery set workspace_id = 'b'",
    "a job of another's event": "insert into outrider.job (subscription, seq, event_id, event_type, run_at, queue,"
    " workspace_id) select 'x.job', {seq}, {other}, 'x.y', now(), 'default', current_setting('app.workspace_id', true)",
    "a delivery of another's event": "insert into outrider.delivery (subscription, partition, seq, event_id, event_type,"
    " status, head, reached, run_at, workspace_id) select 'house.other', 0, {seq}, {other}, 'x.y', 'pending', true, true,"
    " now(), current_setting('app.workspace_id', true)",
    "a delivery that is there": "insert into outrider.delivery (subscription, partition, seq, event_id, event_type,"
    " status, head, reached, run_at, workspace_id) select 'house.handler', 0, {seq}, {other}, 'x.y', 'pending',"
    " true, true, now(), current_setting('app.workspace_id', true) on conflict do nothing",
}
NEEDS_ALL = {
    "take": "select * from outrider.take('house.reader')",
    "claim": f"select * from outrider.claim('{uuid4()}', '{{{{x.job}}}}', 10)",
    "claim_lane": f"select * from outrider.claim_lane('{uuid4()}', 'x.job', 0, 'default', now(), 10)",
    "park": "select outrider.park('house.handler', 1, null)",
    "route": "select outrider.route('x.job', 10, 10, '{{}}', 'default', 0)",
    "settle_jobs": "select outrider.settle_jobs('{{x.job}}', '{{1}}', '{{1}}', '{{null}}', '[]', 'w')",
    "renew": "select outrider.renew('00000000-0000-0000-0000-000000000000', '{{x.job}}')",
    "reap": "select outrider.reap('{{x.job}}')",
    "outbox_replay": "select outrider.outbox_replay({other})",
    "replay": "select outrider.replay('{{1}}')",
    "withdraw": "select outrider.withdraw({other})",
    "cancel": "select outrider.cancel({other})",
    "run_now": "select outrider.run_now({other})",
    "dead_letters": "select outrider.dead_letters()",
}


def fill(house: House) -> None:
    for each in FILLED.split(";\n"):
        house.rows(each + ";")


@contextmanager
def refused(what: str, why: str) -> Iterator[None]:
    told: list[str] = []
    try:
        yield
    except InsufficientPrivilege as error:
        told.append(str(error))
    assert why in " ".join(told), f"{what} was not refused"


def known(house: House) -> dict[str, str]:
    [(other, seq)] = house.rows("select id, seq from outrider.outbox where workspace_id = 'b'")
    [(job,)] = house.rows("select event_id from outrider.job where workspace_id = 'b'")
    return {"other": f"'{other}'", "seq": str(seq), "job": f"'{job}'"}


def contents(house: House) -> list[Any]:
    return [
        house.rows("select id, workspace_id, payload from outrider.outbox order by seq"),
        house.rows("select id, workspace_id, payload, status, seq from outrider.owed order by id"),
        house.rows("select subscription, seq from outrider.cursor order by 1"),
    ]


def test_nothing_crosses(house: House) -> None:
    fill(house)
    names, before = known(house), contents(house)
    for workspace in (None, "", "a", "nobody"):
        with house.as_("app", workspace) as conn:
            own = {(workspace,)} if workspace == "a" else set()
            for what, query in READS.items():
                with conn.transaction(force_rollback=True):
                    seen = set(conn.execute(query.format(**names).encode()).fetchall())
                assert seen == (set() if "known id" in what or "deletion" in what or "another" in what else own), what
            for what, query in SPOOFS.items():
                if "gift" in what and not own:
                    continue
                with refused(f"{workspace!r}: {what}", "row-level security policy"), conn.transaction():
                    conn.execute(query.format(**names).encode())
            with (
                conn.cursor() as cursor,
                cursor.copy("copy (select workspace_id from outrider.outbox) to stdout") as copy,
            ):
                assert {tuple(row) for row in copy.rows()} == own
            with pytest.raises(FeatureNotSupported, match="row-level security"):
                conn.execute("copy outrider.outbox (event_type, source, payload, workspace_id) from stdin")
            for what, query in NEEDS_ALL.items():
                with refused(what, HIDDEN):
                    conn.execute(query.format(**names).encode())
            with pytest.raises(InsufficientPrivilege):  # whoever wants to see all or nothing is told
                conn.execute("set row_security = off; select from outrider.outbox")
    assert contents(house) == before
    with house.as_("app", "a") as conn, conn.transaction(force_rollback=True):
        conn.execute("select outrider.publish('x.y', '{}')")
        taken = conn.execute(
            "select outrider.enqueue('x.job', '{}', unique_key => 'u', on_conflict => 'replace')"
        ).fetchone()
        assert conn.execute("select event_id, workspace_id from outrider.job").fetchall() == [(*(taken or ()), "a")]
        explained = str(conn.execute("explain (costs off) select from outrider.outbox where id is not null").fetchall())
        assert "current_setting" in explained


def test_segments_are_no_way_around(house: House) -> None:
    fill(house)
    with house.as_("app", "a") as conn, pytest.raises(InsufficientPrivilege):
        conn.execute("select from outrider.outbox_s0")
    house.rows("grant select on outrider.outbox_s0 to {app}")
    with house.as_("app", "a") as conn:
        assert conn.execute("select from outrider.outbox_s0").fetchall() == []
        assert len(conn.execute("select from outrider.outbox").fetchall()) == 1


def test_whoever_does_not_see_all_is_told_and_no_cursor_moves(house: House) -> None:
    """All rights, and no place in the policy: a take that saw nothing would go past what is there."""
    fill(house)
    names, before = known(house), contents(house)
    for policy in ("", "create policy more on outrider.outbox as restrictive using (false);"):
        house.rows(policy + "select")
        who = "worker" if policy else "stranger"
        with house.as_(who, "a") as conn:
            for what, query in NEEDS_ALL.items():
                with refused(what, HIDDEN):
                    conn.execute(query.format(**names).encode())
    assert contents(house) == before
    house.rows("drop policy more on outrider.outbox")
    with house.as_("worker") as conn:
        conn.execute("set row_security = off")
        assert len(conn.execute("select from outrider.take('house.reader')").fetchall()) == 3
        assert len(conn.execute(NEEDS_ALL["claim"].replace("{{", "{").replace("}}", "}")).fetchall()) >= 1
    house.guard()  # the worker is not named any more
    with house.as_("worker") as conn, pytest.raises(InsufficientPrivilege, match=HIDDEN):
        conn.execute("select from outrider.take('house.reader')")
    house.guard(enable=False)
    with house.as_("stranger") as conn:
        conn.execute("select from outrider.take('house.reader')")
        assert len(conn.execute("select from outrider.outbox").fetchall()) == 2


def test_a_member_that_does_not_inherit_sees_nothing_and_is_told(house: House) -> None:
    fill(house)
    house.rows("alter role {stranger} noinherit; grant {worker} to {stranger}")
    with house.as_("stranger") as conn:
        assert conn.execute("select from outrider.outbox").fetchall() == []
        with refused("a take", HIDDEN):
            conn.execute("select from outrider.take('house.reader')")


def test_a_role_that_is_not_there_sees_nobody(house: House) -> None:
    """Renamed while its session goes on: the setting says the old name."""
    assert house.rows("select outrider.sees_every_tenant('nobody at all')") == [(False,)]


def test_a_unique_job_of_nobody_is_no_tenants(house: House) -> None:
    house.rows("select outrider.enqueue('x.job', '{{}}', unique_key => 'u')")
    onto = (
        "select outrider.enqueue_onto('x.job', '{}', now(), 0, 'u', 'replace', 'default', null, 1, 's', null, null, 0)"
    )
    closed = "select outrider.replace_closed('x.job', 'u', null)"
    for workspace in (None, "", "a"):
        for text in (onto, closed):
            with house.as_("app", workspace) as conn, refused("a job of nobody's", "another workspace"):
                conn.execute(text.encode())
    with house.as_("worker") as conn:
        for text in (onto, closed):
            assert conn.execute(text.encode()).fetchone() is not None


class Seen(Event, type="house.seen", key="n"):
    n: int
    fails: int = 0


class Tidy(Job, type="house.tidy"):
    n: int


class Told(Event, type="house.told"):
    n: int


@pytest.mark.verify
async def test_a_worker_that_sees_all_does_all_of_it(house: House, empty_database: str) -> None:
    """Handlers as the app's role: what they publish and enqueue is their own workspace's, and nothing else can be."""
    handled: list[tuple[str | None, int]] = []
    tidied: list[str | None] = []
    refused: list[str] = []

    def declare(app: Outrider) -> None:
        @app.handler(Seen, name="house.seen", role=house.role("app"), retry=SOON)
        async def seen(event: Seen, ctx: HandlerContext) -> None:
            rows = await (await ctx.tx.execute("select distinct workspace_id from outrider.outbox")).fetchall()
            assert rows == [(ctx.envelope.workspace_id,)]
            for other in ("a", "b", None):
                if other != ctx.envelope.workspace_id:
                    for verb in (
                        app.publish(ctx.tx, Told(n=0), workspace_id=other),
                        app.enqueue(ctx.tx, Tidy(n=0), workspace_id=other),
                    ):
                        with pytest.raises(PublishRefused, match="its workspace"):
                            async with ctx.tx.transaction():
                                await verb
                        refused.append(str(other))
            if ctx.attempt <= event.fails:
                raise RuntimeError("as told")
            await app.publish(ctx.tx, Told(n=event.n))
            await app.enqueue(ctx.tx, Tidy(n=event.n), unique_key="one")
            handled.append((ctx.envelope.workspace_id, event.n))

        @app.job(Tidy)
        async def tidy(job: Tidy, ctx: JobContext) -> None:
            tidied.append(ctx.envelope.workspace_id)

        @app.job(on=Told, name="house.told")
        async def told(event: Told, ctx: JobContext) -> None:
            tidied.append(ctx.envelope.workspace_id)

    owner, app = Outrider(context="house", dsn=house.dsn("owner")), Outrider(context="house", dsn=house.dsn("worker"))
    declare(owner)
    declare(app)
    async with owner:
        await owner.migrate()
    async with app:
        async with app.connect() as conn, conn.transaction():
            for tenant in ("a", "b"):
                await app.publish(conn, Seen(n=1, fails=1), workspace_id=tenant)
                await app.publish(conn, Seen(n=2), workspace_id=tenant)
        for _ in range(3):
            await app.drain()
        status = await app.status()
    assert set(handled) == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    assert len(refused) >= 4 * 4
    assert sorted(map(str, tidied)) == ["a"] * 3 + ["b"] * 3
    assert status.subscriptions
    query = "select workspace_id, count(*) from outrider.outbox where event_type = 'house.told' group by 1 order by 1"
    published = house.rows(query)
    assert published == [("a", 2), ("b", 2)]


@pytest.mark.verify
def test_the_commands(house: House, tmp_path: Any) -> None:
    def run(*arguments: str) -> str:
        done = inprocess.run(tmp_path, "tenants", *arguments, "--dsn", house.dsn("owner"))
        return done.stdout + done.stderr

    assert "outbox: tenants are isolated" in run("status")
    assert house.role("worker") in run("status")
    assert run("disable").splitlines() == ["outbox: not isolated", "job: not isolated", "delivery: not isolated"]
    printed = run("enable", "--sql", "--role", house.role("worker"))
    assert "every_tenant" in printed
    assert "outbox: not isolated" in run("status")
    with psycopg.connect(house.dsn("owner"), autocommit=True) as conn:
        conn.execute(printed.encode())
    for table in ("delivery", "job"):
        assert f"{table}: tenants are isolated" in run("status")
    assert "there is no role 'nobody at all'" in run("enable", "--role", "nobody at all")
    house.rows("alter table outrider.outbox_s3 disable row level security; grant select on outrider.outbox_s3 to {app}")
    assert "not isolated in outbox_s3" in run("status")
    assert "tenants are isolated" in run("enable", "--role", house.role("worker"))
    assert "isolated" in inprocess.run(tmp_path, "tenants", "status", "--dsn", house.dsn("worker")).stdout
