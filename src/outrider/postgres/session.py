"""Opening sessions: psycopg's errors on the way become one clear sentence that says what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict

from outrider.errors import DatabaseUnavailable
from outrider.outcome import conceal, mask

OLDEST = 15
CONNECT_TIMEOUT = 10

# What was prepared in one session of the server is unknown, or something else, in that to which a pooler takes the next
# transaction: at worst another statement with as many parameters would be run in its place.
_WHO = "select pg_backend_pid()"
QUIET = "select set_config('outrider.notify', 'off', false)"
_MISSING = re.compile('FATAL: +(database|role) "(.*)" does not exist')

_SQLALCHEMY = re.compile(r"postgres(?:ql)?(\+[a-z0-9_]{1,20})://")

AsyncSession = AsyncConnection[Any]
Session = Connection[Any]
DatabaseError = psycopg.Error


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


class Wire(AsyncConnection[Any]):
    """A session that breaks while it is cancelled (psycopg then waits for the server's last word) says `cancelled`."""

    pooled = False
    """A pooler is in between: the next transaction may be in another session of the server."""

    async def look_behind(self) -> None:
        """A pooler greets in its own name. In autocommit mode."""
        cursor = await self.execute(_WHO, prepare=False)
        self.pooled = await cursor.fetchone() != (self.info.backend_pid,)
        if self.pooled:
            self.prepare_threshold = None

    async def hush(self) -> None:
        """Send no notifications from here. In autocommit mode. Behind a pooler it would be somebody else's setting."""
        if not self.pooled:
            await self.execute(QUIET, prepare=False)

    async def wait(self, gen: PQGen[RV], *timing: Any, **timings: Any) -> RV:
        with cancellable():
            return await super().wait(gen, *timing, **timings)


async def connect(dsn: str, *, autocommit: bool = False, name: str = "outrider", notify: str = "commit") -> Wire:
    """A new session on a usable server; `name` is its application_name, unless the DSN has one. `notify`: as in the
    settings; `off` is obeyed by what the session calls."""
    try:
        conn = await Wire.connect(_with_timeout(dsn), autocommit=True, fallback_application_name=name)
    except psycopg.Error as error:
        raise explain(error, dsn) from error
    try:
        check_server(conn)
        await conn.look_behind()
        if notify == "off":
            await conn.hush()
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
        conn = Connection.connect(_with_timeout(dsn), autocommit=True)
    except psycopg.Error as error:
        raise explain(error, dsn) from error
    try:
        check_server(conn)
        if conn.execute(_WHO, prepare=False).fetchone() != (conn.info.backend_pid,):
            conn.prepare_threshold = None
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


def _with_timeout(dsn: str) -> str:
    given = _parts(dsn)
    if given.get("password") not in (given.get("user"), given.get("dbname"), given.get("host")):
        conceal(given.get("password"))
    return dsn if "connect_timeout" in given else psycopg.conninfo.make_conninfo(dsn, connect_timeout=CONNECT_TIMEOUT)


def _where(dsn: str) -> str:
    """Host and port, never the password."""
    parts = conninfo_to_dict(dsn)
    host, port = parts.get("host") or parts.get("hostaddr") or "the local socket", parts.get("port", 5432)
    return f"{host}, port {port}" if str(host).startswith("/") else f"{host}:{port}"
