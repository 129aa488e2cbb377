"""The loop of a job that subscribes to events: a cursor reads them, and `route` makes jobs of them."""

from __future__ import annotations

from collections.abc import Callable

from outrider.failpoint import hit
from outrider.postgres import jobs
from outrider.postgres.connection import AsyncSession
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import Routed, Signals
from outrider.worker.job_handler import JobHandler
from outrider.worker.loop import BUSY_PAUSE, Loop

LIMIT = 1000
"""The most events that one batch turns into jobs."""
SCAN = 10_000
"""The most rows of the log that one batch looks at."""


class EventRouter(Loop):
    def __init__(
        self,
        handler: JobHandler,
        signals: Signals,
        schema: str,
        *,
        sessions: WorkerSessions,
        poll: Callable[[], float] = lambda: 0,
        hears_at_once: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__(handler.name, signals, types=frozenset(handler.models))
        self._schema = schema
        self._sessions = sessions
        self._poll = poll
        self._hears_at_once = hears_at_once
        self._params = {
            "subscription": handler.name,
            "limit": LIMIT,
            "scan": SCAN,
            "knows": list(handler.models),
            "queue": handler.queue,
            "priority": handler.priority,
        }

    async def step(self) -> float:
        async with self._sessions.session(self.name) as conn:
            outcome, _, due_in = await self.route(conn)
        self.skips(outcome if outcome in ("paused", "unknown") else "")
        if outcome == "more" or (outcome == "done" and not self._hears_at_once(0)):
            return 0
        return min(self._poll(), BUSY_PAUSE if outcome == "busy" else due_in)

    async def route(self, conn: AsyncSession) -> tuple[str, int, float]:
        """Turn one batch into jobs, in one transaction. Returns the outcome of the take, the number of jobs, and the seconds
        until an event may be tried again that another transaction holds up."""
        outcome, routed, due_in = await jobs.route(conn, self._params, self._schema)
        hit("route.done")
        if routed:
            self._signals.emit(Routed(self.name, routed))
        return outcome, routed, due_in
