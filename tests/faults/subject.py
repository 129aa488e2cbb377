"""The app under test: one event type, three handlers of different kinds and orders, which misbehave as the event says."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection
from pydantic import Field
from tests.oracle import EFFECT, PENDING, SETUP, Oracle, append, stuck
from tests.oracle import Fact as Numbered

from outrider import Bury, Event, HandlerContext, Outrider, RetryPolicy, SyncHandlerContext
from outrider.signals import Signal
from outrider.worker.duties import Duties
from outrider.worker.site import FOLD_AFTER, WorkerTimes
from outrider.worker.worker import Worker

KEYED, LOOSE, TOTAL = "fault.keyed", "fault.loose", "fault.total"
NAMES = (KEYED, LOOSE, TOTAL)
RETRY = RetryPolicy(retries=30, base="10ms", cap="40ms")
POLL = 0.5
HEARTBEAT = 0.5
LINGER = 0.3


class Fact(Event, type="fault.fact", version=1, key="key"):
    """`act` says what handling it does, the first `times` times in a process, in the subscription `on` ("" = all)."""

    key: str
    n: int = Field(ge=1, lt=2**63)
    act: str = ""
    on: str = ""
    times: int = 1


class Acts:
    """How the handlers of one process misbehave; it counts how often it met each event."""

    def __init__(self) -> None:
        self.met: Counter[tuple[str, str, int]] = Counter()

    def __call__(self, name: str, fact: Fact) -> None:
        if not fact.act or fact.on not in ("", name):
            return
        met = (name, fact.key, fact.n)
        self.met[met] += 1
        if self.met[met] > fact.times:
            return
        match fact.act:
            case "fail":
                raise RuntimeError(f"{fact.key} {fact.n} fails as told")
            case "bury":
                raise Bury("as told")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)


def tracing(outside: Path | None) -> Callable[..., None]:
    """What handlers leave outside the database: (name, *facts)."""

    def leave_trace(name: str, *facts: Fact) -> None:
        if outside is not None:
            append(outside, "".join(f"{name}\t{fact.key}\t{fact.n}\n" for fact in facts))

    return leave_trace


def make(dsn: str, outside: Path | None = None, **settings: Any) -> Outrider:
    """The app with its three handlers; `outside` is where they leave their traces outside the database."""
    app = Outrider(context="fault", dsn=dsn, **({"poll": POLL} | settings))
    act = Acts()

    leave_trace = tracing(outside)

    @app.handler(Fact, name=KEYED, partitions=4, retry=RETRY)
    async def keyed(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
        leave_trace(KEYED, fact)
        if fact.act == "linger":
            await asyncio.sleep(LINGER)
        act(KEYED, fact)

    @app.handler(Fact, name=LOOSE, order="none", retry=RETRY)
    async def loose(facts: list[Fact], ctx: HandlerContext) -> None:
        rows = [(LOOSE, fact.key, fact.n, each.seq) for fact, each in zip(facts, ctx.envelopes, strict=True)]
        async with ctx.tx.cursor() as cursor:
            await cursor.executemany(EFFECT, rows)
        leave_trace(LOOSE, *facts)
        if any(fact.act == "kill" for fact in facts):
            await asyncio.sleep(LINGER / 3)  # so that the other handlers are at work when it kills
        for fact in facts:
            act(LOOSE, fact)

    @app.handler(Fact, name=TOTAL, order="total", retry=RETRY)
    def total(fact: Fact, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(EFFECT, [TOTAL, fact.key, fact.n, ctx.envelope.seq])
        leave_trace(TOTAL, fact)
        act(TOTAL, fact)

    return app


def worker_of(app: Outrider, *names: str, heartbeat: float = HEARTBEAT, fold_after: float = FOLD_AFTER) -> Worker:
    """As app.worker(), with a heartbeat short enough for tests."""
    chosen = app.chosen(names).handlers
    register = lambda: app._register([each.subscription for each in chosen])  # noqa: E731
    times = WorkerTimes(heartbeat=heartbeat, fold_after=fold_after, grace=10)
    return Worker(app._site(), Duties(handlers=chosen), register, times)


async def setup(dsn: str, app: Outrider | None = None) -> None:
    """The tables of the oracle, and the subscriptions."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(SETUP)
    app = app or make(dsn)
    async with app:
        await app.migrate()


