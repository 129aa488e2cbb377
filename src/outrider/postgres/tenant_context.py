"""The tenant of an event: its workspace and the handler's role, set before the handler's first statement.

They are set again for every event that sends a statement, so nothing leaks from the event before. A handler that sends no
statement pays nothing, nor does the first event of a batch if it has neither role nor workspace. If the first statement has
parameters, the settings are sent with it, as a pipeline in one round trip. Literals are escaped ASCII, whose meaning no
session setting changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, InternalError
from psycopg.abc import PQGen
from psycopg.errors import InFailedSqlTransaction, error_from_result
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.sql import Identifier
from psycopg.waiting import Ready

from outrider.errors import ConfigError

_OK, _READY = ExecStatus.COMMAND_OK, Ready.RW
_HOME = "select current_user::text, current_setting('app.workspace_id', true)"
_BACK = "select pg_catalog.set_config('role', {}, {local}), pg_catalog.set_config('app.workspace_id', {}, {local})"
_SHUT = """
select wanted, role.oid is not null, session_user::text
from unnest(%(roles)s::text[]) as wanted left join pg_roles as role on role.rolname = wanted
where role.oid is null or not pg_has_role(session_user, role.oid, %(right)s)
limit 1
"""


class Home:
    """The role and workspace of a session while no handler uses it."""

    __slots__ = ("away", "back", "clean", "used", "user")

    def __init__(self, user: str, workspace: str = "", *, local: bool = False) -> None:
        self.user = user
        self.back = _BACK.format(_literal(user), _literal(workspace), local=local).encode()
        self.away = False
        """A handler has used the session, and may have changed its role and workspace."""
        self.clean = False
        """The session is known to have no workspace."""
        self.used = False
        """A handler has used the session since it was opened or reset."""

    def leave(self, role: str | None, workspace: str | None) -> TenantEntry | None:
        """Called before a handler uses the session. None if no tenant is needed, and none can be left from before."""
        needed = role is not None or workspace is not None or self.away or not self.clean
        self.away = self.used = True
        return TenantEntry(role or self.user, workspace or "") if needed else None


def home_of(conn: AsyncConnection[Any]) -> Home:
    """The captured home of a session. If none was captured: the user that logged in."""
    home: Home | None = getattr(conn, "home", None)
    if home is None:
        home = conn.home = Home(conn.info.user)  # type: ignore[attr-defined]
    return home


async def capture(conn: AsyncConnection[Any], *, local: bool = False) -> None:
    """Stores the session's role, to return to: RESET ROLE may lead to another. `local`: in the open transaction only."""
    cursor = await AsyncCursor(conn, row_factory=tuple_row).execute(_HOME)
    row = await cursor.fetchone()
    assert row is not None
    conn.home = Home(row[0], (row[1] or "") if local else "", local=local)  # type: ignore[attr-defined]


async def check_roles(conn: AsyncConnection[Any], handlers: Mapping[str, str]) -> None:
    """Raises ConfigError, with what to grant, if the session may not take a role. `handlers`: a handler for each role."""
    if not handlers:
        return
    right = "SET" if conn.info.server_version >= 160000 else "MEMBER"
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    await cursor.execute(_SHUT, {"roles": list(handlers), "right": right})
    if (row := await cursor.fetchone()) is None:
        return
    role, exists, user = row
    quoted, to = (Identifier(each).as_string(conn) for each in (role, user))
    grant = f"grant {quoted} to {to}" + (" with set true" if right == "SET" else "")
    asks = f"{handlers[role]} runs with the role {role!r}"
    if exists:
        raise ConfigError(f"{asks}, which the worker's user {user!r} may not take: {grant}")
    raise ConfigError(f"{asks}, which does not exist: create role {quoted} nologin; {grant}")


class TenantEntry:
    """Sets role and workspace once, before or together with the first statement.

    `enter` sends the settings alone. If the statement has parameters, the cursor (psycopg_private) runs it inside `ride`
    instead: when it is about to be sent, the cursor calls `board`, which sends the settings first, in the same pipeline.
    """

    __slots__ = ("_sent", "_statements", "pending", "refused", "rider")

    def __init__(self, role: str, workspace: str) -> None:
        self._statements = _entering(role, workspace)
        self._sent = False
        """The settings were sent in a pipeline."""
        self.pending = True
        """The settings are not in force yet."""
        self.refused = False
        """The server has refused them, for example because the role may not be taken."""
        self.rider: object = None
        """The statement with which the settings are sent."""

    def enter(self, pgconn: PGconn) -> PQGen[None]:
        pgconn.send_query(b";".join(self._statements))
        self._entered((yield from execute(pgconn)))

    def send(self, pgconn: PGconn) -> int:
        """Sends the settings in an open pipeline. Returns how many answers the caller has to read."""
        for each in self._statements:
            pgconn.send_query_params(each, None)
        self.pending = False
        return len(self._statements)

    def board(self, pgconn: PGconn) -> None:
        """Opens a pipeline and sends the settings. The caller then sends the handler's statement and the Sync."""
        pgconn.enter_pipeline_mode()
        for each in self._statements:
            pgconn.send_query_params(each, None)
        self._sent = True

    def ride(self, pgconn: PGconn, statement: PQGen[Any]) -> PQGen[Any]:
        """Runs a statement that calls `board` when it is sent. Reads our results before the statement reads its own.

        `statement` is a generator of psycopg's: it yields what it waits for, and receives whether the socket is ready. It
        first yields after it has sent; at that moment our answers come first on the wire.
        """
        answers: list[PGresult] = []
        ready: int | None = None
        returned, failed = None, None
        try:
            while True:
                state = statement.send(ready)  # type: ignore[arg-type]
                if self._sent and not answers:
                    answers = yield from self._answers(pgconn)
                    ready = _READY
                else:
                    ready = yield state
        except StopIteration as end:
            returned = end.value
        except Exception as error:
            failed = error
        if self._sent and pgconn.status == ConnStatus.OK:
            if not answers and failed is None:
                pgconn.finish()  # it has read our results as its own
                raise InternalError("the tenant was entered out of turn")
            answers = answers or (yield from self._answers(pgconn))  # none yet if it could not be sent
            yield from fetch_many(pgconn)
            pgconn.exit_pipeline_mode()
            self._entered(answers)
        if failed is not None:
            raise failed
        return returned

    def _answers(self, pgconn: PGconn) -> PQGen[list[PGresult]]:
        yield from send(pgconn)
        answers: list[PGresult] = []
        for _ in self._statements:
            answers += yield from fetch_many(pgconn)
        return answers

    def _entered(self, answers: list[PGresult]) -> None:
        for answer in answers:
            if answer.status != _OK:
                error = error_from_result(answer)
                self.refused = not isinstance(error, InFailedSqlTransaction)
                raise error
        self.pending = False


@lru_cache(4096)
def _entering(role: str, workspace: str) -> tuple[bytes, bytes]:
    """SET costs half as much as set_config, because nothing is planned."""
    return (
        f"set local role {_literal(role)}".encode(),
        f"set local app.workspace_id = {_literal(workspace)}".encode(),
    )


def _literal(text: str) -> str:
    return "E'" + "".join(each if each.isascii() and each.isalnum() else f"\\U{ord(each):08x}" for each in text) + "'"
