"""An app with everything that the shop of the other tests lacks: versions, children, a relay, an inbox, a rollup."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from outrider import Event, HandlerContext, Job, Outrider

TABLES = "create table parcel (id bigint generated always as identity primary key, truck text, name text)"


def cents(payload: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": payload["order_id"], "cents": 100 * payload["total"]}


class Ordered(Event, type="market.ordered", version=2, key="order_id", upcasters={1: cents}):
    """A customer has ordered."""

    order_id: str
    cents: int


class Packed(Event, type="market.packed", key="order_id"):
    order_id: str


class Announced(Event, type="depot.announced", foreign=True):
    """A view of what another service publishes."""

    truck: str
    weight: int


class Label(Job, type="market.label"):
    order_id: str


class ParcelAdded(Event, type="market.parcel_added"):
    id: int


class TruckFull(Event, type="market.truck_full", key="key"):
    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime


def make_market(dsn: str) -> Outrider:
    app = Outrider(context="market", dsn=dsn)

    @app.handler(Ordered, name="market.pack")
    async def pack(event: Ordered, ctx: HandlerContext) -> None:
        await app.publish(ctx.tx, Packed(order_id=event.order_id))
        await app.enqueue(ctx.tx, Label(order_id=event.order_id), delay="1h")

    @app.handler(Announced, name="market.dock")
    async def dock(event: Announced) -> None: ...

    @app.job(Label)
    async def label(job: Label) -> None: ...

    app.rollup("market.trucks", table="parcel", key=["truck"], carry=["id"], single=ParcelAdded, rollup=TruckFull)
    return app


def make_depot(dsn: str) -> Outrider:
    """The other service: its own log, in a schema of its own."""
    return Outrider(context="depot", dsn=dsn, schema="depot")
