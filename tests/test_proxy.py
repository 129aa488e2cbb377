"""The proxy of the fault tests: each fault is the one it says, its counts are exact, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import AsyncConnection, Connection, OperationalError
from psycopg.conninfo import conninfo_to_dict
from tests.proxy import Frames, Proxy

Conn = Connection[Any]


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy(database) as proxy:
        yield proxy


@pytest.fixture
def conn(proxy: Proxy) -> Iterator[Conn]:
    with psycopg.connect(proxy.dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def pid(conn: Conn) -> int:
    """The backend of `conn`, which a broken connection no longer tells."""
    return conn.info.backend_pid


@pytest.fixture
def direct(database: str) -> Iterator[Conn]:
    """A session that the proxy does not touch."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table effect (n int)")
        yield conn


def effects(direct: Conn) -> list[int]:
    return [n for (n,) in direct.execute("select n from effect order by n").fetchall()]


def works(conn: Conn) -> bool:
    return conn.execute("select 1").fetchone() == (1,)


def raw_connection(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(str(conninfo_to_dict(proxy.dsn)["port"]))), timeout=60)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def last_query(direct: Conn, pid: int) -> str | None:
    row = direct.execute("select query from pg_stat_activity where pid = %s", [pid]).fetchone()
    return None if row is None else str(row[0])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline


def until_gone(direct: Conn, pid: int) -> None:
    until(lambda: last_query(direct, pid) is None)


def someone_waits(direct: Conn) -> bool:
    """For an advisory lock in this database."""
    query = """select from pg_locks where not granted and locktype = 'advisory'
               and database = (select oid from pg_database where datname = current_database())"""
    return bool(direct.execute(query).fetchall())


def test_it_passes_everything_and_keeps_the_rest_of_the_dsn(proxy: Proxy, database: str, conn: Conn) -> None:
    given, own = conninfo_to_dict(database), conninfo_to_dict(proxy.dsn)
    assert (own["host"], own["dbname"], own["user"]) == ("127.0.0.1", given["dbname"], given["user"])
    big = "x" * 5_000_000
    assert conn.execute("select %s || 'y'", [big]).fetchone() == (big + "y",)
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1 / 0")
    assert works(conn)


def test_a_refusal_of_the_server_arrives(proxy: Proxy) -> None:
    with pytest.raises(OperationalError, match='database "nowhere" does not exist'):
        psycopg.connect(proxy.dsn, dbname="nowhere")


def test_a_closed_connection_is_closed_on_both_sides(proxy: Proxy, direct: Conn) -> None:
    with psycopg.connect(proxy.dsn) as conn:
        pid = conn.info.backend_pid
    until_gone(direct, pid)
    proxy.wait_for(lambda: proxy.connections == 0)
    assert proxy.cuts == 0


def test_a_session_that_the_server_ends(conn: Conn, pid: int, direct: Conn) -> None:
    direct.execute("select pg_terminate_backend(%s)", [pid])
    with pytest.raises(psycopg.errors.AdminShutdown):
        conn.execute("select 1")


def test_a_query_can_be_cancelled_through_it(conn: Conn, pid: int, direct: Conn) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(conn.execute, "select pg_sleep(60)")
        until(lambda: last_query(direct, pid) == "select pg_sleep(60)")
        conn.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(60)


def test_round_trips_of_a_known_exchange(proxy: Proxy, direct: Conn) -> None:
    with psycopg.connect(proxy.dsn) as conn:
        assert proxy.round_trips == 1
        before = proxy.messages
        with conn.transaction():
            conn.execute("insert into effect values (1)")
            conn.execute("insert into effect select * from generate_series(2, %s) returning n", [4])
        assert proxy.round_trips == 1 + 4
        told = proxy.messages - before
    assert {kind: told[kind] for kind in "ZCDE"} == {"Z": 4, "C": 4, "D": 3, "E": 0}


def test_bytes_of_a_known_exchange(proxy: Proxy, conn: Conn) -> None:
    sent, received = proxy.client_bytes, proxy.server_bytes
    conn.pgconn.exec_(b"set application_name = 'x'")
    assert proxy.client_bytes - sent == 1 + 4 + len("set application_name = 'x'") + 1
    parameter = 1 + 4 + len("application_name") + 1 + len("x") + 1
    assert proxy.server_bytes - received == parameter + (1 + 4 + len("SET") + 1) + (1 + 4 + 1)


