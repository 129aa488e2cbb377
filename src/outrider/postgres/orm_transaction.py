"""A handler's transaction for an ORM, and the DSN of an ORM's database.

The ORM uses the worker's session as `ctx.tx` does. Its cursor class and types do not affect `ctx.tx`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import Cursor, Error, ProgrammingError
from psycopg.abc import RV, AdaptContext, PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from outrider.errors import ConfigError
from outrider.postgres.lent_transaction import LentSyncSession
from outrider.postgres.psycopg_private import own_types, own_unprepared, twin

_NOT_LIBPQ = ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory")


class BorrowedSession(LentSyncSession):
    lender: LentSyncSession

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        try:
            return super().wait(gen, *args, **kwargs)
        except Error as error:
            self.lender.failed_with = error
            raise

    @property
    def aborted(self) -> bool:
        """An error has aborted the transaction."""
        return self.pgconn.transaction_status == TransactionStatus.INERROR

    def keep_time_of(self, zone: str) -> None:
        """Sets the time zone until the transaction ends. Needs a round trip only if it differs from the session's."""
        if self.info.parameter_status("TimeZone") != zone:
            self.execute("select set_config('TimeZone', %s, true)", [zone])


def borrow(
    lender: LentSyncSession, *, cursor_factory: type[Cursor[Any]], types: AdaptContext, prepares: bool
) -> BorrowedSession:
    """Another connection object on the worker's session. End its use with `take_back`."""
    borrowed = twin(BorrowedSession, lender)
    borrowed.lender = lender
    borrowed.cursor_factory = cursor_factory
    own_types(borrowed, types)
    if not prepares:
        own_unprepared(borrowed)
    return borrowed


def address(params: Mapping[str, Any]) -> str:
    """The arguments of `psycopg.connect` as a libpq connection string."""
    try:
        return make_conninfo(**{name: value for name, value in params.items() if name not in _NOT_LIBPQ})
    except ProgrammingError as error:
        raise ConfigError(f"libpq cannot use these connection parameters: {str(error).strip()}") from None
