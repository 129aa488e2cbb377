"""`outrider doctor --canary`: the hops of an event, and what it says of the hop that is broken."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from tests.cli import inprocess
from tests.postgres.roles.house import House
from tests.postgres.roles.house import opened as roles_opened
from tests.worker.shop import Placed, Shop, opened
from tests.worker.test_generations import so
from tests.worker.test_worker import WAIT, Heard

from outrider import Outrider
from outrider.doctor.canary import HOPS, CanaryAnswer, CanaryRun, _CanaryListener, send_canaries
from outrider.doctor.finding import Severity
from outrider.postgres.admin import canary
from outrider.postgres.admin.tenants import carry_out, plan
from outrider.postgres.connection import connect
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import Notified, Settled, Taken
from outrider.worker.canary_loop import NEVER, PAUSE, CanaryLoop
from outrider.worker.loop import beside

LIMIT = 30.0
"""Seconds for a hop that must be made."""
HURRY = 0.5
"""Seconds for one that cannot be made."""


async def sent(shop: Shop, limit: float = 60) -> list[CanaryRun]:
    async with shop.app._opened().autocommit() as conn:
        return await send_canaries(conn, "outrider", None, "commit", limit)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last hop it is known that it is not made."""
    heard = _CanaryListener.heard

    async def then_hurry(listener: _CanaryListener) -> float | None:
        found = await heard(listener)
        listener._limit = HURRY
        return found

    monkeypatch.setattr(_CanaryListener, "heard", then_hurry)


@asynccontextmanager
async def working(dsn: str, **options: Any) -> AsyncIterator[Shop]:
    async with opened(dsn, **options) as shop, shop.app.worker() as worker:
        await so(lambda: worker.listening)
        yield shop


LEFT = """select (select count(*) from outrider.outbox) as a, (select count(*) from outrider.event_handled) as b,
                 (select count(*) from outrider.delivery) as c, (select count(*) from outrider.subscription) as d,
                 (select count(*) from outrider.cursor) as e,
                 (select count(*) from pg_class where relkind = 'S' and relnamespace = 'outrider'::regnamespace) as f"""


async def left(shop: Shop) -> list[Any]:
    return [list(row.values()) for row in await shop.rows(LEFT)]


async def test_all_hops_of_each_generation_and_nothing_is_left(database: str) -> None:
    async with (
        working(database, generation=1, generations="strict") as one,
        working(database, generation=2, generations="strict") as two,
    ):
        heard = Heard(two.app)
        before = await left(one)
        runs = await sent(one)
        assert [(each.generation, tuple(each.hops)) for each in runs] == [(1, HOPS), (2, HOPS)]
        for each in runs:
            assert each.finding is not None
            assert each.finding.severity is Severity.ok, each.finding
            assert all(took >= 0 for took in each.hops.values())
            assert each.worker is not None
        assert len({each.worker for each in runs}) == 2, "each generation's own"
        assert await left(one) == before
        assert not [
            each for each in heard.signals if isinstance(each, Taken | Settled) and "canary" in each.subscription
        ]
        assert [each for each in heard.signals if isinstance(each, Notified)] != []


async def test_no_worker(database: str) -> None:
    async with opened(database) as shop:
        [run] = await sent(shop)
        assert run.finding is not None
        assert run.finding.found == "not sent: there is no worker to take it"


