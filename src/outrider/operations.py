"""The operations of an open app: pause, replay, withdraw, status and others. A base class of `Outrider`.

Few processes need them, so each imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack
from uuid import UUID

from outrider.config import Settings
from outrider.errors import ConfigError, RollupRefused
from outrider.postgres.pool import Pool
from outrider.subscription import Subscription

if TYPE_CHECKING:
    from outrider.inbox.inbox import Inbox
    from outrider.postgres.admin.event_history import Story, Withdrawn
    from outrider.postgres.admin.jobs import Jobs
    from outrider.postgres.admin.recovery import DeadLetters
    from outrider.postgres.admin.replay import Replayed, ReplayOptions
    from outrider.postgres.admin.schedules import Upcoming
    from outrider.postgres.admin.status import Status
    from outrider.postgres.admin.waiting import EventBehind, WaitingEvent
    from outrider.postgres.rollups import Installation, Tick
    from outrider.relay.relay import Relay
    from outrider.rollup.rollup import Rollup
    from outrider.streams.replica import ReplicaChange


class Operations:
    settings: Settings
    _subscriptions: dict[str, Subscription]
    _inboxes: dict[str, Inbox]
    _relays: dict[str, Relay]
    _rollups: dict[str, Rollup]

    def _opened(self) -> Pool:
        raise NotImplementedError

    async def pause(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Stop a subscription or a job type for all workers; without a name, everything. Running work is finished.

        Audited, like every operation: `by` is who asked for it, by default the database role.
        """
        from outrider.postgres.admin import subscriptions
        from outrider.signed import Signed

        async with self._opened().autocommit() as conn:
            await subscriptions.pause(conn, name, self.settings.schema, Signed(by, reason))

    async def resume(self, name: str | None = None, *, by: str | None = None, reason: str | None = None) -> None:
        """Undo a pause, close the breaker, and wake the workers. Audited.

        Without a name: undo a pause of everything. What was paused by its name stays paused.
        """
        from outrider.postgres.admin import subscriptions
        from outrider.signed import Signed

        async with self._opened().autocommit() as conn:
            await subscriptions.resume(conn, name, self.settings.schema, Signed(by, reason))

    async def registered_schedules(self) -> list[Upcoming]:
        """All schedules in the database, by name: what they enqueue, when they fired last and fire next."""
        from outrider.postgres.admin import schedules

        async with self._opened().autocommit() as conn:
            return (await schedules.listing(conn, self.settings.schema))[1]

    async def pause_schedule(self, name: str, *, by: str | None = None, reason: str | None = None) -> None:
        """Stop a schedule. Jobs that it has enqueued run. Audited."""
        from outrider.postgres.admin import schedules
        from outrider.signed import Signed

        async with self._opened().autocommit() as conn:
            await schedules.pause(conn, name, self.settings.schema, Signed(by, reason))

    async def resume_schedule(self, name: str, *, by: str | None = None, reason: str | None = None) -> None:
        """Undo a pause. The times of the pause get no job, except with missed="all". Audited."""
        from outrider.postgres.admin import schedules
        from outrider.signed import Signed

        async with self._opened().autocommit() as conn:
            await schedules.resume(conn, name, self.settings.schema, Signed(by, reason))

    async def run_schedule(self, name: str, *, by: str | None = None, reason: str | None = None) -> UUID:
        """Enqueue the job of a schedule now, beside its times, also while it is paused. Returns the job's id. Audited."""
        from outrider.postgres.admin import schedules
        from outrider.signed import Signed

        async with self._opened().autocommit() as conn:
            return await schedules.run_now(conn, name, self.settings.schema, Signed(by, reason))

    async def replay(self, event_id: UUID, **options: Unpack[ReplayOptions]) -> list[Replayed]:
        """Let a dead letter be handled again, by one subscription or by every one that has it.

        It keeps its idempotency key, so a subscription that has handled that key meanwhile skips it.
        """
        from outrider.postgres.admin.replay import replay

        async with self._opened().autocommit() as conn:
            return await replay(conn, event_id, self.settings.schema, self._subscriptions.values(), **options)

    @property
    def dead_letters(self) -> DeadLetters:
        """Dead letters: group them by error, list them, replay or discard many at once."""
        from outrider.postgres.admin.recovery import DeadLetters

        return DeadLetters(self._opened, self.settings.schema)

    @property
    def jobs(self) -> Jobs:
        """Jobs: list them, look at one, cancel it, or let it run now."""
        from outrider.postgres.admin.jobs import Jobs

        return Jobs(self._opened, self.settings.schema)

    async def event(self, event_id: UUID) -> Story | None:
        """The history of an event in all subscriptions; None if no such event is committed."""
        from outrider.postgres.admin import event_history

        async with self._opened().autocommit() as conn:
            return await event_history.story(conn, event_id, self.settings.schema)

    async def waiting_events(
        self, subscription: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[WaitingEvent]:
        """The events that wait for a retry, and how many wait behind each. `after`: the `place` of the last of a page."""
        from outrider.postgres.admin import waiting

        async with self._opened().autocommit() as conn:
            return await waiting.events(conn, self.settings.schema, subscription=subscription, after=after, limit=limit)

    async def waiting_behind(
        self, event_id: UUID, subscription: str | None = None, *, after: int = 0, limit: int = 50
    ) -> list[EventBehind]:
        """The events that wait behind this one, by log position. `after`: the `seq` of the last one of a page."""
        from outrider.postgres.admin import waiting

        async with self._opened().autocommit() as conn:
            return await waiting.behind(
                conn, event_id, self.settings.schema, subscription=subscription, after=after, limit=limit
            )

    async def withdraw(self, event_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[Withdrawn]:
        """Keep an event from the subscriptions that have not handled it yet. Returns the outcome in each. Audited."""
        from outrider.postgres.admin import event_history

        async with self._opened().autocommit() as conn:
            return await event_history.withdraw(conn, event_id, by, reason, self.settings.schema)

    async def current_hwm(self, stream: str, *, relay: str | None = None, conn: object | None = None) -> str:
        """The position up to which this app's relay has written a stream, for `inbox(start=)` and `stitch(hwm=)`.

        Read it before you take a snapshot, or read both in one REPEATABLE READ transaction of yours (`conn`). Then the
        snapshot holds everything up to this position, and a reader that starts after it misses nothing.
        """
        from outrider.postgres.admin import streams
        from outrider.relay.relay import only_stream

        start = next((each.sink.start for each in self._relays.values() if only_stream(each.sink) == stream), None)
        if conn is not None:
            return await streams.high_water_mark(conn, stream, relay, start, self.settings.schema)
        async with self._opened().autocommit() as own:
            return await streams.high_water_mark(own, stream, relay, start, self.settings.schema)

    async def stitch(self, name: str, snapshot: Iterable[ReplicaChange], *, hwm: str) -> int:
        """Fill the table of a replica from a snapshot, and let the replica continue after `hwm`. Newer rows are kept.

        Returns how many rows of the snapshot were written. The table and the position change in one transaction.
        """
        from outrider.postgres import replicas
        from outrider.postgres.inboxes import InboxProgress

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

    async def install_rollup(self, name: str | None = None) -> Installation:
        """Install a rollup as it is declared, as `outrider rollup install` does. Without a name, the only one.

        Needs a role that owns the table. Nothing is done if it is installed as declared; refused with RollupRefused while
        a check of the preflight blocks.
        """
        from outrider.postgres import rollups
        from outrider.rollup.rollup import chosen_rollup

        spec = chosen_rollup(self._rollups, name).spec()
        async with self._opened().autocommit() as conn:
            done = await rollups.install_unless_same(conn, spec, self.settings.schema)
        if blocking := [f"{each.topic}: {each.detail}" for each in done.findings if each.blocks and not each.passed]:
            raise RollupRefused(f"{spec['name']} was not installed: {'; '.join(blocking)}")
        return done

    async def tick(self, rollup: str, *, flush: bool = False) -> Tick:
        """Let a rollup emit the groups that are due, or with `flush` all groups, without waiting for its schedule."""
        from outrider.postgres import rollups

        async with self._opened().autocommit() as conn:
            return await rollups.tick(conn, rollup, self.settings.schema, flush=flush)

    async def status(self) -> Status:
        """The schema, the subscriptions and the workers as they are now."""
        from outrider.postgres.admin.status import status

        async with self._opened().autocommit() as conn:
            return await status(conn, self.settings.schema)
