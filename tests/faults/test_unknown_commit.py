"""Fault 10: the wire is cut between COMMIT and its answer, or before. The worker cannot know; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.faults import subject
from tests.faults.subject import KEYED, LOOSE, NAMES, Ear, Fact, Producer
from tests.oracle import EFFECT, Oracle, check
from tests.proxy import Proxy

from outrider import HandlerContext, Outrider
from outrider.signals import Failed, Settled, Signal, Troubled

COMMIT = b";\ncommit"


async def cut_replies(dsn: str, folder: Path, times: int) -> None:
    oracle = Oracle(folder)
    await subject.setup(dsn)
    with Proxy(dsn) as proxy:
        async with subject.make(proxy.dsn, listen_dsn=dsn) as app:
            ear, producer = Ear(app), Producer(dsn, oracle)
            async with subject.worker_of(app):
                for number in range(1, times + 1):
                    proxy.cut_reply_to(COMMIT)
                    await producer.burst(3)
                    await asyncio.to_thread(proxy.wait_for, lambda: proxy.cuts >= number)  # noqa: B023
                await subject.all_handled(dsn, oracle)
            assert len(ear.all(Troubled)) >= times
            await subject.heal(app, dsn)
    check(dsn, oracle, blameless=True, unsuspected=True)


async def test_the_answer_to_commit_is_lost(database: str, tmp_path: Path, long: bool) -> None:
    await cut_replies(database, tmp_path, 500 if long else 20)


async def cut_anywhere(dsn: str, folder: Path, times: int, seed: int) -> None:
    """The wire breaks at a random byte that the worker sends: in a take, in a handler's statement, in the commit."""
    oracle, chance = Oracle(folder), random.Random(seed)
    await subject.setup(dsn)
    with Proxy(dsn) as proxy:
        async with subject.make(proxy.dsn, listen_dsn=dsn) as app:
            producer = Producer(dsn, oracle, seed)
            async with subject.worker_of(app):
                for number in range(1, times + 1):
                    proxy.cut_after(chance.randint(1, 3000))
                    await producer.burst(3)
                    await asyncio.to_thread(proxy.wait_for, lambda: proxy.cuts >= number)  # noqa: B023
                proxy.heal()
                await subject.all_handled(dsn, oracle)
            await subject.heal(app, dsn)
    check(dsn, oracle, blameless=True)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(2))
async def test_the_wire_breaks_anywhere(database: str, tmp_path: Path, seed: int, long: bool) -> None:
    await cut_anywhere(database, tmp_path, 250 if long else 15, seed)


async def lose_commits(dsn: str, folder: Path, times: int) -> None:
    """The handler has returned, and the server never hears of the commit."""
    oracle, met = Oracle(folder), set[int | None]()
    with Proxy(dsn) as proxy:
        app = Outrider(context="fault", dsn=proxy.dsn)

        @app.handler(Fact, name=KEYED)
        async def keyed(fact: Fact, ctx: HandlerContext) -> None:
            await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
            if ctx.envelope.seq not in met:
                met.add(ctx.envelope.seq)
                proxy.cut()

        await subject.setup(dsn, app)
        async with app:
            for _ in range(times):
                await Producer(dsn, oracle).publish(key="k")
                await asyncio.wait_for(app.drain(), 60)
            assert proxy.cuts >= times
            await subject.heal(app, dsn)
    check(dsn, oracle, blameless=True, unsuspected=True)


@pytest.mark.verify
async def test_the_server_never_got_the_commit(database: str, tmp_path: Path, long: bool) -> None:
    await lose_commits(database, tmp_path, 100 if long else 5)


class CutNextCommit:
    """A listener of signals: when a handler has failed, the answer to the commit that parks or buries it is lost."""

    def __init__(self, app: Outrider, proxy: Proxy, times: int) -> None:
        self._proxy, self._left = proxy, times
        app.signals.listen(self)

    def __call__(self, signal: Signal) -> None:
        if isinstance(signal, Failed) and self._left:
            self._left -= 1
            self._proxy.cut_reply_to(COMMIT)


@pytest.mark.verify
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("act", ["bury", "fail"])
async def test_the_answer_is_lost_when_a_failure_is_parked(database: str, tmp_path: Path, act: str, name: str) -> None:
    """The failure is parked (or buried) already when the worker says it again: it must be neither counted twice nor
    kept for ever."""
    oracle = Oracle(tmp_path)
    await subject.setup(database)
    with Proxy(database) as proxy:
        async with subject.make(proxy.dsn, listen_dsn=database) as app:
            producer, ear = Producer(database, oracle), Ear(app)
            CutNextCommit(app, proxy, 1)
            facts = await producer.publish(1, key="k", act=act, on=name, times=2 if name == LOOSE else 1)
            await producer.publish(5, key="k")
            await producer.publish(5, key="other")
            await asyncio.wait_for(app.drain(handlers=[name]), 60)
            await subject.heal(app, database)
            assert proxy.cuts == 1
            assert len(ear.all(Failed)) == 1
            mine = [settled for settled in ear.all(Settled) if settled.subscription == name]
            attempts = [each.attempt for settled in mine for each in settled.details()]
            assert max(attempts, default=0) <= 2, "one failure was counted as two"
    check(database, oracle, dead=[(name, fact) for fact in facts] if act == "bury" else [])
