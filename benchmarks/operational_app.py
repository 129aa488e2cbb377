"""The app of `python -m benchmarks operational`: two handlers with an insert each, two job types; with a Redis a relay."""

from __future__ import annotations

import os

from benchmarks.event import Measured
from outrider import HandlerContext, Job, Outrider
from outrider.streams import broker

REDIS = "OPERATIONAL_REDIS"
STREAM = "operational"
TABLES = "create table first (customer text); create table second (customer text)"


class Mail(Job, type="operational.mail"):
    customer: str


class Report(Job, type="operational.report"):
    customer: str


app = Outrider(context="operational")


@app.handler(Measured, name="operational.first")
async def first(event: Measured, ctx: HandlerContext) -> None:
    await ctx.tx.execute("insert into first values (%s)", [event.customer])


@app.handler(Measured, name="operational.second")
async def second(event: Measured, ctx: HandlerContext) -> None:
    await ctx.tx.execute("insert into second values (%s)", [event.customer])


@app.job(Mail)
async def mail(job: Mail) -> None: ...


@app.job(Report)
async def report(job: Report) -> None: ...


if REDIS in os.environ:
    app.relay("operational.out", broker(os.environ[REDIS], stream=STREAM), events=[Measured])
