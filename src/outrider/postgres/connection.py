"""Opening sessions: psycopg's errors on the way become one clear sentence that says what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.abc import RV, Buffer, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.datetime import TimestamptzLoader

from outrider.errors import DatabaseUnavailable
from outrider.postgres.psycopg_private import OwnBegin
from outrider.redaction import conceal, mask

OLDEST = 15
CONNECT_TIMEOUT = 10
TIMEOUT = {"connect_timeout": CONNECT_TIMEOUT}
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"

# What our statements and psycopg's types depend on, and what would end them: settings of the role or of the database do not
# reach our sessions. TimeZone, search_path, the order of days and months and synchronous_commit stay the user's.
PINS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "row_security": "on",
    "exit_on_error": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
NEWER = {"transaction_timeout": 170000}
"""Settings that older servers do not know."""
# Behind a pooler: the server reports these, and the pooler keeps them for each of its clients.
_REPORTED = ("DateStyle", "standard_conforming_strings")
# A whole server that is read-only is meant to be: its operator fences it, or its disk is full.
WRITABLE = """
select set_config(s.name, 'off', false) from pg_settings as s
where s.name = 'default_transaction_read_only' and s.source in ('database', 'user', 'database user')
"""
_SQLALCHEMY = re.compile(r"postgres(?:ql)?(\+[a-z0-9_]{1,20})://")
_MISSING = re.compile('FATAL: +(database|role) "(.*)" does not exist')

AsyncSession = AsyncConnection[Any]
Session = Connection[Any]
DatabaseError = psycopg.Error


def quiet(notify: str) -> dict[str, str]:
    """The setting of a session that sends no notifications."""
    return {"outrider.notify": "off"} if notify == "off" else {}


@contextmanager
def cancellable() -> Iterator[None]:
    """For a step of another library: who is cancelled in it ends with that, not with an error that came on top of it.

    A loop that goes on after errors of the database would go on for ever otherwise.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    except psycopg.Error as error:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise


def pins_of(version: int) -> dict[str, str]:
    return {name: value for name, value in PINS.items() if version >= NEWER.get(name, 0)}


def look(pins: Mapping[str, str]) -> str:
    """Who is there? If it is the session that greeted, as {pid}, it is ours to set."""
    each = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in pins.items())
    return f"select pg_backend_pid(), case when pg_backend_pid() = {{pid}} then array[{each}] end"


class _Pinned(OwnBegin):
    """A session of ours, which settings of the role and of the database do not reach.

    Behind a pooler nothing may outlive a transaction, so each one sets what it needs when it begins, in the same round trip.
    What was prepared in one session of the server is unknown, or something else, in that to which a pooler takes the next
    transaction: at worst another statement with as many parameters would be run in its place.
    """

    pooled = False
    """A pooler is in between: the next transaction may be in another session of the server."""
    more: Mapping[str, str] = MappingProxyType({})
    """Further settings."""

    def _look(self) -> bytes:
        pins = {**pins_of(self.info.server_version), **self.more}
        return look(pins).replace("{pid}", str(self.info.backend_pid)).encode()

    def _look_at(self, row: tuple[Any, ...] | None) -> list[str]:
        """What a look found. Back: what is left to say, which is hardly ever anything."""
        self.pooled = row is None or row[0] != self.info.backend_pid  # a pooler greets in its own name
        told = self.info.parameter_status
        if not self.pooled:
            return [WRITABLE] if told("default_transaction_read_only") == "on" else []
        self.prepare_threshold = None
        wrong = [name for name in _REPORTED if not (told(name) or "").startswith(PINS[name])]
        return [f"select set_config('{name}', '{PINS[name]}', false)" for name in wrong]

    def _local(self) -> dict[str, str]:
        """The settings of a transaction behind a pooler."""
        pins = pins_of(self.info.server_version)
        own = {name: value for name, value in pins.items() if not name.startswith(("default_", *_REPORTED))}
        return {**own, **self.more}

    def pinning(self) -> bytes | None:
        """A statement for a transaction that was begun otherwise; None where the session is pinned."""
        each = [f"set_config('{name}', '{value}', true)" for name, value in self._local().items()]
        return f"select {', '.join(each)}".encode() if self.pooled else None

    def begin_text(self, text: bytes) -> bytes:
        return BEGIN if self.pooled and text == b"BEGIN" else text

    def begin_settings(self) -> list[bytes]:
        """Not by set_config: nothing may be read before a SET TRANSACTION of whoever asked for the transaction."""
        if not self.pooled:
            return []
        return [f"set local {name} = '{value}'".encode() for name, value in self._local().items()]


