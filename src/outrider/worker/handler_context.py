"""The second parameter of a handler: the transaction, the envelope, the attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.envelope import Envelope
from outrider.postgres.later import LaterStatements, Text, Values
from outrider.postgres.lent_transaction import LentSession, LentSyncSession, lend, lend_sync, take_back
from outrider.postgres.log import ATTEMPT, WORKSPACE, envelope_of
from outrider.postgres.tenant_context import TenantEntry, home_of

if TYPE_CHECKING:
    from outrider.postgres.handler_batches import Connection, Row


class _AnyHandlerContext:
    __slots__ = ("_conn", "_entry", "_later", "_role", "_rows", "_tx", "lent")

    def __init__(self, conn: Connection, rows: Sequence[Row], role: str | None, later: LaterStatements) -> None:
        self._conn = conn
        self._rows = rows
        self._later = later
        self._role = role
        """Whether the handler's first statement sets the role and the tenant."""
        self._tx: LentSession | LentSyncSession | None = None
        self.lent = False
        """Whether the handler has asked for its transaction, or left a statement to be sent."""

    @property
    def envelope(self) -> Envelope:
        """The event as the log holds it; for a handler of whole batches, the first."""
        return envelope_of(self._rows[0])

    @property
    def envelopes(self) -> list[Envelope]:
        """All events of the batch, in the order of the events that were passed."""
        return [envelope_of(row) for row in self._rows]

    @property
    def attempt(self) -> int:
        """1 = the first."""
        return int(self._rows[0][ATTEMPT])

    def raised(self, error: BaseException) -> bool:
        """Whether this error, or its cause, came from the handler's transaction."""
        failed_with = None if self._tx is None else self._tx.failed_with
        return failed_with is not None and failed_with in (error, error.__cause__, getattr(error, "orig", None))

    @property
    def shut_out(self) -> bool:
        """The role or the tenant of the handler could not be set."""
        entry = None if self._tx is None else self._tx.entry
        return entry is not None and entry.refused

    def later(self, query: Text, params: Values = None) -> None:
        """Sends a statement later, together with those of other events: before the next one of `ctx.tx`, and before the
        commit at the latest. It returns nothing, and its error fails this event, whose handler cannot catch it."""
        self._use()
        self._later.add(self._rows, self._entry, query, params)

    def _use(self) -> None:
        if not self.lent:
            self.lent = True
            # All rows have the same workspace.
            self._entry: TenantEntry | None = home_of(self._conn).leave(self._role, self._rows[0][WORKSPACE])

    def _lend(self, tx: LentSession | LentSyncSession) -> None:
        self._use()
        tx.entry, tx.later, self._tx = self._entry, self._later, tx

    def close(self) -> None:
        if self._tx is not None:
            take_back(self._tx)


class HandlerContext(_AnyHandlerContext):
    """`tx` is a psycopg AsyncConnection inside the handler's transaction. What is written through it commits with the
    receipt, or not at all. It cannot commit or roll back, and it cannot be used after the handler has returned. The setting
    `app.workspace_id` is the event's workspace there."""

    __slots__ = ()

    @property
    def tx(self) -> LentSession:
        """The handler's transaction."""
        if not isinstance(self._tx, LentSession):
            self._lend(tx := lend(self._conn))
            return tx
        return self._tx


class SyncHandlerContext(_AnyHandlerContext):
    """The same for a blocking handler, which runs in a thread: `tx` is a blocking psycopg Connection."""

    __slots__ = ()

    @property
    def tx(self) -> LentSyncSession:
        """The handler's transaction."""
        if not isinstance(self._tx, LentSyncSession):
            self._lend(tx := lend_sync(self._conn))
            return tx
        return self._tx
