"""Opens sessions, directly or behind a pooler, with the settings that Outrider's statements need."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.abc import RV, Buffer, PQGen
from psycopg.types.datetime import TimestamptzLoader

from outrider.postgres.dsn import check_server, complete, explain
from outrider.postgres.psycopg_private import OwnBegin

BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"

# Settings on which our statements and psycopg's types depend, and timeouts that would end our statements. Our sessions set
# them, because a role or a database may have other values. TimeZone, search_path, the order of days and months, and
# synchronous_commit stay the user's.
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
"""The first server version that has the setting."""
# Behind a pooler, these are set once: the server reports them, and the pooler tracks them for each client.
_REPORTED = ("DateStyle", "standard_conforming_strings")
# Not if the whole server is read-only: then its operator wants that, or its disk is full.
WRITABLE = """
select set_config(s.name, 'off', false) from pg_settings as s
where s.name = 'default_transaction_read_only' and s.source in ('database', 'user', 'database user')
"""

AsyncSession = AsyncConnection[Any]
Session = Connection[Any]
DatabaseError = psycopg.Error


def quiet(notify: str) -> dict[str, str]:
    """The setting of a session that sends no notifications."""
    return {"outrider.notify": "off"} if notify == "off" else {}


@contextmanager
def cancellable() -> Iterator[None]:
    """Raises CancelledError if the task is cancelled inside, instead of the database error that the cancellation caused.

    Otherwise, a loop that continues after database errors would never end.
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
    """Returns the server's process id. Sets `pins` if it equals {pid}, that of the connection: then there is no pooler."""
    each = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in pins.items())
    return f"select pg_backend_pid(), case when pg_backend_pid() = {{pid}} then array[{each}] end"


class _Pinned(OwnBegin):
    """A session with the settings that we need, whatever those of the role and of the database are.

    Behind a pooler nothing may outlive a transaction, so each transaction sets them when it begins, in the same round trip.
    There we prepare no statements: the pooler may run the next transaction in another session of the server, in which the
    name of a prepared statement is unknown, or belongs to another statement.
    """

    pooled = False
    """A pooler is in between: the next transaction may be in another session of the server."""
    more: Mapping[str, str] = MappingProxyType({})
    """Further settings."""

    def _look(self) -> bytes:
        pins = {**pins_of(self.info.server_version), **self.more}
        return look(pins).replace("{pid}", str(self.info.backend_pid)).encode()

    def _look_at(self, row: tuple[Any, ...] | None) -> list[str]:
        """Reads the answer to `_look`. Returns the statements that are still needed; usually none."""
        self.pooled = row is None or row[0] != self.info.backend_pid  # a pooler sends a process id of its own
        reported = self.info.parameter_status
        if not self.pooled:
            return [WRITABLE] if reported("default_transaction_read_only") == "on" else []
        self.prepare_threshold = None
        wrong = [name for name in _REPORTED if not (reported(name) or "").startswith(PINS[name])]
        return [f"select set_config('{name}', '{PINS[name]}', false)" for name in wrong]

    def _local(self) -> dict[str, str]:
        """The settings of a transaction behind a pooler."""
        pins = pins_of(self.info.server_version)
        own = {name: value for name, value in pins.items() if not name.startswith(("default_", *_REPORTED))}
        # A default applies to the next transaction; this one has begun.
        return own | {name.removeprefix("default_"): value for name, value in self.more.items()}

    def pinning(self) -> bytes | None:
        """The settings for a transaction that was not begun by psycopg; None if the session has them."""
        if not self.pooled:
            return None
        each = [f"set_config('{name}', '{value}', true)" for name, value in self._local().items()]
        return f"select {', '.join(each)}".encode()

    def begin_text(self, text: bytes) -> bytes:
        return BEGIN if self.pooled and text == b"BEGIN" else text

    def begin_settings(self) -> list[bytes]:
        """Not by set_config: the caller may send SET TRANSACTION next, which must come before any query."""
        if not self.pooled:
            return []
        return [f"set local {name} = '{value}'".encode() for name, value in self._local().items()]


class Wire(_Pinned, AsyncConnection[Any]):
    """An async session. If its task is cancelled while psycopg waits for the server, it raises CancelledError."""

    async def settle_in(self, **more: str) -> None:
        """Applies our settings and `more`, and finds out whether there is a pooler: one round trip, in autocommit mode."""
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
    """Loads a time that Python cannot represent, such as infinity, as the nearest that it can.

    Otherwise one such value in a table would make the commands fail that read it.
    """

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            past = bytes(data).endswith(b"BC") or bytes(data).startswith(b"-")
            return datetime(1, 1, 2, tzinfo=UTC) if past else datetime(9999, 12, 30, tzinfo=UTC)


async def connect(
    dsn: str, *, autocommit: bool = False, name: str = "outrider", notify: str = "commit", copies: bool = False
) -> Wire:
    """A new session. `name` is its application_name, unless the DSN has one. With `notify="off"`, functions that it calls
    send no notifications. `copies`: users may COPY much on it."""
    try:
        conn = await Wire.connect(complete(dsn, copies=copies), autocommit=True, fallback_application_name=name)
    except psycopg.Error as error:
        raise explain(error, dsn) from error
    except asyncio.CancelledError as cancelled:
        # psycopg does not close what it is opening; the session would stay for as long as somebody keeps this error.
        traceback.clear_frames(cancelled.__traceback__)
        raise
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


def connect_sync(dsn: str, *, autocommit: bool = False, copies: bool = False) -> Session:
    try:
        conn = SyncWire.connect(complete(dsn, copies=copies), autocommit=True)
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
    """A new session of a user's job, in a transaction that commits at the end."""
    async with await connect(dsn, copies=True) as conn:
        yield conn


@contextmanager
def transaction_sync(dsn: str) -> Iterator[Session]:
    with connect_sync(dsn, copies=True) as conn:
        yield conn
