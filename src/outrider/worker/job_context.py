"""What a job gets beside itself: its envelope, the attempt, a place to say how far it is, connections."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from uuid import UUID

from outrider.envelope import Envelope
from outrider.errors import Cancelled
from outrider.postgres.connection import AsyncSession, Session
from outrider.postgres.jobs import Leased
from outrider.redaction import sanitise

MESSAGE = 500


class _Context:
    __slots__ = ("_connect", "_leased", "_stopped", "said")

    def __init__(self, leased: Leased) -> None:
        self._leased = leased
        self._stopped = False
        self.said: str | None = None
        """JSON: how far it is."""

    @property
    def job_id(self) -> UUID:
        return self._leased.id

    @property
    def envelope(self) -> Envelope:
        """What travels beside the payload; of an event, for a job of events."""
        return self._leased.envelope

    @property
    def attempt(self) -> int:
        """1 = the first."""
        return self._leased.attempt

    @property
    def lease(self) -> float:
        """Seconds: so long it stays this worker's own without being renewed."""
        return self._leased.lease

    @property
    def queue(self) -> str:
        return self._leased.queue

    def progress(self, fraction: float, message: str = "") -> None:
        """How far it is, from 0 to 1, and in words; to be seen with `outrider job show` within a second or two."""
        self.said = progress_json(fraction, message)

    @property
    def cancelled(self) -> bool:
        """Somebody wants it to stop, or it is not this worker's any more."""
        return self._stopped

    def check(self) -> None:
        """Raises Cancelled when the job should stop: for loops of blocking jobs."""
        if self._stopped:
            raise Cancelled

    def stop(self) -> None:
        self._stopped = True


class JobContext(_Context):
    """For async jobs. A cancelled one is cancelled like any task: at its next await."""

    __slots__ = ()

    def __init__(self, leased: Leased, connect: Callable[[], AbstractAsyncContextManager[AsyncSession]]) -> None:
        super().__init__(leased)
        self._connect = connect

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncSession]:
        """A connection of the app's pool, in a transaction that commits at the end; app.workspace_id is the job's there."""
        async with self._connect() as conn:
            workspace = self.envelope.workspace_id
            if workspace is not None:
                await conn.execute("select set_config('app.workspace_id', %s, true)", [workspace])
            yield conn


class SyncJobContext(_Context):
    """For blocking jobs, which run in a thread or in a process of their own. They see `ctx.cancelled`, or call
    `ctx.check()` now and then."""

    __slots__ = ()

    def __init__(self, leased: Leased, connect: Callable[[], AbstractContextManager[Session]]) -> None:
        super().__init__(leased)
        self._connect = connect

    @contextmanager
    def connect(self) -> Iterator[Session]:
        """A new connection, in a transaction that commits at the end; app.workspace_id is the job's there."""
        with self._connect() as conn:
            workspace = self.envelope.workspace_id
            if workspace is not None:
                conn.execute("select set_config('app.workspace_id', %s, true)", [workspace])
            yield conn


def progress_json(fraction: float, message: str) -> str:
    if not isinstance(fraction, int | float) or not math.isfinite(fraction) or not 0 <= fraction <= 1:
        raise ValueError(f"progress: {fraction!r} is not a number from 0 to 1")
    return json.dumps({"fraction": round(float(fraction), 4), "message": sanitise(str(message))[:MESSAGE]})
