"""`dispatched`: proof that events reach their handlers through a running worker that a notification has woken."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from outrider.app import Outrider
from outrider.errors import ConfigError
from outrider.postgres.statement import fetch
from outrider.signals import Signal, Woken
from outrider.worker.wakeups import Polling

NEVER = Polling(listening=3600, blind=3600)
START = 10.0
"""Seconds for the worker to listen, if `timeout` is shorter."""
SHOWN = 10


@asynccontextmanager
async def dispatched(app: Outrider, *, handlers: Iterable[str] = (), timeout: float = 10) -> AsyncIterator[None]:  # noqa: ASYNC109 (the block's own time does not count)
    """Run a worker around the block. At its end, wait until the handlers are done with each event published in it.

        async with dispatched(app):
            await place_order(conn, "7")
        assert await invoices(conn) == ["7"]

    The worker does not poll. AssertionError unless a NOTIFY from Postgres woke each handler that had an event to handle:
    polling and app.drain() cannot make it pass. `handlers`: only these, by name or pattern; none = all of the app.
    """
    if app.settings.notify == "off":
        raise ConfigError('with notify="off" nothing wakes a worker: dispatched() needs "commit" or "after_commit"')
    handlers = tuple(handlers)
    waiting = _Waiting(app, handlers)
    worker = app.worker(handlers=handlers)
    worker.wakeups.polling = NEVER
    stop = app.signals.listen(waiting.hear)
    try:
        async with worker:
            async with asyncio.timeout(max(timeout, START)):
                while not worker.listening:
                    await waiting.signal()
            waiting.reasons.clear()
            after = await waiting.position()
            yield
            await waiting.until_handled(after, await waiting.position(), timeout)
    finally:
        stop()


class _Waiting:
    def __init__(self, app: Outrider, handlers: Sequence[str]) -> None:
        chosen = app.chosen(handlers)
        self._names = [each.name for each in (*chosen.handlers, *chosen.jobs)]
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._heard = asyncio.Event()
        self.reasons = defaultdict[str, set[str]](set)
        """By subscription, what woke it."""

    def hear(self, signal: Signal) -> None:
        if isinstance(signal, Woken):
            self.reasons[signal.subscription].add(signal.reason)
        self._loop.call_soon_threadsafe(self._heard.set)

    async def signal(self) -> None:
        await self._heard.wait()
        self._heard.clear()

    async def position(self) -> int:
        [(last, is_called, _)] = await self._fetch("log/drawn")
        return int(last) if is_called else 0

    async def until_handled(self, after: int, upto: int, seconds: float) -> None:
        complaint = await self._complaint(after, upto)  # at least once, however short the time and slow the database
        try:
            async with asyncio.timeout(seconds):
                while complaint:
                    await self.signal()
                    complaint = await self._complaint(after, upto)
        except TimeoutError:
            raise AssertionError(f"within {seconds:g} s: {complaint}") from None

    async def _complaint(self, after: int, upto: int) -> str:
        rows = await self._fetch("log/fates_between", {"after": after, "upto": upto, "names": self._names})
        if not rows:
            return "no event that these handlers want was published and committed in the block"
        open_ = [
            f"{event_type} at {seq} is {status} at {subscription}" + (f": {error}" if error else "")
            for subscription, event_type, seq, status, error in rows
            if status != "delivered"
        ]
        if open_:
            return "; ".join(open_[:SHOWN]) + ("; …" if len(open_) > SHOWN else "")
        unwoken = {row[0] for row in rows if "notification" not in self.reasons[row[0]]}
        return "; ".join(
            f"no notification woke {name} ({', '.join(sorted(self.reasons[name])) or 'nothing'} did)"
            for name in sorted(unwoken)
        )

    async def _fetch(self, name: str, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        async with self._app.connect() as conn:
            return list(await fetch(conn, name, self._app.settings.schema, params))
