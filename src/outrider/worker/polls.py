"""The polls of a worker's handlers: one statement tells all of them where there is nothing to take."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic as clock

from outrider.postgres.generations import idle
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.worker.generations import Place


class Polls:
    def __init__(self, subscriptions: Sequence[str], sessions: WorkerSessions, schema: str) -> None:
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._schema = schema
        self._idle: frozenset[Place] = frozenset()
        """Where the last look found nothing to take."""
        self._looked = float("-inf")

    async def idle_for(self, place: Place, shared: float) -> float | None:
        """Seconds since a look found nothing to take there; None if there may be something.

        Looks again if the last look, which may have been that of another handler, is older than `shared` seconds.
        """
        if clock() > self._looked + shared:
            async with self._sessions.session(place[0]) as conn:
                began = clock()
                found = await idle(conn, self._subscriptions, self._schema)
            self._idle, self._looked = found, began
        return clock() - self._looked if place in self._idle else None