class Producer:
    """Publishes with a connection of its own and writes down what it knows of each attempt."""

    def __init__(self, dsn: str, oracle: Oracle, seed: int = 0, *, name: str = "k", keys: int = 6) -> None:
        self._dsn = dsn
        self._oracle = oracle
        self._app = Outrider(context="fault", dsn=dsn)
        self.random = random.Random(f"{name} {seed}")
        self.keys = [f"{name}{number}" for number in range(keys)]

    async def publish(self, events: int = 1, *, key: str | None = None, **acts: Any) -> list[Numbered]:
        """One transaction; some of them roll back, unless the key is given."""
        async with await AsyncConnection.connect(self._dsn) as conn:
            return await self.publish_on(conn, events, key=key, **acts)

    async def publish_on(
        self, conn: AsyncConnection[Any], events: int = 1, *, key: str | None = None, **acts: Any
    ) -> list[Numbered]:
        facts = [self._oracle.next(key or self.random.choice(self.keys)) for _ in range(events)]
        self._oracle.write(facts, "unknown")
        try:
            await self._app.publish_many(conn, [Fact(key=of, n=n, **acts) for of, n in facts])
            if key is None and self.random.random() < 0.1:
                await conn.rollback()
                self._oracle.write(facts, "failed")
                return facts
        except psycopg.Error:
            self._oracle.write(facts, "failed")
            raise
        await conn.commit()
        self._oracle.write(facts, "ok")
        return facts

    async def burst(self, transactions: int, *, failing: float = 0.0, most: int = 4) -> None:
        """Many transactions; some of the events make their handlers fail once."""
        async with await AsyncConnection.connect(self._dsn) as conn:
            for _ in range(transactions):
                acts = {"act": "fail", "on": self.random.choice(NAMES)} if self.random.random() < failing else {}
                await self.publish_on(conn, self.random.randint(1, most), **acts)


async def heal(app: Outrider, dsn: str, *, seconds: float = 75) -> None:
    """All that is owed is handled or buried: waiting times are taken back instead of waited for."""
    async with asyncio.timeout(seconds), await AsyncConnection.connect(dsn, autocommit=True) as conn:
        while True:
            await app.drain()
            assert not (found := stuck(dsn)), f"I7: stuck: {found[:5]}"
            row = await (await conn.execute(PENDING.encode())).fetchone()
            if row == (0,):
                return
            await conn.execute("update outrider.delivery set run_at = now() where status = 'pending' and head")


async def finish(dsn: str, oracle: Oracle, handlers: str = __name__, **settings: Any) -> None:
    """Heal and drain with a fresh app."""
    async with importlib.import_module(handlers).make(dsn, oracle.outside_file, **settings) as app:
        await heal(app, dsn)


class Ear:
    """The signals of an app, kept; tests wait for them."""

    def __init__(self, app: Outrider) -> None:
        self.heard: list[tuple[float, Signal]] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.stop = app.signals.listen(self._hear)

    def _hear(self, signal: Signal) -> None:
        self.heard.append((time.monotonic(), signal))
        self._loop.call_soon_threadsafe(self._changed.set)

    def all(self, kind: type[Signal]) -> list[Any]:
        return [signal for _, signal in self.heard if isinstance(signal, kind)]

    def last(self, *kinds: type[Signal]) -> Signal | None:
        return next((signal for _, signal in reversed(self.heard) if isinstance(signal, kinds)), None)

    def at(self, kind: type[Signal]) -> list[float]:
        return [at for at, signal in self.heard if isinstance(signal, kind)]

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def eventually(dsn: str, query: str, expected: Any = True, seconds: float = 60) -> None:
    """Until the query's one value is as expected."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        deadline = time.monotonic() + seconds
        while True:
            row = await (await conn.execute(query.encode())).fetchone()
            found = None if row is None else row[0]
            if found == expected:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds} s: {query} is {found!r}, not {expected!r}")
            await asyncio.sleep(0.01)


async def so(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 60) -> None:
    """Until the condition holds. For what no signal and no query tells."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def all_handled(dsn: str, oracle: Oracle, *names: str, seconds: float = 60) -> None:
    """Until every handler has as many effects as events are known to be committed."""
    ok = sum(outcome == "ok" for outcome in oracle.attempts().values())
    for name in names or NAMES:
        await eventually(dsn, f"select count(*) from effect where subscription = '{name}'", ok, seconds)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run it at the same time; its errors are the test's."""
    async with asyncio.TaskGroup() as group:
        yield group.create_task(work)
