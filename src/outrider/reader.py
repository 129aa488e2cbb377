"""`Reader`: the log read through an exact cursor, in the caller's own transaction."""

from __future__ import annotations

from typing import Any

from outrider.config import Settings
from outrider.errors import CursorError
from outrider.postgres import log
from outrider.postgres.log import Batch
from outrider.postgres.session import AsyncSession
from outrider.signals import Signals, Taken
from outrider.subscription import Subscription

LIMIT = 500
SCAN = 10_000


class Reader:
    """Reads every event of its subscription once. What you write and how far you have read commit together:

        async with app.connect() as conn, conn.transaction():
            batch = await reader.take(conn)
            for envelope in batch.events:
                await conn.execute(...)

    The position advances when the transaction commits and stays where it was when it rolls back. One session at a time
    holds a partition; the others get an empty batch (`outcome == "busy"`).
    """

    def __init__(self, subscription: Subscription, settings: Settings, signals: Signals) -> None:
        self.subscription = subscription
        self._schema = settings.schema
        self._signals = signals

    async def take(self, conn: AsyncSession, *, partition: int = 0, limit: int = LIMIT, scan: int = SCAN) -> Batch:
        """The next events, at most `limit`; must be the first statement of its transaction.

        `scan` bounds the rows that one call looks at when most of them do not concern this subscription.
        """
        if conn.autocommit and not _in_transaction(conn):
            raise CursorError(
                "take needs a transaction, or the position would advance before anything is done: "
                "wrap it in `async with conn.transaction():`"
            )
        batch = await log.take(conn, self.subscription.name, partition, limit, max(scan, limit), self._schema)
        self._signals.emit(Taken(self.subscription.name, partition, len(batch.events), batch.outcome))
        return batch


def _in_transaction(conn: Any) -> bool:
    return bool(conn.info.transaction_status)
