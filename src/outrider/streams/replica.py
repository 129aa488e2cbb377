"""The replica codec: entries for consumers in JavaScript, byte for byte as these expect them, and a reader in Python.

It leaves out what a replica does not need (source, version, target and so on), so it cannot decode an envelope.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

from pydantic_core import from_json

from outrider import names
from outrider.envelope import Envelope
from outrider.errors import Undecodable
from outrider.streams.javascript import dumps, number, parse, string, stringify
from outrider.streams.untrusted_json import Members, refuse_long, undecodable, uuid_in

_ID = re.compile(rb'\{"event_id":"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})","topic":')
_BIG, _SAFE = 2**63, 2**53


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """The new state of one aggregate."""

    event_id: UUID
    topic: str
    aggregate_kind: str | None
    aggregate_id: str | None
    entity_version: int | None
    payload: Any
    stream_id: str
    committed_at: datetime


class ReplicaCodec:
    """The bytes of `JSON.stringify` for `{event_id, topic, aggregate_kind, …, stream_id, committed_at}`.

    The trace context, with the telemetry of `publish`, becomes the payload's `_telemetry`, where `{...payload, _telemetry}`
    puts it. A payload that is no object stays as it is. Numbers of the payload are doubles.
    """

    content_type = "application/json"

    def encode(self, envelope: Envelope, position: str) -> bytes:
        payload = stringify(envelope.payload_json)
        if envelope.trace_context is not None and payload[0] == "{":
            payload = _with_telemetry(payload, envelope.trace_context)
        kind, key, at = envelope.aggregate_kind, envelope.key, envelope.occurred_at
        return (
            f'{{"event_id":"{envelope.id}","topic":{string(envelope.event_type)},'
            f'"aggregate_kind":{"null" if kind is None else string(kind)},'
            f'"aggregate_id":{"null" if key is None else string(key)},'
            f'"entity_version":{_version(envelope.entity_version)},"payload":{payload},'
            f'"stream_id":{string(position)},"committed_at":{"null" if at is None else _iso(at)}}}'
        ).encode()

    def decode(self, data: bytes) -> NoReturn:  # noqa: ARG002
        raise TypeError(
            "the replica codec leaves out fields that an event has: read the stream with app.replica, "
            "or let the relay use the envelope codec"
        )

    def id_of(self, data: bytes) -> UUID | None:
        if found := _ID.match(data):
            return UUID(found.group(1).decode())
        try:
            members = from_json(data)
        except ValueError:
            return None
        return uuid_in(members.get("event_id")) if isinstance(members, dict) else None


def read_change(data: bytes, payload_limit: int) -> ReplicaChange:
    """Decodes an entry of the replica codec. Raises Undecodable."""
    members = Members(data, "payload")
    payload = members.json("payload")
    if payload is None:
        raise undecodable("payload is missing")
    refuse_long(payload, payload_limit)
    committed_at = members.instant("committed_at")
    if committed_at is None:
        raise undecodable("committed_at is missing")
    return ReplicaChange(
        event_id=members.uuid("event_id"),
        topic=members.required("topic", names.TYPE_BYTES),
        aggregate_kind=members.text("aggregate_kind", names.TYPE_BYTES),
        aggregate_id=members.text("aggregate_id", names.KEY_BYTES),
        entity_version=members.integer("entity_version", -_BIG, _BIG - 1),
        payload=members.value("payload"),
        stream_id=_stream_id(members),
        committed_at=committed_at,
    )


def _with_telemetry(payload: str, trace: dict[str, str]) -> str:
    if '"_telemetry":' in payload:  # perhaps a member of that name: JavaScript replaces it in place
        return dumps({**parse(payload), "_telemetry": trace})
    return f'{payload[:-1]}{"," if len(payload) > 2 else ""}"_telemetry":{dumps(trace)}}}'


def _version(version: int | None) -> str:
    if version is None:
        return "null"
    text = str(version)
    if not -_SAFE <= version <= _SAFE and number(version) != text:
        raise Undecodable(f"entity_version {text} is not exact in JavaScript: it would become {number(version)}")
    return text


def _iso(at: datetime) -> str:
    """As `toISOString`, which truncates to milliseconds."""
    if at.tzinfo is None:
        raise ValueError(f"occurred_at is the naive datetime {at.isoformat()}: it needs a time zone")
    return f'"{at.astimezone(UTC).isoformat(timespec="milliseconds")[:23]}Z"'


def _stream_id(members: Members) -> str:
    found: object = members.value("stream_id")
    if not isinstance(found, str):
        raise undecodable(f"stream_id: {found!r:.60} is {type(found).__name__}, not str")
    return found