async def test_notifications_that_are_not_sent_are_found(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker still finds events, by polling."""
    heard = _CanaryListener.heard

    async def hurried(listener: _CanaryListener) -> float | None:
        listener._limit = HURRY
        return await heard(listener)

    monkeypatch.setattr(_CanaryListener, "heard", hurried)
    async with working(database) as shop:
        before = await left(shop)
        async with await connect(database, autocommit=True) as conn:
            await conn.execute("select set_config('outrider.notify', 'off', false)")
            [run] = await send_canaries(conn, "outrider", None, "commit", LIMIT)
        assert tuple(run.hops) == ("publish",)
        assert run.finding is not None
        assert run.finding.severity is Severity.critical
        assert run.finding.found == (
            "generation 0: published, but no notification arrived here within 30 s, and no worker has taken it: events are "
            "found by polling only"
        )
        assert await left(shop) == before


@pytest.mark.verify
@pytest.mark.usefixtures("hurried")
async def test_a_worker_that_hears_nothing_is_found(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its notifications do not arrive: as if it listened through a transaction pooler."""
    async with opened(database, poll="1h") as shop, shop.app.worker() as worker:
        await so(lambda: worker.listening)
        monkeypatch.setattr(worker.wakeups, "_channels_of", lambda _: {})  # also for heartbeats to come
        worker.wakeups.channels = {}
        worker.identity.listening = False
        await worker.presence.look()
        [run] = await sent(shop, LIMIT)
        assert tuple(run.hops) == ("publish", "notify")
        assert run.finding is not None
        assert run.finding.found.startswith("generation 0: a notification arrived here, and none of 1 worker has taken")
        assert run.finding.severity is Severity.critical


@pytest.mark.verify
@pytest.mark.usefixtures("hurried")
async def test_a_worker_whose_sessions_are_busy_is_found(database: str) -> None:
    async with working(database) as shop, await AsyncConnection.connect(database) as blocker:
        await blocker.execute("lock table outrider.event_handled in share mode")
        [run] = await sent(shop, LIMIT)
        await blocker.rollback()
        assert run.finding is not None
        assert run.finding.found.startswith("generation 0: a notification arrived here, and none of 1 worker")


ONE = "outrider.canary_00000000"
GARBAGE = ("", "{", "[]", "7", "null", "{}", '{"worker": "a", "take": "x", "taken_at": 1}', "[" * 7000,
           '{"worker": "a", "take": NaN, "taken_at": 1}', '{"worker": "a", "take": [], "taken_at": 1}')  # fmt: skip
FAKE = '{"worker": "nobody", "take": 0, "taken_at": 1}'


@asynccontextmanager
async def forging(dsn: str, *answers: str) -> AsyncIterator[None]:
    """Whoever listens as workers do knows the channel of the answer."""

    async def forge() -> None:
        [heard] = [each async for each in conn.notifies(stop_after=1)]
        for each in answers:
            await conn.execute("select pg_notify(%s, %s)", [canary.answer_channel(heard.payload), each])

    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("listen outbox_default")
        async with beside(forge()):
            yield


@pytest.mark.parametrize("text", GARBAGE)
def test_what_no_worker_says_is_no_answer(text: str) -> None:
    assert CanaryAnswer.parse(text) is None


@pytest.mark.usefixtures("hurried")
async def test_forged_answers_are_not_believed(database: str) -> None:
    """There is a worker's row, and no worker."""
    async with opened(database) as shop, forging(database, *GARBAGE, FAKE):
        await shop.rows(
            """insert into outrider.worker (id, host, pid, version, generation, subscriptions)
               values (gen_random_uuid(), 'here', 1, '1', 0, '{}')"""
        )
        [run] = await sent(shop, LIMIT)
        assert tuple(run.hops) == ("publish", "notify")
        assert run.finding is not None
        assert run.finding.found.startswith("generation 0: a notification arrived here, and none of 1 worker")


async def test_garbage_does_not_hide_the_answer(database: str) -> None:
    async with working(database) as shop, forging(database, *GARBAGE):
        [run] = await sent(shop)
        assert run.finding is not None
        assert run.finding.severity is Severity.ok, run.finding


async def test_forged_names_cost_a_look_and_no_session(database: str) -> None:
    """However many come meanwhile. One of them is registered, and its take fails."""

    async def flood() -> None:
        for n in itertools.count(1):
            loop.wants(f"outrider.canary_{n:08x}", 0)
            await asyncio.sleep(0)

    async with opened(database) as shop, AsyncExitStack() as ending:
        await shop.rows(f"select outrider.canary_begin('{ONE}')")
        await shop.rows(f"delete from outrider.cursor where subscription = '{ONE}'")
        sessions = WorkerSessions(database, 1)
        ending.push_async_callback(sessions.close)
        loop = CanaryLoop(0, "here", "outrider", sessions)
        for wrong in (
            "outrider.canary_",
            "outrider.canary_0.1234567",
            f"{ONE}0",
            f"{ONE}\n",
            "outrider.canary_0000000G",
        ):
            assert not loop.wants(wrong, 0)
        assert loop.wants(ONE, 0)
        async with sessions.session("shop.effect") as conn:
            backend = conn.info.backend_pid
        async with beside(flood()), asyncio.timeout(WAIT):
            assert await loop.step() == PAUSE
        assert loop.patient
        async with sessions.session("shop.effect") as conn:
            assert conn.info.backend_pid == backend, "its session was lost"
        await loop.step()
        assert await loop.step() == NEVER
        assert not loop.patient


async def test_what_was_cut_off_is_removed_by_upkeep(database: str) -> None:
    async with working(database) as shop:
        before = await left(shop)
        await shop.rows(f"select outrider.canary_begin('{ONE}')")
        await shop.rows("select outrider.upkeep_log()")
        assert await left(shop) != before, "its doctor may still wait"
        await shop.rows(f"update outrider.subscription set created_at = now() - interval '11 min' where name = '{ONE}'")
        await shop.rows("select outrider.upkeep_log(true)")
        assert await left(shop) != before, "a dry run removes nothing"
        await shop.rows("select outrider.upkeep_log()")
        assert await left(shop) == before


async def test_relays_and_readers_of_everything_do_not_get_it(database: str) -> None:
    async with opened(database) as shop:
        for name, kind in (("shop.all", "relay"), ("shop.reader", "reader"), ("shop.envelopes", "handler")):
            await shop.rows(f"select outrider.register('{name}', '{kind}', 'shop', null)")
        await shop.rows("select outrider.canary_begin('outrider.canary_00000000')")
        await shop.rows("select outrider.canary_send('outrider.canary_00000000', 0)")
        async with await AsyncConnection.connect(database) as conn:
            for name in ("shop.all", "shop.reader", "shop.envelopes", "outrider.canary_00000000"):
                taken = await conn.execute("select seq from outrider.take(%s) where seq is not null", [name])
                assert len(await taken.fetchall()) == ("canary" in name), name
                await conn.rollback()


def test_the_command(database: str, tmp_path: Path) -> None:
    assert inprocess.run(tmp_path, "migrate", "--dsn", database).returncode == 0
    done = inprocess.run(tmp_path, "doctor", "--canary", "--json", "--dsn", database)
    answer = json.loads(done.stdout)
    assert answer["canary"] == [{"generation": 0, "worker": None, "seconds": {}}]
    assert done.returncode == 2
    assert [each["found"] for each in answer["findings"] if each["check"] == "canary"] == [
        "not sent: there is no worker to take it"
    ]


async def test_the_table(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    async with working(database):
        done = await asyncio.to_thread(inprocess.run, tmp_path, "doctor", "--canary", "--dsn", database)
    assert "canary, in ms" in done.stdout
    for hop in HOPS:
        assert hop in done.stdout


@pytest.mark.parametrize("tenants", [False, True])
async def test_roles(database: str, tenants: bool) -> None:
    """An operator may send it; who only looks is told so."""
    async with opened(database):
        pass
    with psycopg.connect(database, autocommit=True) as owner, roles_opened(owner) as house:
        if tenants:
            seeing = [house.role(each) for each in ("worker", "operator", "dashboard")]
            async with await connect(database, autocommit=True) as conn:
                commands = await plan(conn, "outrider", enable=True, roles=seeing)
                await carry_out(conn, "outrider", commands)
        await canary_as_each(house)


async def canary_as_each(house: House) -> None:
    app = Outrider(context="shop", dsn=house.dsn("worker"))
    app.handler(Placed, name="shop.effect")(Shop(app, "").effect)
    async with app, app.worker() as worker:
        await so(lambda: worker.listening)
        for role, severity in (("operator", Severity.ok), ("dashboard", Severity.warning)):
            async with await connect(house.dsn(role), autocommit=True) as conn:
                [run] = await send_canaries(conn, "outrider", None, "commit", 60)
            assert run.finding is not None
            assert run.finding.severity is severity, run.finding
            assert ("outrider_operator (docs/roles.md)" in run.finding.advice) == (role == "dashboard")


def test_only_canaries(whole_database: str) -> None:
    with psycopg.connect(whole_database, autocommit=True) as conn:
        for call in ("canary_begin('shop.effect')", "canary_end('shop.effect', null)", "canary_send('shop.effect', 0)"):
            with pytest.raises(psycopg.Error, match="canary"):
                conn.execute(f"select outrider.{call}".encode())


def test_canaries_are_bounded(whole_database: str) -> None:
    with psycopg.connect(whole_database, autocommit=True) as conn:
        for n in range(100):
            conn.execute("select outrider.canary_begin(%s)", [f"outrider.canary_{n:08x}"])
        with pytest.raises(psycopg.Error, match="there are 100 canaries already"):
            conn.execute("select outrider.canary_begin('outrider.canary_ffffffff')")
