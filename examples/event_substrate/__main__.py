"""python -m examples.event_substrate [DSN]: six chapters. Without a DSN on the embedded Postgres in .outrider/pg."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from uuid import UUID, uuid4

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider import Envelope, Event, Outrider
from outrider.signals import Buried, Failed, Settled
from outrider.testing import expect

from . import billing, deploy, orders
from .commands import apps, outrider

CONTRACTS = "examples/event_substrate/contracts"
INVOICE = ["billing.invoice"]


async def place(event: Event) -> Envelope:
    """An order and its event, in one transaction of the producer's own."""
    async with orders.app.connect() as conn, conn.transaction():
        return await orders.app.publish(conn, event, workspace_id="acme", aggregate_kind="Order")


async def invoices_of(order_id: UUID) -> list[Decimal]:
    async with billing.app.connect() as conn:
        rows = await conn.execute("select gross from invoice where order_id = %s", [order_id])
        return [gross for (gross,) in await rows.fetchall()]


async def envelope() -> None:
    print("1. The envelope")
    billing.rates["vat"] = Decimal("0.19")
    order_id = uuid4()
    written = await place(orders.OrderPlaced(order_id=order_id, total=Decimal("100.00"), currency="EUR"))
    print(f"   {written.event_type} version {written.event_version}, number {written.seq} in the log, id {written.id}")
    print(f"   from {written.source}, tenant {written.workspace_id}, {written.aggregate_kind} {written.key}")
    print(f"   {written.payload_json}")
    await billing.app.drain(handlers=INVOICE)
    print(f"   invoiced: {await invoices_of(order_id)}")


def contracts() -> None:
    print("2. Contracts")
    for app in ("billing", "broken"):
        ran = outrider("contracts", "check", *apps("orders", app), "--dir", CONTRACTS)
        print(f"   orders with {app}: exit code {ran.returncode}")
        for line in (ran.stdout + ran.stderr).splitlines():
            print(f"   | {line}")


async def retry_and_replay() -> None:
    print("3. Retry and replay")
    order_id = uuid4()
    billing.rates.clear()
    async with (
        billing.app.worker(handlers=INVOICE),
        expect(billing.app, Buried) as buried,
        expect(billing.app, Failed, times=3) as failed,
    ):
        written = await place(orders.OrderPlacedV1(order_id=order_id, cents=20_000))
    print(f"   the tax table is down: {len(failed)} attempts, then buried: {buried[0].message}")
    billing.rates["vat"] = Decimal("0.19")
    for each in await billing.app.replay(written.id, by="the walk-through"):
        print(f"   it is back; {each.subscription}: {each.outcome}")
    print(f"   {await billing.app.drain(handlers=INVOICE)}")
    again = await billing.app.replay(written.id)
    print(f"   once more: {again[0].outcome}; invoices: {await invoices_of(order_id)}")


async def tracing(exporter: InMemorySpanExporter) -> None:
    print("4. Tracing")
    exporter.clear()
    with trace.get_tracer("orders").start_as_current_span("POST /orders") as request:
        await place(orders.OrderPlaced(order_id=uuid4(), total=Decimal("9.90"), currency="EUR"))
    async with expect(billing.app, Settled):
        await billing.app.drain(handlers=INVOICE)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    wanted = f"{request.get_span_context().trace_id:032x}"
    async with billing.app.connect() as conn:
        rows = await conn.execute("select event_type, trace_context->>'traceparent' from outrider.outbox order by seq")
        last = (await rows.fetchall())[-2:]
    for name, span in spans.items():
        print(f"   span  {name:16} {'in the trace' if f'{span.context.trace_id:032x}' == wanted else 'lost'}")
    for event_type, traceparent in last:
        print(f"   event {event_type:16} {'in the trace' if wanted in (traceparent or '') else 'lost'}")


def catalogue_and_retention(dsn: str) -> None:
    print("6. Catalogue and retention")
    page = outrider("contracts", "docs", *apps("orders", "billing"), "--dir", CONTRACTS, "--out", "-")
    for line in page.stdout.splitlines():
        if line.startswith("## "):
            print(f"   | {line}")
    kept = json.loads(outrider("setting", "list", "--json", "--dsn", dsn).stdout)["settings"]
    days = {each["name"]: each["value"] for each in kept}
    log = days["retention.log_days"] + days["retention.log_grace_days"]
    print(f"   events: {log} days after their segment is full; receipts: {days['retention.receipt_days']} days")
    refused = outrider("setting", "set", "retention.receipt_days", str(log), "--dsn", dsn)
    print(f"   receipts for {log} days: exit code {refused.returncode}")


async def own_database(stack: AsyncExitStack) -> str:
    """On the embedded Postgres."""
    server = (await stack.enter_async_context(Outrider(embedded=True))).server
    assert server is not None
    await asyncio.to_thread(server.ensure_database, "event_substrate")
    return server.dsn("event_substrate")


@asynccontextmanager
async def opened(dsn: str | None) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        where = dsn or await own_database(stack)
        for app in (orders.app, billing.app):
            app.relocate(Outrider(context=app.settings.context, dsn=where).settings)
        async with orders.app, billing.app:
            await billing.app.migrate()
            async with billing.app.connect() as conn:
                await conn.execute(billing.TABLES)
            yield where


async def main(dsn: str | None = None) -> None:
    logging.getLogger("outrider").setLevel(logging.CRITICAL)  # what fails in chapter 3 is meant to
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    async with opened(dsn) as where:
        await envelope()
        await asyncio.to_thread(contracts)
        await retry_and_replay()
        await tracing(exporter)
        await billing.app.drain()  # what the chapters have left to the class `model`
        await deploy.roll(where)
        await asyncio.to_thread(catalogue_and_retention, where)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
