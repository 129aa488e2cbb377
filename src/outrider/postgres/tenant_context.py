"""The tenant of the event at hand: its workspace and the handler's role, set before the handler's first statement.

They are set anew for every event that sends a statement, whatever the one before has left. A handler that sends nothing
pays nothing, nor does a batch without a role and without any workspace. Where the first statement has parameters they travel
with it, as a pipeline of one round trip. Literals are pure ASCII with escapes: no setting of the session changes what they
mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Who a session is while no handler has it."""

    __slots__ = ("away", "back", "clean", "user")

    def __init__(self, user: str, workspace: str = "", *, local: bool = False) -> None:
        self.user = user
        self.back = _BACK.format(_literal(user), _literal(workspace), local=local).encode()
        self.away = False
        """A handler has used it since, and may have left anything behind."""
        self.clean = False
        """The session itself has no workspace: what was set for it is known."""

    def has_tenants(self, role: str | None, workspaces: Iterable[str | None]) -> bool:
        """Whether events of a batch enter their tenants; asked before its first event. Otherwise they are at home."""
        return role is not None or self.away or not self.clean or any(each is not None for each in workspaces)

    def leave(self, role: str | None, workspace: str | None, *, enters: bool) -> TenantEntry | None:
        """A handler is about to use the session."""
        self.away = True
        return TenantEntry(role or self.user, workspace or "") if enters else None


def home_of(conn: AsyncConnection[Any]) -> Home:
    """What was captured; for a session of which nothing was, whoever logged in."""
    home: Home | None = getattr(conn, "home", None)
    if home is None:
        home = conn.home = Home(conn.info.user)  # type: ignore[attr-defined]
    return home


async def capture(conn: AsyncConnection[Any], *, local: bool = False) -> None:
    """Note who the session is, to go back to; RESET ROLE might lead elsewhere. `local`: in the open transaction only."""
    cursor = await AsyncCursor(conn, row_factory=tuple_row).execute(_HOME)
    row = await cursor.fetchone()
    assert row is not None
    conn.home = Home(row[0], (row[1] or "") if local else "", local=local)  # type: ignore[attr-defined]


async def check_roles(conn: AsyncConnection[Any], handlers: Mapping[str, str]) -> None:
    """Whether the session may become each of these roles; ConfigError says what to grant. By role: a handler of it."""
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
    raise ConfigError(f"{asks}, which is not there: create role {quoted} nologin; {grant}")


class TenantEntry:
    """The way into one tenant, taken before the first statement and not again."""

    __slots__ = ("_boarded", "_statements", "pending", "refused", "rider")

    def __init__(self, role: str, workspace: str) -> None:
        self._statements = _entering(role, workspace)
        self._boarded = False
        self.pending = True
        self.refused = False
        self.rider: object = None
        """The statement that takes it along."""

    def enter(self, pgconn: PGconn) -> PQGen[None]:
        pgconn.send_query(b";".join(self._statements))
        self._entered((yield from execute(pgconn)))

    def board(self, pgconn: PGconn) -> None:
        """The handler's own statement is sent next, then the end of the pipeline."""
        pgconn.enter_pipeline_mode()
        for each in self._statements:
            pgconn.send_query_params(each, None)
        self._boarded = True

    def ride(self, pgconn: PGconn, statement: PQGen[Any]) -> PQGen[Any]:
        """Run a statement that boards when it is sent. Our answers come first, so they are read before it reads its own."""
        answers: list[PGresult] = []
        ready: int | None = None
        returned, failed = None, None
        try:
            while True:
                state = statement.send(ready)  # type: ignore[arg-type]
                if self._boarded and not answers:
                    answers = yield from self._answers(pgconn)
                    ready = _READY
                else:
                    ready = yield state
        except StopIteration as end:
            returned = end.value
        except Exception as error:
            failed = error
        if self._boarded and pgconn.status == ConnStatus.OK:
            if not answers and failed is None:
                pgconn.finish()  # it has taken our answer for its own
                raise InternalError("the tenant was entered out of turn")
            answers = answers or (yield from self._answers(pgconn))  # none yet: it could not be sent
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
    """Half the price of set_config: the server plans nothing."""
    return (
        f"set local role {_literal(role)}".encode(),
        f"set local app.workspace_id = {_literal(workspace)}".encode(),
    )


def _literal(text: str) -> str:
    return "E'" + "".join(each if each.isascii() and each.isalnum() else f"\\U{ord(each):08x}" for each in text) + "'"
