"""What an operator does with an open app: look, pause, replay, cancel. A part of `Outrider`."""

from __future__ import annotations

from typing import Unpack
from uuid import UUID

from outrider.config import Settings
from outrider.postgres import events, subscriptions
from outrider.postgres.events import Story, Withdrawn
from outrider.postgres.joblist import Jobs
from outrider.postgres.pool import Pool
from outrider.postgres.recovery import DeadLetters
from outrider.postgres.replay import Replayed, ReplayOptions, replay
from outrider.postgres.status import Status, status
from outrider.subscription import Subscription


class Operations:
    settings: Settings
    _subscriptions: dict[str, Subscription]

    def _opened(self) -> Pool:
        raise NotImplementedError

    async def pause(self, name: str | None = None) -> None:
        """Let nobody take from this subscription, or claim such jobs, from now on; or any. What was begun is finished."""
        async with self._opened().autocommit() as conn:
            await subscriptions.pause(conn, name, self.settings.schema)

    async def resume(self, name: str | None = None) -> None:
        """Take again from where it was paused, and close its breaker; its workers are woken.

        Without a name: undo a pause of everything. What was paused by its name stays so.
        """
        async with self._opened().autocommit() as conn:
            await subscriptions.resume(conn, name, self.settings.schema)

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
            return await events.story(conn, event_id, self.settings.schema)

    async def withdraw(self, event_id: UUID, *, by: str | None = None, reason: str | None = None) -> list[Withdrawn]:
        """Keep an event from whoever has not handled it yet; says where it was too late. Audited."""
        async with self._opened().autocommit() as conn:
            return await events.withdraw(conn, event_id, by, reason, self.settings.schema)

    async def status(self) -> Status:
        """Schema, subscriptions and workers as they are now."""
        async with self._opened().autocommit() as conn:
            return await status(conn, self.settings.schema)
