"""Finds the driver of a connection by its class name, so that optional libraries are not imported."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from outrider.postgres.inserts import PSYCOPG, Driver


@dataclass(frozen=True, slots=True)
class _Kind:
    called: str
    blocking: bool
    module: str | None = None
    """A module of this package with a DRIVER. None = psycopg, which needs none."""


_KINDS = {
    "psycopg.Connection": _Kind("a psycopg Connection", blocking=True),
    "psycopg.AsyncConnection": _Kind("a psycopg AsyncConnection", blocking=False),
    "asyncpg.connection.Connection": _Kind("an asyncpg Connection", False, "asyncpg"),
    "asyncpg.pool.PoolConnectionProxy": _Kind("an asyncpg Connection", False, "asyncpg"),
    "sqlalchemy.orm.session.Session": _Kind("a SQLAlchemy Session", True, "sqlalchemy"),
    "sqlalchemy.orm.scoping.scoped_session": _Kind("a SQLAlchemy scoped_session", True, "sqlalchemy"),
    "sqlalchemy.engine.base.Connection": _Kind("a SQLAlchemy Connection", True, "sqlalchemy"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _Kind("a SQLAlchemy AsyncSession", False, "sqlalchemy"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _Kind(
        "a SQLAlchemy async_scoped_session", False, "sqlalchemy"
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _Kind("a SQLAlchemy AsyncConnection", False, "sqlalchemy"),
    "django.db.backends.base.base.BaseDatabaseWrapper": _Kind("a Django connection", True, "django"),
    "django.utils.connection.ConnectionProxy": _Kind("a Django connection", True, "django"),
}
_SOURCES = {
    "sqlalchemy.engine.base.Engine",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine",
    "sqlalchemy.orm.session.sessionmaker",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker",
    "asyncpg.pool.Pool",
    "psycopg_pool.ConnectionPool",
    "psycopg_pool.AsyncConnectionPool",
}
_TAKES = (
    "a connection of psycopg, asyncpg or Django, or a Session or Connection of SQLAlchemy (async for publish, blocking "
    "for publish_sync)"
)


_known: dict[type, tuple[_Kind, Driver]] = {}


def driver_of(conn: object, *, blocking: bool, verb: str = "publish") -> Driver:
    """The driver that publishes or enqueues on this connection.

    TypeError if there is none, if it is async and `blocking` is asked for, or the reverse.
    """
    cls = type(conn)
    if cls not in _known:
        _known[cls] = _find(cls)
    kind, driver = _known[cls]
    if kind.blocking != blocking:
        raise TypeError(f"this is {kind.called}: use {verb}{'_sync' * kind.blocking}() with it")
    return driver


async def under(conn: object) -> object:
    """The driver's connection below a session of SQLAlchemy; anything else as it is."""
    try:
        driver = driver_of(conn, blocking=False)
    except TypeError:
        return conn
    return conn if driver.under is None else await driver.under(conn)


def under_sync(conn: object) -> object:
    """The driver's connection below a session of SQLAlchemy or a connection of Django; anything else as it is."""
    try:
        driver = driver_of(conn, blocking=True)
    except TypeError:
        return conn
    return conn if driver.under_sync is None else driver.under_sync(conn)


def _find(cls: type) -> tuple[_Kind, Driver]:
    names = [f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__]
    for kind in filter(None, map(_KINDS.get, names)):
        if kind.module is None:
            return kind, PSYCOPG
        driver: Driver = importlib.import_module(f"outrider.integrations.{kind.module}").DRIVER
        return kind, driver
    if _SOURCES.intersection(names):
        raise TypeError(
            f"{names[0]} opens connections of its own: pass the connection or session on which your transaction is open"
        )
    raise TypeError(f"{names[0]} is nothing to publish on: pass {_TAKES}")
