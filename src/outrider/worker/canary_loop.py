"""Answers the canary of `outrider doctor`: takes and settles its event, and says so in the same transaction."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic as clock

from outrider.errors import CursorError
from outrider.postgres import handler_batches
from outrider.postgres.admin import canary
from outrider.postgres.connection import Wire
from outrider.postgres.log import TakeRequest
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.signals import Signals
from outrider.worker.loop import TROUBLES, Loop

MOST = 8
"""Anybody can notify. More canaries than this are not remembered."""
PAUSE = 1.0
"""Seconds from one look to the next: forged notifications must not keep a session of the handlers busy."""
NEVER = 3600.0
"""Seconds until a look that finds nothing: only a notification names a canary."""


class CanaryLoop(Loop):
    """Its signals are its own: a canary is neither logged nor measured."""

    awaited = False

    def __init__(self, generation: int, worker: str, schema: str, sessions: WorkerSessions) -> None:
        super().__init__("(canary)", Signals(), types=None)
        self._generation, self._worker, self._schema, self._sessions = generation, worker, schema, sessions
        self._heard: dict[str, float] = {}
        """By name, when it was heard."""
        self._looked = False

    def wants(self, kind: str, generation: int) -> bool:
        if generation != self._generation or not canary.is_name(kind) or len(self._heard) >= MOST:
            return False
        self._heard.setdefault(kind, clock())
        return True

    @property
    def patient(self) -> bool:
        return self._looked

    async def step(self) -> float:
        heard, self._heard = self._heard, {}
        self._looked = bool(heard)
        if not heard:
            return NEVER
        with suppress(*TROUBLES):  # the doctor says what is missing
            async with self._sessions.session(self.name) as conn:
                for name in await canary.registered(conn, list(heard), self._schema):
                    with suppress(CursorError):  # it has just ended
                        await self._answer(conn, name, heard[name])
        return PAUSE

    async def _answer(self, conn: Wire, name: str, heard: float) -> None:
        asked = TakeRequest(subscription=name, limit=1, knows=[name], worker=self._worker)
        try:
            claim = await handler_batches.take(conn, asked, self._schema)
            if claim.batch is None:
                await handler_batches.end_idle(conn)
                return
            if claim.rows:
                await canary.answer(conn, name, self._worker, clock() - heard)
            await handler_batches.settle(conn, claim.batch, self._schema)
        except Exception:
            await handler_batches.roll_back(conn)
            raise
