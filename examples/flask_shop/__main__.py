"""python -m examples.flask_shop [DSN]: order something, handle it, look at the invoices.

Without a DSN on the embedded Postgres in .outrider/pg.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack

from outrider import Outrider
from outrider.postgres.embedded import Embedded


async def migrate(app: Outrider) -> None:
    async with app:
        await app.migrate()


async def drain(app: Outrider) -> str:
    async with app:
        return str(await app.drain())


def story() -> None:
    from examples.flask_shop.shop import Base, app, engine, web  # it reads OUTRIDER_DSN

    Base.metadata.create_all(engine)
    asyncio.run(migrate(app))
    client = web.test_client()
    for article, total in (("lamp", "19.90"), ("unicorn", "999.00"), ("table", "149.00")):
        answer = client.post("/orders", json={"article": article, "total": total})
        print(f"POST /orders {article:8} -> {answer.status_code} {answer.get_json()}")
    print(asyncio.run(drain(app)))
    print("GET /invoices          ->", client.get("/invoices").get_json())
    engine.dispose()


def main(dsn: str | None = None) -> None:
    with ExitStack() as stack:
        if dsn is None:
            server = stack.enter_context(Embedded())
            server.ensure_database("flask_shop")
            dsn = server.dsn("flask_shop")
        os.environ["OUTRIDER_DSN"] = dsn
        story()


if __name__ == "__main__":
    main(*sys.argv[1:2])