def test_a_pipeline_is_one_round_trip_per_sync(proxy: Proxy, conn: Conn, direct: Conn) -> None:
    before = proxy.round_trips
    with conn.pipeline():
        for n in range(10):
            conn.execute("insert into effect values (%s)", [n])
    assert proxy.round_trips == before + 1
    assert effects(direct) == list(range(10))


def test_cut(proxy: Proxy, conn: Conn, pid: int, direct: Conn) -> None:
    proxy.cut()
    assert (proxy.connections, proxy.cuts) == (0, 1)
    with pytest.raises(OperationalError):
        conn.execute("select 1")
    until_gone(direct, pid)
    with psycopg.connect(proxy.dsn) as again:
        assert works(again)


def test_cut_under_a_running_query(proxy: Proxy, conn: Conn, pid: int, direct: Conn) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(conn.execute, "select pg_sleep(60)")
        until(lambda: last_query(direct, pid) == "select pg_sleep(60)")
        proxy.cut()
        with pytest.raises(OperationalError):
            running.result(60)
    assert last_query(direct, pid) == "select pg_sleep(60)"
    direct.execute("select pg_terminate_backend(%s)", [pid])


def test_refuse(proxy: Proxy, conn: Conn) -> None:
    proxy.refuse()
    with pytest.raises(OperationalError):
        psycopg.connect(proxy.dsn)
    assert works(conn)
    proxy.heal()
    with psycopg.connect(proxy.dsn) as again:
        assert works(again)
    assert works(conn)


def test_black_hole_of_an_open_connection(proxy: Proxy, conn: Conn, pid: int, direct: Conn) -> None:
    assert works(conn)
    sent, received = proxy.client_bytes, proxy.server_bytes
    proxy.black_hole()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(conn.execute, "insert into effect values (1)")
        proxy.wait_for(lambda: proxy.client_bytes > sent)
        assert proxy.connections == 1
        assert not running.done()
        assert last_query(direct, pid) == "select 1"
        proxy.heal()
        with pytest.raises(OperationalError):
            running.result(60)
    assert proxy.server_bytes == received
    until_gone(direct, pid)
    assert effects(direct) == []


def test_black_hole_swallows_answers(proxy: Proxy, conn: Conn, direct: Conn) -> None:
    direct.execute("select pg_advisory_lock(1)")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(conn.execute, "select pg_advisory_lock(1)")
        until(lambda: someone_waits(direct))
        received = proxy.server_bytes
        proxy.black_hole()
        direct.execute("select pg_advisory_unlock(1)")
        proxy.wait_for(lambda: proxy.server_bytes > received)
        assert not running.done()
        proxy.heal()
        with pytest.raises(OperationalError):
            running.result(60)


def test_black_hole_swallows_a_close(proxy: Proxy, direct: Conn) -> None:
    """The server keeps a session whose client is long gone, as it does behind a dead network."""
    with psycopg.connect(proxy.dsn) as conn:
        pid = conn.info.backend_pid
        sent = proxy.client_bytes
        proxy.black_hole()
        conn.pgconn.finish()
    proxy.wait_for(lambda: proxy.client_bytes > sent)
    assert last_query(direct, pid) is not None
    assert proxy.connections == 1
    proxy.heal()
    until_gone(direct, pid)


def test_black_hole_of_a_new_connection(proxy: Proxy, direct: Conn) -> None:
    proxy.black_hole()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(lambda: psycopg.connect(proxy.dsn, connect_timeout=60))
        proxy.wait_for(lambda: proxy.client_bytes > 0)
        assert proxy.connections == 1
        others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        assert direct.execute(others).fetchone() == (0,)
        assert not opening.done()
        proxy.heal()
        with pytest.raises(OperationalError):
            opening.result(60)
    with psycopg.connect(proxy.dsn) as again:
        assert works(again)


def test_slow(proxy: Proxy, conn: Conn) -> None:
    proxy.slow(0.05)
    started = time.monotonic()
    assert works(conn)
    assert time.monotonic() - started >= 0.1


