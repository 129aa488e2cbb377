"""The operations of an open app: pause, replay, withdraw, status and others. A base class of `Outrider`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack
from uuid import UUID

from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.inbox.inbox import Inbox
from outrider.postgres import replicas, rollups
from outrider.postgres.admin import event_history, streams, subscriptions
from outrider.postgres.admin.audit import Signed
from outrider.postgres.admin.event_history import Story, Withdrawn
from outrider.postgres.admin.jobs import Jobs
from outrider.postgres.admin.recovery import DeadLetters
from outrider.postgres.admin.replay import Replayed, ReplayOptions, replay
from outrider.postgres.admin.status import Status, status
from outrider.postgres.inboxes import InboxProgress
from outrider.postgres.pool import Pool
from outrider.postgres.rollups import Tick
from outrider.relay.relay import Relay, only_stream
from outrider.streams.replica import ReplicaChange
from outrider.subscription import Subscription


class Operations:
    settings: Settings
    _subscriptions: dict[str, Subscription]
    _inboxes: dict[str, Inbox]
    _relays: dict[str, Relay]

    def _opened(self) -> Pool:
        raise NotImplementedError

    async def pause(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Stop a subscription or a job type for all workers; without a name, everything. Running work is finished.

        Audited, like every operation: `by` is who asked for it, by default the database role.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.pause(conn, name, self.settings.schema, Signed(by, reason))

    async def resume(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Undo a pause, close the breaker, and wake the workers. Audited.

        Without a name: undo a pause of everything. What was paused by its name stays paused.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.resume(conn, name, self.settings.schema, Signed(by, reason))

    async def replay(self, event_id: UUID, **options: Unpack[ReplayOptions]) -> list[Replayed]:
        """Let a dead letter be handled again, by one subscription or by every one that has it.

        It keeps its idempotency key, so a subscription that has handled that key meanwhile skips it.
        """
        async with self._opened().autocommit() as conn:
            return await replay(conn, event_id, self.settings.schema, self._subscriptions.values(), **options)

    @property
    def dead_letters(self) -> DeadLetters:
        """Dead letters: group them by error, list them, replay or discard many at once."""
        return DeadLetters(self._opened, self.settings.schema)

    @property
    def jobs(self) -> Jobs:
        """Jobs: list them, look at one, cancel it, or let it run now."""
        return Jobs(self._opened, self.settings.schema)

    async def event(self, event_id: UUID) -> Story | None:
        """The history of an event in all subscriptions; None if no such event is committed."""
        async with self._opened().autocommit() as conn:
            return await event_history.story(conn, event_id, self.settings.schema)

    async def withdraw(self, event_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[Withdrawn]:
        """Keep an event from the subscriptions that have not handled it yet. Returns the outcome in each. Audited."""
        async with self._opened().autocommit() as conn:
            return await event_history.withdraw(conn, event_id, by, reason, self.settings.schema)

    async def current_hwm(self, stream: str, *, relay: str | None = None, conn: object | None = None) -> str:
        """The position up to which this app's relay has written a stream, for `inbox(start=)` and `stitch(hwm=)`.

        Read it before you take a snapshot, or read both in one REPEATABLE READ transaction of yours (`conn`). Then the
        snapshot holds everything up to this position, and a reader that starts after it misses nothing.
        """
        start = next((each.sink.start for each in self._relays.values() if only_stream(each.sink) == stream), None)
        if conn is not None:
            return await streams.high_water_mark(conn, stream, relay, start, self.settings.schema)
        async with self._opened().autocommit() as own:
            return await streams.high_water_mark(own, stream, relay, start, self.settings.schema)

    async def stitch(self, name: str, snapshot: Iterable[ReplicaChange], *, hwm: str) -> int:
        """Fill the table of a replica from a snapshot, and let the replica continue after `hwm`. Newer rows are kept.

        Returns how many rows of the snapshot were written. The table and the position change in one transaction.
        """
        if (replica := self._inboxes.get(name)) is None or replica.table is None:
            raise ConfigError(
                f"{name!r} is no replica of this app: app.replica({name!r}, source, table=...) declares one"
            )
        source = replica.source
        source.sort_key(hwm)
        place = InboxProgress(name, source.stream, source.start, hwm)
        async with self._opened().autocommit() as conn:
            ahead = lambda stands: source.sort_key(stands) >= source.sort_key(hwm)  # noqa: E731
            return await replicas.stitch(conn, place, replica.table, snapshot, ahead, self.settings.schema)

    async def tick(self, rollup: str, *, flush: bool = False) -> Tick:
        """Let a rollup emit the groups that are due, or with `flush` all groups, without waiting for its schedule."""
        async with self._opened().autocommit() as conn:
            return await rollups.tick(conn, rollup, self.settings.schema, flush=flush)

    async def status(self) -> Status:
        """The schema, the subscriptions and the workers as they are now."""
        async with self._opened().autocommit() as conn:
            return await status(conn, self.settings.schema)
