"""The listener on a real server: pokes arrive, outages are seen and told once, and nothing makes it stop."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from tests.proxy import Proxy, Wire

from outrider.postgres import connection
from outrider.postgres.listener import Listener, _backoff
from outrider.postgres.listener_session import Line

PATIENCE = 60.0
CHANNEL = 'outbox_gen_7; "--'
# The newest: one that was terminated may still be there for a moment.
LISTENING = """
select pid from pg_stat_activity where application_name = 'outrider listener' and datname = current_database()
order by backend_start desc limit 1
"""


class Heard:
    """What the listener told, in order."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    def poke(self, channel: str, payload: str) -> None:
        self._told.put_nowait(("poke", channel, payload))

    def up(self) -> None:
        self._told.put_nowait(("up",))

    def down(self, reason: str) -> None:
        self._told.put_nowait(("down", reason))

    def tick(self) -> None:
        self._told.put_nowait(("tick",))

    async def next(self) -> tuple[str, ...]:
        async with asyncio.timeout(PATIENCE):
            return await self._told.get()

    async def reason(self) -> str:
        kind, reason = await self.next()
        assert kind == "down"
        return reason

    @property
    def nothing_more(self) -> bool:
        return self._told.empty()


@asynccontextmanager
async def listening(dsn: str, heard: Heard, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
    callbacks = {"on_notification": heard.poke, "on_up": heard.up, "on_down": heard.down, "on_tick": heard.tick}
    listener = Listener(dsn, [CHANNEL, "other"], **{**callbacks, "deadline": PATIENCE, **options})
    watched = sockets_watched()
    task = asyncio.create_task(listener.run())
    try:
        yield task
    finally:
        task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
        assert task.cancelled()
        assert sockets_watched() == watched


def sockets_watched() -> int:
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined]


async def execute(dsn: str, query: str, *params: object) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(query.encode(), params)
        return await cursor.fetchall()


async def poke(dsn: str, payload: str, channel: str = CHANNEL) -> None:
    await execute(dsn, "select pg_notify(%s, %s)", channel, payload)


async def sends(proxy: Proxy) -> None:
    """Until the listener sends something."""
    sent = proxy.client_bytes
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.client_bytes > sent)


def received(wire: socket.socket, text: bytes) -> None:
    """Holds the event loop up until the kernel has it."""
    select.select([wire], [], [])
    while text not in wire.recv(65536, socket.MSG_PEEK):
        pass


async def test_pokes_arrive_on_every_channel(database: str) -> None:
    heard = Heard()
    async with listening(database, heard):
        assert await heard.next() == ("up",)
        await poke(database, "orders.placed")
        await poke(database, "<script>\u202e€", "other")
        await poke(database, "not ours", "another")
        await poke(database, "")
        assert await heard.next() == ("poke", CHANNEL, "orders.placed")
        assert await heard.next() == ("poke", "other", "<script>\u202e€")
        assert await heard.next() == ("poke", CHANNEL, "")


async def test_a_transaction_that_is_open_while_the_listener_starts(database: str) -> None:
    heard = Heard()
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await conn.execute("select pg_notify(%s, 'late')", [CHANNEL])
        async with listening(database, heard):
            assert await heard.next() == ("up",)
            await conn.commit()
            assert await heard.next() == ("poke", CHANNEL, "late")