def test_heal_releases_what_is_held_back(proxy: Proxy, conn: Conn, direct: Conn) -> None:
    proxy.slow(3600)
    sent = proxy.client_bytes
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(conn.execute, "insert into effect values (1)")
        proxy.wait_for(lambda: proxy.client_bytes > sent)
        assert effects(direct) == []
        proxy.heal()
        running.result(60)
    assert effects(direct) == [1]


def test_cut_after_bytes_of_the_client(proxy: Proxy, conn: Conn, pid: int, direct: Conn) -> None:
    first, second = b"insert into effect values (1)", b"insert into effect values (2)"
    proxy.cut_after(1 + 4 + len(first) + 1 + 10)
    conn.execute(first)
    with pytest.raises(OperationalError):
        conn.execute(second)
    until_gone(direct, pid)
    assert effects(direct) == [1]
    assert proxy.cuts == 1
    with psycopg.connect(proxy.dsn) as again:
        assert works(again)


def test_cut_after_the_last_byte_of_a_message(proxy: Proxy, conn: Conn, pid: int, direct: Conn) -> None:
    """The server has all of it and carries it out."""
    query = b"insert into effect values (1)"
    proxy.cut_after(1 + 4 + len(query) + 1, "client")
    with pytest.raises(OperationalError):
        conn.execute(query)
    until_gone(direct, pid)
    assert effects(direct) == [1]


@pytest.mark.parametrize("n_bytes", [0, 1, 20])
def test_cut_after_bytes_of_the_server(proxy: Proxy, conn: Conn, direct: Conn, n_bytes: int) -> None:
    proxy.cut_after(n_bytes, "server")
    with pytest.raises(OperationalError):
        conn.execute("insert into effect values (1) returning n")
    assert effects(direct) == [1]
    assert proxy.cuts == 1


def test_exactly_so_many_bytes_of_the_server_arrive(proxy: Proxy) -> None:
    proxy.cut_after(3, "server")
    with raw_connection(proxy) as raw:
        raw.sendall(message(b"", b"\0\x09\0\0"))
        assert raw.recv(3, socket.MSG_WAITALL) == b"E\x00\x00"
        with pytest.raises(ConnectionResetError):
            raw.recv(1)


def test_the_commit_whose_reply_is_cut_is_committed(proxy: Proxy, direct: Conn) -> None:
    proxy.cut_reply_to(b"COMMIT")
    with psycopg.connect(proxy.dsn) as conn:
        conn.execute("insert into effect values (1)")
        with pytest.raises(OperationalError):
            conn.commit()
    assert effects(direct) == [1]
    assert proxy.cuts == 1
    with psycopg.connect(proxy.dsn) as again:
        again.execute("insert into effect values (2)")
    assert effects(direct) == [1, 2]


def test_replies_are_cut_so_many_times(proxy: Proxy, direct: Conn) -> None:
    proxy.cut_reply_to(b"COMMIT", times=20)
    for n in range(20):
        with psycopg.connect(proxy.dsn) as conn, pytest.raises(OperationalError), conn.transaction():
            conn.execute("insert into effect values (%s)", [n])
        assert effects(direct)[-1] == n
    assert proxy.cuts == 20
    with psycopg.connect(proxy.dsn) as conn, conn.transaction():
        conn.execute("insert into effect values (20)")
    assert effects(direct) == list(range(21))


def test_a_slow_commit_is_awaited_before_the_cut(proxy: Proxy, direct: Conn) -> None:
    """A deferred trigger holds the commit back: until it is done, the client waits and the wire stays."""
    direct.execute("""
        create function wait() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return null; end $$;
        create constraint trigger wait after insert on effect initially deferred for each row execute function wait();
        select pg_advisory_lock(1)""")
    proxy.cut_reply_to(b"COMMIT")
    with psycopg.connect(proxy.dsn) as conn, ThreadPoolExecutor(1) as pool:
        conn.execute("insert into effect values (1)")
        running = pool.submit(conn.commit)
        until(lambda: someone_waits(direct))
        assert (proxy.connections, proxy.cuts) == (1, 0)
        direct.execute("select pg_advisory_unlock(1)")
        with pytest.raises(OperationalError):
            running.result(60)
    assert effects(direct) == [1]


def test_only_sql_counts_not_what_is_in_a_parameter(proxy: Proxy, conn: Conn) -> None:
    proxy.cut_reply_to(b"COMMIT")
    assert conn.execute("select %s", ["COMMIT"]).fetchone() == ("COMMIT",)


