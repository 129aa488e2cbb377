"""The second parameter of a job: its envelope, the attempt, progress, connections."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outrider.envelope import Envelope
from outrider.errors import Cancelled
from outrider.postgres.connection import AsyncSession, Session
from outrider.redaction import sanitise

if TYPE_CHECKING:
    from outrider.postgres.jobs import Leased

MESSAGE = 500
"""The most characters of a progress message."""


class _AnyJobContext:
    __slots__ = ("_connect", "_leased", "_progress", "_stopped")

    def __init__(self, leased: Leased, connect: Any) -> None:
        self._leased = leased
        self._connect = connect
        self._stopped = False
        self._progress: str | None = None
        """JSON; None = nothing new."""

    @property
    def job_id(self) -> UUID:
        """The same at every attempt."""
        return self._leased.id

    @property
    def envelope(self) -> Envelope:
        """The metadata of the job; for a job of events (on=), that of the event."""
        return self._leased.envelope

    @property
    def attempt(self) -> int:
        """1 = the first."""
        return self._leased.attempt

    @property
    def lease(self) -> float:
        """Seconds for which the job belongs to this worker without a renewal."""
        return self._leased.lease

    @property
    def queue(self) -> str:
        """The queue that it was enqueued into."""
        return self._leased.queue

    def progress(self, fraction: float, message: str = "") -> None:
        """Report progress, from 0 to 1, with a message. `outrider job show` shows it within two seconds."""
        self._progress = progress_json(fraction, message)

    def take_progress(self) -> str | None:
        """The progress that was reported since the last call, as JSON."""
        progress, self._progress = self._progress, None
        return progress

    @property
    def cancelled(self) -> bool:
        """The job should stop: an operator has cancelled it, the worker stops, or the lease was lost."""
        return self._stopped

    def check(self) -> None:
        """Raises Cancelled when the job should stop. For the loops of blocking jobs."""
        if self._stopped:
            raise Cancelled

    def stop(self) -> None:
        self._stopped = True


class JobContext(_AnyJobContext):
    """For async jobs. They are cancelled like any task: at the next await."""

    __slots__ = ()
    _connect: Callable[[], AbstractAsyncContextManager[AsyncSession]]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncSession]:
        """A connection of the app's pool, in a transaction that commits at the end; app.workspace_id is the job's there."""
        async with self._connect() as conn:
            workspace = self.envelope.workspace_id
            if workspace is not None:
                await conn.execute("select set_config('app.workspace_id', %s, true)", [workspace])
            yield conn


class SyncJobContext(_AnyJobContext):
    """For blocking jobs, which run in a thread or in a process of their own. They should look at `ctx.cancelled`, or call
    `ctx.check()`, every second or so."""

    __slots__ = ()
    _connect: Callable[[], AbstractContextManager[Session]]

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
