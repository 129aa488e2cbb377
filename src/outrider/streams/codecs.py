"""The codecs that keep the whole event: our own, and CloudEvents.

Each entry is one JSON object. Channel, generation, origin and log position belong to one log only and are left out.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from json.encoder import encode_basestring as quoted
from typing import Any
from urllib.parse import quote, unquote
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_core import from_json, to_json

from outrider import names
from outrider.envelope import Envelope
from outrider.streams.untrusted_json import Members, undecodable, uuid_in

VERSION = 1
_OWN_ID = re.compile(rb'\{"v":1,"id":"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})",')
_CLOUD_ID = re.compile(rb'\{"specversion":"1.0","id":"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})",')
_CLOUD = uuid5(NAMESPACE_URL, "https://cloudevents.io")
_NO_WORD = re.compile("[^a-z0-9]+")
_SMALL, _BIG = 2**31 - 1, 2**63
_OF_ONE_LOG = {"channel": "outbox_default", "generation": 0, "origin": None, "seq": None}


class EnvelopeCodec:
    """Every field of an envelope that has a meaning outside of its log. The text of the payload does not change."""

    content_type = "application/json"

    def encode(self, envelope: Envelope, position: str) -> bytes:  # noqa: ARG002
        event_id = str(envelope.id)
        text = (
            f'{{"v":1,"id":"{event_id}","event_type":{quoted(envelope.event_type)},'
            f'"event_version":{envelope.event_version},"source":{quoted(envelope.source)},'
            f'"content_class":"{envelope.content_class}"'
        )
        if (at := envelope.occurred_at) is not None:
            text += f',"occurred_at":"{_instant(at)}"'
        if envelope.target is not None:
            text += f',"target":{quoted(envelope.target)}'
        if envelope.workspace_id is not None:
            text += f',"workspace_id":{quoted(envelope.workspace_id)}'
        if envelope.aggregate_kind is not None:
            text += f',"aggregate_kind":{quoted(envelope.aggregate_kind)}'
        if envelope.key is not None:
            text += f',"key":{quoted(envelope.key)}'
        if envelope.entity_version is not None:
            text += f',"entity_version":{envelope.entity_version}'
        if envelope.idempotency_key != event_id:
            text += f',"idempotency_key":{quoted(envelope.idempotency_key)}'
        if envelope.trace_context is not None:
            text += f',"trace_context":{to_json(_texts_of(envelope.trace_context)).decode()}'
        return f'{text},"payload":{envelope.payload_json}}}'.encode()

    def decode(self, data: bytes) -> Envelope:
        members = Members(data, "payload")
        if (version := members.value("v")) != VERSION or isinstance(version, bool):
            raise undecodable(f"v is {version!r:.60}, not {VERSION}: another codec or a newer Outrider wrote it")
        for name in ("event_version", "content_class"):
            if name not in members:
                raise undecodable(f"{name} is missing")
        payload = members.json("payload")
        if payload is None:
            raise undecodable("payload is missing")
        return _envelope(
            id=members.uuid("id"),
            event_type=members.required("event_type", names.TYPE_BYTES),
            event_version=members.integer("event_version", 1, _SMALL),
            payload_json=payload,
            source=members.required("source", names.IDENTIFIER_BYTES),
            target=members.text("target", names.IDENTIFIER_BYTES),
            content_class=members.content_class("content_class"),
            workspace_id=members.text("workspace_id", names.WORKSPACE_BYTES),
            aggregate_kind=members.text("aggregate_kind", names.TYPE_BYTES),
            key=members.text("key", names.KEY_BYTES),
            entity_version=members.integer("entity_version", -_BIG, _BIG - 1),
            idempotency_key=members.text("idempotency_key", names.KEY_BYTES),
            trace_context=members.texts("trace_context"),
            occurred_at=members.instant("occurred_at"),
        )

    def id_of(self, data: bytes) -> UUID | None:
        if found := _OWN_ID.match(data):
            return UUID(found.group(1).decode())
        members = _glance(data)
        return uuid_in(members.get("id")) if members.get("v") == VERSION else None


class CloudEventsCodec:
    """CloudEvents 1.0, structured JSON. It also decodes events of other producers.

    Of the trace context it keeps traceparent, tracestate and baggage. A foreign id that is no UUID becomes one, always the
    same; a foreign source becomes an identifier. An event without data gets an empty object as its payload.
    """

    content_type = "application/cloudevents+json"
    traced = ("traceparent", "tracestate", "baggage")

    def encode(self, envelope: Envelope, position: str) -> bytes:  # noqa: ARG002
        event_id = str(envelope.id)
        text = (
            f'{{"specversion":"1.0","id":"{event_id}","source":"/{quote(envelope.source, safe="")}",'
            f'"type":{quoted(envelope.event_type)},"datacontenttype":"application/json",'
            f'"eventversion":{envelope.event_version},"contentclass":"{envelope.content_class}"'
        )
        if (at := envelope.occurred_at) is not None:
            text += f',"time":"{_instant(at)}"'
        if envelope.key is not None:
            text += f',"subject":{quoted(envelope.key)}'
        if envelope.target is not None:
            text += f',"target":{quoted(envelope.target)}'
        if envelope.workspace_id is not None:
            text += f',"workspaceid":{quoted(envelope.workspace_id)}'
        if envelope.aggregate_kind is not None:
            text += f',"aggregatekind":{quoted(envelope.aggregate_kind)}'
        if envelope.entity_version is not None:
            text += f',"entityversion":"{envelope.entity_version}"'  # integers of CloudEvents have 32 bits
        if envelope.idempotency_key != event_id:
            text += f',"idempotencykey":{quoted(envelope.idempotency_key)}'
        if envelope.trace_context is not None:
            trace = _texts_of(envelope.trace_context)
            text += "".join([f',"{name}":{quoted(trace[name])}' for name in self.traced if name in trace])
        return f'{text},"data":{envelope.payload_json}}}'.encode()

    def decode(self, data: bytes) -> Envelope:
        members = Members(data, "data")
        if (version := members.value("specversion")) != "1.0":
            raise undecodable(f"specversion is {version!r:.60}, not '1.0': this is no CloudEvent of a known version")
        if "data_base64" in members:
            raise undecodable("data_base64: the data is binary, and only JSON can be stored")
        source, given_id = _foreign(members, "source"), _foreign(members, "id")
        trace = {name: text for name in self.traced if (text := members.text(name, _SMALL)) is not None}
        return _envelope(
            id=_id_of(source, given_id),
            event_type=members.required("type", names.TYPE_BYTES),
            event_version=members.integer("eventversion", 1, _SMALL) or 1,
            payload_json=members.json("data") or "{}",
            source=_context_of(source),
            target=members.text("target", names.IDENTIFIER_BYTES),
            content_class=members.content_class("contentclass") or "internal",
            workspace_id=members.text("workspaceid", names.WORKSPACE_BYTES),
            aggregate_kind=members.text("aggregatekind", names.TYPE_BYTES),
            key=members.text("subject", names.KEY_BYTES),
            entity_version=_entity_version(members),
            idempotency_key=members.text("idempotencykey", names.KEY_BYTES),
            trace_context=trace or None,
            occurred_at=members.instant("time"),
        )

    def id_of(self, data: bytes) -> UUID | None:
        if found := _CLOUD_ID.match(data):
            return UUID(found.group(1).decode())
        members = _glance(data)
        source, given_id = members.get("source"), members.get("id")
        if members.get("specversion") != "1.0" or not isinstance(source, str) or not isinstance(given_id, str):
            return None
        return _id_of(source, given_id) if source and given_id else None


def _envelope(**fields: Any) -> Envelope:
    if fields["idempotency_key"] is None:
        fields["idempotency_key"] = str(fields["id"])
    return Envelope.of(_OF_ONE_LOG | fields)


def _instant(at: datetime) -> str:
    if at.tzinfo is None:
        raise ValueError(f"occurred_at is the naive datetime {at.isoformat()}: it needs a time zone")
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def _texts_of(trace: object) -> dict[str, str]:
    """Without what is not text: SQL can publish any JSON as a trace context, and such an event must still arrive."""
    if not isinstance(trace, dict):
        return {}
    return {name: text for name, text in trace.items() if isinstance(text, str)}


def _glance(data: bytes) -> dict[str, Any]:
    try:
        found = from_json(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _foreign(members: Members, name: str) -> str:
    text: object = members.value(name)
    if not isinstance(text, str) or text == "":
        raise undecodable(f"{name}: {text!r:.60} is not a text, which CloudEvents requires")
    if wrong := names.unstorable(text):
        raise undecodable(f"{name} {wrong}")
    return text


def _id_of(source: str, given_id: str) -> UUID:
    """Source and id together identify a CloudEvent. If the id is a UUID, it is enough."""
    return uuid_in(given_id) or uuid5(_CLOUD, f"{quoted(source)} {quoted(given_id)}")


def _context_of(source: str) -> str:
    """`/shop` is our context shop. Another URI becomes an identifier, which is cut and gets a hash if it is too long."""
    own = unquote(source[1:])
    if source == f"/{quote(own, safe='')}" and names.wrong_text(own, names.IDENTIFIER_BYTES) is None:
        return own
    word = _NO_WORD.sub("_", source.lower()).strip("_")
    if not word[:1].isalpha():
        word = f"source_{word}".rstrip("_")
    if word == "source" or len(word) > names.IDENTIFIER_BYTES:
        word = f"{word[:50]}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    return word


def _entity_version(members: Members) -> int | None:
    found: object = members.value("entityversion")
    if isinstance(found, str):
        if not re.fullmatch(r"-?\d{1,19}", found, re.ASCII) or not -_BIG <= int(found) < _BIG:
            raise undecodable(f"entityversion: {found!r:.60} is not an integer of 64 bits")
        return int(found)
    return members.integer("entityversion", -_BIG, _BIG - 1)
