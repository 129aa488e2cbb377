"""The worker's transaction, lent to one handler as a psycopg connection that cannot end it.

The lent connection uses the worker's libpq session and its prepared statements. A handler that uses it after it has
returned gets an error, not the transaction of another handler. Every statement goes through `wait`, which enters the
event's tenant before the first one.
"""

from __future__ import annotations

from typing import Any, NoReturn

from psycopg import AsyncConnection, Connection, Error, InterfaceError, ProgrammingError
from psycopg.abc import RV, PQGen
from psycopg.rows import tuple_row

from outrider.postgres.later import LaterStatements
from outrider.postgres.psycopg_private import (
    EndsBySync,
    LentCursor,
    LentSyncCursor,
    detach,
    share_prepared,
    twin,
    without_autocommit,
)
from outrider.postgres.tenant_context import TenantEntry

REFUSED = "this transaction belongs to the worker, which {verb} it after the handler: return, or raise to roll it back"
GIVEN_BACK = "ctx.tx was used after its handler had returned: finish what uses it before you return"


class _GivenBack:
    """Takes the place of the libpq connection."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InterfaceError(GIVEN_BACK)


class LentSession(EndsBySync, AsyncConnection[Any]):
    """`ctx.tx` of an async handler."""

    failed_with: BaseException | None = None
    """The last error that it raised."""
    entry: TenantEntry | None = None
    """Enters the tenant of its event; None = there is no tenant to enter."""
    later: LaterStatements | None = None
    """What handlers left to be sent, before the next statement at the latest."""

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        entry = self.entry
        try:
            if self.later is not None and self.later.waiting:
                await super().wait(self.later.send())
            if entry is not None and entry.pending and gen is not entry.rider:
                await super().wait(entry.enter(self.pgconn))
            returned = await super().wait(gen, *args, **kwargs)
            if entry is not None and entry.pending:
                raise _not_entered()
            return returned
        except Error as error:
            self.failed_with = error
            raise

    def __del__(self, _: Any = None, /) -> None:
        pass

    async def commit(self) -> NoReturn:
        raise _refused("commits")

    async def rollback(self) -> NoReturn:
        raise _refused("ends")

    async def close(self) -> NoReturn:
        raise _refused("ends")

    async def set_autocommit(self, value: bool) -> NoReturn:  # noqa: ARG002
        raise _refused("commits")


class LentSyncSession(EndsBySync, Connection[Any]):
    """`ctx.tx` of a blocking handler, in its thread."""

    failed_with: BaseException | None = None
    entry: TenantEntry | None = None
    later: LaterStatements | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        entry = self.entry
        try:
            if self.later is not None and self.later.waiting:
                super().wait(self.later.send())
            if entry is not None and entry.pending and gen is not entry.rider:
                super().wait(entry.enter(self.pgconn))
            returned = super().wait(gen, *args, **kwargs)
            if entry is not None and entry.pending:
                raise _not_entered()
            return returned
        except Error as error:
            self.failed_with = error
            raise

    def __del__(self, _: Any = None, /) -> None:
        pass

    def commit(self) -> NoReturn:
        raise _refused("commits")

    def rollback(self) -> NoReturn:
        raise _refused("ends")

    def close(self) -> NoReturn:
        raise _refused("ends")

    def set_autocommit(self, value: bool) -> NoReturn:  # noqa: ARG002
        raise _refused("commits")


def lend(owner: AsyncConnection[Any] | Connection[Any]) -> LentSession:
    """A connection on the worker's session, for one event."""
    if isinstance(owner, Connection):
        lent = LentSession(owner.pgconn, tuple_row)
        share_prepared(lent, owner)
        return lent
    lent = twin(LentSession, owner)
    without_autocommit(lent)
    lent.cursor_factory = LentCursor
    return lent


def lend_sync(owner: AsyncConnection[Any] | Connection[Any]) -> LentSyncSession:
    lent = LentSyncSession(owner.pgconn, tuple_row)
    share_prepared(lent, owner)
    lent.cursor_factory = LentSyncCursor
    return lent


def take_back(lent: LentSession | LentSyncSession) -> None:
    detach(lent, _GivenBack())  # type: ignore[arg-type]


def _not_entered() -> InterfaceError:
    """This version of psycopg sends statements in a way that `wait` does not see."""
    return InterfaceError(
        "a statement ran without the tenant of its event: this version of psycopg needs another version of Outrider"
    )


def _refused(verb: str) -> ProgrammingError:
    return ProgrammingError(REFUSED.format(verb=verb))
