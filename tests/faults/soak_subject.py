"""The three handlers of the fault tests, and a job for each event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults import subject
from tests.faults.subject import RETRY, Fact, tracing

from outrider import JobContext, Outrider
from outrider.worker.duties import Duties
from outrider.worker.site import WorkerTimes
from outrider.worker.worker import Worker

JOB = "fault.errand"


def make(dsn: str, outside: Path | None = None, **settings: Any) -> Outrider:
    app = subject.make(dsn, None, **settings)
    leave_trace, failed = tracing(outside), set[tuple[str, int]]()

    @app.job(on=Fact, name=JOB, lease=10, retry=RETRY)
    async def errand(fact: Fact, ctx: JobContext) -> None:
        if fact.act == "fail" and (fact.key, fact.n) not in failed and ctx.attempt == 1:
            failed.add((fact.key, fact.n))
            raise RuntimeError(f"{fact.key} {fact.n} fails as told")
        leave_trace(JOB, fact)

    return app


def worker_of(app: Outrider) -> Worker:
    """As app.worker(), without upkeep, which the soak does itself."""
    handlers, jobs = app.chosen().handlers, app.chosen().jobs
    subscriptions = [*(each.subscription for each in handlers), *(each.subscription for each in jobs)]
    duties = Duties(handlers=handlers, jobs=jobs)
    return Worker(app._site(), duties, lambda: app._register(subscriptions), WorkerTimes(grace=10))
