"""The apps of a rolling deploy: the same context in two releases, and another context that is never deployed.

The newer release knows one more event type at one subscription. Each handler also leaves its worker's generation.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection
from tests.faults import subject
from tests.faults.subject import POLL, RETRY, Acts, Fact, tracing
from tests.oracle import EFFECT, Oracle
from tests.oracle import Fact as Numbered

from outrider import Event, HandlerContext, Outrider, SyncHandlerContext
from outrider.worker.worker import Worker

KEYED, TOTAL, EXTENDED, AUDIT = "deploy.keyed", "deploy.total", "deploy.extended", "other.audit"
UNCHANGED = (KEYED, TOTAL)
SETUP = """
create table witness (subscription text not null, seq bigint not null, generation bigint not null, pid integer not null);
create table extra (key text not null, n bigint not null, generation bigint not null);
"""
WITNESS = "insert into witness values (%s, %s, %s, %s)"
HEARTBEAT = 0.25
FOLD_AFTER = 0.5


class Extra(Event, type="deploy.extra", key="key"):
    """What only the newer release knows."""

    key: str
    n: int


def make(dsn: str, outside: Path | None, *, context: str, generation: int, newer: bool) -> Outrider:
    app = Outrider(context=context, dsn=dsn, generation=generation, poll=POLL)
    act, leave_trace = Acts(), tracing(outside)

    async def effect(name: str, fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [name, fact.key, fact.n, ctx.envelope.seq])
        await ctx.tx.execute(WITNESS, [name, ctx.envelope.seq, generation, os.getpid()])
        leave_trace(name, fact)
        act(name, fact)

    if context == "other":

        @app.handler(Fact, name=AUDIT, partitions=2, retry=RETRY)
        async def audit(fact: Fact, ctx: HandlerContext) -> None:
            await effect(AUDIT, fact, ctx)

        return app

    @app.handler(Fact, name=KEYED, partitions=4, retry=RETRY)
    async def keyed(fact: Fact, ctx: HandlerContext) -> None:
        await effect(KEYED, fact, ctx)

    @app.handler(Fact, name=TOTAL, order="total", retry=RETRY)
    def total(fact: Fact, ctx: SyncHandlerContext) -> None:
        ctx.tx.execute(EFFECT, [TOTAL, fact.key, fact.n, ctx.envelope.seq])
        ctx.tx.execute(WITNESS, [TOTAL, ctx.envelope.seq, generation, os.getpid()])
        leave_trace(TOTAL, fact)
        act(TOTAL, fact)

    async def extended(event: Fact | Extra, ctx: HandlerContext) -> None:
        if isinstance(event, Extra):
            await ctx.tx.execute("insert into extra values (%s, %s, %s)", [event.key, event.n, generation])
        else:
            await effect(EXTENDED, event, ctx)

    app.handler(*([Fact, Extra] if newer else [Fact]), name=EXTENDED, partitions=2, retry=RETRY)(extended)
    return app


def old(dsn: str, outside: Path | None = None) -> Outrider:
    return make(dsn, outside, context="deploy", generation=1, newer=False)


def new(dsn: str, outside: Path | None = None) -> Outrider:
    return make(dsn, outside, context="deploy", generation=2, newer=True)


def registering(dsn: str, outside: Path | None = None) -> Outrider:
    """The newer release in a deploy step that does not know the generation."""
    return make(dsn, outside, context="deploy", generation=0, newer=True)


def other(dsn: str, outside: Path | None = None) -> Outrider:
    return make(dsn, outside, context="other", generation=0, newer=False)


def worker_of(app: Outrider) -> Worker:
    return subject.worker_of(app, heartbeat=HEARTBEAT, fold_after=FOLD_AFTER)


class Web:
    """A process that publishes, and is deployed apart from the workers; its keys are its own."""

    def __init__(self, dsn: str, oracle: Oracle, generation: int, name: str, seed: int) -> None:
        self._dsn = dsn
        self._oracle = oracle
        self._app = Outrider(context="deploy", dsn=dsn, generation=generation)
        self.random = random.Random(f"{name} {seed}")
        self._keys = [f"{name}{number}" for number in range(4)]
        self.extras: list[Numbered] = []
        """Those that were committed."""

    async def publish(self, transactions: int, *, extra: bool = False) -> None:
        """Some roll back, some make a handler fail once in each process, some stay open for a while."""
        async with await AsyncConnection.connect(self._dsn) as conn, await AsyncConnection.connect(self._dsn) as slow:
            kept: list[Numbered] = []
            for n in range(transactions):
                if n % 8 == 0:
                    await self._commit(slow, kept)
                    kept = await self._append(slow, f"slow{n % 16}")
                facts = await self._append(conn, self.random.choice(self._keys))
                if extra and n % 5 == 0:
                    one = (self._keys[0], len(self.extras) + 1)
                    await self._app.publish(conn, Extra(key=one[0], n=one[1]))
                    self.extras.append(one)
                    await self._commit(conn, facts)
                elif self.random.random() < 0.1:
                    await conn.rollback()
                    self._oracle.write(facts, "failed")
                else:
                    await self._commit(conn, facts)
            await self._commit(slow, kept)

    async def _append(self, conn: AsyncConnection[Any], key: str) -> list[Numbered]:
        facts = [self._oracle.next(f"{self._keys[0]}.{key}") for _ in range(self.random.randint(1, 3))]
        self._oracle.write(facts, "unknown")
        fails = self.random.random() < 0.05
        acts: dict[str, Any] = {"act": "fail", "on": self.random.choice((*UNCHANGED, EXTENDED))} if fails else {}
        await self._app.publish_many(conn, [Fact(key=of, n=n, **acts) for of, n in facts])
        return facts

    async def _commit(self, conn: AsyncConnection[Any], facts: list[Numbered]) -> None:
        await conn.commit()
        self._oracle.write(facts, "ok")
