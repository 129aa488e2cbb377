"""Appends to the log: builds the insert of one or many envelopes, and reads its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from uuid import UUID

from outrider import trace
from outrider.envelope import Envelope
from outrider.postgres.inserts import Insert, Row
from outrider.postgres.statement import Params, statement

_SENT_AS = {
    "id": ("text", "uuid"), "event_type": ("text", ""), "event_version": ("int", ""), "occurred_at": ("text", "timestamptz"),
    "source": ("text", ""), "target": ("text", ""), "content_class": ("text", ""), "channel": ("text", ""),
    "generation": ("bigint", ""), "workspace_id": ("text", ""), "aggregate_kind": ("text", ""), "aggregate_id": ("text", ""),
    "entity_version": ("bigint", ""), "payload": ("text", "jsonb"), "idempotency_key": ("text", ""),
    "trace_context": ("text", "jsonb"), "caused_by": ("text", "uuid"),
}  # fmt: skip
"""The type that a column travels as, and the type that the server converts it to, if that is another."""
COLUMNS = tuple(column for column in _SENT_AS if column != "caused_by")
"""The columns of `row_of`."""
_DEFAULTS = {"content_class": "internal", "channel": "outbox_default", "generation": 0}
"""What the log fills in itself. So does it with null, and with the time."""
_COMMON = (
    "event_type", "event_version", "source", "target", "content_class", "channel", "generation", "workspace_id",
    "aggregate_kind", "entity_version",
)  # fmt: skip
"""Columns that travel as they are, and that many events of one publish share."""
_common = attrgetter(*_COMMON)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Append(Insert):
    envelopes: Sequence[Envelope]
    """`written` completes them in place."""

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], schema: str, *, notify: bool, cause: UUID | bytes | None) -> Append:
        caused_by = None if cause is None else cause.hex if isinstance(cause, UUID) else cause.hex()
        if len(envelopes) == 1:
            params = _sent(row_of(envelopes[0]) | {"caused_by": caused_by})
            query = publish_one(schema, tuple(params), notify)
        else:
            shared, differing = _columns(envelopes)
            shared = _sent(shared | {"caused_by": caused_by})
            wake = {(e.channel, e.event_type): None for e in envelopes}
            query = publish_many(schema, tuple(shared), tuple(differing))
            params = shared | differing
            params["wake_channel"], params["wake_type"] = map(list, zip(*wake, strict=True))
            params["notify"] = notify
        return cls(envelopes[0].event_type, schema, query, params, envelopes)

    def written(self, row: Row) -> None:
        """Adds the position and the time that the database assigned."""
        numbers, microseconds = row[:2] if len(self.envelopes) > 1 else zip(row[:2], strict=True)
        for envelope, number, since_epoch in zip(self.envelopes, numbers, microseconds, strict=True):
            fields = envelope.__dict__
            fields["seq"], fields["occurred_at"] = number, _EPOCH + timedelta(microseconds=since_epoch)


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


def _columns(envelopes: Sequence[Envelope]) -> tuple[Params, Params]:
    """What the events have in common, and the columns in which they differ."""
    ids = [str(e.id) for e in envelopes]
    columns: dict[str, Sequence[object]] = dict(zip(_COMMON, zip(*map(_common, envelopes), strict=True), strict=True))
    columns["aggregate_id"] = [e.key for e in envelopes]
    columns["occurred_at"] = [e.occurred_at and e.occurred_at.isoformat() for e in envelopes]
    columns["idempotency_key"] = [
        None if e.idempotency_key == own else e.idempotency_key for e, own in zip(envelopes, ids, strict=True)
    ]
    columns["trace_context"] = [trace.as_json(e.trace_context) for e in envelopes]
    shared: Params = {}
    differing: Params = {"id": ids, "payload": [e.payload_json for e in envelopes]}
    for name, values in columns.items():
        if values.count(values[0]) == len(values):
            shared[name] = values[0]
        else:
            differing[name] = list(values)
    return shared, differing


def _sent(row: Params) -> Params:
    return {name: value for name, value in row.items() if value is not None and value != _DEFAULTS.get(name)}


_QUIETLY = "where (select set_config('outrider.notified', statement_timestamp()::text, true)) is not null"


@cache
def publish_one(schema: str, columns: tuple[str, ...], notify: bool) -> bytes:
    values = ", ".join(_converted(name, f"%({name})s") for name in columns)
    return _filled("publish_one", schema, columns=", ".join(columns), values=values, quietly="" if notify else _QUIETLY)


@cache
def publish_many(schema: str, shared: tuple[str, ...], differing: tuple[str, ...]) -> bytes:
    values = [_converted(name, f"%({name})s") for name in shared]
    for name in differing:
        value = f"e.{name}{_SENT_AS[name][1] and '::'}{_SENT_AS[name][1]}"
        values.append(f"coalesce({value}, clock_timestamp())" if name == "occurred_at" else value)
    return _filled(
        "publish_many",
        schema,
        columns=", ".join(shared + differing),
        values=", ".join(values),
        arrays=", ".join(f"%({name})b::{_SENT_AS[name][0]}[]" for name in differing),
        names=", ".join(differing),
        quietly=_QUIETLY,
    )


def _converted(name: str, value: str) -> str:
    sent_as, wanted = _SENT_AS[name]
    return f"{value}::{sent_as}::{wanted}" if wanted else value


def _filled(name: str, schema: str, **parts: str) -> bytes:
    """The statement with `/*part*/` replaced."""
    text = statement(f"log/{name}", schema).decode()
    for part, filled in parts.items():
        text = text.replace(f"/*{part}*/", filled)
    return text.encode()
