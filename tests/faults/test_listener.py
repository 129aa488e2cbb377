"""Faults 5 to 8: the listener dies, goes deaf or comes late. Pokes are for speed; the cursor loses nothing without them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from tests.faults import subject
from tests.faults.subject import HEARTBEAT, KEYED, POLL, Ear, Fact, Producer
from tests.oracle import Oracle, check
from tests.proxy import Proxy

from outrider import Outrider
from outrider.signals import ListenerDown, ListenerUp, Troubled, Woken

TERMINATE = """select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and application_name = 'ear'"""
LATENCY = """select coalesce(percentile_disc(%s) within group (order by extract(epoch from e.made_at - o.occurred_at)), 0)
             from effect as e join outrider.outbox as o using (seq)"""


def slack(long: bool) -> float:
    """How late is too late: a measurement on a machine of its own (make faults); otherwise only that it comes at all."""
    return 0.5 if long else 30


async def latency(dsn: str, share: float) -> float:
    async with await AsyncConnection.connect(dsn) as conn:
        row = await (await conn.execute(LATENCY, [share])).fetchone()
        assert row is not None
        return float(row[0])


@pytest.mark.verify
async def test_a_poke_says_the_type_on_the_channel(database: str) -> None:
    """Real dispatch: a plain LISTEN that was there before hears it, and what must not be heard is not."""
    app = Outrider(context="fault", dsn=database)
    ear = psycopg.connect(database, autocommit=True)
    with ear, psycopg.connect(database) as conn:
        ear.execute("listen outbox_default")
        app.publish_sync(conn, Fact(key="a", n=1))
        conn.commit()
        heard = [(poke.channel, poke.payload) for poke in ear.notifies(timeout=60, stop_after=1)]
        assert heard == [("outbox_default", "fault.fact")]

        app.publish_sync(conn, Fact(key="a", n=2))
        conn.rollback()
        conn.execute("set local outrider.notify = 'off'")
        app.publish_sync(conn, Fact(key="a", n=2))
        conn.commit()
        app.publish_many_sync(conn, [Fact(key="b", n=n) for n in range(1, 50)])
        conn.commit()
        conn.execute("notify outbox_default, 'the end'")
        conn.commit()
        heard = [(poke.channel, poke.payload) for poke in ear.notifies(timeout=60, stop_after=2)]
        assert heard == [("outbox_default", "fault.fact"), ("outbox_default", "the end")]


@pytest.mark.verify
async def test_a_poke_per_channel_and_type_of_a_statement(database: str) -> None:
    insert = """insert into outrider.outbox (event_type, source, channel, payload)
                select 'a.' || n % 2, 'test', 'outbox_gen_' || n % 3, '{}' from generate_series(1, 60) as n"""
    with psycopg.connect(database, autocommit=True) as ear, psycopg.connect(database, autocommit=True) as conn:
        ear.execute("listen outbox_gen_0; listen outbox_gen_1; listen outbox_gen_2; listen last")
        conn.execute(insert)
        conn.execute("notify last")
        heard = [(poke.channel, poke.payload) for poke in ear.notifies(timeout=60, stop_after=7)]
    assert heard.pop() == ("last", "")
    assert sorted(heard) == [(f"outbox_gen_{channel}", f"a.{kind}") for channel in range(3) for kind in range(2)]


@pytest.mark.verify
async def test_pokes_can_be_switched_off_for_a_database(database: str) -> None:
    app = Outrider(context="fault", dsn=database)
    with psycopg.connect(database, autocommit=True) as ear:
        ear.execute("listen outbox_default")
        name = ear.info.dbname
        ear.execute(f"alter database {name} set outrider.notify = 'off'".encode())
        with psycopg.connect(database) as conn:
            app.publish_sync(conn, Fact(key="a", n=1))
            conn.commit()
            conn.execute("notify outbox_default, 'the end'")
            conn.commit()
        assert [poke.payload for poke in ear.notifies(timeout=60, stop_after=1)] == ["the end"]


@pytest.mark.verify
async def test_a_worker_is_woken_by_the_poke(database: str, tmp_path: Path) -> None:
    """With an hour between polls, only a poke can be this quick."""
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    async with subject.make(database, poll=3600) as app:
        ear = Ear(app)
        async with subject.worker_of(app):
            await ear.until(lambda: bool(ear.all(ListenerUp)))
            for _ in range(5):
                await Producer(database, oracle).publish(key="k")
                await subject.all_handled(database, oracle, seconds=25)
        assert "notification" in [woken.reason for woken in ear.all(Woken)]
    check(database, oracle, blameless=True, unsuspected=True)


@pytest.mark.timed
async def test_the_listener_is_terminated_again_and_again(database: str, tmp_path: Path, long: bool) -> None:
    oracle, chance = Oracle(tmp_path), random.Random(5)
    await subject.setup(database)
    async with subject.make(database, listen_dsn=make_conninfo(database, application_name="ear")) as app:
        ear = Ear(app)
        async with subject.worker_of(app), await AsyncConnection.connect(database, autocommit=True) as conn:
            rounds = 0
            while rounds < (60 if long else 4) or len(ear.all(ListenerDown)) < 3:  # some rounds may meet no listener
                rounds += 1
                await ear.until(lambda: isinstance(ear.last(ListenerUp, ListenerDown), ListenerUp))
                async with subject.beside(Producer(database, oracle, name=f"{chance.random()}k").burst(30)):
                    await asyncio.sleep(chance.uniform(0.1, 0.5))
                    await conn.execute(TERMINATE)
            await subject.all_handled(database, oracle)
        assert not ear.all(Troubled)
    check(database, oracle, blameless=True, unsuspected=True)
    assert await latency(database, 0.99) <= POLL + 0.3 + slack(long)


@pytest.mark.verify
@pytest.mark.timed
async def test_a_deaf_listener_is_noticed(database: str, tmp_path: Path, long: bool) -> None:
    """Half-open: the server is gone without a word, so that only the heartbeat can tell."""
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    with Proxy(database) as proxy:
        async with subject.make(database, listen_dsn=proxy.dsn) as app:
            ear, producer = Ear(app), Producer(database, oracle)
            async with subject.worker_of(app):
                for time in range(1, 11 if long else 3):
                    await ear.until(lambda: len(ear.all(ListenerUp)) >= time)  # noqa: B023
                    proxy.black_hole()
                    begun = asyncio.get_running_loop().time()
                    await producer.burst(5)
                    await ear.until(lambda: len(ear.all(ListenerDown)) >= time)  # noqa: B023
                    assert asyncio.get_running_loop().time() - begun <= HEARTBEAT * 1.5 + slack(long)
                    await producer.burst(5)
                    await subject.all_handled(database, oracle)
                    proxy.heal()
                await ear.until(lambda: len(ear.all(ListenerUp)) >= time + 1)
    check(database, oracle, blameless=True, unsuspected=True)
    assert await latency(database, 0.99) <= POLL + 0.2 + slack(long)


@pytest.mark.verify
@pytest.mark.timed
async def test_polling_finds_what_nobody_was_told(database: str, tmp_path: Path, long: bool) -> None:
    """NOTIFY is off for all publishers, and the workers do not know."""
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} set outrider.notify = 'off'".encode())
    async with subject.make(database) as app:
        ear = Ear(app)
        async with subject.worker_of(app):
            for _ in range(20 if long else 3):
                await Producer(database, oracle).burst(10)
                await subject.all_handled(database, oracle)
        assert "notification" not in [woken.reason for woken in ear.all(Woken)]
    check(database, oracle, blameless=True, unsuspected=True)
    assert await latency(database, 0.99) <= POLL + 0.2 + slack(long)


async def listen_race(dsn: str, folder: Path, connects: int, seconds: float = 25) -> None:
    """An event at some millisecond around each connect of the listener. None may wait for the next poll."""
    oracle = Oracle(folder)
    await subject.setup(dsn)
    async with subject.make(dsn, poll=3600, listen_dsn=make_conninfo(dsn, application_name="ear")) as app:
        ear, producer = Ear(app), Producer(dsn, oracle)
        async with (
            subject.worker_of(app, KEYED),
            await AsyncConnection.connect(dsn, autocommit=True) as conn,
            await AsyncConnection.connect(dsn) as publishing,
        ):
            for time in range(1, connects + 1):
                await ear.until(lambda: len(ear.all(ListenerUp)) >= time)  # noqa: B023
                await conn.execute(TERMINATE)
                await ear.until(lambda: len(ear.all(ListenerDown)) >= time)  # noqa: B023
                # One event: the poke of another would bring what slipped through.
                await asyncio.sleep(time * 7 % 120 / 1000)
                await producer.publish_on(publishing, key="race")
                await subject.all_handled(dsn, oracle, KEYED, seconds=seconds)
    await subject.finish(dsn, oracle)
    check(dsn, oracle, blameless=True, unsuspected=True)


@pytest.mark.verify
@pytest.mark.timeout(300)
async def test_no_event_slips_between_listen_and_scan(database: str, tmp_path: Path, long: bool) -> None:
    await listen_race(database, tmp_path, 500 if long else 20)
