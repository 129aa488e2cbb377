"""Enqueues: builds the insert of one or many jobs, and reads its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from outrider import trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Row, array, arrays
from outrider.postgres.statement import Params, statement


@dataclass(slots=True)
class Request:
    """One job to be enqueued, checked. Not frozen, because a frozen one takes three times as long to create."""

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
        """The envelope that the job will get. With a unique key, `job_id` may be that of an earlier job."""
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
    """The result of an enqueue."""

    id: UUID
    """The id of the pending job. With a unique key, this may be an earlier job."""
    job_type: str
    outcome: str
    """created; or kept, replaced, debounced: a pending job had the unique key"""


_SHARED = ("job_type", "version", "priority", "queue", "source", "workspace_id", "generation", "delay")
"""Columns that many jobs of one enqueue share. Together with those of `_texts`, they are sent once per combination."""
_shared = attrgetter(*_SHARED)


@dataclass(slots=True)
class Enqueue(Insert):
    requests: Sequence[Request]

    @classmethod
    def of(cls, requests: Sequence[Request], schema: str, *, notify: bool) -> Enqueue:
        """For one job with a unique key, or any number without."""
        first = requests[0]
        if first.unique_key is None:
            query, params = statement("jobs/enqueue_jobs", schema), _columns(requests)
        else:
            query, params = statement("jobs/enqueue_unique", schema), _row(first)
        params["notify"] = notify
        return cls(first.job_type, schema, query, params, requests)

    def written(self, row: Row) -> list[Enqueued]:
        first = self.requests[0]
        if first.unique_key is None:
            return [Enqueued(each.id, each.job_type, "created") for each in self.requests]
        job_id, outcome = row
        return [Enqueued(UUID(job_id), first.job_type, outcome)]


def _columns(requests: Sequence[Request]) -> Params:
    kinds: dict[tuple[object, ...], int] = {}
    kind = [kinds.setdefault((*_shared(r), *_texts(r)), len(kinds) + 1) for r in requests]
    return arrays((*_SHARED, "run_at", "trace_context", "caused_by"), kinds) | {
        "kind": kind,
        "id": [str(r.id) for r in requests],
        "payload": [r.payload_json for r in requests],
        "key": array(r.key for r in requests),
    }


def _row(r: Request) -> Params:
    run_at, trace_context, caused_by = _texts(r)
    return dict(zip(_SHARED, _shared(r), strict=True)) | {
        "run_at": run_at,
        "trace_context": trace_context,
        "caused_by": caused_by,
        "id": str(r.id),
        "payload": r.payload_json,
        "key": r.key,
        "unique_key": r.unique_key,
        "on_conflict": r.on_conflict,
    }


def _texts(r: Request) -> tuple[str | None, str | None, str | None]:
    return (
        None if r.run_at is None else r.run_at.isoformat(),
        trace.as_json(r.trace_context),
        None if r.caused_by is None else str(r.caused_by),
    )
