"""What a low role tries: names of its own before ours, settings, arguments that are none, pokes for nothing."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.cli import inprocess
from tests.postgres.jobs.sqljobs import claim, done
from tests.postgres.roles.house import House
from tests.postgres.roles.test_each import Placed, Send, among, shop

from outrider import Job, Outrider
from outrider.signals import JobsCompleted, Settled
from outrider.testing import expect

pytestmark = pytest.mark.also_on(15, 16)

DEFINERS = """
    select p.oid::regprocedure::text, p.proname, p.proowner = n.nspowner, p.proconfig,
           exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0),
           array(select format('null::%s', t::regtype) from unnest(p.proargtypes) as t)
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'outrider' and p.prosecdef order by 1
"""
# In pg_temp, and in a schema that the session's search_path begins with: whatever of it runs says so.
SPRUNG = """create function {place}.{signature} language plpgsql as
            $$ begin raise '{signature} ran as %', current_user using errcode = 'TRAPP'; end $$"""
FUNCTIONS = (
    "now() returns timestamptz", "clock_timestamp() returns timestamptz", "left(text, int) returns text",
    "count(bigint) returns bigint", "pg_notify(text, text) returns void", "quote_nullable(text) returns text",
    "jsonb_build_object(variadic text[]) returns jsonb", "jsonb_strip_nulls(jsonb) returns jsonb",
    "array_to_string(text[], text) returns text", "octet_length(text) returns int",
    "starts_with(text, text) returns boolean",
    "note(text, text, text, text, uuid, jsonb) returns void", "signed(text) returns text", "relay_only(text) returns void",
    "hold_subscription(text) returns void", "same(text, text) returns boolean", "same(bigint, bigint) returns boolean",
)  # fmt: skip
OTHERS = """
create operator {place}.= (leftarg = text, rightarg = text, function = {place}.same);
create operator {place}.= (leftarg = bigint, rightarg = bigint, function = {place}.same);
create operator {place}.|| (leftarg = text, rightarg = text, function = {place}.same);
create type {place}.uuid as (n int);
create type {place}.jsonb as (n int);
"""
SHADOWS = (
    "outbox", "subscription", "cursor", "delivery", "job", "owed", "event_handled", "setting", "audit", "withdrawal",
    "worker", "rollup", "rollup_pending", "rollup_log", "stream", "pg_roles", "pg_proc",
)  # fmt: skip
LONG = "\x1b]0;owned\x07\nfake " + "x" * 100_000


def test_functions_of_the_owner_look_nowhere_else(house: House) -> None:
    """Whoever may call them, whatever it has made in its session: nothing of that runs, and they do what they should."""
    definers = house.owner.execute(DEFINERS).fetchall()
    assert len(definers) > 25
    for signature, _, owned, config, public, _ in definers:
        assert owned, signature
        assert not public, signature
        assert [each for each in config if each.startswith("search_path=")] == ["search_path=pg_catalog, pg_temp"], (
            signature
        )
    house.owner.execute("create schema trap; grant usage, create on schema trap to public")
    house.owner.execute(
        "create function trap.careless() returns text language sql security definer as 'select left(''a'', 1)'"
    )
    house.owner.execute("select outrider.register('shop.count', 'handler', 'shop', '{orders.placed,orders.paid}')")
    house.owner.execute("select outrider.register('shop.out', 'relay', 'shop', null)")
    groups = ", ".join(map(house.role, ("producer", "worker", "relay", "operator", "cron")))
    login = house.login("relay")
    house.owner.execute(f"grant {groups} to {login}".encode())
    with house.as_("relay") as low:
        for place in ("pg_temp", "trap"):
            for signature in FUNCTIONS:
                low.execute(SPRUNG.format(place=place, signature=signature).encode())
            low.execute(OTHERS.format(place=place).encode())
            for table in SHADOWS:
                low.execute(f"create table {place}.{table} (name pg_catalog.text, value pg_catalog.int8)".encode())
        low.execute("set search_path = trap, pg_temp, outrider, pg_catalog")
        low.execute("set app.workspace_id = 'x''; drop table outrider.audit; --'")
        low.execute("set outrider.notify = 'nonsense'")
        low.execute("set outrider.settled = '1'")
        for _, name, _, _, _, types in definers:
            call = f"select outrider.{name}({', '.join(each.replace('null::', 'null::pg_catalog.') for each in types)})"
            _harmless(low, call)
        with pytest.raises(psycopg.Error, match=f"ran as {house.owner.info.user}"):  # so the traps are good
            low.execute("select trap.careless()")
        low.execute("begin")
        for call in (
            "pause('shop.count')", "resume('shop.count')", "pause_all()", "resume_all()",
            "set_setting('payload_max_bytes', '4096')", "narrow('shop.count', '{orders.paid}')",
            "rename('shop.count', 'shop.counted')", "withdraw(pg_catalog.gen_random_uuid())",
            "outbox_replay(pg_catalog.gen_random_uuid())", "discard('{1}')", "cancel(pg_catalog.gen_random_uuid())",
            "run_now(pg_catalog.gen_random_uuid())", "move_generation(0, 0)", "retire('shop.counted')",
            "enqueue('shop.send', '{}', unique_key => 'a')",
            "enqueue('shop.send', '{}', unique_key => 'a', on_conflict => 'replace')",
            "relay_open('shop.out', '{a}', '{1}')", "relay_hold('shop.out')",
        ):  # fmt: skip
            low.execute(f"select outrider.{call}".encode())
        low.execute("commit")
        counts = [low.execute(f"select pg_catalog.count(*) from trap.{table}".encode()).fetchone() for table in SHADOWS]
        assert counts == [(0,)] * len(SHADOWS)
    assert {role for _, _, role, _ in house.audit()} == {login}
    assert [action for action, _, _, _ in house.audit()] == [
        "pause_all", "resume_all", "pause", "resume", "pause_all", "resume_all", "set_setting", "narrow", "rename",
        "move_generation", "move_generation", "retire",
    ]  # fmt: skip


def _harmless(conn: psycopg.Connection[Any], call: str) -> None:
    """Refused, or nothing came of it; and none of the traps sprang."""
    said = None
    try:
        conn.execute(call.encode())
    except psycopg.Error as error:
        said = error
    assert said is None or said.sqlstate != "TRAPP", f"{call}: {said}"


def test_arguments_that_are_none(house: House, tmp_path: Path) -> None:
    """Quotes, other people's names, no end of anything: refused in one sentence, or stored as what it is, and cut."""
    house.owner.execute("select outrider.register('shop.count', 'handler', 'shop', '{orders.placed,orders.paid}')")
    before = house.owner.execute(
        "select count(*) from pg_class where relnamespace = 'outrider'::regnamespace"
    ).fetchone()
    evil = "x'; drop table outrider.audit; --\""
    with house.as_("operator") as low:
        refused: list[tuple[str, list[Any]]] = [
            ("select outrider.pause(%s)", [evil]), ("select outrider.pause(null)", []),
            ("select outrider.resume(%s)", [LONG]),
            ("select outrider.retire(%s)", [evil]), ("select outrider.retire(null, null)", []),
            ("select outrider.rename('shop.count', %s)", [evil]), ("select outrider.rename('shop.count', null)", []),
            ("select outrider.rename('shop.count', 'a' || repeat('b', 63))", []),
            ("select outrider.narrow('shop.count', %s)", [[evil]]), ("select outrider.narrow('shop.count', null)", []),
            ("select outrider.narrow('shop.count', '{}')", []), ("select outrider.narrow('shop.count', '{null}')", []),
            ("select outrider.set_setting(%s, '1')", [evil]),
            ("select outrider.set_setting('payload_max_bytes', %s)", [evil]),
            ("select outrider.set_setting('payload_max_bytes', '99999999999999999999')", []),
            ("select outrider.set_setting('payload_max_bytes', '-1')", []),
            ("select outrider.set_setting('paused', '1')", []),
            ("select outrider.set_setting('payload_max_bytes', null)", []),
            ("select outrider.move_generation(0, -1)", []), ("select outrider.rollup_retry(%s)", [evil]),
        ]  # fmt: skip
        for query, params in refused:
            with pytest.raises(psycopg.Error) as told:
                low.execute(query.encode(), params)
            assert told.value.sqlstate in ("OR006", "OR007", "OR010"), query
            assert len(told.value.diag.message_primary or "") < 400, query
        passed: list[tuple[str, list[Any]]] = [
            ("select outrider.discard(%s)", [list(range(-5, 100_000))]), ("select outrider.discard(null)", []),
            ("select * from outrider.replay(%s)", [[-1, 2**62]]), ("select * from outrider.replay(null)", []),
            ("select * from outrider.dead_letters(p_limit => 0)", []),
            ("select * from outrider.cancel(gen_random_uuid(), p_subscription => %s)", [evil]),
        ]  # fmt: skip
        for query, params in passed:
            low.execute(query.encode(), params)
        with pytest.raises(psycopg.Error):
            low.execute("select * from outrider.dead_letters(p_limit => -1)")
        low.execute("select outrider.pause('shop.count', %s, %s)", [LONG, LONG])
        low.execute("select outrider.resume('shop.count', '', null)")
    with house.as_("producer") as low:
        for how in (None, evil):
            with pytest.raises(psycopg.Error, match="on_conflict is keep, replace or debounce"):
                low.execute("select outrider.enqueue('a', '{}', unique_key => 'k', on_conflict => %s)", [how])
            low.execute("select outrider.enqueue('a', '{}', unique_key => 'k')")
            with pytest.raises(psycopg.Error, match="on_conflict is keep, replace or debounce"):
                low.execute("select outrider.enqueue_one('a', '{}', p_unique_key => 'k', p_on_conflict => %s)", [how])
        found = low.execute(
            "select * from outrider.enqueue_onto('b', '{}', now(), 0, %s, 'replace', 'q', null, 1, 's', null, null, 0)",
            [evil],
        ).fetchall()
        assert found == [(None, None)]
    after = house.owner.execute(
        "select count(*) from pg_class where relnamespace = 'outrider'::regnamespace"
    ).fetchone()
    assert after == before
    [(_, by, role, details), (_, second, _, nothing)] = house.audit()
    assert (len(by), len(details["reason"]), role) == (200, 2000, house.login("operator"))
    assert (second, nothing.get("reason")) == (house.login("operator"), None)
    said = inprocess.run(tmp_path, "audit", "--dsn", house.dsn("dashboard"))
    assert said.returncode == 0
    assert "\x1b" not in said.stdout
    assert not [line for line in said.stdout.splitlines() if line.startswith("fake")]
    told_again = json.loads(inprocess.run(tmp_path, "audit", "--json", "--dsn", house.dsn("dashboard")).stdout)
    assert [each["action"] for each in told_again["entries"]] == ["resume", "pause"]


