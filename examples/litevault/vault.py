"""A vault of items. Each gets a summary after it was created: one table, one job, one setting."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID, uuid4

from outrider import Backoff, Job, JobContext, Outrider, Snooze

TABLES = """
create table if not exists item (
    id      uuid primary key,
    body    text not null,
    state   text not null default 'new' check (state in ('new', 'processing', 'enriched', 'failed')),
    summary text
);
create table if not exists shadow_summary (item_id uuid primary key references item, summary text not null);
"""
RETRY = Backoff.table("30s", "5m")  # before the second and the third attempt; after that it has failed


class EnrichItem(Job, type="vault.enrich_item", key="item_id"):  # log lines of the job name the item as key
    item_id: UUID


app = Outrider(context="vault")


def phase() -> str:
    """How far the rollout is: off, shadow or on."""
    chosen = os.environ.get("LITEVAULT_ENRICH", "off")
    if chosen not in ("off", "shadow", "on"):
        raise ValueError(f"LITEVAULT_ENRICH={chosen!r} is none of off, shadow, on")
    return chosen


async def create(conn: Any, body: str) -> UUID:
    """In your transaction: the item and its job are there together, or neither."""
    item_id = uuid4()
    await conn.execute("insert into item (id, body) values (%s, %s)", [item_id, body])
    if phase() != "off":
        await app.enqueue(conn, EnrichItem(item_id=item_id))
    return item_id


async def backfill(conn: Any) -> int:
    """Jobs for the items from before it was on. Twice does no harm: the second job of an item finds nothing to do."""
    found = await conn.execute("select id from item where state = 'new'")
    return len(await app.enqueue_many(conn, [EnrichItem(item_id=item_id) for (item_id,) in await found.fetchall()]))


@app.job(EnrichItem, retry=RETRY, lease="1m")
async def enrich(job: EnrichItem, ctx: JobContext) -> None:
    """It may run twice, if a worker dies: the item's state decides, so that what is enriched stays as it is."""
    if phase() == "off":
        raise Snooze("1m", "enrichment is off")
    if phase() == "shadow":
        await rehearse(job, ctx)
    elif (body := await begin(job, ctx)) is not None:
        try:
            summary = await summarise(body)
        except Exception:
            if RETRY.delay(ctx.attempt, 0) is None:  # there will be no other attempt
                await end(job, ctx, "failed")
            raise
        await end(job, ctx, "enriched", summary)


async def begin(job: EnrichItem, ctx: JobContext) -> str | None:
    """The body; None if there is nothing to do. One in processing is what a dead worker, or a failed attempt, has left."""
    async with ctx.connect() as conn:
        found = await conn.execute(
            "update item set state = 'processing' where id = %s and state <> 'enriched' returning body", [job.item_id]
        )
        row = await found.fetchone()
        return None if row is None else row[0]


async def end(job: EnrichItem, ctx: JobContext, state: str, summary: str | None = None) -> None:
    """Who comes second, because it was taken for dead, finds no item in processing."""
    async with ctx.connect() as conn:
        await conn.execute(
            "update item set state = %s, summary = %s where id = %s and state = 'processing'",
            [state, summary, job.item_id],
        )


async def rehearse(job: EnrichItem, ctx: JobContext) -> None:
    """Everything but the effect: to be compared, and measured, before anybody depends on it."""
    async with ctx.connect() as conn:
        found = await conn.execute("select body from item where id = %s", [job.item_id])
        row = await found.fetchone()
    if row is not None:
        summary = await summarise(row[0])
        async with ctx.connect() as conn:
            insert = "insert into shadow_summary (item_id, summary) values (%s, %s) on conflict do nothing"
            await conn.execute(insert, [job.item_id, summary])


async def summarise(body: str) -> str:
    """Stands for the slow call to somebody else's service. No transaction is open meanwhile."""
    if not body.strip():
        raise ValueError("there is nothing to summarise")
    return body.split(".")[0].strip() + "."
