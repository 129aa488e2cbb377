"""python -m examples.fastapi_shop [DSN]: serve the shop, order something, wait for the invoices, stop.

Without a DSN on the embedded Postgres in .outrider/pg.
"""

from __future__ import annotations

import asyncio
import os
import sys
from urllib.parse import quote

import httpx
import uvicorn

from outrider import Outrider


def sqlalchemy_url(dsn: str) -> str:
    """What asyncpg needs of a libpq string."""
    import psycopg.conninfo

    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    login = ":".join(quote(str(parts[name]), safe="") for name in ("user", "password") if name in parts)
    place = "&".join(f"{name}={quote(str(parts[name]), safe='')}" for name in ("host", "port") if name in parts)
    return f"postgresql+asyncpg://{login}@/{parts['dbname']}?{place}"


async def order(shop: httpx.AsyncClient, article: str, total: str) -> str | None:
    answer = await shop.post("/orders", json={"article": article, "total": total})
    print(f"POST /orders {article:8} -> {answer.status_code} {answer.json()}")
    order_id: str | None = answer.json().get("order_id")
    return order_id


async def invoiced(shop: httpx.AsyncClient, order_ids: set[str | None]) -> list[str]:
    """The totals, once all of them are there. A client can only ask again."""
    async with asyncio.timeout(30):
        while True:
            invoices = (await shop.get("/invoices")).json()
            found = [each["total"] for each in invoices if each["order_id"] in order_ids]
            if len(found) == len(order_ids):
                return found
            await asyncio.sleep(0.05)


async def visit(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as shop:
        lamp = await order(shop, "lamp", "19.90")
        await order(shop, "unicorn", "999.00")
        table = await order(shop, "table", "149.00")
        print("GET /invoices          ->", await invoiced(shop, {lamp, table}))


async def serve(dsn: str) -> None:
    os.environ["OUTRIDER_DSN"] = dsn
    os.environ["SHOP_DATABASE"] = sqlalchemy_url(dsn)
    server = uvicorn.Server(uvicorn.Config("examples.fastapi_shop.shop:api", port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        if serving.done():
            await serving
            sys.exit("the service did not start")
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        await visit(port)
    finally:
        server.should_exit = True
        await serving


async def main(dsn: str | None = None) -> None:
    if dsn is not None:
        await serve(dsn)
        return
    async with Outrider(embedded=True) as app:
        assert app.server is not None
        await asyncio.to_thread(app.server.ensure_database, "fastapi_shop")
        await serve(app.server.dsn("fastapi_shop"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
