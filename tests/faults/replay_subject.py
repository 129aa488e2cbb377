"""The app of the replay faults: two handlers that need something outside, which is down, shaky or up, as a table says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from tests.faults.subject import KEYED, LOOSE, POLL, Fact
from tests.oracle import EFFECT

from outrider import Bury, HandlerContext, Outrider

SETUP = "create table outside (state text not null); insert into outside values ('down')"


def make(dsn: str, outside: Path | None = None, **settings: Any) -> Outrider:
    """While it is shaky, every fifth event of a key fails; what was written before must not stay."""
    app = Outrider(context="fault", dsn=dsn, **({"poll": POLL} | settings))

    def handler(name: str, **options: Any) -> None:
        @app.handler(Fact, name=name, **options)
        async def handle(fact: Fact, ctx: HandlerContext) -> None:
            await ctx.tx.execute(EFFECT, [name, fact.key, fact.n, ctx.envelope.seq])
            row = await (await ctx.tx.execute("select state from outside")).fetchone()
            state = row[0] if row else None
            if state == "down" or (state == "shaky" and fact.n % 5 == 0):
                raise Bury(f"{state}: it did not answer order {fact.n}")

    handler(KEYED, partitions=4)
    handler(LOOSE, partitions=2, order="none")
    return app


def turn(dsn: str, state: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("update outside set state = %s", [state])
