"""The service `billing`: it invoices what `accounts` tells, and keeps a copy of the customers of one tenant.

It has a database of its own and imports nothing of `accounts`: a type, its JSON and two streams are all that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from outrider import Bury, Event, HandlerContext, Outrider
from outrider.streams.replica import ReplicaChange, ReplicaCodec

from .wire import stream

TABLES = """
create table price (plan text primary key, cents int not null);
insert into price values ('free', 0), ('team', 4900);

create table invoice_line (
    workspace_id text not null default current_setting('app.workspace_id'),
    number       int not null,
    event_id     uuid not null,
    customer_id  uuid not null,
    what         text not null,
    cents        int not null,
    primary key (workspace_id, number)
);
alter table invoice_line enable row level security;
alter table invoice_line force row level security;
create policy own_workspace on invoice_line
    using (workspace_id = nullif(current_setting('app.workspace_id', true), ''));

create table customer_acme (
    aggregate_kind text not null,
    aggregate_id   text not null,
    entity_version bigint not null,
    topic          text not null,
    payload        jsonb not null,
    event_id       uuid not null,
    committed_at   timestamptz not null,
    primary key (aggregate_kind, aggregate_id)
);
"""
ROLE = """
do $$ begin
    create role billing_tenant nologin;
exception when duplicate_object then null;  -- roles belong to the server, not to a database
end $$;
grant select, insert on invoice_line to billing_tenant;
grant select on price to billing_tenant;
"""


class CustomerChanged(Event, type="accounts.customer_changed", foreign=True):
    """What billing wants to know of it."""

    customer_id: UUID
    name: str
    plan: str


app = Outrider(context="billing")  # OUTRIDER_DSN: another database
app.inbox("billing.in", stream("accounts"))
app.replica("billing.acme", stream("customers_acme", ReplicaCodec()), table="customer_acme")


@app.handler(CustomerChanged, name="billing.invoice", role="billing_tenant")
async def invoice(event: CustomerChanged, ctx: HandlerContext) -> None:
    """No statement names the tenant. `max(number)` is that of the tenant's own lines, as the policy shows no others."""
    found = await ctx.tx.execute("select cents from price where plan = %s", [event.plan])
    if (price := await found.fetchone()) is None:
        raise Bury(f"there is no price for the plan {event.plan!r}")
    await ctx.tx.execute(
        """insert into invoice_line (number, event_id, customer_id, what, cents)
           select coalesce(max(number), 0) + 1, %s, %s, %s, %s from invoice_line""",
        [ctx.envelope.id, event.customer_id, f"{event.plan} for {event.name}", price[0]],
    )


async def load(hwm: str, rows: Iterable[ReplicaChange]) -> int:
    """Begin with a snapshot; the stream goes on after its mark. How many rows were new here."""
    return await app.stitch("billing.acme", rows, hwm=hwm)
