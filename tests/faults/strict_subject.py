"""Two strict releases of one app: a handler and a job, which leave behind whose event was handled by whose worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.faults.subject import POLL, RETRY

from outrider import Event, HandlerContext, Job, JobContext, Outrider
from outrider.worker.duties import Duties
from outrider.worker.site import WorkerTimes
from outrider.worker.worker import Worker

SETUP = "create table witness (what text not null, n integer not null, of_generation bigint, by_generation bigint)"
WITNESS = "insert into witness values (%s, %s, %s, %s)"


class Step(Event, type="strict.step", key="key"):
    key: str
    n: int
    act: str = ""
    """fail: the first time in a process. kill: kills a worker of generation 1."""


class Task(Job, type="strict.task"):
    n: int


def make(dsn: str, generation: int) -> Outrider:
    app = Outrider(context="strict", dsn=dsn, generation=generation, generations="strict", poll=POLL)
    failed: set[int] = set()

    @app.handler(Step, name="strict.steps", partitions=4, retry=RETRY)
    async def step(event: Step, ctx: HandlerContext) -> None:
        await ctx.tx.execute(WITNESS, ["event", event.n, ctx.envelope.generation, generation])
        if event.act == "kill" and generation == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if event.act == "fail" and event.n not in failed:
            failed.add(event.n)
            raise RuntimeError("as told")

    @app.job(Task)
    async def task(job: Task, ctx: JobContext) -> None:
        async with app.connect() as conn:
            await conn.execute(WITNESS, ["job", job.n, ctx.envelope.generation, generation])

    return app


def old(dsn: str, outside: Path | None = None) -> Outrider:
    return make(dsn, 1)


def new(dsn: str, outside: Path | None = None) -> Outrider:
    return make(dsn, 2)


def worker_of(app: Outrider) -> Worker:
    chosen = app.chosen()
    duties: Any = Duties(handlers=chosen.handlers, jobs=chosen.jobs)
    return Worker(
        app._site(), duties, lambda: app._register(chosen.subscriptions), WorkerTimes(heartbeat=0.25, fold_after=0.5)
    )
