"""Parses connection strings, and explains each way in which connecting can fail in one sentence."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outrider.errors import DatabaseUnavailable
from outrider.redaction import conceal, mask

OLDEST = 15
"""The oldest supported major version of Postgres."""
CONNECT_TIMEOUT = 10
"""Seconds."""
LOST = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4}
"""After 30 s without a sign of the server, an idle wire is closed. By default it would be 2 h."""
UNANSWERED = {"tcp_user_timeout": 30_000}
"""The same for a wire on which something was sent, instead of 15 min. It also ends a COPY that is not read for 30 s."""
_SQLALCHEMY = re.compile(r"postgres(?:ql)?(\+[a-z0-9_]{1,20})://")
_UNRESOLVED = re.compile(
    r"could not translate host name|failed to resolve host|Name or service not known|nodename nor servname"
)
"""libpq; psycopg; psycopg before 3.2.13, on Linux and on macOS."""
_MISSING = re.compile('FATAL: +(database|role) "(.*)" does not exist')


def check_server(conn: AsyncConnection[Any] | Connection[Any]) -> None:
    """Refuses a server that is too old, and a database that cannot store every text."""
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
    """Explains why a connection failed, by the text of the error: libpq gives no SQLSTATE here.

    If part of the password may have been read as something else, the error is raised without its cause, which quotes it.
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
    if _UNRESOLVED.search(text):
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
    if "connection to server" not in last:  # libpq refused an option of the DSN, and quotes it
        raise DatabaseUnavailable(
            f"cannot connect to {where}: libpq refuses an option of the DSN or of the environment, other than host and port"
        ) from None
    return DatabaseUnavailable(f"cannot connect to {where}: {mask(last)}")


def database_of(dsn: str) -> str | None:
    """The name of the database; None if the DSN does not name it."""
    return _parts(dsn).get("dbname")


def describe(dsn: str) -> str:
    """The database and its server for people, without user and password."""
    parts = _parts(dsn)
    if _is_misread(dsn, parts):
        raise _unreadable()
    name = parts.get("dbname")
    return f"the database {name!r} on {_where(dsn)}" if name else f"the default database of {_where(dsn)}"


def _unreadable() -> DatabaseUnavailable:
    """Leaves out libpq's message, which quotes the unreadable part: it may be the password."""
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
    """Whether part of a password that is not percent-encoded may have been read as the host, port or database."""
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


def complete(dsn: str, *, copies: bool = False) -> str:
    """Adds the client encoding and timeouts. The encoding must be in the DSN, because a role may have set another.

    `copies`: users may COPY much on the session.
    """
    given = _parts(dsn)
    if given.get("password") not in (given.get("user"), given.get("dbname"), given.get("host")):
        conceal(given.get("password"))
    timeouts = {"connect_timeout": CONNECT_TIMEOUT} | LOST | ({} if copies else UNANSWERED)
    missing = {name: value for name, value in timeouts.items() if name not in given}
    return make_conninfo(dsn, client_encoding="utf8", **missing)


def _where(dsn: str) -> str:
    """Host and port, never the password."""
    parts = conninfo_to_dict(dsn)
    host, port = parts.get("host") or parts.get("hostaddr") or "the local socket", parts.get("port", 5432)
    return f"{host}, port {port}" if str(host).startswith("/") else f"{host}:{port}"
