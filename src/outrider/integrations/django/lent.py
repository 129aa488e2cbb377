"""Django's connection of one thread, for the duration of one handler: on the handler's own transaction.

Django sees an atomic block that it has not begun and cannot end. Its usual connection of this alias is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError

from outrider.errors import ConfigError, SwallowedError
from outrider.postgres.lent_transaction import LentSyncSession, take_back
from outrider.postgres.orm_transaction import BorrowedSession, borrow

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

READ_COMMITTED = 2


class Lent:
    """A mixin for the backend's wrapper: it refuses what would end the transaction, or wait for its end."""

    lent_to_handler = True

    def close(self) -> NoReturn:
        raise TransactionManagementError(
            "this connection is the handler's transaction, which the worker commits: do not close it, let the handler return"
        )

    def connect(self) -> NoReturn:
        raise TransactionManagementError(
            "this connection is the handler's transaction and cannot be reopened: Django gets its usual one back afterwards"
        )

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> NoReturn:  # noqa: ARG002
        raise TransactionManagementError(
            "on_commit cannot be used in a handler: the worker commits later, perhaps in a batch, and what runs after that "
            "may be lost. Publish an event instead, app.publish_sync(connection, ...), and do it in that event's handler"
        )

    def close_if_unusable_or_obsolete(self) -> None:
        """Nothing: close_old_connections() is meant for Django's own connections."""


@contextmanager
def lent(using: str, tx: LentSyncSession) -> Iterator[None]:
    """`connections[using]` runs on `tx`. Raises when the block has left it in a state that must not be committed."""
    usual: BaseDatabaseWrapper = connections[using]
    if isinstance(usual, Lent):  # one @orm function has called another
        yield
        return
    _refuse_unsuitable(usual, tx)
    _close_old(using)
    wrapper = _wrapper(usual, tx)
    session: BorrowedSession = wrapper.connection
    connections[using] = wrapper
    try:
        session.keep_time_of(wrapper.timezone_name)
        connection_created.send(sender=type(usual), connection=wrapper)
        yield
        if wrapper.needs_rollback or session.aborted:
            raise _marked() from (getattr(wrapper, "rollback_exc", None) or session.failed_with)
    finally:
        connections[using] = usual
        take_back(session)
        _close_old(using)


def _wrapper(usual: BaseDatabaseWrapper, tx: LentSyncSession) -> BaseDatabaseWrapper:
    backend: Any = type(usual)
    wrapper: BaseDatabaseWrapper = _class(backend)(usual.settings_dict, usual.alias)
    params = wrapper.get_connection_params()
    wrapper.connection = borrow(
        tx,
        cursor_factory=params["cursor_factory"],
        types=params["context"],
        prepares=params["prepare_threshold"] is not None,
    )
    wrapper.in_atomic_block = True
    wrapper.atomic_blocks = [transaction.Atomic(usual.alias, savepoint=True, durable=False)]
    # A test or an instrument that watches the usual connection watches this one too.
    wrapper.execute_wrappers = usual.execute_wrappers
    wrapper.queries_log, wrapper.force_debug_cursor = usual.queries_log, usual.force_debug_cursor
    return wrapper


@cache
def _class(backend: type[Any]) -> type[Any]:
    return type(f"Lent{backend.__name__}", (Lent, backend), {})


def _refuse_unsuitable(usual: BaseDatabaseWrapper, tx: LentSyncSession) -> None:
    place = f"DATABASES[{usual.alias!r}]"
    if usual.vendor != "postgresql":
        raise ConfigError(
            f"@orm: {place} is {usual.vendor}, but the handler's transaction is in Postgres: use @orm(using=...)"
        )
    name, options = usual.settings_dict["NAME"], usual.settings_dict["OPTIONS"]
    if name and name != tx.info.dbname:
        raise ConfigError(
            f"@orm: the worker is connected to the database {tx.info.dbname!r}, and {place} is {name!r}: effects commit "
            "together with the receipt only in one database; give the worker the DSN of that one, or use @orm(using=...)"
        )
    if int(options.get("isolation_level", READ_COMMITTED)) > READ_COMMITTED:
        raise ConfigError(
            f"@orm: {place} asks for an isolation_level, but handlers run at READ COMMITTED, in a transaction that the "
            "worker has begun: leave it out of the settings of the worker, and lock rows with select_for_update()"
        )
    if options.get("assume_role"):
        raise ConfigError(
            f"@orm: {place} has assume_role, which a handler cannot change in the worker's transaction: give the worker a "
            "DSN that logs in as that role, and leave it out of the settings of the worker"
        )


def _close_old(using: str) -> None:
    """Closes old connections of the other aliases, as Django does before and after a request."""
    for other in connections.all(initialized_only=True):
        if other.alias != using and not other.in_atomic_block:
            other.close_if_unusable_or_obsolete()


def _marked() -> SwallowedError:
    return SwallowedError(
        "the handler returned, but its transaction is broken or marked for rollback (an error was caught, or "
        "set_rollback(True) was called): let the error through; what may fail on its own goes into "
        "`with transaction.atomic():` inside the try; to give the event up, raise Bury or Retry"
    )
