"""Appends to the log: builds the insert of one or many envelopes, and reads its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from uuid import UUID

from outrider import trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Row, array, arrays
from outrider.postgres.statement import Params, statement

COLUMNS = (
    "id", "event_type", "event_version", "occurred_at", "source", "target", "content_class", "channel", "generation",
    "workspace_id", "aggregate_kind", "aggregate_id", "entity_version", "payload", "idempotency_key", "trace_context",
)  # fmt: skip
"""The columns of `row_of`."""
_SHARED = (
    "event_type", "event_version", "source", "target", "content_class", "channel", "generation", "workspace_id",
    "aggregate_kind",
)  # fmt: skip
"""Columns that many events of one publish share. Together with the trace context, they are sent once per combination."""
_shared = attrgetter(*_SHARED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Append(Insert):
    envelopes: Sequence[Envelope]
    """`written` completes them in place."""

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], schema: str, *, notify: bool, cause: UUID | bytes | None) -> Append:
        if len(envelopes) == 1:
            query, params = statement("log/publish_one", schema), row_of(envelopes[0])
        else:
            query, params = statement("log/publish_many", schema), _columns(envelopes)
        params["notify"] = notify
        params["caused_by"] = None if cause is None else cause.hex if isinstance(cause, UUID) else cause.hex()
        return cls(envelopes[0].event_type, schema, query, params, envelopes)

    def written(self, row: Row) -> None:
        """Adds the position and the time that the database assigned."""
        numbers, microseconds = row[:2] if len(self.envelopes) > 1 else zip(row[:2], strict=True)
        for envelope, number, since_epoch in zip(self.envelopes, numbers, microseconds, strict=True):
            fields = envelope.__dict__
            fields["seq"], fields["occurred_at"] = number, _EPOCH + timedelta(microseconds=since_epoch)


def _columns(envelopes: Sequence[Envelope]) -> Params:
    kinds: dict[tuple[object, ...], int] = {}
    kind = [kinds.setdefault((*_shared(e), trace.as_json(e.trace_context)), len(kinds) + 1) for e in envelopes]
    ids = [str(e.id) for e in envelopes]
    return arrays((*_SHARED, "trace_context"), kinds) | {
        "kind": kind,
        "id": ids,
        "payload": [e.payload_json for e in envelopes],
        "aggregate_id": array(e.key for e in envelopes),
        "entity_version": array(e.entity_version for e in envelopes),
        "occurred_at": array(e.occurred_at and e.occurred_at.isoformat() for e in envelopes),
        "idempotency_key": array(
            None if e.idempotency_key == own else e.idempotency_key for e, own in zip(envelopes, ids, strict=True)
        ),
    }


def row_of(e: Envelope) -> Params:
    own = str(e.id)
    return {
        "id": own,
        "event_type": e.event_type,
        "event_version": e.event_version,
        "occurred_at": None if e.occurred_at is None else e.occurred_at.isoformat(),
        "source": e.source,
        "target": e.target,
        "content_class": e.content_class,
        "channel": e.channel,
        "generation": e.generation,
        "workspace_id": e.workspace_id,
        "aggregate_kind": e.aggregate_kind,
        "aggregate_id": e.key,
        "entity_version": e.entity_version,
        "payload": e.payload_json,
        "idempotency_key": None if e.idempotency_key == own else e.idempotency_key,
        "trace_context": trace.as_json(e.trace_context),
    }
