"""The worker's transaction, lent to one handler: a psycopg connection that cannot end it, and that is dead afterwards.

The lent connection drives the worker's own libpq session. It shares the list of prepared statements, whose names are the
session's. A handler that keeps it and uses it later gets an error instead of somebody else's transaction. Whatever way the
first statement is sent, it goes through `wait`, and the event's tenant is entered before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from psycopg import AsyncConnection, Connection, Error, InterfaceError, ProgrammingError
from psycopg.abc import RV, PQGen
from psycopg.rows import tuple_row

from outrider.postgres.tenant_context import Entry, LentCursor, LentSyncCursor
from outrider.postgres.worker_sessions import end_by_sync

if TYPE_CHECKING:
    from psycopg._connection_base import BaseConnection

    _Connection = BaseConnection[Any]
else:
    _Connection = object

REFUSED = "this transaction belongs to the worker, which {verb} it after the handler: return, or raise to roll it back"
GIVEN_BACK = "ctx.tx was used after its handler had returned: finish what uses it before you return"


class _GivenBack:
    """Stands where libpq's connection was."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InterfaceError(GIVEN_BACK)


class _Lent(_Connection):
    @property
    def _pipeline(self) -> Any:
        """psycopg's own; executemany() opens one too."""
        return self.__dict__["_pipeline"]

    @_pipeline.setter
    def _pipeline(self, pipeline: Any) -> None:
        if pipeline is not None:
            end_by_sync(pipeline)
        self.__dict__["_pipeline"] = pipeline


class LentSession(_Lent, AsyncConnection[Any]):
    """`ctx.tx` of an async handler."""

    failed_with: BaseException | None = None
    """The last error that it raised."""
    entry: Entry | None = None
    """The way into the tenant of its event; None = none is entered."""

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        entry = self.entry
        try:
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


class LentSyncSession(_Lent, Connection[Any]):
    """`ctx.tx` of a blocking handler, in its thread."""

    failed_with: BaseException | None = None
    entry: Entry | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        entry = self.entry
        try:
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
    """A twin of the worker's connection: made for every event, so without what a constructor sets up anew."""
    if isinstance(owner, Connection):
        lent = LentSession(owner.pgconn, tuple_row)
        lent._prepared = owner._prepared
        return lent
    owner.adapters  # noqa: B018 (made when first asked for; the twins share it)
    lent = LentSession.__new__(LentSession)
    lent.__dict__.update(owner.__dict__)
    lent._autocommit = False
    lent.cursor_factory = LentCursor
    return lent


def lend_sync(owner: AsyncConnection[Any] | Connection[Any]) -> LentSyncSession:
    lent = LentSyncSession(owner.pgconn, tuple_row)
    lent._prepared = owner._prepared
    lent.cursor_factory = LentSyncCursor
    return lent


def take_back(lent: LentSession | LentSyncSession) -> None:
    lent._notice_handlers.clear()
    lent._notify_handlers.clear()
    lent.pgconn = _GivenBack()  # type: ignore[assignment]


def _not_entered() -> InterfaceError:
    """A psycopg that sends statements in a way that we do not know."""
    return InterfaceError("a statement ran without the tenant of its event: this psycopg needs another Outrider")


def _refused(verb: str) -> ProgrammingError:
    return ProgrammingError(REFUSED.format(verb=verb))
