"""`Reader`: reads the log through an exact cursor, in the caller's own transaction."""

from __future__ import annotations

from outrider.config import Settings
from outrider.postgres import log
from outrider.postgres.log import Batch
from outrider.signals import Signals, Taken
from outrider.subscription import Subscription

LIMIT = 500
SCAN = 10_000


class Reader:
    """Reads every event of its subscription once. What you write and the position commit together:

        async with app.connect() as conn, conn.transaction():
            batch = await reader.take(conn)
            for envelope in batch.events:
                await conn.execute(...)

    The position advances when the transaction commits and stays where it was when it rolls back. One session at a time
    holds a partition; any number of sessions may take at once.
    """

    def __init__(self, subscription: Subscription, settings: Settings, signals: Signals) -> None:
        self.subscription = subscription
        self.schema = settings.schema
        self._signals = signals

    async def take(self, conn: object, *, partition: int | None = None, limit: int = LIMIT, scan: int = SCAN) -> Batch:
        """The next events, at most `limit`, on your psycopg AsyncConnection. Call it before you write in its transaction.

        Without `partition`, it reads from any partition that has events and that no other session holds. `scan` limits the
        rows that one call scans, for subscriptions that want few of the events.
        """
        batch = await log.take(conn, self.subscription.name, partition, limit, max(scan, limit), self.schema)
        return self._announce(batch)

    def take_sync(self, conn: object, *, partition: int | None = None, limit: int = LIMIT, scan: int = SCAN) -> Batch:
        """The same on your blocking psycopg Connection."""
        batch = log.take_sync(conn, self.subscription.name, partition, limit, max(scan, limit), self.schema)
        return self._announce(batch)

    def _announce(self, batch: Batch) -> Batch:
        self._signals.emit(Taken(self.subscription.name, batch.partition, len(batch.events), batch.outcome))
        return batch
