"""Every way in which a connection fails, on real servers: one clear sentence that never shows the password."""

from __future__ import annotations

import asyncio
import socket
import struct
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outrider.errors import DatabaseUnavailable
from outrider.postgres import connection
from outrider.postgres.embedded import Embedded

PASSWORD = "hunter2%40"
SLOTS, RESERVED = 8, 2
CLIENTS = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


async def connecting(kind: str, dsn: str) -> None:
    if kind == "async":
        async with await connection.connect(dsn):
            pass
    else:
        (await asyncio.to_thread(connection.connect_sync, dsn)).close()


async def failure(kind: str, dsn: str) -> str:
    """What the user sees; neither the message nor the traceback with its causes may hold the password."""
    with pytest.raises(DatabaseUnavailable) as raised:
        await connecting(kind, dsn)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


@pytest.fixture
def closed_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and never says a word."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Embedded]:
    """A server that asks the role "guarded" for its password."""
    settings = {"max_connections": str(SLOTS), "superuser_reserved_connections": str(RESERVED)}
    with Embedded.temporary(settings=settings) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create role guarded login password 'correct'")
            rules = server.home / "data" / "pg_hba.conf"
            rules.write_text(
                "local all guarded scram-sha-256\nhost all guarded all scram-sha-256\n" + rules.read_text()
            )
            conn.execute("select pg_reload_conf()")
            loaded = "select count(*) from pg_hba_file_rules where 'guarded' = any (user_name) and error is null"
            assert conn.execute(loaded).fetchone() == (2,)
        yield server


@KINDS
async def test_a_usable_server(kind: str, server: str) -> None:
    if kind == "async":
        async with await connection.connect(server, autocommit=True) as conn:
            assert conn.autocommit
    else:
        with connection.connect_sync(server) as blocking:
            assert not blocking.autocommit


@KINDS
async def test_nothing_listens(kind: str, closed_port: int) -> None:
    text = await failure(kind, f"postgresql://shop:{PASSWORD}@127.0.0.1:{closed_port}/shop")
    assert text == (
        f"nothing listens at 127.0.0.1:{closed_port}: start Postgres there, or correct host and port in the DSN"
    )


@KINDS
async def test_no_socket_in_the_folder(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = await failure(kind, make_conninfo(host=folder, dbname="shop"))
    assert text.startswith(f"nothing listens at {folder}, port 5432: start Postgres there")


@KINDS
async def test_a_database_that_does_not_exist(kind: str, server: str) -> None:
    text = await failure(kind, make_conninfo(server, dbname="no_role_here", password=PASSWORD))
    assert "has no database 'no_role_here': create it (createdb no_role_here) or correct the DSN" in text


@KINDS
async def test_a_database_that_the_dsn_does_not_name(kind: str, server: str) -> None:
    parts, role = psycopg.conninfo.conninfo_to_dict(server), f"nameless_{kind}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create role {role} login".encode())
    try:
        text = await failure(kind, make_conninfo(host=parts["host"], port=parts.get("port"), user=role))
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(f"drop role {role}".encode())
    assert f"has no database '{role}': create it (createdb {role})" in text


@KINDS
async def test_a_user_that_does_not_exist(kind: str, server: str) -> None:
    text = await failure(kind, make_conninfo(server, user="database_owner", password=PASSWORD))
    assert "knows no user 'database_owner': create it (createuser database_owner) or correct the DSN" in text


@pytest.mark.verify
@KINDS
@pytest.mark.parametrize("password", [PASSWORD, None], ids=["wrong", "missing"])
async def test_a_password_that_is_refused(kind: str, guarded: Embedded, password: str | None) -> None:
    dsn = make_conninfo(
        guarded.dsn(), user="guarded", passfile="/dev/null", **({"password": password} if password else {})
    )
    text = await failure(kind, dsn)
    assert "refused the password of user 'guarded': correct it in the DSN, in PGPASSWORD or in ~/.pgpass" in text


@pytest.mark.verify
async def test_the_right_password_is_taken(guarded: Embedded) -> None:
    async with await connection.connect(make_conninfo(guarded.dsn(), user="guarded", password="correct")) as conn:
        assert conn.info.user == "guarded"


@pytest.mark.verify
@KINDS
async def test_a_server_without_a_free_connection(kind: str, guarded: Embedded) -> None:
    with ExitStack() as held:
        first, *_ = [
            held.enter_context(closing(psycopg.connect(guarded.dsn(), autocommit=True)))
            for _ in range(SLOTS - RESERVED)
        ]
        text = await failure(kind, make_conninfo(guarded.dsn(), user="guarded", password="correct"))
        async with asyncio.timeout(60):
            while first.execute(CLIENTS).fetchone() != (SLOTS - RESERVED,):  # noqa: ASYNC110 (who was refused ends)
                await asyncio.sleep(0.01)
        for _ in range(RESERVED):
            held.enter_context(closing(psycopg.connect(guarded.dsn())))
        full = await failure(kind, guarded.dsn())
    wanted = "has no free connection: raise its max_connections, use a pooler, or lower pool_size"
    assert text.endswith(wanted)
    assert full.endswith(wanted)