async def test_no_poke_after_up_is_missed(database: str) -> None:
    """The publisher commits on the very moment of up, from a session that is ready."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        for start in range(20):
            heard = Heard()
            async with listening(database, heard):
                assert await heard.next() == ("up",)
                await conn.execute("select pg_notify(%s, %s)", [CHANNEL, str(start)])
                assert await heard.next() == ("poke", CHANNEL, str(start))


async def test_pokes_during_heartbeats_are_not_lost(database: str) -> None:
    heard, payloads = Heard(), [str(n) for n in range(2000)]
    with Proxy(database) as proxy:
        async with (
            listening(proxy.dsn, heard, heartbeat=0.01),
            await psycopg.AsyncConnection.connect(database, autocommit=True) as conn,
        ):
            assert await heard.next() == ("up",)
            before = proxy.round_trips
            for payload in payloads:
                await conn.execute("select pg_notify(%s, %s)", [CHANNEL, payload])
            for payload in payloads:
                assert await heard.next() == ("poke", CHANNEL, payload)
            assert proxy.round_trips > before + 5


async def test_a_poke_right_behind_an_answer(database: str) -> None:
    """Both are read from the socket at once; the poke must not wait until something else arrives."""
    heard = Heard()
    async with await connection.connect(database, autocommit=True) as conn:
        with psycopg.connect(database, autocommit=True) as other, socket.socket(fileno=os.dup(conn.fileno())) as wire:
            line = Line(conn, heard.poke, PATIENCE)
            await line.ask(b"listen other")
            answered = asyncio.create_task(line.ask(b"select 'answer'"))
            asyncio.get_running_loop().call_soon(received, wire, b"answer")
            asyncio.get_running_loop().call_soon(other.execute, "notify other, 'behind'")
            asyncio.get_running_loop().call_soon(received, wire, b"behind")
            assert await answered == [b"answer"]
            assert await heard.next() == ("poke", "other", "behind")
            line.hang_up()


async def test_channels_can_be_changed_while_it_runs(database: str) -> None:
    """From the next heartbeat on; "up" is told again, since pokes may have been missed before."""
    heard = Heard()
    listener = Listener(
        database, [CHANNEL, "other"], on_notification=heard.poke, on_up=heard.up, on_down=heard.down, heartbeat=0.05
    )
    listener.follow(["other"])
    task = asyncio.create_task(listener.run())
    try:
        assert await heard.next() == ("up",)
        listener.follow([CHANNEL, "more"])
        assert await heard.next() == ("up",)
        for channel in ("other", "more", CHANNEL):
            await poke(database, channel, channel)
        assert await heard.next() == ("poke", "more", "more")
        assert await heard.next() == ("poke", CHANNEL, CHANNEL)
        [(pid,)] = await execute(database, LISTENING)
        await execute(database, "select pg_terminate_backend(%s)", pid)
        await heard.reason()
        assert await heard.next() == ("up",)
        await poke(database, "again", "more")
        assert await heard.next() == ("poke", "more", "again")
        assert heard.nothing_more
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_its_backend_is_terminated(database: str) -> None:
    heard = Heard()
    async with listening(database, heard):
        assert await heard.next() == ("up",)
        for n in range(3):
            [(pid,)] = await execute(database, LISTENING)
            await execute(database, "select pg_terminate_backend(%s)", pid)
            assert (await heard.reason()).startswith("the listener lost its session: ")
            assert await heard.next() == ("up",)
            await poke(database, str(n))
            assert await heard.next() == ("poke", CHANNEL, str(n))


async def test_a_black_hole_is_seen_by_the_heartbeat(database: str) -> None:
    heard = Heard()
    with Proxy(database) as proxy:
        async with listening(proxy.dsn, heard, heartbeat=0.2, deadline=3, longest_backoff=0.2):
            assert await heard.next() == ("up",)
            proxy.black_hole()
            assert await heard.reason() == (
                "the listener's session gave no answer within 3 s: the server or the network is down"
            )
            await sends(proxy)
            proxy.heal()
            assert await heard.next() == ("up",)
            await poke(database, "after")
            assert await heard.next() == ("poke", CHANNEL, "after")


async def test_a_refusing_server_is_told_once(database: str) -> None:
    heard = Heard()
    with Proxy(database) as proxy:
        proxy.refuse()
        async with listening(proxy.dsn, heard, longest_backoff=0.05):
            assert "accepted the connection and closed it" in await heard.reason()
            await asyncio.to_thread(proxy.wait_for, lambda: proxy.cuts >= 5)
            assert heard.nothing_more
            proxy.heal()
            assert await heard.next() == ("up",)
            proxy.cut()
            assert (await heard.reason()).startswith("the listener lost its session: ")
            assert await heard.next() == ("up",)


async def test_a_server_that_never_answers_the_connect(database: str) -> None:
    heard = Heard()
    with Proxy(database) as proxy:
        proxy.black_hole()
        async with listening(proxy.dsn, heard, deadline=0.2):
            assert (await heard.reason()).startswith("the listener got no connection within 0.2 s")


class Pooler(Proxy):
    """Like a pooler in transaction mode: what a session is sent while no statement of its own runs is lost."""

    def _heard_server(self, wire: Wire, messages: list[tuple[str, bytes]]) -> bytes:
        onward = b""
        for kind, message in messages:
            if kind != "A" or wire.answered < wire.owed:
                onward += super()._heard_server(wire, [(kind, message)])
        return onward


async def test_a_transaction_pooler_is_found_out(database: str) -> None:
    heard = Heard()
    with Pooler(database) as pooler:
        async with listening(pooler.dsn, heard, deadline=3, longest_backoff=0.05):
            assert await heard.reason() == (
                "the listener's own test notification did not arrive within 3 s: a transaction pooler probably sits in "
                "between, so let listen_dsn (OUTRIDER_LISTEN_DSN) name the server directly"
            )
            seen = pooler.messages["A"]
            await asyncio.to_thread(pooler.wait_for, lambda: pooler.messages["A"] > seen)
            assert heard.nothing_more


async def test_cancelling_does_not_wait_for_a_dead_session(database: str) -> None:
    heard = Heard()
    with Proxy(database) as proxy:
        async with listening(proxy.dsn, heard, heartbeat=0.01, deadline=60) as task:
            assert await heard.next() == ("up",)
            proxy.black_hole()
            await sends(proxy)
            task.cancel()
            async with asyncio.timeout(60):
                await asyncio.wait([task])
            assert task.cancelled()


async def test_a_blocked_event_loop_is_no_dead_session(database: str) -> None:
    heard = Heard()
    with Proxy(database) as proxy:
        async with listening(proxy.dsn, heard, heartbeat=0.01, deadline=2):
            assert await heard.next() == ("up",)
            proxy.slow(0.05)
            await sends(proxy)
            blocked = time.monotonic() + 2.4
            while time.monotonic() < blocked:
                pass
            await poke(database, "after")
            assert await heard.next() == ("poke", CHANNEL, "after")


async def test_a_callback_that_raises(database: str) -> None:
    heard, reported = Heard(), asyncio.Queue[dict[str, Any]]()

    def on_notification(channel: str, payload: str) -> None:
        heard.poke(channel, str(100 // int(payload)))

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.put_nowait(context))
    async with listening(database, heard, on_notification=on_notification):
        assert await heard.next() == ("up",)
        await poke(database, "0")
        await poke(database, "4")
        assert await heard.next() == ("poke", CHANNEL, "25")
    assert isinstance(reported.get_nowait()["exception"], ZeroDivisionError)


async def test_it_ticks_when_the_sequence_moves(database: str) -> None:
    heard = Heard()
    async with listening(database, heard, watch_sequence=0.01):
        assert await heard.next() == ("up",)
        for n in range(3):
            await execute(database, "select nextval('outrider.outbox_seq')")
            assert await heard.next() == ("tick",)
            await poke(database, str(n))
            assert await heard.next() == ("poke", CHANNEL, str(n))


async def test_a_sequence_that_is_not_there(empty_database: str) -> None:
    heard = Heard()
    async with listening(empty_database, heard, watch_sequence=0.01):
        assert await heard.reason() == (
            'the listener was refused: ERROR:  relation "outrider.outbox_seq" does not exist'
        )


@pytest.mark.parametrize(("failures", "ceiling"), [(0, 0.1), (1, 0.2), (5, 3.2), (9, 30), (10**6, 30)])
def test_the_backoff_doubles_up_to_its_cap_and_is_never_nothing(failures: int, ceiling: float) -> None:
    drawn = [_backoff(failures, 30) for _ in range(200)]
    assert ceiling * 0.1 <= min(drawn) < ceiling * 0.5 < max(drawn) <= ceiling
