"""What one worker remembers of a failure may be old news: another one has taken the partition in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faults import subject
from tests.faults.subject import KEYED, RETRY, Ear, Fact, Producer
from tests.oracle import EFFECT, Oracle, check

from outrider import Bury, HandlerContext, Outrider
from outrider.postgres import handler_batches
from outrider.postgres.handler_batches import Connection
from outrider.postgres.statement import Params
from outrider.signals import Settled

pytestmark = pytest.mark.verify


@pytest.mark.parametrize("others", ["handles", "parks", "buries"])
async def test_another_worker_was_quicker(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """One worker's handler fails; before it can say so, another worker takes the event, and handles or fails it too."""
    oracle, ears = Oracle(tmp_path), []

    def make(act: str) -> Outrider:
        app = Outrider(context="fault", dsn=database)

        @app.handler(Fact, name=KEYED, retry=RETRY)
        async def keyed(fact: Fact, ctx: HandlerContext) -> None:
            await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
            if fact.act and ctx.attempt == 1:
                if act == "parks":
                    raise RuntimeError("as told")
                if act == "buries":
                    raise Bury("as told")

        return app

    slow, quick, park = make("parks"), make(others), handler_batches.park
    await subject.setup(database, slow)
    bad = await Producer(database, oracle).publish(key="k", act="fail")
    await Producer(database, oracle).publish(3, key="k")

    async def late(conn: Connection, asked: Params, schema: str) -> list[int]:
        monkeypatch.setattr(handler_batches, "park", park)
        await handler_batches.roll_back(conn)  # as when its session is lost; otherwise it comes with the parking
        await quick.drain()
        return await park(conn, asked, schema)

    async with slow, quick:
        ears += [Ear(slow), Ear(quick)]
        monkeypatch.setattr(handler_batches, "park", late)
        await asyncio.wait_for(slow.drain(), 60)
        await subject.heal(slow, database)
    check(database, oracle, dead=[(KEYED, bad[0])] if others == "buries" else [], unsuspected=True)
    attempts = [each.attempt for ear in ears for settled in ear.all(Settled) for each in settled.details()]
    assert max(attempts) <= 3, "two failures were counted as more"
