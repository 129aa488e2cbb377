"""The doctor, on systems that are broken in each of the ways that it looks for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from tests.brokers import HOST, NatsServer, RedisServer, free_port
from tests.pgbouncer import PgBouncer
from tests.postgres.roles.house import before
from tests.postgres.test_status import worker
from tests.postgres.test_story import later, never, published
from tests.worker.jobs.factory import Make
from tests.worker.shop import Placed, opened
from tests.worker.test_generations import working

from outrider import Outrider
from outrider.doctor import checks, doctor, server_checks
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Finding, Severity
from outrider.postgres import connection, rollups
from outrider.postgres.admin import diagnostics
from outrider.postgres.schema import migrate
from outrider.streams import JetStream, RedisStreams
from outrider.streams.stream import Weakness

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.verify]

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connection.connect(dsn, autocommit=True) as conn:
        yield conn


async def ask(dsn: str, app: Outrider | None = None, **options: Any) -> dict[str, list[Finding]]:
    """What the doctor says, by check."""
    async with connected(dsn) as conn:
        found: dict[str, list[Finding]] = {}
        for each in await examine_all(app or Outrider(dsn=dsn), conn, "outrider", **options):
            assert (each.advice == "") == (each.severity is Severity.ok), each
            found.setdefault(each.check, []).append(each)
        return found


def only(findings: list[Finding], severity: Severity = Severity.warning) -> Finding:
    [found] = findings
    assert found.severity is severity, found
    return found


def execute(dsn: str, *queries: str) -> list[Any]:
    """The rows of the last."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for query in queries:
            cursor = conn.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def role(fragile: str) -> Iterator[str]:
    """A role that may connect, and no more."""
    with psycopg.connect(fragile, autocommit=True) as conn:
        name = f"role_{conn.info.dbname}"
        conn.execute(f"create role {name} login".encode())
        yield name
        conn.execute(f"drop owned by {name} cascade; drop role {name}".encode())


async def test_nothing_is_wrong(fragile: str) -> None:
    async with opened(fragile) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
        async with connected(fragile) as conn:
            await worker(conn, "shop.effect", listening=True)
        found = await ask(fragile, shop.app)
    assert [each for group in found.values() for each in group if each.severity is not Severity.ok] == []
    assert found["listener"][0].found == "a notification arrives"
    assert found["workers"][0].found == "1 at work, all woken by notifications"
    assert found["pg_cron"][0].found == "is not installed (NOT_AVAILABLE): workers tick 0 rollups"