class Wire(_Pinned, AsyncConnection[Any]):
    """A session that breaks while it is cancelled (psycopg then waits for the server's last word) says `cancelled`."""

    async def settle_in(self, **more: str) -> None:
        """Pin what we depend on, and `more`; see whether a pooler is in between: one round trip. In autocommit mode."""
        self.more = more
        cursor = await self.execute(self._look(), prepare=False)
        for each in self._look_at(await cursor.fetchone()):
            await self.execute(each.encode())

    async def wait(self, gen: PQGen[RV], *timing: Any, **timings: Any) -> RV:
        with cancellable():
            return await super().wait(gen, *timing, **timings)


class SyncWire(_Pinned, Connection[Any]):
    def settle_in(self) -> None:
        for each in self._look_at(self.execute(self._look(), prepare=False).fetchone()):
            self.execute(each.encode())


class NearestTime(TimestamptzLoader):
    """A time that Python cannot say, infinity for one, is the nearest that it can: whoever may write our tables shall not be
    able to silence the commands that look at them."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            past = bytes(data).endswith(b"BC") or bytes(data).startswith(b"-")
            return datetime(1, 1, 2, tzinfo=UTC) if past else datetime(9999, 12, 30, tzinfo=UTC)


async def connect(dsn: str, *, autocommit: bool = False, name: str = "outrider", notify: str = "commit") -> Wire:
    """A new session on a usable server; `name` is its application_name, unless the DSN has one. `notify`: as in the
    settings; `off` is obeyed by what the session calls."""
    try:
        conn = await Wire.connect(complete(dsn), autocommit=True, fallback_application_name=name)
    except psycopg.Error as error:
        raise explain(error, dsn) from error
    try:
        check_server(conn)
        await conn.settle_in(**quiet(notify))
        await conn.set_autocommit(autocommit)
    except psycopg.Error as error:
        await conn.close()
        raise explain(error, dsn) from error
    except BaseException:
        conn.pgconn.finish()
        raise
    return conn


def connect_sync(dsn: str, *, autocommit: bool = False) -> Session:
    try:
        conn = SyncWire.connect(complete(dsn), autocommit=True)
    except psycopg.Error as error:
        raise explain(error, dsn) from error
    try:
        check_server(conn)
        conn.settle_in()
        conn.autocommit = autocommit
    except psycopg.Error as error:
        conn.close()
        raise explain(error, dsn) from error
    except BaseException:
        conn.close()
        raise
    return conn


@asynccontextmanager
async def transaction(dsn: str) -> AsyncIterator[AsyncSession]:
    """A new session in a transaction that commits at the end."""
    async with await connect(dsn) as conn:
        yield conn


@contextmanager
def transaction_sync(dsn: str) -> Iterator[Session]:
    with connect_sync(dsn) as conn:
        yield conn


def check_server(conn: AsyncSession | Session) -> None:
    """Too old a server, or one that cannot hold all text, is refused at the first contact."""
    version = conn.info.server_version // 10000
    if version < OLDEST:
        raise DatabaseUnavailable(
            f"the server at {_where(conn.info.dsn)} is Postgres {version}; Outrider needs {OLDEST} or newer: "
            "upgrade it, or point the DSN at another server"
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DatabaseUnavailable(
            f"the database {conn.info.dbname!r} has the encoding {encoding}; Outrider needs UTF8: "
            f"create one with: createdb -E UTF8 -T template0 {conn.info.dbname}_utf8"
        )


def explain(error: psycopg.Error, dsn: str) -> DatabaseUnavailable:
    """One sentence for why a connection failed. libpq gives no SQLSTATE here, so the server's words must do.

    Raises it without its cause where a part of the password may be taken for something else: libpq would quote it.
    """
    parts = _parts(dsn)
    if _is_misread(dsn, parts):
        raise _unreadable() from None
    text = str(error).strip()
    user, where = parts.get("user", "the current user"), _where(dsn)
    if "password authentication failed" in text or "no password supplied" in text:
        return DatabaseUnavailable(
            f"{where} refused the password of user {user!r}: correct it in the DSN, in PGPASSWORD or in ~/.pgpass"
        )
    match _MISSING.findall(text):
        case [("database", name), *_]:
            return DatabaseUnavailable(
                f"{where} has no database {name!r}: create it (createdb {name}) or correct the DSN"
            )
        case [("role", name), *_]:
            return DatabaseUnavailable(
                f"{where} knows no user {name!r}: create it (createuser {name}) or correct the DSN"
            )
    if "could not translate host name" in text or "failed to resolve host" in text:
        return DatabaseUnavailable(f"the host of {where} is unknown: correct the name in the DSN, or check your DNS")
    if "too many clients" in text or "remaining connection slots" in text:
        return DatabaseUnavailable(
            f"{where} has no free connection: raise its max_connections, use a pooler, or lower pool_size"
        )
    if isinstance(error, psycopg.errors.ConnectionTimeout) or "timeout" in text:
        return DatabaseUnavailable(
            f"{where} did not answer within {parts.get('connect_timeout', CONNECT_TIMEOUT)} s: "
            "check that the host is up and that no firewall drops the traffic"
        )
    if "Connection refused" in text or "No such file or directory" in text:
        return DatabaseUnavailable(
            f"nothing listens at {where}: start Postgres there, or correct host and port in the DSN"
        )
    if "server closed the connection unexpectedly" in text or "Connection reset by peer" in text:
        return DatabaseUnavailable(
            f"{where} accepted the connection and closed it: is Postgres running behind it? Look at its log, and at "
            "that of a proxy or tunnel in between"
        )
    last = text.splitlines()[-1] if text else ""
    if "connection to server" not in last:  # it got no further than an option of the DSN, which it quotes
        raise DatabaseUnavailable(
            f"cannot connect to {where}: libpq refuses an option of the DSN or of the environment, other than host and port"
        ) from None
    return DatabaseUnavailable(f"cannot connect to {where}: {mask(last)}")


def database_of(dsn: str) -> str | None:
    """The name of the database; None where the DSN leaves it to the user's name or the environment."""
    return _parts(dsn).get("dbname")


