"""Events that are jobs: a cursor reads them, and each becomes a job, set-based."""

from __future__ import annotations

from outrider.failpoint import hit
from outrider.postgres import jobs
from outrider.postgres.connection import AsyncSession
from outrider.signals import Recovered, Routed, Signals
from outrider.worker.job_handler import JobHandler

LIMIT = 1000
SCAN = 10_000


class Route:
    def __init__(self, handler: JobHandler, signals: Signals, schema: str) -> None:
        self.name = handler.name
        self.trouble = 0
        self._signals = signals
        self._schema = schema
        self._params = {
            "subscription": handler.name,
            "limit": LIMIT,
            "scan": SCAN,
            "knows": list(handler.models),
            "queue": handler.queue,
            "priority": handler.priority,
        }

    async def step(self, conn: AsyncSession) -> tuple[str, int]:
        """One batch, in a transaction of its own: the outcome of the take, and how many jobs came of it."""
        outcome, routed = await jobs.route(conn, self._params, self._schema)
        hit("route.done")
        if self.trouble:
            self._signals.emit(Recovered(self.name, self.trouble))
        self.trouble = 0
        if routed:
            self._signals.emit(Routed(self.name, routed))
        return outcome, routed