def test_the_runbook_has_a_section_for_every_check() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "src/outrider/doctor").glob("*.py"))
    sources += (ROOT / "src/outrider/cli/commands/doctor.py").read_text()
    checks = set(re.findall(r'\b(?:ok|note|warning|critical|judge)\(\s*"(\w+)"', sources))
    assert {"server", "privileges", "notify_queue", "brokers", "lag"} <= checks
    sections = set(re.findall(r"^### `(\w+)`$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    assert checks == sections


def test_the_runbook_has_a_section_for_every_alert() -> None:
    alerts = (ROOT / "ops/prometheus/alerts.yml").read_text()
    sections = set(re.findall(r"^### (Outrider .*)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    named = {
        re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", each)
        for each in re.findall(r"alert: (\w+)", alerts)
    }
    assert named == sections
    anchors = set(re.findall(r"docs/runbook\.md#([\w-]+)", alerts))
    assert anchors == {section.lower().replace(" ", "-") for section in sections}


# The server


async def test_a_server_that_is_too_old(fragile: str) -> None:
    async with connected(fragile) as conn:
        server = replace(await diagnostics.server(conn, "outrider"), version="14.9", version_number=140009)
    [found, *_] = server_checks.judge_server(server, server.now, server.now)
    assert (found.check, found.severity, found.found) == ("server", Severity.critical, "Postgres 14.9")


async def test_clocks_that_differ(fragile: str) -> None:
    async with connected(fragile) as conn:
        server = await diagnostics.server(conn, "outrider")
    for off, told in ((3, "3.0 s"), (-3, "3.0 s")):
        here = server.now + timedelta(seconds=off)
        [_, clock, *_] = server_checks.judge_server(server, here, here)
        assert (clock.check, clock.severity) == ("clock", Severity.warning)
        assert told in clock.found
    slow_wire = server_checks.judge_server(server, server.now - timedelta(seconds=3), server.now + timedelta(seconds=1))
    assert next(each for each in slow_wire if each.check == "clock").severity is Severity.ok


async def test_a_queue_of_notifications_that_fills_up(fragile: str) -> None:
    """Somebody listens, and does not end a transaction."""
    async with connected(fragile) as deaf, connected(fragile) as conn:
        await deaf.execute("listen doctor")
        async with deaf.transaction():
            await deaf.execute("select 1")
            for least, severity in ((0.25, Severity.warning), (0.5, Severity.critical)):
                usage = 0.0
                while usage < least:
                    await conn.execute("select pg_notify('doctor', repeat('x', 7999))")
                    [[usage]] = await (await conn.execute("select pg_notification_queue_usage()")).fetchall()
                found = only((await ask(fragile))["notify_queue"], severity)
                assert found.found == f"the queue of notifications is {usage:.0%} full"


async def test_connections_run_out(fragile: str) -> None:
    async with connected(fragile) as conn:
        server = await diagnostics.server(conn, "outrider")
        async with connected(fragile):
            assert (await diagnostics.server(conn, "outrider")).connections == server.connections + 1
    crowded = replace(server, connections=server.most_connections - 3)
    found = [
        each for each in server_checks.judge_server(crowded, server.now, server.now) if each.check == "connections"
    ]
    assert only(found).found == "297 of 300 connections are in use"


# The listener


async def test_a_pooler_that_swallows_pokes(fragile: str) -> None:
    with PgBouncer(fragile, "transaction") as pooler:
        found = only((await ask(pooler.dsn))["listener"])
    assert "test notification did not arrive" in found.found
    assert "OUTRIDER_LISTEN_DSN" in found.advice


async def test_a_pooler_that_keeps_sessions(fragile: str) -> None:
    with PgBouncer(fragile, "session") as pooler:
        assert "through a pooler" in only((await ask(pooler.dsn))["listener"], Severity.note).found


async def test_nobody_where_workers_listen(fragile: str) -> None:
    nowhere = make_conninfo(fragile, host=HOST, port=str(free_port()))
    found = only((await ask(fragile, listen_dsn=nowhere))["listener"])
    assert found.found.startswith(f"nothing listens at {HOST}:")
    assert "OUTRIDER_LISTEN_DSN" in found.advice


async def test_notifications_are_off(fragile: str) -> None:
    assert only((await ask(fragile, Outrider(dsn=fragile, notify="off")))["listener"], Severity.note)


# What holds everything up


async def test_long_transactions_by_process(fragile: str) -> None:
    """A writer, a transaction that only reads, a prepared one, a replication slot: found, told apart, and ended as told."""
    execute(
        fragile,
        "create table scrap (n int)",
        "select pg_create_logical_replication_slot('forgotten', 'pgoutput')",
    )
    async with connected(fragile) as conn:
        writer, reader = await connection.connect(fragile, name="outrider worker"), await connection.connect(fragile)
        await writer.execute("insert into scrap values (1)")
        await reader.execute("set transaction isolation level repeatable read; select * from scrap")
        execute(fragile, "begin; insert into scrap values (2); prepare transaction 'kept'")
        try:
            assert only((await ask(fragile))["transactions"], Severity.ok)
            holders = await diagnostics.holders(conn, "outrider")
            told = {
                f"process {writer.info.backend_pid} (outrider worker, postgres, idle in transaction)": ("batch", True),
                f"process {reader.info.backend_pid} (outrider, postgres, idle in transaction)": ("transaction", False),
                "the prepared transaction 'kept' of postgres": ("prepared", True),
                "the replication slot forgotten (not active)": ("slot", False),
            }
            assert {each.who: (each.kind, each.writes) for each in holders} == told
            since = timedelta(minutes=10)
            aged = [
                replace(
                    each, since=since if each.since else None, xids=20_000_000 if each.kind == "slot" else each.xids
                )
                for each in holders
            ]
            found = {each.found: each for each in server_checks.judge_holders(aged, sees_all=True)}
            tells = [each.split(" (", 1)[0].removesuffix(" of postgres") for each in told]
            assert all(any(name in text for text in found) for name in tells)
            assert any(each.advice.startswith("it is a batch of a worker") for each in found.values())
            assert found["the replication slot forgotten (not active) holds a snapshot for 20,000,000 transactions"]
            severe = list(server_checks.judge_holders([replace(each, since=HOUR) for each in aged], sees_all=True))
            assert {each.severity for each in severe} == {Severity.critical}
        finally:
            for each in holders:
                execute(fragile, each.ends)
            await writer.close()
            await reader.close()
        assert await diagnostics.holders(conn, "outrider") == []


async def test_many_transactions_do_not_hide_a_slot(fragile: str) -> None:
    async with connected(fragile) as conn:
        execute(fragile, "select pg_create_logical_replication_slot('hidden', 'pgoutput')")
        [slot] = await diagnostics.holders(conn, "outrider")
        execute(fragile, slot.ends)
    young = [replace(slot, kind="transaction", since=timedelta(seconds=1), xids=1)] * 30
    [found] = server_checks.judge_holders([*young, replace(slot, xids=20_000_000)], sees_all=True)
    assert "replication slot" in found.found


async def test_dead_rows(fragile: str) -> None:
    """As when autovacuum is off, or is held back."""
    execute(
        fragile,
        """insert into outrider.worker (id, host, pid, version, generation, subscriptions, seen_at)
           select gen_random_uuid(), 'host', n, 'x', 0, '{}', now() from generate_series(1, 10001) as n""",
        "delete from outrider.worker; select pg_stat_force_next_flush()",
    )
    found = only((await ask(fragile))["dead_tuples"])
    assert found.found == "worker: 10,001 dead rows beside 0 live ones, never vacuumed"
    execute(fragile, "vacuum outrider.worker")
    assert only((await ask(fragile))["dead_tuples"], Severity.ok)


# The log


async def test_segments_run_out(fragile: str) -> None:
    """One is left; then none; then it is done what the runbook says."""
    publish = "select outrider.publish('a.b', '{}')"
    execute(fragile, "select setval('outrider.outbox_seq', 13999999)", publish)
    assert only((await ask(fragile))["segments"]).found == "1 segment ahead"
    execute(fragile, "select setval('outrider.outbox_seq', 15999999)", publish, publish)
    found = only((await ask(fragile))["segments"])
    assert "2 events are in it, from 16,000,000 on" in found.found
    execute(fragile, "select setval('outrider.outbox_seq', 17000000)")
    assert only((await ask(fragile))["segments"], Severity.critical)
    execute(fragile, "select setval('outrider.outbox_seq', 16000001)")
    [remedy] = re.findall(r"^```sql\n(do \$segments\$.*?)^```", (ROOT / "docs/runbook.md").read_text(), re.M | re.S)
    execute(fragile, remedy)
    assert only((await ask(fragile))["segments"], Severity.ok).found == "16 segments ahead"
    known = "select count(*) from outrider.segment as s where to_regclass('outrider.' || s.name) is null"
    assert execute(fragile, known) == [(0,)]
    execute(fragile, publish)
    assert execute(fragile, "select count(*), max(seq) from outrider.outbox where seq >= 16000000") == [(3, 16000002)]


async def test_a_log_without_segments(fragile: str) -> None:
    execute(
        fragile,
        """do $$ declare segment regclass; begin
               for segment in select inhrelid from pg_inherits where inhparent = 'outrider.outbox'::regclass loop
                   execute format('alter table outrider.outbox detach partition %s', segment);
               end loop;
           end $$""",
    )
    assert "nothing can be published" in only((await ask(fragile))["segments"], Severity.critical).found


async def test_whatever_goes_wrong_is_a_finding(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(diagnostics, "segments", broken)
    found = await ask(fragile)
    assert only(found["segments"]).found == "could not be checked: ZeroDivisionError: a bug"
    assert only(found["privileges"], Severity.ok)


async def test_a_log_that_grows(fragile: str) -> None:
    execute(fragile, "select outrider.publish('a.b', '{}')", "select setval('outrider.outbox_seq', 5000001)")
    assert only((await ask(fragile))["growth"], Severity.note).found == "about 5,000,001 events in the log"
    execute(fragile, "select setval('outrider.outbox_seq', 20000001)")
    assert "docs/relay.md" in only((await ask(fragile))["growth"]).advice


async def test_events_that_somebody_needs(fragile: str) -> None:
    """Their segment is kept, and it is said who needs it, until nobody does."""
    async with opened(fragile) as shop:
        shop.wrong |= {"b1": later}
        await shop.publish("a1", "b1")
        execute(fragile, "select setval('outrider.outbox_seq', 1000000)", "select outrider.note_segments()")
        execute(fragile, "update outrider.segment set closed_at = closed_at - interval '46 days'")
        execute(fragile, "select outrider.upkeep_log()")
        assert "shop.effect has not read it" in only((await ask(fragile))["retention"]).found
        await shop.app.drain()
        execute(fragile, "select outrider.upkeep_log()")
        assert "shop.effect has 1 events that wait of it" in only((await ask(fragile))["retention"]).found
        shop.wrong.clear()
        await shop.make_due()
        await shop.app.drain()
        execute(fragile, "select outrider.upkeep_log()")
        assert only((await ask(fragile))["retention"], Severity.ok)
        assert execute(fragile, "select count(*) from outrider.outbox") == [(0,)]


async def test_dead_letters_that_expire(fragile: str) -> None:
    """A week before upkeep removes them it is a warning, and not once they are replayed, discarded or kept for longer."""
    async with opened(fragile) as shop:
        shop.wrong |= {"a1": never, "b1": never}
        await shop.publish("a1", "b1")
        await shop.app.drain()
        execute(fragile, "update outrider.delivery set buried_at = now() - interval '37 days'")
        assert only((await ask(fragile))["dead_letters"], Severity.note)
        execute(fragile, "update outrider.delivery set buried_at = now() - interval '39 days'")
        [soon] = [each for each in (await ask(fragile))["dead_letters"] if each.severity is Severity.warning]
        assert soon.found.startswith("2 dead letters of shop.effect will be removed within 7 days, the oldest at 20")
        execute(fragile, "update outrider.setting set value = 59 where name = 'retention.dead_letter_days'")
        assert only((await ask(fragile))["dead_letters"], Severity.note)


async def test_upkeep_that_does_not_run(fragile: str) -> None:
    assert only((await ask(fragile))["upkeep"], Severity.ok).found == "it has not run yet"
    execute(fragile, "update outrider.migration set applied_at = applied_at - interval '2 hours'")
    assert only((await ask(fragile))["upkeep"]).found == "it has never run in 2 h"
    execute(fragile, "select outrider.upkeep_begin('1 minute')")
    assert re.fullmatch(r"ran \d+ s ago", only((await ask(fragile))["upkeep"], Severity.ok).found)
    execute(fragile, "update outrider.upkeep set ran_at = ran_at - interval '3 days'")
    assert only((await ask(fragile))["upkeep"]).found == "it has not run for 3 days"


# What is owed


async def test_what_is_past_its_time(fragile: str) -> None:
    """A parked event whose retry is due, a job that is due, a job whose lease nobody took back; not while it is paused."""
    async with opened(fragile) as shop:
        shop.wrong |= {"a1": lambda: 1 / 0}  # type: ignore[dict-item]
        await shop.publish("a1")
        await shop.app.drain()
    execute(
        fragile,
        "update outrider.delivery set run_at = now() - interval '10 minutes'",
        "insert into outrider.subscription select (jsonb_populate_record(s, "
        """'{"name": "shop.chore", "kind": "job"}')).* from outrider.subscription as s""",
        """insert into outrider.job (subscription, event_id, run_at, queue)
           select 'shop.chore', gen_random_uuid(), now() - interval '6 minutes', 'a' from generate_series(1, 5)""",
        """update outrider.job set status = 'in_flight', lease_token = 1, lease_expires_at = now() - interval '7 minutes'
           where id = (select max(id) from outrider.job)""",
        # Its time has come, and nobody has looked since; its worker died.
        "update outrider.job set waits_for = 'time' where id = (select min(id) from outrider.job)",
        "update outrider.job set crashes = 1 where id = (select min(id) + 1 from outrider.job)",
    )
    found = [each.found for each in (await ask(fragile))["overdue"]]
    assert [each.split(", ")[0] for each in found] == [
        "shop.effect: 1 event is overdue",
        "shop.chore: 5 jobs are overdue",
    ]
    execute(fragile, "update outrider.subscription set paused_at = now() where name = 'shop.effect'")
    assert len((await ask(fragile))["overdue"]) == 1
    execute(fragile, "update outrider.setting set value = 1 where name = 'paused'")
    assert only((await ask(fragile))["overdue"], Severity.ok)


async def test_a_job_that_waits_for_a_key_that_nobody_has(fragile: str) -> None:
    execute(
        fragile,
        "select outrider.register('shop.chore', 'job', 'shop', '{}')",
        """insert into outrider.job (subscription, event_id, run_at, queue, job_key, waits_for)
           select 'shop.chore', gen_random_uuid(), now() - interval '6 minutes', 'a', 'k' || n % 2, 'key'
           from generate_series(1, 9) as n""",
        """update outrider.job set status = 'in_flight', lease_token = 1, lease_expires_at = now() + interval '1 hour',
               waits_for = null where id = (select max(id) from outrider.job where job_key = 'k0')""",
    )
    [found] = (await ask(fragile))["overdue"]
    assert found.found.startswith("shop.chore: 1 job is overdue")


async def test_jobs_of_a_type_that_nobody_has_registered(fragile: str) -> None:
    """A wrong name in SQL, or code that was never deployed: no worker looks for them. Any producer can make up many."""
    execute(fragile, "select outrider.enqueue('shop.typo', '{}', run_at => now() - interval '4 minutes')")
    assert only((await ask(fragile))["overdue"], Severity.ok)
    execute(fragile, "update outrider.job set run_at = now() - interval '6 minutes'")
    found = only((await ask(fragile))["overdue"])
    assert found.found.startswith("shop.typo: 1 job is overdue, the oldest since ")
    assert found.found.endswith(", and no job type of that name is registered")
    assert "outrider job cancel --type TYPE" in found.advice
    execute(
        fragile,
        """select outrider.enqueue('shop.typo_' || n, '{}', run_at => now() - interval '6 minutes')
           from generate_series(1, 9) as n""",
    )
    assert [each.found for each in (await ask(fragile))["overdue"]][5:] == ["and 5 more like these"]


async def test_a_schedule_that_was_fired_ahead_of_time(fragile: str) -> None:
    app = Outrider(context="shop", dsn=fragile)
    app.schedule("0 3 * * *", Make())
    async with app:
        await app.migrate()
    assert (await ask(fragile))["schedules"][0].found == "1 schedule, none late, none ahead of the server's clock"
    execute(fragile, "update outrider.schedule set fired_at = clock_timestamp() + interval '2 hours'")
    found = only((await ask(fragile))["schedules"])
    assert "factory.make was last fired for" in found.found
    assert "119 min from now" in found.found


async def test_events_that_are_not_read(fragile: str) -> None:
    async with opened(fragile) as shop, connected(fragile) as conn:
        await shop.publish("a1")
        await conn.execute("update outrider.outbox set occurred_at = now() - interval '10 minutes'")
        await worker(conn, "shop.effect", listening=True)
        found = await ask(fragile, shop.app)
        assert (
            only(found["lag"]).found == "shop.effect has not read an event of 10 min ago; 1 log position is ahead of it"
        )
        await shop.app.pause("shop.effect")
        found = await ask(fragile, shop.app)
        assert "lag" not in found
        assert only(found["paused"], Severity.note)
        await shop.app.pause()
        assert [each.severity for each in (await ask(fragile))["paused"]] == [Severity.warning, Severity.note]


async def test_dead_letters(fragile: str) -> None:
    async with opened(fragile) as shop:
        shop.wrong |= {"a1": never}
        await shop.publish("a1")
        await shop.app.drain()
        found = only((await ask(fragile))["dead_letters"], Severity.note)
        assert (found.found, found.advice) == (
            "shop.effect has 1 dead letter",
            "outrider dlq list --subscription shop.effect",
        )
        names = [f"{key}1" for key in "bcde"]
        shop.wrong |= dict.fromkeys(names, never)
        await shop.publish(*names)
        await shop.app.drain()
    [_, many] = (await ask(fragile))["dead_letters"]
    assert many.severity is Severity.warning, "a handler that fails always, although no worker lives that could say so"
    assert many.found == "shop.effect got 5 dead letters within the last hour, the newest for bury: Bury: never"


async def test_orphans(fragile: str) -> None:
    """Of the app's own context only, whatever its kind, and not while a worker serves it."""
    app = Outrider(context="shop", dsn=fragile)
    app.reader(Placed, name="shop.kept")
    for name, kind, context in (
        ("shop.gone", "handler", "shop"), ("shop.unread", "reader", "shop"), ("billing.invoice", "handler", "billing"),
        ("shop.kept", "reader", "shop"), ("shop.served", "handler", "shop"),
    ):  # fmt: skip
        execute(fragile, f"select outrider.register('{name}', '{kind}', '{context}', '{{a.b}}')")
    async with connected(fragile) as conn:
        await worker(conn, "shop.served", listening=True)
    found = await ask(fragile, app)
    assert [each.found.split()[0] for each in found["orphans"]] == ["shop.gone", "shop.unread"]
    assert "nobody serves billing.invoice" in [each.found for each in found["workers"]]
    assert "orphans" not in await ask(fragile)


async def test_an_app_that_was_never_registered_here(fragile: str) -> None:
    app = Outrider(context="shop", dsn=fragile)

    async def effect(event: Placed) -> None: ...

    for n in range(6):
        app.handler(Placed, name=f"shop.effect_{n}")(effect)
    found = [each for each in (await ask(fragile, app))["schema"] if each.severity is Severity.warning]
    assert only(found).found == (
        "the app declares shop.effect_0, shop.effect_1, shop.effect_2, shop.effect_3, shop.effect_4 and others, not "
        "registered in this database: nothing is handled for them"
    )
    async with app:
        await app.migrate()
    assert only((await ask(fragile, app))["schema"], Severity.ok)


async def test_generations_without_workers(fragile: str) -> None:
    async with opened(fragile, generation=41) as shop, connected(fragile) as conn:
        await conn.execute("select outrider.open_generation('shop.effect', 41)")
        nobody = only((await ask(fragile, shop.app))["generations"])
        assert nobody.found.startswith("generation 41 of shop.effect has no worker of its own")
        await worker(conn, "shop.effect", generation=42, listening=True)
        assert "others serve it" in only((await ask(fragile, shop.app))["generations"], Severity.note).found
        await worker(conn, "shop.effect", generation=41, pid=2, listening=True)
        assert "generations" not in await ask(fragile, shop.app)


async def test_workers_that_cannot(fragile: str) -> None:
    async with opened(fragile), connected(fragile) as conn:
        await worker(conn, "shop.effect", listening=False, unable=["shop.effect"])
        await conn.execute("update outrider.cursor set open_until = now() + interval '1 hour'")
        found = [each.found for each in (await ask(fragile))["workers"]]
        assert found[-1] == "1 at work, 1 of them just started"
        await conn.execute("update outrider.worker set started_at = now() - interval '1 minute'")
    found = [each.found for each in (await ask(fragile))["workers"]]
    assert found == [
        "the workers of shop.effect do not know all its event types",
        "the breaker of shop.effect is open: all its events fail",
        "1 of 1 worker polls, because no notifications arrive",
    ]
    quiet = (await ask(fragile, Outrider(dsn=fragile, notify="off")))["workers"]
    assert (quiet[-1].severity, quiet[-1].found) == (Severity.ok, "1 at work, 1 of them poll")


async def test_a_worker_says_at_once_whether_it_is_woken(fragile: str) -> None:
    """Its heartbeat does not come in the time of this test."""
    async with opened(fragile) as shop, working(shop) as at_work:
        for listening in (True, False):
            if not listening:
                at_work.wakeups._down("the wire was cut")
            async with asyncio.timeout(30):
                while await shop.rows("select listening from outrider.worker") != [{"listening": listening}]:
                    pass


async def test_a_breaker_says_what_fails(fragile: str) -> None:
    """A breaker buries nothing: the newest failure of what is parked."""
    async with opened(fragile) as shop, connected(fragile) as conn:
        shop.wrong |= {"a1": lambda: 1 / 0, "b1": later}  # type: ignore[dict-item]
        for name in ("a1", "b1"):
            [event_id] = await published(shop, name)
            await shop.app.drain()
        await conn.execute("update outrider.cursor set open_until = now() + interval '1 hour'")
        await worker(conn, "shop.effect", listening=True)
        [found, _] = (await ask(fragile))["workers"]
    assert found.found.endswith("is open: all its events fail, last with value_error: ValueError: not today")
    assert found.advice.startswith(f"outrider event show {event_id} says more; when the cause is gone, outrider subs")


async def test_no_worker_while_something_is_owed(fragile: str) -> None:
    async with opened(fragile) as shop, connected(fragile) as conn:
        assert only((await ask(fragile))["workers"]).found == "nobody serves shop.effect"
        await shop.publish("a1")
        assert "there is no worker at all" in only((await ask(fragile))["workers"], Severity.critical).found
        await shop.app.pause("shop.effect")
        assert only((await ask(fragile))["workers"])
        await shop.app.resume("shop.effect")
        await worker(conn, "shop.other", listening=True)
        assert (await ask(fragile))["workers"][0].severity is Severity.warning


HANDLED_AFTER = """
update outrider.event_handled as h set handled_at = o.occurred_at + interval '{}'
from outrider.outbox as o where o.id = h.event_id and o.seq in ({})
"""


async def test_slow_for_long(fragile: str) -> None:
    async with opened(fragile) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
    assert only((await ask(fragile))["latency"], Severity.ok)
    execute(fragile, HANDLED_AFTER.format("1 second", "1, 2"))
    assert only((await ask(fragile))["latency"], Severity.ok).found.endswith(" s, only for a short time")
    execute(fragile, "update outrider.outbox set occurred_at = occurred_at - interval '20 minutes'")
    found = only((await ask(fragile))["latency"])
    assert re.search(r"\(p99\), last 5 min: 120\d\.\d s, and above 500 ms for 20 min", found.found)


async def test_a_backlog_that_was_handled_is_not_slow_any_more(fragile: str) -> None:
    async with opened(fragile) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
        execute(
            fragile,
            "update outrider.outbox set occurred_at = occurred_at - interval '40 minutes'",
            HANDLED_AFTER.format("20 minutes", "1, 2"),
        )
        found = only((await ask(fragile))["latency"], Severity.ok).found
        assert found.startswith(
            "nothing was handled within the last 5 min; before, from publish to receipt (p99): 1200."
        )
        await shop.publish("c1")
        await shop.app.drain()
    execute(fragile, HANDLED_AFTER.format("30 ms", "3"))
    found = only((await ask(fragile))["latency"], Severity.ok).found
    assert re.fullmatch(r"from publish to receipt at the slow end \(p99\), last 5 min: \d+ ms", found)


async def test_the_time_until_a_retry_or_a_replay_is_no_latency(fragile: str) -> None:
    async with opened(fragile) as shop:
        await shop.publish("a1", "b1")
        await shop.app.drain()
    execute(
        fragile,
        "update outrider.outbox set occurred_at = occurred_at - interval '20 minutes'",
        HANDLED_AFTER.format("30 ms", "1"),
        """update outrider.event_handled as h set failure_history = '[]'
           from outrider.outbox as o where o.id = h.event_id and o.seq = 2""",
    )
    found = only((await ask(fragile))["latency"], Severity.ok).found
    assert found.startswith("nothing was handled within the last 5 min; before, from publish to receipt (p99): 30 ms")


async def test_a_schema_of_another_version(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.known()
    monkeypatch.setattr(migrate, "known", lambda: (*known, migrate.Migration(len(known) + 1, "next", False, "-", "")))
    assert only((await ask(fragile))["schema"]).advice == "run outrider migrate"
    monkeypatch.undo()
    execute(fragile, "drop schema outrider cascade")
    found = await ask(fragile)
    assert only(found["schema"], Severity.critical)
    assert "overdue" not in found


# Rollups and pg_cron


async def test_rollups_that_fail(fragile: str) -> None:
    app = Outrider(context="hub", dsn=fragile)
    app.rollup("hub.imports", table="piece", key=["document"], single="hub.born", rollup="hub.imported")
    execute(fragile, "create table piece (document text)")
    async with connected(fragile) as conn:
        await rollups.install(conn, app.rollups[0].spec(), "outrider")
        assert "stable key" in only((await ask(fragile, app))["rollups"], Severity.note).found
        ticks = only((await ask(fragile))["pg_cron"], Severity.ok).found
        assert ticks == "is not installed (NOT_AVAILABLE): workers tick 1 rollup"
        execute(
            fragile,
            "insert into piece values (repeat('x', 600))",
            "update outrider.rollup_pending set staged_at = staged_at - interval '1 hour'",
            "select outrider.rollup_tick('hub.imports')",
        )
        found = [each.found for each in (await ask(fragile))["rollups"] if each.severity is Severity.warning]
        assert found == ["hub.imports: 1 row set aside: no event could be made of them"]
        execute(fragile, "update outrider.rollup set scheduler = 'cron'")
        found = [each.found for each in (await ask(fragile))["pg_cron"]]
        assert found == ["should tick 1 rollup, but is not there (NOT_AVAILABLE): workers tick meanwhile"]


def test_pg_cron_that_nobody_uses() -> None:
    [unused] = checks.judge_cron(diagnostics.Cron("INSTALLED", 0, 2))
    [used] = checks.judge_cron(diagnostics.Cron("INSTALLED", 1, 1))
    assert (unused.found, used.found) == (
        "is there, and no rollup uses it: workers tick 2 rollups",
        "ticks 1 of 2 rollups",
    )


# Rights


@pytest.mark.parametrize(
    ("granted", "told"),
    [
        ("grant delete on outrider.event_handled to {role}", "{role} may delete on event_handled"),
        ("grant update (payload) on outrider.outbox to {role}", "{role} may update on outbox"),
        ("grant insert on outrider.outbox to {role}", "{role} may insert (seq), insert (tx) on outbox"),
        ("grant delete on outrider.outbox_s0 to {role}", "{role} may delete on outbox"),
        ("grant trigger on outrider.delivery to {role}", "{role} may trigger on delivery"),
        ("grant update on sequence outrider.outbox_seq to {role}", "{role} may update on outbox_seq"),
        ("grant all on all tables in schema outrider to {role}", "{role} may truncate on audit, cursor, delivery, event_"),
        ("grant create on schema outrider to {role}", "{role} may create in the schema outrider"),
        ("grant pg_write_all_data to {role}", "{role} may delete, update on event_handled"),
        ("grant group_{role} to {role}; grant delete on outrider.outbox to group_{role}", "\n{role} may delete on outbox"),
        ("alter group owner_{role} add user {role}; alter schema outrider owner to owner_{role}",
         "{role} may do everything: it is a member of the owner, owner_{role}"),
        ("alter table outrider.audit owner to {role}", "{role} may change audit"),
        ("alter default privileges in schema outrider grant all on tables to {role}", "every table that postgres will make"),
        ("alter default privileges for role postgres grant execute on functions to {role}",
         "{role} may execute every function that postgres will make, anywhere"),
        ("grant select on outrider.outbox to public", "PUBLIC may select on outbox"),
        ("grant select (payload) on outrider.outbox to public", "PUBLIC may select on outbox.payload"),
        ("grant usage on schema outrider to public", "PUBLIC may usage on the schema outrider"),
        ("grant execute on function outrider.rollup_work to public", "it runs with the rights of its owner"),
        ("alter function outrider.rollup_retry reset search_path", "its caller chooses the search_path"),
        ("alter function outrider.rollup_retry set search_path = public, pg_temp", "its search_path should be pg_catalog"),
        ("alter function outrider.rollup_retry set search_path = pg_temp, pg_catalog", "should be pg_catalog, pg_temp"),
        ("grant insert on outrider.withdrawal to {role}", "{role} may insert on withdrawal"),
        ("grant update (paused_at) on outrider.subscription to {role}", "{role} may update on subscription"),
        ("grant execute on function outrider.withdraw to {role}; grant insert, update on outrider.subscription to {role}",
         "{role} may insert on subscription"),
        ("grant insert on outrider.audit to {role}", "{role} may insert on audit"),
        ("grant delete on outrider.schedule to {role}", "{role} may delete on schedule"),
        ("grant update on outrider.rollup_pending, outrider.rollup_log to {role}", "{role} may update on rollup_pending"),
        ("grant usage on sequence outrider.outbox_seq to {role}", "{role} may usage on outbox_seq"),
        ("grant maintain on outrider.outbox to {role}", "{role} may maintain on outbox"),
        ("grant pg_maintain to {role}", "{role} may lock every table: it is a member of pg_maintain"),
        ("create view outrider.v as select * from outrider.outbox; create view outrider.w as select * from outrider.v; "  # noqa: ISC004
         "grant usage on schema outrider to {role}; grant insert, delete on outrider.w to {role}",
         "{role} may delete, insert outbox through the view outrider.w"),
        ("grant select, insert (payload) on outrider.outbox to {role} with grant option",
         "{role} may grant insert, select on outbox"),
        ("alter default privileges in schema outrider grant usage on types to {role}", "every type that postgres will make"),
        ("create schema other create table event_handled () create table outbox (n int); "  # noqa: ISC004
         "grant insert on other.outbox to {role}; grant insert (payload) on outrider.outbox to {role}",
         "{role} may publish in outrider and in other: events of one context could pass for those of another"),
    ],
)  # fmt: skip
async def test_rights_that_are_too_broad(fragile: str, role: str, granted: str, told: str) -> None:
    execute(fragile, f"create role group_{role}", f"create role owner_{role}")
    async with connected(fragile) as conn:
        before = await diagnostics.rights(conn, "outrider")
        execute(fragile, granted.format(role=role))
        found = list(server_checks.judge_rights(await diagnostics.rights(conn, "outrider")))
    try:
        assert before == []
        notes = [each for each in found if "an operator acts through functions" in each.found]
        assert {each.severity for each in found if each not in notes} == {Severity.warning}
        assert {each.severity for each in notes} <= {Severity.note}
        assert told.format(role=role) in "\n" + "\n".join(each.found for each in found)
    finally:
        execute(
            fragile,
            "alter schema outrider owner to postgres",
            f"alter default privileges for role postgres revoke execute on functions from {role}",
            *(f"drop owned by {other}; drop role {other}" for other in (f"group_{role}", f"owner_{role}")),
        )


async def test_the_rights_that_an_application_had_are_not_too_broad(fragile: str, role: str) -> None:
    """And one schema for two contexts is one ring of trust, which is worth knowing."""
    execute(fragile, re.sub(r"\bapp\b", role, before("app")))
    found = await ask(fragile)
    assert only(found["privileges"], Severity.ok)
    assert "sharing" not in found
    for context in ("shop", "billing"):
        execute(fragile, f"select outrider.register('{context}.x', 'reader', '{context}', null)")
    told = only((await ask(fragile))["sharing"], Severity.note).found
    assert told == f"the contexts billing, shop share this schema: {role} may move the cursors of all of them"
    mine = await ask(make_conninfo(fragile, user=role))
    assert only(mine["rights"], Severity.note)
    assert "none is open" not in only(mine["transactions"], Severity.ok).found
    assert all(each.severity <= Severity.warning for group in mine.values() for each in group)


async def test_a_role_that_may_read_next_to_nothing(fragile: str, role: str) -> None:
    execute(fragile, f"grant usage on schema outrider to {role}", f"grant select on outrider.migration to {role}")
    found = await ask(make_conninfo(fragile, user=role))
    assert only(found["server"], Severity.ok)
    for check in ("schema", "overdue", "segments"):
        assert "could not be checked" in only(found[check]).found
    assert only(found["privileges"], Severity.ok)


async def test_a_role_that_may_not_read_the_sequence(fragile: str, role: str) -> None:
    """To which Postgres says null, as of an empty log."""
    async with opened(fragile) as shop:
        await shop.publish("a1")
        await shop.app.drain()
    execute(
        fragile,
        f"grant usage on schema outrider to {role}; grant select on all tables in schema outrider to {role}",
        f"grant execute on all functions in schema outrider to {role}",
    )
    found = await ask(make_conninfo(fragile, user=role))
    for check in ("schema", "latency", "segments"):
        assert "could not be checked" in only(found[check]).found
    assert "growth" not in found


# Brokers


async def test_brokers_that_can_lose_what_they_have(fragile: str, name: str) -> None:
    """And one that is not there. Nothing is made at a broker that is only asked."""
    careless = {"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(durable=False, settings=careless) as redis, RedisServer() as durable, NatsServer() as js:
        client = await nats.connect(js.url)
        try:
            await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], storage="memory")
            app = Outrider(context="shop", dsn=fragile)
            app.relay("shop.redis", RedisStreams(redis.url, stream=name))
            app.relay("shop.durable", RedisStreams(durable.url, stream=name))
            app.relay("shop.nats", JetStream(js.url, stream=name))
            app.relay("shop.coming", JetStream(js.url, stream=f"{name}_new", create=True))
            app.relay("shop.missing", JetStream(js.url, stream=f"{name}_none"))
            app.relay("shop.nobody", RedisStreams(f"redis://:hunter2@{HOST}:{free_port()}", stream=name))
            found = (await ask(fragile, app))["brokers"]
            assert len(await client.jetstream().streams_info()) == 1
        finally:
            await client.close()
    told = [(each.severity.name, each.found) for each in found]
    for severity, part in [
        ("warning", "shop.redis: redis://127.0.0.1:{redis} has no append-only file"),
        ("warning", "shop.redis: redis://127.0.0.1:{redis} evicts keys when its memory is full (allkeys-lru)"),
        ("ok", "shop.durable: "),
        ("warning", f"shop.nats: the stream {name} at"),
        ("note", f"shop.nats: the stream {name} at"),
        ("note", f"has no stream {name}_new yet"),
        ("critical", f"has no stream {name}_none: create it"),
        ("critical", "shop.nobody: "),
    ]:
        assert any(level == severity and part.format(redis=redis.port) in text for level, text in told), (part, told)
    assert len(told) == 8
    assert "hunter2" not in str(found)


async def test_redis_that_writes_behind_or_tells_nothing(name: str) -> None:
    with RedisServer(settings={"appendfsync": "everysec"}) as behind:
        [found] = await doctor._brokers(_relaying(RedisStreams(behind.url, stream=name)))
        assert (found.severity, "a power cut may lose a second" in found.found) == (Severity.note, True)
    with RedisServer(settings={"user": "quiet on >secret ~* +@all -info -config"}) as silent:
        [found] = await doctor._brokers(
            _relaying(RedisStreams(f"redis://quiet:secret@{HOST}:{silent.port}", stream=name))
        )
        assert (found.severity, "does not tell this user" in found.found) == (Severity.note, True)


class Rude(RedisStreams):
    """Somebody's sink, of which nothing can be said."""

    def __repr__(self) -> str:
        raise ValueError("no")

    async def weaknesses(self) -> list[Weakness]:
        raise ValueError("no")


class Met(RedisStreams):
    """Answers only when another one is asked, too."""

    met = asyncio.Barrier(2)

    async def weaknesses(self) -> list[Weakness]:
        await self.met.wait()
        return []


async def test_brokers_are_asked_at_once_and_may_be_anything() -> None:
    app, url = Outrider(context="shop"), f"redis://{HOST}:{free_port()}"
    for name, kind in (("rude", Rude), ("one", Met), ("two", Met)):
        app.relay(f"shop.{name}", kind(url, stream=name))
    found = await doctor._brokers(app)
    assert [each.severity.name for each in found] == ["warning", "ok", "ok"]
    assert found[0].found == "shop.rude: could not be checked: ValueError: no"


def _relaying(sink: Any) -> Outrider:
    app = Outrider(context="shop")
    app.relay("shop.out", sink)
    return app


# Of the doctor itself


async def test_it_cannot_write(fragile: str) -> None:
    async with connected(fragile) as conn:
        async with diagnostics.reading(conn):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                async with conn.transaction():
                    await conn.execute("create table scrap (n int)")
        await conn.execute("create table scrap (n int)")


async def test_what_gives_no_answer_does_not_hold_it_up(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LONGEST", 1)
    async with connected(fragile) as conn, conn.transaction():
        await conn.execute("lock table outrider.delivery in access exclusive mode")
        found = await ask(fragile)
        holder = conn.info.backend_pid
    for check in ("schema", "overdue"):
        waits = only([each for each in found[check] if doctor.IN_VAIN in each.found])  # another may be slow
        assert waits.found == "gave no answer within 1 s: it waits for a lock"
        assert f"select pg_terminate_backend({holder})" in waits.advice
    assert "could not be checked" not in str(found), "the session is usable afterwards"