def describe(dsn: str) -> str:
    """The database and its server, for people: no user, no password."""
    parts = _parts(dsn)
    if _is_misread(dsn, parts):
        raise _unreadable()
    name = parts.get("dbname")
    return f"the database {name!r} on {_where(dsn)}" if name else f"the default database of {_where(dsn)}"


def _unreadable() -> DatabaseUnavailable:
    """libpq's own words are left out: they quote the part that it could not read, which may be the password."""
    return DatabaseUnavailable(
        "the DSN is not a connection string: write it like postgresql://user:password@host:5432/database; "
        "in the user name and the password, % is written %25, @ %40, / %2F, : %3A and # %23"
    )


def _parts(dsn: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        if found := _SQLALCHEMY.match(dsn):
            raise DatabaseUnavailable(
                f"the DSN begins with {found[0]}, as SQLAlchemy writes it: remove {found[1]}"
            ) from None
        raise _unreadable() from None


def _is_misread(dsn: str, parts: dict[str, Any]) -> bool:
    """Whether a password that was not percent-encoded may have been cut in two, and its end be taken for a place."""
    host, address, port, database = (str(parts.get(name) or "") for name in ("host", "hostaddr", "port", "dbname"))
    is_url = "://" in dsn.partition("=")[0]
    return (
        "@" in host
        or "://" in database
        or (is_url and "@" in database)
        or not all(each.isdecimal() for each in port.split(",") if each)
        or not str(parts.get("connect_timeout") or 0).removeprefix("-").isdecimal()
        or not all(_is_address(each) for each in address.split(",") if each)
        or any(":" in each and not each.startswith("/") and not _is_address(each) for each in host.split(","))
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def complete(dsn: str) -> str:
    """With what every session of ours asks for at once. The encoding cannot wait: settings of a role come before it."""
    given = _parts(dsn)
    if given.get("password") not in (given.get("user"), given.get("dbname"), given.get("host")):
        conceal(given.get("password"))
    return make_conninfo(dsn, client_encoding="utf8", **({} if "connect_timeout" in given else TIMEOUT))


def _where(dsn: str) -> str:
    """Host and port, never the password."""
    parts = conninfo_to_dict(dsn)
    host, port = parts.get("host") or parts.get("hostaddr") or "the local socket", parts.get("port", 5432)
    return f"{host}, port {port}" if str(host).startswith("/") else f"{host}:{port}"
