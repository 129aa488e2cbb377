"""The handler that stages events for a rollup: whole batches, one statement each, committed with their receipts."""

from __future__ import annotations

from collections.abc import Callable

from outrider.event import Event
from outrider.postgres import rollups
from outrider.rollup.rollup import Rollup
from outrider.worker.handler import Handler, declare_handler
from outrider.worker.handler_context import HandlerContext


def stager(rollup: Rollup, schema: Callable[[], str]) -> Handler:
    async def stage(_: list[Event], ctx: HandlerContext) -> None:
        seqs = [each.seq for each in ctx.envelopes if each.seq is not None]
        await rollups.stage(ctx.tx, rollup.slug, seqs, schema())

    options = {"name": rollup.name, "order": "none"}
    return declare_handler(rollup.context, rollup.events, stage, options)
