"""What an operator does with an open app: look, pause, replay, cancel. A part of `Outrider`."""

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
from outrider.postgres.inboxes import Place
from outrider.postgres.pool import Pool
from outrider.postgres.rollups import Tick
from outrider.relay.relay import Relay, only_stream
from outrider.streams.replica import Change
from outrider.subscription import Subscription


class Operations:
    settings: Settings
    _subscriptions: dict[str, Subscription]
    _inboxes: dict[str, Inbox]
    _relays: dict[str, Relay]

    def _opened(self) -> Pool:
        raise NotImplementedError

    async def pause(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Let nobody take from this subscription, or claim such jobs, from now on; or any. What was begun is finished.

        Audited, as all that operators do is: `by` is who wants it, by default the database role.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.pause(conn, name, self.settings.schema, Signed(by, reason))

    async def resume(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Take again from where it was paused, and close its breaker; its workers are woken. Audited.

        Without a name: undo a pause of everything. What was paused by its name stays so.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.resume(conn, name, self.settings.schema, Signed(by, reason))

    async def replay(self, event_id: UUID, **options: Unpack[ReplayOptions]) -> list[Replayed]:
        """Let a dead letter be handled again, by one subscription or by every one that buried it.

        Its idempotency key stays, so what was handled meanwhile is skipped.
        """
        async with self._opened().autocommit() as conn:
            return await replay(conn, event_id, self.settings.schema, self._subscriptions.values(), **options)

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up on: by what went wrong, one by one; to be replayed or discarded, many at once."""
        return DeadLetters(self._opened, self.settings.schema)

    @property
    def jobs(self) -> Jobs:
        """Jobs that wait, run, failed or are done: list them, look at one, cancel it, let it run now."""
        return Jobs(self._opened, self.settings.schema)

    async def event(self, event_id: UUID) -> Story | None:
        """The whole life of an event until now, over all subscriptions; None if no such event is committed."""
        async with self._opened().autocommit() as conn:
            return await event_history.story(conn, event_id, self.settings.schema)

    async def withdraw(self, event_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[Withdrawn]:
        """Keep an event from whoever has not handled it yet; says where it was too late. Audited."""
        async with self._opened().autocommit() as conn:
            return await event_history.withdraw(conn, event_id, by, reason, self.settings.schema)

    async def current_hwm(self, stream: str, *, relay: str | None = None, conn: object | None = None) -> str:
        """Up to where this app's relay has written a stream: a position for `inbox(start=)` and `stitch(hwm=)`.

        Read it first and the snapshot after it, or both in one REPEATABLE READ transaction of yours (`conn`): then the
        snapshot holds everything up to there, and whoever reads the stream after it misses nothing.
        """
        start = next((each.sink.start for each in self._relays.values() if only_stream(each.sink) == stream), None)
        if conn is not None:
            return await streams.high_water_mark(conn, stream, relay, start, self.settings.schema)
        async with self._opened().autocommit() as own:
            return await streams.high_water_mark(own, stream, relay, start, self.settings.schema)

    async def stitch(self, name: str, snapshot: Iterable[Change], *, hwm: str) -> int:
        """Fill the table of a replica from a snapshot, and let the replica go on from `hwm`; what is newer there stays.

        Returns how many rows of the snapshot were newer. The table and the position are one transaction.
        """
        if (replica := self._inboxes.get(name)) is None or replica.table is None:
            raise ConfigError(
                f"{name!r} is no replica of this app: app.replica({name!r}, source, table=...) declares one"
            )
        source = replica.source
        source.sort_key(hwm)
        place = Place(name, source.stream, source.start, hwm)
        async with self._opened().autocommit() as conn:
            ahead = lambda stands: source.sort_key(stands) >= source.sort_key(hwm)  # noqa: E731
            return await replicas.stitch(conn, place, replica.table, snapshot, ahead, self.settings.schema)

    async def tick(self, rollup: str, *, flush: bool = False) -> Tick:
        """Let a rollup emit what is due, whoever else does it on time; with `flush` all that waits."""
        async with self._opened().autocommit() as conn:
            return await rollups.tick(conn, rollup, self.settings.schema, flush=flush)

    async def status(self) -> Status:
        """Schema, subscriptions and workers as they are now."""
        async with self._opened().autocommit() as conn:
            return await status(conn, self.settings.schema)
