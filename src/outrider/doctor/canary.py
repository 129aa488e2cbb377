"""`outrider doctor --canary`: an event through publish, notify, take and settle, for each generation that has live workers.

- publish: until the transaction that inserts the event is committed, by the SQL function publish on the doctor's session.
- notify: until the notification of that commit is here, on a session that listens as workers do.
- take: in the worker, from its notification to the event in its hands, by the worker's clock: a free session, and the take.
- settle: from then until the doctor hears that the worker has committed, by the server's clock.

Any one worker of the generation answers (worker/canary_loop). The canary has a subscription of its own, so it says nothing
about the handlers and the backlog of the app. Afterwards everything is removed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic as clock
from typing import TypeVar
from uuid import UUID, uuid4

from outrider.doctor.finding import Finding, counted, critical, note, ok, seconds, warning
from outrider.error_text import describe, sqlstate
from outrider.errors import DatabaseUnavailable, OutriderError
from outrider.postgres.admin import canary, probes, status
from outrider.postgres.admin.status import Seen
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.postgres.listener import Listener
from outrider.worker.channels import channels

T = TypeVar("T")

LIMIT = 5.0
"""Seconds for each hop."""
HOPS = ("publish", "notify", "take", "settle")


@dataclass(slots=True)
class CanaryRun:
    """The canary of one generation: the seconds of each hop, as far as it came."""

    generation: int
    hops: dict[str, float] = field(default_factory=dict)
    worker: str | None = None
    finding: Finding | None = None


async def send_canaries(
    conn: AsyncSession, schema: str, listen_dsn: str | None, notify: str, limit: float = LIMIT
) -> list[CanaryRun]:
    """`conn` is in autocommit mode. `listen_dsn`: where workers listen, if that is another address."""
    if notify == "off":
        advice = "OUTRIDER_NOTIFY=commit turns them on"
        return [CanaryRun(0, finding=note("canary", "not sent: notifications are off, and workers poll", advice))]
    live = [each for each in await status.workers(conn, schema) if each.live and not each.stopping]
    if not live:
        return [
            CanaryRun(
                0,
                finding=critical(
                    "canary", "not sent: there is no worker to take it", "start one: outrider worker --app module:name"
                ),
            )
        ]
    dsn = listen_dsn or probes.same_server(conn)
    return [
        await _send(conn, schema, dsn, generation, [each for each in live if each.generation == generation], limit)
        for generation in sorted({each.generation for each in live})
    ]


async def _send(
    conn: AsyncSession, schema: str, dsn: str, generation: int, workers: Sequence[Seen], limit: float
) -> CanaryRun:
    run, name = CanaryRun(generation), f"{canary.PREFIX}{uuid4().hex[:8]}"
    event: UUID | None = None
    try:
        async with asyncio.timeout(limit):
            await canary.begin(conn, name, schema)
        async with _CanaryListener(dsn, schema, generation, name, limit) as listener:
            sent = clock()
            async with asyncio.timeout(limit):
                event = await canary.send(conn, name, generation, schema)
            run.hops["publish"] = (published := clock()) - sent
            if (heard := await listener.heard()) is None:
                run.finding = _unheard(run, await canary.handled(conn, name, schema) is not None, limit)
                return run
            run.hops["notify"] = max(0.0, heard - published)  # it may come before the answer to the commit
            if (answered := await listener.answered(lambda: canary.handled(conn, name, schema))) is None:
                run.finding = _untaken(run, workers, limit)
                return run
            answer, now = answered
            run.worker = answer.worker
            run.hops["take"] = answer.take
            run.hops["settle"] = max(0.0, now - answer.taken_at)
        run.finding = ok(
            "canary",
            f"generation {generation}: " + ", ".join(f"{hop} {seconds(took)}" for hop, took in run.hops.items())
            + f", by {run.worker}",
        )  # fmt: skip
    except (OutriderError, DatabaseError, TimeoutError) as error:
        run.finding = _refused(run, error, limit)
    finally:
        with suppress(DatabaseError, OutriderError):  # if it cannot be removed now, upkeep removes it
            await canary.end(conn, name, event, schema)
    return run


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """What a worker says of a canary: its name, the seconds of the take, and the server's time at its end."""

    worker: str
    take: float
    taken_at: float

    @classmethod
    def parse(cls, text: str) -> CanaryAnswer | None:
        """None if it is not from a worker: anybody may notify."""
        try:
            given = json.loads(text)
            answer = cls(str(given["worker"]), float(given["take"]), float(given["taken_at"]))
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return None
        return answer if isfinite(answer.take) and isfinite(answer.taken_at) else None


