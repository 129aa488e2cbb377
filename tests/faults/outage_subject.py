"""A handler that needs a service beside the database: a port on this machine, whose number is in the file "port"."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.faults.subject import KEYED, Fact
from tests.oracle import EFFECT

from outrider import Breaker, HandlerContext, Outrider, RetryPolicy

TRIP = 3


def make(dsn: str, outside: Path | None = None, **settings: Any) -> Outrider:
    app = Outrider(context="fault", dsn=dsn, **({"poll": 0.2} | settings))
    assert outside is not None
    port = int((outside.parent / "port").read_text())

    @app.handler(
        Fact,
        name=KEYED,
        partitions=4,
        retry=RetryPolicy(retries=1, base="10ms", cap="10ms"),
        breaker=Breaker(failures=TRIP, probe="50ms", longest="100ms"),
    )
    async def keyed(fact: Fact, ctx: HandlerContext) -> None:
        await ctx.tx.execute(EFFECT, [KEYED, fact.key, fact.n, ctx.envelope.seq])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    return app