def test_whoever_may_only_replay_gets_at_no_receipt(house: House) -> None:
    """As the application's role of before: it may replay, by inheritance not with force nor with another payload."""
    login = house.login("producer")
    house.owner.execute(f"grant execute on function outrider.outbox_replay, outrider.replay to {login}".encode())
    with house.as_("producer") as low:
        told = low.execute("select outcome from outrider.outbox_replay(gen_random_uuid())").fetchall()
        assert told == [("not_found",)]
        for more in ("p_force => true, p_subscription => 'a'", "p_payload => '{}'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="only an operator"):
                low.execute(f"select * from outrider.outbox_replay(gen_random_uuid(), {more})".encode())


async def test_pokes_for_nothing(house: House) -> None:
    """Anybody may NOTIFY, whatever it likes: workers look, find what there is, and go on."""
    house.owner.execute("create table effect (n int); create table piece (document text)")
    house.owner.execute(f"grant insert on effect to {house.role('worker')}".encode())
    app: Outrider = shop(house.dsn("worker"))
    async with shop(house.owner.info.dsn) as owning:
        await owning.migrate()
        async with app, app.worker() as worker:
            await asyncio.wait_for(worker.ready.wait(), 60)
            with house.as_("nobody") as low:
                for channel in ("outbox_default", "outbox_gen_41"):
                    for payload in (
                        "", "roles.placed", "x" * 7999, "'; drop table effect; --", "\x1b[2J\nfake", "☃" * 2000,
                        '{"a": [[[[',
                        "outrider.canary_0.123", *(f"outrider.canary_{n:08x}" for n in range(100)),
                        "roles.send", "outrider.selftest", str(uuid4()), "9" * 400,
                    ):  # fmt: skip
                        low.execute("select pg_notify(%s, %s)", [channel, payload])
            async with expect(app, Settled, lambda s: s.events), owning.connect() as conn, conn.transaction():
                await owning.publish(conn, Placed(n=1))
    assert house.owner.execute("select n from effect").fetchall() == [(1,)]


def test_no_function_waits_for_what_anybody_can_hold(house: House) -> None:
    """Whoever can connect can take any advisory lock, and pg_locks shows which ones are used."""
    asked = r"""select p.proname from pg_proc as p
                where p.pronamespace = 'outrider'::regnamespace and p.prosrc ~ 'pg_\w*advisory'"""
    assert house.owner.execute(asked).fetchall() == []


class Limited(Job, type="roles.limited"):
    pass


async def test_who_can_only_connect_holds_up_no_job_and_no_rollup(house: House) -> None:
    """It takes the advisory locks that claims and rollups once used: then jobs without limits waited for them, too."""
    house.owner.execute("create table effect (n int); create table piece (document text)")
    house.owner.execute(f"revoke usage on schema outrider from {house.login('nobody')}".encode())
    async with (app := shop(house.owner.info.dsn)):

        @app.job(Limited, concurrency=1)
        async def limited(job: Limited) -> None:
            pass

        await app.migrate()
        house.owner.execute("select outrider.rollup_install(%s)", [Jsonb(app.rollups[0].spec())])
        with house.as_("nobody") as low:
            for name, seed in (("roles.limited", 6), ("rollup.shop.pieces", 0), ("rollup.stage.shop.pieces", 0)):
                low.execute("select pg_advisory_lock(hashtextextended('\"outrider\".' || %s, %s))", [name, seed])
            async with (
                app.worker(),
                expect(app, JobsCompleted, partial(among, "roles.limited")),
                expect(app, JobsCompleted, partial(among, "roles.send")),
                app.connect() as conn,
                conn.transaction(),
            ):
                await app.enqueue(conn, Limited())
                await app.enqueue(conn, Send(n=1))
            assert (await app.tick("shop.pieces")).result == "idle"
            house.owner.execute("select outrider.rollup_uninstall('shop.pieces')")


async def test_a_worker_opens_no_generations_without_end(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Each brings a cursor and two counters per partition. One too many is not opened; its worker works on without it."""
    house.owner.execute("create table effect (n int); create table piece (document text)")
    house.owner.execute(f"grant insert on effect to {house.role('worker')}".encode())
    async with shop(house.owner.info.dsn) as owning:
        await owning.migrate()
        sequences = "select count(*) from pg_class where relkind = 'S' and relnamespace = 'outrider'::regnamespace"
        before = house.owner.execute(sequences).fetchone()
        assert before is not None
        with house.as_("worker") as low:
            for number in range(1000, 1063):
                low.execute("select outrider.open_generation('shop.count', %s)", [number])
            for number in range(2000, 2010):
                with pytest.raises(psycopg.DatabaseError, match=r"shop\.count has 64 open generations") as refused:
                    low.execute("select outrider.open_generation('shop.count', %s)", [number])
                assert refused.value.sqlstate == "OR011"
        assert house.owner.execute(sequences).fetchone() == (before[0] + 2 * 63,)
        late = Outrider(context="shop", dsn=house.dsn("worker"), generation=42, poll=0.2)
        late.handler(Placed, name="shop.count")(ignore)
        async with (
            late,
            late.worker(),
            expect(late, Settled, lambda s: s.events),
            owning.connect() as conn,
            conn.transaction(),
        ):
            await late.publish(conn, Placed(n=1))
        assert "shop.count has 64 open generations" in caplog.text


async def ignore(event: Placed) -> None:
    pass


def test_a_worker_counts_what_a_worker_can_have_done(house: House) -> None:
    """Two thousand million takes at once held a session for hours, and made as many deaths."""
    house.owner.execute("select outrider.register('shop.count', 'handler', 'shop', '{roles.placed}')")
    with house.as_("worker") as low:
        [(cursor,)] = low.execute("select id from outrider.cursor").fetchall()
        for takes, excused in ((2147483647, 0), (2, 0), (0, 2147483647), (1, 1001), (-1, 0)):
            with pytest.raises(psycopg.DatabaseError, match="count_take counts one take and up to 1,000") as refused:
                low.execute("select outrider.count_take(%s, %s, %s)", [cursor, takes, excused])
            assert refused.value.sqlstate == "OR001"
        low.execute("select outrider.count_take(%s, 1, 1000)", [cursor])
        # What a worker could not report in an outage of days is cut, and not refused.
        low.execute(
            """select * from outrider.take('shop.count', null, 1, 1, p_knows => '{roles.placed}', p_excused => 2147483647)"""
        )


@pytest.mark.parametrize(
    ("role", "tables"), [("relay", ["worker"]), ("worker", ["worker", "cursor", "schedule", "stream"])]
)
def test_tables_that_everybody_reads_are_not_locked(house: House, role: str, tables: list[str]) -> None:
    """LOCK TABLE needs UPDATE or DELETE of the whole table. With that, status, doctor, claims and new listeners hung."""
    with house.as_(role) as low:
        for table in tables:
            for mode in ("access exclusive", "exclusive", "share row exclusive", "share", "share update exclusive"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), low.transaction():
                    low.execute(f"lock table outrider.{table} in {mode} mode".encode())


def test_jobs_with_one_id_are_settled(house: House) -> None:
    """Whoever enqueues chooses the id. The second receipt was refused, and all that its worker had done, for ever."""
    house.owner.execute("select outrider.register('shop.send', 'job', 'shop', '{}')")
    with house.as_("producer") as low:
        for _ in range(3):
            low.execute("select outrider.enqueue_one('shop.send', '{\"n\": 1}', p_id => %s)", [UUID(int=7)])
        low.execute("select outrider.enqueue('shop.send', '{\"n\": 2}')")
    with house.as_("worker") as worker:
        jobs = claim(worker, 10, ["shop.send"]).jobs
        assert len(jobs) == 4
        assert done(worker, *jobs, result=1) == dict.fromkeys((job.delivery for job in jobs), "done")
    assert house.owner.execute("select count(*) from outrider.job").fetchone() == (0,)
    assert house.owner.execute("select count(*) from outrider.event_handled").fetchone() == (2,)


def test_a_producer_of_countless_queues_delays_nobody(house: House) -> None:
    """A claim looks at each lane that holds a job which is due. When it also looked at jobs for the year 9000, 40,000 of
    them held up the jobs of all types for seconds."""
    for name in ("shop.send", "shop.settle"):
        house.owner.execute("select outrider.register(%s, 'job', 'shop', '{}')", [name])
    with house.as_("producer") as low:
        low.execute(
            """select outrider.enqueue('shop.send', '{"n": 0}', queue => 'q' || n, run_at => '9000-01-01')
               from generate_series(1, 1200) as n"""
        )
        low.execute("select outrider.enqueue('shop.send', '{\"n\": 1}', queue => 'z')")
        low.execute("select outrider.enqueue('shop.settle', '{\"n\": 2}')")
    with house.as_("worker") as worker:
        assert sorted(claim(worker, 10, ["shop.send", "shop.settle"]).names) == [1, 2]
        house.owner.execute("select outrider.enqueue('shop.send', '{\"n\": 3}', queue => 'a')")
        assert claim(worker, 10, ["shop.send", "shop.settle"]).names == [3]


def test_a_time_that_python_cannot_say_silences_no_command(house: House, tmp_path: Path) -> None:
    """A heartbeat of that time ended `status`, and took the findings about workers from the doctor."""
    beat = """insert into outrider.worker (
                  id, host, pid, version, generation, subscriptions, seen_at, started_at, reported_at)
              values (gen_random_uuid(), 'h', 1, '1', 0, '{}', %s, %s, %s)"""
    with house.as_("relay") as low:
        for time in ("infinity", "-infinity", "294000-01-01", "4000-01-01 BC"):
            low.execute(beat, [time] * 3)
    asked = inprocess.run(tmp_path, "status", "--json", "--dsn", house.dsn("dashboard"))
    assert asked.returncode == 0, asked.stderr
    assert [worker["host"] for worker in json.loads(asked.stdout)["workers"]] == ["h"] * 4
