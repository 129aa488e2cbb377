"""Appending to the log: the insert of one or many envelopes, and how to read the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from outrider import trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Rows, columns_of
from outrider.postgres.statement import Params, statement

COLUMNS = (
    "id", "event_type", "event_version", "occurred_at", "source", "target", "content_class", "channel", "generation",
    "workspace_id", "aggregate_kind", "aggregate_id", "entity_version", "payload", "idempotency_key", "trace_context",
)  # fmt: skip
"""Of an event that is written, as row_of names them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Append(Insert):
    envelopes: Sequence[Envelope]

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], schema: str, notify: str) -> Append:
        rows, subject = [row_of(envelope) for envelope in envelopes], envelopes[0].event_type
        # RETURNING is evaluated before the trigger that pokes, which reads this setting.
        quiet = b"" if notify == "commit" else f", set_config('outrider.notify', '{notify}', true)".encode()
        if len(rows) == 1:
            return cls(subject, schema, statement("log/publish_one", schema) + quiet, rows[0], envelopes)
        return cls(subject, schema, statement("log/publish_many", schema) + quiet, columns_of(rows), envelopes)

    def written(self, rows: Rows) -> list[Envelope]:
        """The envelopes with what the database added."""
        drawn = {row[0]: {"seq": row[1], "occurred_at": _EPOCH + timedelta(microseconds=row[2])} for row in rows}
        return [Envelope.of(vars(envelope) | drawn[str(envelope.id)]) for envelope in self.envelopes]


def row_of(e: Envelope) -> Params:
    return {
        "id": str(e.id),
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
        "idempotency_key": None if e.idempotency_key == str(e.id) else e.idempotency_key,
        "trace_context": trace.as_json(e.trace_context),
    }
