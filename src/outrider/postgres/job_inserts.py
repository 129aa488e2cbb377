"""Enqueuing: the insert of one or many jobs, and how to read the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outrider import trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Rows, columns_of
from outrider.postgres.statement import Params, statement


@dataclass(frozen=True, slots=True)
class Request:
    """One job to be enqueued, checked."""

    id: UUID
    job_type: str
    version: int
    payload_json: str
    source: str
    generation: int
    run_at: datetime | None = None
    delay: float | None = None
    """Seconds from now, by the database's clock."""
    priority: int = 0
    queue: str = "default"
    key: str | None = None
    unique_key: str | None = None
    on_conflict: str = "keep"
    workspace_id: str | None = None
    trace_context: dict[str, str] | None = None
    caused_by: UUID | None = None

    def envelope(self, job_id: UUID) -> Envelope:
        """As the job sees it; `job_id`: of the job that came of it."""
        return Envelope(
            id=job_id,
            event_type=self.job_type,
            event_version=self.version,
            payload_json=self.payload_json,
            source=self.source,
            generation=self.generation,
            workspace_id=self.workspace_id,
            key=self.key,
            idempotency_key=str(job_id),
            trace_context=self.trace_context,
        )


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a job that was enqueued."""

    id: UUID
    """Of the job that there is now: with a unique key it may be one from before."""
    job_type: str
    outcome: str
    """created; or kept, replaced, debounced: a pending job had the unique key"""


@dataclass(frozen=True, slots=True)
class Enqueue(Insert):
    requests: Sequence[Request]

    @classmethod
    def of(cls, requests: Sequence[Request], schema: str, *, poke: bool) -> Enqueue:
        """All of them with a unique key, or none."""
        rows = [_row(request) for request in requests]
        unique = requests[0].unique_key is not None
        query = statement("jobs/enqueue_unique" if unique else "jobs/enqueue_jobs", schema)
        return cls(requests[0].job_type, schema, query, columns_of(rows) | {"poke": poke}, requests)

    def written(self, rows: Rows) -> list[Enqueued]:
        if self.requests[0].unique_key is None:
            return [Enqueued(each.id, each.job_type, "created") for each in self.requests]
        pairs = zip(self.requests, rows, strict=True)
        return [Enqueued(UUID(row[0]), each.job_type, row[1]) for each, row in pairs]


def _row(r: Request) -> Params:
    row: Params = {
        "id": str(r.id),
        "job_type": r.job_type,
        "version": r.version,
        "payload": r.payload_json,
        "run_at": None if r.run_at is None else r.run_at.isoformat(),
        "delay": r.delay,
        "priority": r.priority,
        "queue": r.queue,
        "key": r.key,
        "source": r.source,
        "workspace_id": r.workspace_id,
        "trace_context": trace.as_json(r.trace_context),
        "generation": r.generation,
        "caused_by": None if r.caused_by is None else str(r.caused_by),
    }
    return row if r.unique_key is None else row | {"unique_key": r.unique_key, "on_conflict": r.on_conflict}