def test_the_reply_to_a_statement_with_parameters(proxy: Proxy, conn: Conn, direct: Conn) -> None:
    proxy.cut_reply_to(b"insert into effect")
    with pytest.raises(OperationalError):
        conn.execute("insert into effect values (%s)", [1])
    assert effects(direct) == [1]


def test_the_replies_to_what_was_sent_before_arrive(proxy: Proxy, direct: Conn) -> None:
    """Start-up and both queries are sent in one go, so that three replies are owed at once."""
    proxy.cut_reply_to(b"values (2")
    names = b"\0".join([b"user", b"postgres", b"database", direct.info.dbname.encode(), b"", b""])
    sent = message(b"", b"\0\3\0\0" + names)
    sent += b"".join(message(b"Q", b"insert into effect values (%d) returning n\0" % n) for n in (1, 2))
    frames, arrived = Frames(typed=True), ""
    with raw_connection(proxy) as raw, contextlib.suppress(ConnectionResetError):
        raw.sendall(sent)
        while chunk := raw.recv(65536):
            arrived += "".join(kind for kind, _ in frames.feed(chunk))
    assert arrived.endswith("KZTDCZ")
    assert arrived.count("Z") == 2
    assert effects(direct) == [1, 2]
    assert proxy.cuts == 1


def test_heal_forgets_every_fault(proxy: Proxy, direct: Conn) -> None:
    proxy.refuse()
    proxy.slow(3600)
    proxy.cut_after(1)
    proxy.cut_after(1, "server")
    proxy.cut_reply_to(b"COMMIT", times=5)
    proxy.black_hole()
    proxy.heal()
    with psycopg.connect(proxy.dsn) as conn:
        conn.execute("insert into effect values (1)")
    assert effects(direct) == [1]
    assert proxy.cuts == 0


def test_a_proxy_before_a_proxy_speaks_tcp(proxy: Proxy) -> None:
    with Proxy(proxy.dsn) as outer, psycopg.connect(outer.dsn) as conn:
        assert works(conn)
        assert outer.round_trips == proxy.round_trips
        proxy.cut()
        with pytest.raises(OperationalError):
            works(conn)


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Proxy(f"host=127.0.0.1 port={port} user=a dbname=a") as proxy, pytest.raises(OperationalError):
        psycopg.connect(proxy.dsn)


async def test_from_an_async_test(proxy: Proxy) -> None:
    async with await AsyncConnection.connect(proxy.dsn) as conn:
        await conn.execute("select 1")
        proxy.cut()
        with pytest.raises(OperationalError):
            await conn.execute("select 1")


def test_leaving_cuts_what_is_open(database: str, direct: Conn) -> None:
    with Proxy(database) as proxy:
        conn = psycopg.connect(proxy.dsn)
        pid = conn.info.backend_pid
    with conn, pytest.raises(OperationalError):
        conn.execute("select 1")
    until_gone(direct, pid)


@pytest.mark.verify
def test_it_leaves_no_thread_and_no_socket(database: str) -> None:
    threads, files = threading.active_count(), psutil.Process().num_fds()
    with Proxy(database) as proxy:
        for fault in (proxy.cut, proxy.heal, proxy.black_hole):
            with psycopg.connect(proxy.dsn) as conn:
                fault()
                conn.pgconn.finish()
        with raw_connection(proxy):
            proxy.wait_for(lambda: proxy.connections == 2)
    assert threading.active_count() <= threads
    assert psutil.Process().num_fds() <= files


def connect_with_encryption(database: str) -> None:
    with Proxy(database) as proxy, pytest.raises(OperationalError):
        psycopg.connect(proxy.dsn, sslmode="require")


def test_a_client_that_wants_encryption_is_an_error_of_the_test(database: str) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        connect_with_encryption(database)
    assert raised.group_contains(AssertionError, match=r"connect with Proxy\.dsn")


def test_frames_come_whole_however_the_stream_is_split() -> None:
    stream = message(b"", b"\0\3\0\0user") + message(b"Q", b"select\0") + message(b"S", b"")
    for size in range(1, len(stream) + 1):
        frames = Frames(typed=False)
        found = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
        assert [kind for kind, _ in found] == ["", "Q", "S"]
        assert b"".join(whole for _, whole in found) == stream
