"""The service `accounts`: it owns the customers of every tenant, and tells others what became of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from outrider import Envelope, Event, Outrider
from outrider.streams.replica import ReplicaChange, ReplicaCodec

from .wire import lease, routed, stream

TABLES = """
create table customer (
    workspace_id text not null,
    id           uuid primary key,
    name         text not null,
    plan         text not null,
    version      bigint not null default 1,
    changed_at   timestamptz not null default now()
);
"""
KIND = "customer"
TENANTS = ("acme", "globex")
LONGEST = 40
NO_EVENT = UUID(int=0)


class CustomerChanged(Event, type="accounts.customer_changed", key="customer_id"):
    customer_id: UUID
    name: str
    plan: str


class Stale(Exception):
    """Somebody else has changed the customer since you looked."""


class CopyCodec(ReplicaCodec):
    """What the readers of copies can store."""

    def encode(self, envelope: Envelope, position: str) -> bytes:
        if len(envelope.payload["name"]) > LONGEST:
            raise ValueError(f"the name has more than {LONGEST} characters")
        return super().encode(envelope, position)


app = Outrider(context="accounts")  # OUTRIDER_DSN
app.relay("accounts.out", stream("accounts"), events=[CustomerChanged], lease=lease("accounts"))
for name, tenant, sink in routed("customers", TENANTS, CopyCodec()):
    app.relay(
        f"accounts.{name}",
        sink,
        events=[CustomerChanged],
        workspace_id=tenant,
        lease=lease(name),
        publish_max_attempts=2,
    )


async def create(conn: Any, workspace_id: str, name: str, plan: str) -> UUID:
    """In your transaction: the customer and its event are there together, or neither."""
    customer_id = uuid4()
    insert = "insert into customer (workspace_id, id, name, plan) values (%s, %s, %s, %s)"
    await conn.execute(insert, [workspace_id, customer_id, name, plan])
    await tell(conn, workspace_id, CustomerChanged(customer_id=customer_id, name=name, plan=plan), version=1)
    return customer_id


async def change(conn: Any, workspace_id: str, customer_id: UUID, version: int, *, name: str, plan: str) -> int:
    """`version` is the one that you have seen. The lock of the row puts the events of a customer in order."""
    found = await conn.execute(
        """update customer set name = %s, plan = %s, version = version + 1, changed_at = now()
           where workspace_id = %s and id = %s and version = %s""",
        [name, plan, workspace_id, customer_id, version],
    )
    if not found.rowcount:
        raise Stale(f"{name} is not at version {version} any more")
    await tell(conn, workspace_id, CustomerChanged(customer_id=customer_id, name=name, plan=plan), version + 1)
    return version + 1


async def tell(conn: Any, workspace_id: str, event: CustomerChanged, version: int) -> None:
    await app.publish(conn, event, workspace_id=workspace_id, aggregate_kind=KIND, entity_version=version)


async def snapshot(workspace_id: str) -> tuple[str, list[ReplicaChange]]:
    """What a replica begins with: the customers, and the mark in the stream up to which they are in here.

    Both of one moment: everything up to the mark is in these rows, whatever is being changed and relayed meanwhile.
    """
    async with app.connect() as conn, conn.transaction():
        await conn.execute("set transaction isolation level repeatable read, read only")
        hwm = await app.current_hwm(f"customers_{workspace_id}", conn=conn)
        found = await conn.execute(
            "select id, name, plan, version, changed_at from customer where workspace_id = %s", [workspace_id]
        )
        return hwm, [as_change(*row) for row in await found.fetchall()]


def as_change(customer_id: UUID, name: str, plan: str, version: int, changed_at: Any) -> ReplicaChange:
    """A row, as the stream would tell it."""
    payload = CustomerChanged(customer_id=customer_id, name=name, plan=plan).model_dump(mode="json")
    topic = "accounts.customer_changed"
    return ReplicaChange(
        NO_EVENT, topic, KIND, str(customer_id), version, payload, stream_id="", committed_at=changed_at
    )
