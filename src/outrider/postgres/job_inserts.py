"""Enqueues: builds the insert of one or many jobs, and reads its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

from outrider import names, trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Row
from outrider.postgres.statement import Params, statement


@dataclass(slots=True)
class Terms:
    """What all jobs of one enqueue have in common."""

    source: str
    generation: int
    run_at: datetime | None = None
    delay: float | None = None
    """Seconds from now, by the database's clock."""
    priority: int = 0
    queue: str = "default"
    unique_key: str | None = None
    on_conflict: str = "keep"
    workspace_id: str | None = None
    caused_by: UUID | None = None


@dataclass(slots=True)
class Request:
    """One job to be enqueued, checked. Not frozen, because a frozen one takes three times as long to create."""

    id: UUID
    job_type: str
    version: int
    payload_json: str
    key: str | None
    trace_context: dict[str, str] | None
    terms: Terms

    def envelope(self, job_id: UUID) -> Envelope:
        """The envelope that the job will get. With a unique key, `job_id` may be that of an earlier job."""
        return Envelope(
            id=job_id,
            event_type=self.job_type,
            event_version=self.version,
            payload_json=self.payload_json,
            source=self.terms.source,
            generation=self.terms.generation,
            workspace_id=self.terms.workspace_id,
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


COLUMNS = {
    "job_type": ("subscription", "{}::text"),
    "version": ("event_version", "{}::int"),
    "payload": ("payload", "{}::text::jsonb"),
    "key": ("job_key", "{}::text"),
    "trace_context": ("trace_context", "{}::text::jsonb"),
    "source": ("source", "{}::text"),
    "generation": ("generation", "{}::bigint"),
    "run_at": ("run_at", "{}::text::timestamptz"),
    "delay": ("run_at", "clock_timestamp() + {}::double precision * interval '1 second'"),
    "priority": ("priority", "{}::int"),
    "queue": ("queue", "{}::text"),
    "workspace_id": ("workspace_id", "{}::text"),
    "caused_by": ("caused_by", "{}::text::uuid"),
}
"""By parameter: the column, and the value in it."""
_DEFAULTS = {"generation": 0, "priority": 0}
"""What the table fills in itself. So it does with null."""
_ARRAYS = {"version": "int"}
"""The types of elements that are not text."""


@dataclass(slots=True)
class Enqueue(Insert):
    requests: Sequence[Request]

    @classmethod
    def of(cls, requests: Sequence[Request], schema: str, *, notify: bool) -> Enqueue:
        """For one job with a unique key, or any number without. All have the same terms."""
        first = requests[0]
        shared = _terms(first.terms)
        if first.terms.unique_key is not None:
            query = statement("jobs/enqueue_unique", schema)
            params = shared | _own(first) | {"unique_key": first.terms.unique_key, "notify": notify}
            params |= {"id": str(first.id), "on_conflict": first.terms.on_conflict}
        elif len(requests) == 1:
            params = _sent(shared | _own(first))
            query = filled("enqueue_job", schema, tuple(params), ())
            params |= {"id": str(first.id), "wake_channel": names.channel_of(first.terms.generation), "notify": notify}
        else:
            common, params = _columns(requests)
            shared = _sent(shared | common)
            query = filled("enqueue_jobs", schema, tuple(shared), tuple(params))
            params |= shared
            # psycopg takes longer to write an array of texts.
            params |= {
                "id": "{" + ",".join([r.id.hex for r in requests]) + "}",
                "wake_channel": names.channel_of(first.terms.generation),
            }
            params |= {"wake_types": list(dict.fromkeys([r.job_type for r in requests])), "notify": notify}
        return cls(first.job_type, schema, query, params, requests)

    def written(self, row: Row) -> list[Enqueued]:
        first = self.requests[0]
        if first.terms.unique_key is None:
            return [Enqueued(each.id, each.job_type, "created") for each in self.requests]
        job_id, outcome = row
        return [Enqueued(UUID(job_id), first.job_type, outcome)]


def _terms(t: Terms) -> Params:
    return {
        "source": t.source,
        "generation": t.generation,
        "run_at": None if t.run_at is None else t.run_at.isoformat(),
        "delay": t.delay,
        "priority": t.priority,
        "queue": t.queue,
        "workspace_id": t.workspace_id,
        "caused_by": None if t.caused_by is None else t.caused_by.hex,
    }


def _own(r: Request) -> Params:
    return {
        "job_type": r.job_type,
        "version": r.version,
        "payload": r.payload_json,
        "key": r.key,
        "trace_context": trace.as_json(r.trace_context),
    }


def _columns(requests: Sequence[Request]) -> tuple[Params, Params]:
    """What the jobs have in common beside their terms, and the columns in which they differ."""
    columns: dict[str, list[object]] = {
        "job_type": [r.job_type for r in requests],
        "version": [r.version for r in requests],
        "key": [r.key for r in requests],
        "trace_context": [trace.as_json(r.trace_context) for r in requests],
    }
    common: Params = {}
    differing: Params = {"payload": [r.payload_json for r in requests]}
    for name, values in columns.items():
        if values.count(values[0]) == len(values):
            common[name] = values[0]
        else:
            differing[name] = values
    return common, differing


def _sent(params: Params) -> Params:
    return {name: value for name, value in params.items() if value is not None and value != _DEFAULTS.get(name)}


@cache
def filled(name: str, schema: str, shared: tuple[str, ...], differing: tuple[str, ...]) -> bytes:
    """The statement with `/*part*/` replaced, for these parameters."""
    values = {COLUMNS[each][0]: COLUMNS[each][1].format(f"%({each})s") for each in shared}
    values |= {COLUMNS[each][0]: COLUMNS[each][1].format(f"j.{each}") for each in differing}
    values.setdefault("run_at", "clock_timestamp()")
    parts = {
        "columns": ", ".join(values),
        "values": ", ".join(values.values()),
        "arrays": ", ".join(f"%({each})b::{_ARRAYS.get(each, 'text')}[]" for each in differing),
        "names": ", ".join(differing),
    }
    text = statement(f"jobs/{name}", schema).decode()
    for part, filled in parts.items():
        text = text.replace(f"/*{part}*/", filled)
    return text.encode()
