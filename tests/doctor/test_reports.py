"""Every stall is reported: what workers say in their heartbeats, and what the doctor, the status and /readyz make of it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from tests.brokers import HOST, free_port
from tests.doctor.test_doctor import ask, connected, execute, only, role
from tests.postgres.test_status import worker
from tests.worker.jobs.factory import Make
from tests.worker.shop import SOON, Placed, Shop, opened
from tests.worker.test_generations import working
from tests.worker.test_health import get

from outrider import Envelope, Outrider, RetryPolicy
from outrider.cli.output.status import view
from outrider.cli.target import Target
from outrider.doctor import checks, doctor, server_checks
from outrider.doctor.doctor import examine_all
from outrider.doctor.finding import Finding, Severity
from outrider.postgres.admin import diagnostics
from outrider.postgres.admin.status import Status
from outrider.signals import BrokerDown, Failed, LoopHeld, Recovered, Rejection, Settled, Signals, Troubled
from outrider.streams import RedisStreams
from outrider.testing import expect
from outrider.worker import presence, troubles, watchdog
from outrider.worker.health import HealthServer, WorkerHealth
from outrider.worker.troubles import Troubles
from outrider.worker.worker import Worker

__all__ = ["role"]

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.verify]

NO_ROOM = """
create function no_room() returns trigger language plpgsql as
    $$ begin raise 'no space left on device' using errcode = '53100'; end $$;
create trigger no_room before insert on outrider.event_handled execute function no_room();
"""
T = TypeVar("T")
OFTEN = 0.2
"""Seconds between two heartbeats."""
PATIENCE = 45.0
"""Seconds to wait for what must come."""


async def so(looks: Callable[[], Awaitable[T]]) -> T:
    """What it finds, once it finds something."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await looks():
                return found
            await asyncio.sleep(0.02)


async def told(dsn: str, fits: Callable[[dict[str, list[Finding]]], Any], app: Outrider | None = None) -> Any:
    """What the doctor says, once it fits: the next heartbeat brings it."""

    async def looks() -> Any:
        return fits(await ask(dsn, app))

    return await so(looks)


def about(check: str, *words: str) -> Callable[[dict[str, list[Finding]]], Finding | None]:
    return lambda found: next(
        (each for each in found.get(check, ()) if all(word in each.found for word in words)), None
    )


@asynccontextmanager
async def at_work(app: Outrider) -> AsyncIterator[Worker]:
    """All that is declared, with a short heartbeat."""
    made = app.worker()
    made.presence._every = OFTEN
    async with made:
        yield made


# What workers say of themselves


async def test_batches_that_are_rolled_back_in_a_row(fragile: str) -> None:
    async with opened(fragile) as shop, working(shop, heartbeat=OFTEN):
        execute(fragile, NO_ROOM)
        async with expect(shop.app, Troubled, times=4):
            await shop.publish("a1")
        found = await told(fragile, about("troubles", "shop.effect: batches are rolled back"))
        assert found.severity is Severity.warning
        assert "times in a row for" in found.found
        assert "53100: DiskFull: no space left on device" in found.found
        assert found.advice.startswith("the disk of the server is full")
        seen = await shop.app.status()
        [standing] = seen.subscriptions
        assert standing.states == ("troubled",)
        assert standing.troubles[0].code == "53100"
        async with expect(shop.app, Recovered) as recovered:
            execute(fragile, "drop trigger no_room on outrider.event_handled")
        assert recovered[0].subscription == "shop.effect"
        assert await told(fragile, about("troubles", "1 worker: no repeated failures"))
    assert await shop.effects() == ["a1"]


async def test_a_take_that_waits_for_a_lock(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "PATIENCE", 0.2)
    async with opened(fragile) as shop, working(shop, heartbeat=OFTEN) as at_work:
        async with connected(fragile) as conn:
            await conn.execute("begin; lock table outrider.event_handled in share row exclusive mode")
            await shop.publish("a1")
            found = await told(fragile, about("troubles", "shop.effect has waited for the database for"))
            assert "another session holds a lock" in found.found
            [standing] = (await shop.app.status()).subscriptions
            assert standing.states == ("unanswered",)
            async with HealthServer(WorkerHealth(at_work, silence=0.02), HOST, 0) as server:
                at_work.presence.last_contact = float("inf")
                status, body = await get(server, "/readyz")
            assert status == 503
            assert body["reason"].startswith("shop.effect has waited for the database for ")
            async with expect(shop.app, Settled) as settled:
                await conn.execute("rollback")
            assert settled[0].events == 1
        assert await told(fragile, about("troubles", "1 worker: no repeated failures"))
    assert await shop.effects() == ["a1"]