class _CanaryListener:
    """Listens on the channel of the generation, as its workers do, and on that of the answer."""

    def __init__(self, dsn: str, schema: str, generation: int, name: str, limit: float) -> None:
        loop = asyncio.get_running_loop()
        self._name, self._limit = name, limit
        [self._channel] = channels(generation, ())
        self._up: asyncio.Future[str | None] = loop.create_future()
        self._heard: asyncio.Future[float] = loop.create_future()
        self._answers: asyncio.Queue[CanaryAnswer] = asyncio.Queue()
        self._listener = Listener(
            dsn,
            [self._channel, canary.answer_channel(name)],
            on_notification=self._notified,
            on_up=lambda: self._set(self._up, None),
            on_down=lambda reason: self._set(self._up, reason),
            schema=schema,
            deadline=limit,
        )

    async def __aenter__(self) -> _CanaryListener:
        self._running = asyncio.create_task(self._listener.run())
        if (wrong := await self._up) is not None:
            await self.__aexit__()
            raise DatabaseUnavailable(wrong)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError, DatabaseUnavailable, DatabaseError):
            await self._running

    async def heard(self) -> float | None:
        return await self._within(self._heard)

    async def answered(self, handled: Callable[[], Awaitable[float | None]]) -> tuple[CanaryAnswer, float] | None:
        """The first answer that the database confirms, and the server's time then."""

        async def confirmed() -> tuple[CanaryAnswer, float]:
            while True:
                answer = await self._answers.get()
                if (now := await handled()) is not None:
                    return answer, now

        return await self._within(confirmed())

    async def _within(self, waited: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(self._limit):
                return await waited
        except TimeoutError:
            return None

    def _notified(self, channel: str, kind: str) -> None:
        if channel == self._channel and kind == self._name:
            self._set(self._heard, clock())
        elif channel != self._channel and (answer := CanaryAnswer.parse(kind)) is not None:
            self._answers.put_nowait(answer)

    @staticmethod
    def _set(future: asyncio.Future[T], value: T) -> None:
        if not future.done():
            future.set_result(value)


def _unheard(run: CanaryRun, handled: bool, limit: float) -> Finding:
    told = f"generation {run.generation}: published, but no notification arrived here within {limit:g} s"
    if handled:
        return warning(
            "canary",
            f"{told}; a worker was notified and has handled it",
            "only the doctor's own session hears nothing: set OUTRIDER_LISTEN_DSN to the server itself, without a pooler",
        )
    return critical(
        "canary",
        f"{told}, and no worker has taken it: events are found by polling only",
        "notifications are not sent: outrider.notify is off for this role or database (\\drds), or their queue is full "
        "(select pg_notification_queue_usage()); or none arrive: see listener",
    )


def _untaken(run: CanaryRun, workers: Sequence[Seen], limit: float) -> Finding:
    deaf = sum(not each.listening for each in workers)
    told = (
        f"generation {run.generation}: a notification arrived here, and none of {counted(len(workers), 'worker')} has "
        f"taken and settled the event within {limit:g} s"
    )
    if deaf == len(workers):
        return critical("canary", f"{told}: they poll", "their logs say why no notifications arrive (listener_down)")
    return critical(
        "canary",
        told,
        "their sessions are all busy, their event loop is blocked, a lock is held, or their release does not know canaries: "
        "outrider status; see troubles and locks",
    )


def _refused(run: CanaryRun, error: BaseException, limit: float) -> Finding:
    if sqlstate(error) == "42501" or "permission denied" in str(error):
        return warning(
            "canary", f"not sent: {describe(error)}", "send it as an operator: outrider_operator (docs/roles.md)"
        )
    hop = "notify: cannot listen" if isinstance(error, DatabaseUnavailable) else "publish"
    said = f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else describe(error)
    return critical("canary", f"generation {run.generation}: {hop}: {said}", "see server, listener and locks")