@KINDS
@pytest.mark.parametrize(
    "dsn",
    [
        "hunter2",
        "host=db password=two hunter2",
        "postgresql://shop:hunter2%@db/shop",
        "postgresql://shop:hunter2@[::1]x/shop",
        "postgresql://shop:hunter2@db/shop?hunter2=1",
        "http://shop:hunter2@db/shop",
        "host=db password='hunter2",
        "postgresql://shop:pa@hunter2@127.0.0.1/shop",
        "postgresql://shop:hunter2/x@127.0.0.1/shop",
        "postgresql://shop:12/hunter2@127.0.0.1/shop",
        "postgresql://shop:p@@hunter2/x@127.0.0.1/shop",
        "host=127.0.0.1 port=hunter2",
        "hostaddr=hunter2",
        "host=127.0.0.1 port=1 connect_timeout=hunter2",
        "host=127.0.0.1 port=1 dbname=postgresql://shop:hunter2@h/shop",
    ],
)
async def test_a_dsn_that_is_none(kind: str, dsn: str) -> None:
    text = await failure(kind, dsn)
    assert text.startswith(
        "the DSN is not a connection string: write it like postgresql://user:password@host:5432/database"
    )
    assert text.endswith("in the user name and the password, % is written %25, @ %40, / %2F, : %3A and # %23")


@KINDS
@pytest.mark.parametrize("host", ["::1", "127.0.0.1,127.0.0.2"])
async def test_places_that_are_fine_are_named(kind: str, closed_port: int, host: str) -> None:
    assert await failure(kind, make_conninfo(host=host, port=closed_port, password=PASSWORD)) == (
        f"nothing listens at {host}:{closed_port}: start Postgres there, or correct host and port in the DSN"
    )


@KINDS
async def test_an_option_that_libpq_refuses_is_not_quoted(kind: str) -> None:
    text = await failure(kind, "host=127.0.0.1 port=1 sslmode=hunter2")
    assert text.startswith("cannot connect to 127.0.0.1:1: libpq refuses an option of the DSN")


@KINDS
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_server_that_accepts_and_closes(kind: str, how: str) -> None:
    """A balancer or a tunnel whose Postgres is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            for _ in range(2):  # libpq asks again without GSS or SSL
                with suppress(OSError):
                    wire, _ = listening.accept()
                    if how == "reset":
                        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    wire.close()

        closer = threading.Thread(target=hang_up, daemon=True)
        closer.start()
        port = listening.getsockname()[1]
        text = await failure(kind, f"postgresql://shop:{PASSWORD}@127.0.0.1:{port}/shop")
        listening.shutdown(socket.SHUT_RDWR)
        closer.join(10)
    assert text == (
        f"127.0.0.1:{port} accepted the connection and closed it: is Postgres running behind it? Look at its log, and at "
        "that of a proxy or tunnel in between"
    )


@KINDS
@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgres+asyncpg", "postgresql+psycopg2"])
async def test_a_dsn_of_sqlalchemy(kind: str, scheme: str) -> None:
    text = await failure(kind, f"{scheme}://shop:{PASSWORD}@127.0.0.1/shop")
    driver = scheme.partition("+")[2]
    assert text == f"the DSN begins with {scheme}://, as SQLAlchemy writes it: remove +{driver}"


@KINDS
async def test_a_host_that_does_not_resolve(kind: str) -> None:
    text = await failure(kind, f"postgresql://shop:{PASSWORD}@no-such-host.invalid/shop")
    assert text == "the host of no-such-host.invalid:5432 is unknown: correct the name in the DSN, or check your DNS"


@KINDS
async def test_a_server_that_never_answers(kind: str, silent_port: int) -> None:
    text = await failure(kind, f"postgresql://shop:{PASSWORD}@127.0.0.1:{silent_port}/shop?connect_timeout=2")
    assert text == (
        f"127.0.0.1:{silent_port} did not answer within 2 s: "
        "check that the host is up and that no firewall drops the traffic"
    )


async def test_the_wait_for_an_answer_has_an_end_by_default(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setattr("outrider.postgres.dsn.CONNECT_TIMEOUT", 2)
    assert "did not answer within 2 s" in await failure("async", f"host=127.0.0.1 port={silent_port} user=shop")


async def test_a_users_job_may_copy_for_long(server: str) -> None:
    """The time limit for an answer also ends a COPY whose table somebody has locked."""
    with connection.connect_sync(server) as ours, connection.transaction_sync(server) as users:
        assert "tcp_user_timeout" in ours.info.get_parameters()
        assert "tcp_user_timeout" not in users.info.get_parameters()
    async with connection.transaction(server) as users_async:
        assert "tcp_user_timeout" not in users_async.info.get_parameters()


@KINDS
async def test_too_old_a_server(kind: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.postgres.dsn.OLDEST", 99)
    text = await failure(kind, make_conninfo(server, password=PASSWORD))
    with psycopg.connect(server) as conn:
        version = conn.info.server_version // 10000
    assert f"is Postgres {version}; Outrider needs 99 or newer: upgrade it, or point the DSN at another server" in text


@KINDS
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_cannot_hold_all_text(kind: str, server: str, encoding: str) -> None:
    name = f"narrow_{encoding.lower()}_{kind}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
        text = await failure(kind, make_conninfo(server, dbname=name, password=PASSWORD))
        conn.execute(f"drop database {name} with (force)".encode())
    assert text == (
        f"the database '{name}' has the encoding {encoding}; Outrider needs UTF8: "
        f"create one with: createdb -E UTF8 -T template0 {name}_utf8"
    )


async def test_a_caller_that_is_cancelled_leaves_no_session(database: str) -> None:
    kept: list[object] = []  # an error holds what it was raised in; else Python would close the session
    for steps in range(0, 200, 2):
        connecting = asyncio.create_task(connection.connect(database))
        for _ in range(steps):
            await asyncio.sleep(0)
        connecting.cancel()
        [ended] = await asyncio.gather(connecting, return_exceptions=True)
        kept.append(ended)
        if isinstance(ended, psycopg.AsyncConnection):
            await ended.close()
    others = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn, asyncio.timeout(60):
        while await (await conn.execute(others)).fetchall():  # noqa: ASYNC110 (a backend ends a moment after its session)
            await asyncio.sleep(0.05)