async def test_a_standstill_is_critical(fragile: str) -> None:
    async with opened(fragile), connected(fragile) as conn:
        trouble = {
            "kind": "rolled_back", "name": "shop.effect", "code": "57014", "message": "x", "in_a_row": 20, "seconds": 61
        }  # fmt: skip
        await worker(conn, "shop.effect", listening=True, report=json.dumps({"doing": None, "troubles": [trouble]}))
        await conn.execute("update outrider.worker set reported_at = now()")
        found = only((await ask(fragile))["troubles"], Severity.critical)
        assert "statement_timeout" in found.advice
        await conn.execute('update outrider.worker set report = \'{"troubles": [{"kind": 1e9}], "doing": 7}\'')
        assert only((await ask(fragile))["troubles"], Severity.ok), "whoever may be a worker can write anything there"


async def test_rights_that_were_revoked(fragile: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a take needs: the worker says it. Of what a heartbeat needs: the doctor sees it by the worker's session."""
    async with opened(fragile):
        pass
    app = Outrider(context="shop", dsn=make_conninfo(fragile, user=role))
    shop = Shop(app, fragile)
    app.handler(Placed, name="shop.effect", retry=SOON)(shop.effect)
    execute(
        fragile,
        f"grant usage on schema outrider to {role}",
        f"grant all on all tables in schema outrider to {role}",
        f"grant all on all sequences in schema outrider to {role}",
        f"grant execute on all functions in schema outrider to {role}",
        f"grant all on effect to {role}",
    )
    async with app, working(shop, heartbeat=OFTEN):
        execute(fragile, f"revoke insert on outrider.event_handled from {role}")
        async with expect(shop.app, Troubled):
            await shop.publish("a1")
        found = await told(fragile, about("troubles", "shop.effect", "42501", "event_handled"))
        assert found.advice.startswith("a right was revoked: outrider roles")
        execute(fragile, f"revoke insert on outrider.worker from {role}")
        async with expect(shop.app, Troubled, lambda each: each.subscription == "(heartbeat)", times=2):
            pass
        monkeypatch.setattr(diagnostics, "LATE", diagnostics.LATE * 0)
        found = only((await ask(fragile))["frozen"], Severity.critical)
        assert f"its role {role} may not write heartbeats any more" in found.found


async def test_a_handler_that_fails_always(fragile: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", retry=RetryPolicy(retries=2, base="10ms", jitter="none"))(
            shop.effect
        )

    async with opened(fragile, declare) as shop, working(shop, heartbeat=OFTEN):
        shop.wrong |= {name: lambda: 1 / 0 for name in ("a1", "b1", "c1")}  # type: ignore[misc]
        async with expect(shop.app, Failed, times=6):
            await shop.publish("a1", "b1", "c1")
        found = await told(fragile, about("failing", "shop.effect has failed", "division by zero"))
        assert found.severity >= Severity.warning
        assert "in a row" in found.found
        assert "failing" in (await shop.app.status()).subscriptions[0].states
        async with expect(shop.app, Settled, lambda each: each.events):
            await shop.publish("d1")
        assert await told(fragile, lambda found: "failing" not in found)


async def test_a_broker_that_is_down(fragile: str) -> None:
    """Without the app nobody knows where the broker is: the worker does, and the doctor says that it has not asked."""
    app = Outrider(context="shop", dsn=fragile)
    app.relay("shop.out", RedisStreams(f"redis://{HOST}:{free_port()}", stream="out"))
    async with app:
        await app.migrate()
        assert "were not checked" in only((await ask(fragile))["brokers"], Severity.note).found
        async with expect(app, BrokerDown, times=2), at_work(app):
            found = await told(fragile, about("brokers", "shop.out: the broker has not answered worker"))
            assert found.severity is Severity.critical
            seen = await app.status()
            [standing] = seen.subscriptions
            assert standing.states == ("broker_down",)
            assert "broker down for" in _shown(seen)
            assert not [each for each in (await ask(fragile, app))["brokers"] if each.severity is Severity.note]


async def test_what_a_worker_is_doing(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.output.status.BUSY", -checks.LATE)
    entered, go_on = asyncio.Event(), asyncio.Event()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.slow")
        async def slow(event: Placed) -> None:
            entered.set()
            await go_on.wait()

    async with opened(fragile, declare) as shop, working(shop, heartbeat=OFTEN):
        await shop.publish("a1")
        await entered.wait()

        async def doing() -> Status | None:
            seen = await shop.app.status()
            return seen if seen.workers[0].doing else None

        shown = _shown(await so(doing))
        assert re.search(r"shop\.slow runs for \d+ s", shown)
        assert "last seen" in shown
        go_on.set()


def _shown(seen: Status | None) -> str:
    """As `outrider status` shows it, on a wide terminal."""
    assert seen is not None
    console = Console(width=400, file=io.StringIO())
    with console.capture() as shown:
        for each in view(seen, target=Target(dsn="postgresql://nowhere")):
            console.print(each)
    return shown.get()


async def test_a_held_event_loop(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs on that loop: another thread looks, as another machine would."""
    monkeypatch.setattr(watchdog, "HELD", 0.1)
    monkeypatch.setattr(presence, "HELD", 0.1)
    reported, seen = threading.Event(), list[Finding]()

    def look() -> None:
        seen.extend(asyncio.run(told(fragile, lambda found: found.get("event_loop"))))
        reported.set()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.blocks")
        async def blocks(event: Placed) -> None:
            threading.Thread(target=look, daemon=True).start()
            assert reported.wait(PATIENCE)

    async with opened(fragile, declare) as shop, working(shop), expect(shop.app, Settled, timeout=PATIENCE):
        await shop.publish("a1")
    found = only(seen)
    assert found.found.startswith("shop.blocks held the event loop of worker ")
    assert "test_reports.py" in found.found
    assert "def instead of async def" in found.advice


def test_a_report_is_bounded_and_safe() -> None:
    """The table takes 8,192 characters; a heartbeat that it refuses would make a live worker look dead."""
    known = Troubles()
    for n in range(50):
        known.hear(Troubled(f'"{n}' * 300, '"' * 900, '\x00\x01"\\\n\ud800ü' * 9000, 3, str(n)))
    report = known.report({f"{n}.{'x' * 300}": {f"{m}.{'y' * 300}" for m in range(9)} for n in range(9)})
    assert report is not None
    assert len(report) < 8192
    assert "\\u0000" not in report
    assert len(json.loads(report)["troubles"]) == 5
    assert [len(each) for each in json.loads(report)["unknown"].values()] == [3, 3, 3]


def test_failing_events_do_not_hide_a_standstill() -> None:
    """Handlers that failed an hour ago, once or always, were reported in the place of what stops the worker now."""
    known, event = Troubles(), cast("Envelope", None)

    def reported() -> list[str]:
        return [each["name"] for each in json.loads(known.report({}) or '{"troubles": []}')["troubles"]]

    for n in range(6):
        known.hear(Rejection(f"shop.once{n}", event, 1, "too_large", "too large", False))
    assert reported() == []
    for n in range(6):
        for attempt in range(5):
            known.hear(Rejection(f"shop.always{n}", event, attempt, "too_large", "too large", False))
    assert reported() == [f"shop.always{n}" for n in range(5)]
    known.hear(LoopHeld("shop.held", 3.0, "a line"))
    known.hear(BrokerDown("shop.out", "broker_unavailable", "gone", 1))
    known.hear(Troubled("shop.deadlock", "40P01", "deadlock detected", 1))
    known.hear(Troubled("(jobs)", "53100", "no space", 3, "claim"))
    assert reported() == ["(jobs)", "shop.out", "shop.held", "shop.always0", "shop.always1"]


# What their silence means


async def test_a_frozen_worker(fragile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped: its heartbeats end, its sessions stay. A whole interpreter, because it gets a signal."""
    (tmp_path / "frozen.py").write_text(
        "from outrider import Event, Outrider\n"
        "class Placed(Event, type='frozen.placed'): ...\n"
        f"app = Outrider(context='frozen', dsn={fragile!r})\n"
        "@app.handler(Placed, name='frozen.effect')\n"
        "async def effect(event: Placed) -> None: ...\n"
    )
    command = [sys.executable, "-m", "outrider", "worker", "--app", "frozen:app"]

    async def listens() -> list[Any]:
        return execute(fragile, "select 1 from outrider.worker where listening")

    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment)
    try:
        await so(listens)
        assert "frozen" not in await ask(fragile)
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(diagnostics, "LATE", diagnostics.LATE * 0)
        found = only((await ask(fragile))["frozen"])
    finally:
        process.kill()
        await process.wait()
    assert f":{process.pid} has not been seen for " in found.found
    assert "frozen.effect" in found.found
    assert await told(fragile, lambda found: "frozen" not in found), "it is dead: its sessions have ended"


# What holds them up


async def test_who_holds_a_lock(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "WAITS", diagnostics.WAITS * 0)
    async with opened(fragile) as shop, working(shop), connected(fragile) as holder, connected(fragile) as conn:
        async with holder.transaction():
            await holder.execute("lock table outrider.event_handled in share row exclusive mode")
            await shop.publish("a1")
            await so(lambda: _waits(conn, 1))
            found = only((await ask(fragile))["locks"])
        pid = holder.info.backend_pid
        assert re.match(rf"1 session \(outrider worker\) waits up to \d+ s for process {pid} \(outrider, ", found.found)
        assert re.search(r"has done nothing for \d+ s; it ran: lock table outrider\.event_handled", found.found)
        assert found.advice.endswith(f"select pg_terminate_backend({pid})")
        assert only((await ask(fragile))["locks"], Severity.ok)


async def test_whoever_waits_for_somebody_who_waits(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of the queue is named; and a publisher that waits counts, whatever it is called."""
    monkeypatch.setattr(diagnostics, "WAITS", diagnostics.WAITS * 0)
    checkout = make_conninfo(fragile, application_name="checkout")
    async with connected(fragile) as conn, connected(fragile) as first, connected(checkout) as last:
        lock = "begin; lock table outrider.outbox in {} mode"
        await first.execute(lock.format("share").encode())
        async with connected(fragile) as second:
            waits = asyncio.create_task(second.execute(lock.format("access exclusive").encode()))
            await so(lambda: _waits(conn, 1))
            publishing = asyncio.create_task(last.execute("select outrider.publish('a.b', '{}')"))
            await so(lambda: _waits(conn, 2))
            found = only(list(server_checks.judge_locks(await diagnostics.locks(conn, "outrider"))))
            await first.execute("rollback")
            await waits
            await second.execute("rollback")
            await publishing
        assert found.found.startswith("2 sessions (checkout, outrider) wait ")
        assert f"for process {first.info.backend_pid} " in found.found


async def _waits(conn: AsyncConnection[Any], number: int) -> bool:
    [[waiting]] = await (await conn.execute("select count(*) from pg_locks where not granted")).fetchall()
    return bool(waiting >= number)


async def test_a_publisher_that_forgets_to_commit(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(fragile) as conn, conn.transaction():
        await conn.execute("select outrider.publish('a.b', '{}')")
        assert only((await ask(fragile))["transactions"], Severity.ok)
        monkeypatch.setattr(server_checks, "IDLE", server_checks.IDLE * 0)
        found = only((await ask(fragile))["transactions"])
        assert f"process {conn.info.backend_pid} " in found.found
    assert re.search(r"has published or enqueued, and has done nothing for \d+ s", found.found)


async def test_settings_that_reach_us(fragile: str, role: str) -> None:
    """Asked on a session that pins nothing, as behind a pooler."""
    name = conninfo_to_dict(fragile)["dbname"]
    execute(fragile, f"grant usage on schema outrider to {role}", f"grant insert on outrider.worker to {role}")
    assert not await _reaching(fragile)
    execute(
        fragile,
        f"alter role {role} set statement_timeout = '5s'",
        f"alter role {role} set lock_timeout = 0",
        f"alter database {name} set lock_timeout = '1s'",
        f"alter database {name} set default_transaction_read_only = on",
        f"alter role {role} in database {name} set default_transaction_read_only = off",
        f"alter role {role} set work_mem = '1MB'",
    )
    try:
        assert {
            (each.severity, each.found.removesuffix(", applies to Outrider's sessions"))
            for each in await _reaching(fragile)
        } == {
            (Severity.warning, f"statement_timeout = 5s, by the role {role}"),
            (Severity.warning, f"lock_timeout = 1s, by the database {name}"),
            (Severity.critical, f"default_transaction_read_only = on, by the database {name}"),
        }
        async with await AsyncConnection.connect(fragile, autocommit=True) as conn:
            for setting in ("statement_timeout", "lock_timeout", "default_transaction_read_only"):
                await conn.execute(f"set {setting} = 0".encode())
            assert only(
                list(server_checks.judge_settings(await diagnostics.settings(conn, "outrider"))), Severity.ok
            ), "it is pinned"
    finally:
        with psycopg.connect(fragile, autocommit=True, options="-c default_transaction_read_only=off") as owner:
            owner.execute(f"alter database {name} reset all".encode())


async def _reaching(dsn: str) -> list[Finding]:
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        found = await examine_all(Outrider(dsn=dsn), conn, "outrider")
    return [each for each in found if each.check == "settings" and each.severity is not Severity.ok]


async def test_a_slot_that_keeps_wal(fragile: str) -> None:
    execute(fragile, "select pg_create_physical_replication_slot('left_behind', true)")
    try:
        assert only((await ask(fragile))["wal"], Severity.ok)
        for _ in range(5):
            execute(fragile, "select pg_logical_emit_message(false, 'a', 'b'), pg_switch_wal()")
        found = only((await ask(fragile))["wal"])
        assert "the replication slot left_behind keeps" in found.found
        assert found.found.endswith("of WAL, and nobody reads it")
        assert "select pg_drop_replication_slot('left_behind')" in found.advice
    finally:
        execute(fragile, "select pg_drop_replication_slot('left_behind')")


async def test_a_schedule_that_does_not_fire(fragile: str) -> None:
    app = Outrider(context="shop", dsn=fragile)
    app.schedule("* * * * *", Make(), time_zone="Europe/Berlin")
    async with app:
        await app.migrate()
    assert only((await ask(fragile))["schedules"], Severity.ok)
    execute(fragile, "update outrider.schedule set fired_at = clock_timestamp() - interval '10 minutes'")
    found = only((await ask(fragile, app))["schedules"])
    assert "factory.make should have been fired at " in found.found
    assert only((await ask(fragile))["schedules"], Severity.note), "its code may be gone"
    async with connected(fragile) as conn:
        await worker(conn, "factory.make", listening=True)
    assert only((await ask(fragile))["schedules"]), "it is not: its job is served"
    async with app:
        await app.pause_schedule("factory.make")
    told = await ask(fragile)
    assert only(told["schedules"], Severity.ok), "a paused one is not late"
    assert "the schedule factory.make is paused since" in only(told["paused"], Severity.note).found


async def test_a_lock_does_not_hold_the_doctor_up_at_every_check(fragile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check waits its full time, the others do not."""
    monkeypatch.setattr(doctor, "LONGEST", 1)
    monkeypatch.setattr(doctor, "BLOCKED", 0.3)
    async with connected(fragile) as conn, conn.transaction():
        await conn.execute(
            "lock table outrider.delivery, outrider.job, outrider.worker, outrider.setting in access exclusive mode"
        )
        found = await ask(fragile)
    told = [each.found for group in found.values() for each in group if doctor.IN_VAIN in each.found]
    assert told.count("gave no answer within 1 s: it waits for a lock") == 1
    assert told.count("gave no answer within 0.3 s: it waits for a lock") == len(told) - 1 > 3


# /readyz


async def test_not_ready_while_takes_fail_in_a_row(fragile: str) -> None:
    async with opened(fragile) as shop, working(shop) as at_work:
        async with HealthServer(WorkerHealth(at_work, silence=60), HOST, 0) as well:
            execute(fragile, NO_ROOM)
            async with expect(shop.app, Troubled, times=5):
                await shop.publish("a1")
            assert (await get(well, "/readyz"))[0] == 200, "not for long yet"
        async with HealthServer(WorkerHealth(at_work, silence=0.02), HOST, 0) as server:
            at_work.presence.last_contact = float("inf")
            status, body = await get(server, "/readyz")
            assert status == 503
            assert body["reason"].startswith("shop.effect has failed ")
            assert "times in a row for" in body["reason"]
            assert "53100: DiskFull: no space left on device" in body["reason"]
            async with expect(shop.app, Recovered):
                execute(fragile, "drop trigger no_room on outrider.event_handled")
            at_work.presence.last_contact = float("inf")
            assert (await get(server, "/readyz"))[0] == 200


def test_what_runs_beside_does_not_make_it_unready() -> None:
    known, signals = Troubles(), Signals()
    signals.listen(known.hear)
    for name in ("(upkeep)", "(rollups)"):
        signals.emit(Troubled(name, "42501", "no right", 7))
    signals.emit(BrokerDown("shop.out", "broker_unavailable", "gone", 7))
    assert known.standstill(-1) is None
    signals.emit(Troubled("(jobs)", "57014", "too slow", 7, "claim"))
    assert re.fullmatch(r"\(jobs\) has failed 7 times in a row for \d+ s: 57014: too slow", known.standstill(-1) or "")
    signals.emit(Recovered("(jobs)", 7, "claim"))
    assert known.standstill(-1) is None
