"""Bytes that a service and its worker log for each event: it is published, handled, and its handler enqueues a job."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging

from outrider import Event, HandlerContext, Job, Outrider
from outrider.cli.logs import JsonLines
from outrider.postgres.embedded import Embedded


class Placed(Event, type="volume.placed", key="order"):
    order: str


class Receipt(Job, type="volume.receipt"):
    order: str


def declared(dsn: str) -> Outrider:
    app = Outrider(context="volume", dsn=dsn)

    @app.handler(Placed, name="volume.invoice")
    async def invoice(event: Placed, ctx: HandlerContext) -> None:
        await app.enqueue(ctx.tx, Receipt(order=event.order))

    @app.job(Receipt)
    async def receipt(job: Receipt) -> None:
        pass

    return app


async def logged(dsn: str, events: int, level: int, *, as_json: bool) -> float:
    logger, text = logging.getLogger("outrider"), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    async with declared(dsn) as app:
        await app.migrate()
        for start in range(0, events, 100):
            async with app.connect() as conn, conn.transaction():
                await app.publish_many(conn, [Placed(order=f"{n}") for n in range(start, start + 100)])
        await app.drain()
    logger.handlers = []
    return len(text.getvalue().encode()) / events


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks log", description=__doc__)
    parser.add_argument("--events", type=int, default=5000)
    events = parser.parse_args(arguments).events
    with Embedded.temporary() as server:
        server.ensure_database("volume")
        for name, level in (("info", logging.INFO), ("debug", logging.DEBUG)):
            for form, as_json in (("text", False), ("JSON", True)):
                size = asyncio.run(logged(server.dsn("volume"), events, level, as_json=as_json))
                print(f"{name:6}{form:5}{size:10,.1f} bytes/event")
