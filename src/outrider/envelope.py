"""`Envelope`: an event as the log holds it, with everything that travels beside the payload."""

from __future__ import annotations

import json
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from outrider.error_text import describe
from outrider.errors import Undecodable
from outrider.event import Declared, spec_of
from outrider.registry import EventSpec, Upcaster

E = TypeVar("E", bound=Declared)
LONGEST = 128 * 1024 * 1024
"""The largest payload in bytes, as text with numbers written in full. A constraint of the log repeats this number."""

inherited_workspace: ContextVar[str | None] = ContextVar("outrider_workspace", default=None)
"""The workspace of the event whose handler is running. What the handler publishes inherits it."""
inherited_cause: ContextVar[UUID | bytes | None] = ContextVar("outrider_cause", default=None)
"""The id of the event or job whose handler is running. What it enqueues and publishes stores it as its cause."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One event of the log: its payload and its metadata."""

    id: UUID
    event_type: str
    event_version: int
    payload_json: str
    """The payload as JSON text. `payload` parses it, `decode` turns it into an event. Empty if it is too long to read."""
    source: str
    target: str | None = None
    """The only context that sees the event; None = all contexts."""
    content_class: str = "internal"
    channel: str = "outbox_default"
    generation: int = 0
    workspace_id: str | None = None
    aggregate_kind: str | None = None
    key: str | None = None
    """The ordering key (`aggregate_id` in the table); None = no order."""
    entity_version: int | None = None
    idempotency_key: str
    trace_context: dict[str, str] | None = None
    origin: str | None = None
    """The inbox that received the event; None = it was published here."""
    occurred_at: datetime | None = None
    """Set by the database unless the publisher gave it."""
    seq: int | None = None
    """The position in this log; None before the event is written."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Envelope:
        """Made from all its fields, faster than by the constructor. The envelope keeps the dict as its own."""
        envelope = object.__new__(cls)
        object.__setattr__(envelope, "__dict__", fields)
        return envelope

    @property
    def event_id(self) -> UUID:
        return self.id

    @property
    def payload(self) -> Any:
        self.refuse_unreadable()
        return json.loads(self.payload_json)

    def refuse_unreadable(self) -> None:
        """Such a payload was stored before the log had a limit (see the SQL function as_text)."""
        if not self.payload_json:
            raise Undecodable(f"{self} is too long to be read: its payload has more than {LONGEST:,} bytes as text")

    def decode(self, model: type[E]) -> E:
        """The event as `model`; unknown fields are ignored. Raises Undecodable if the payload does not fit.

        The upcasters of `model` convert an older version first. A newer version is read as it is.
        """
        spec = spec_of(model)
        if spec.type != self.event_type:
            raise Undecodable(f"{self} is not a {model.__name__}, which is {spec.type}")
        self.refuse_unreadable()
        text: str | bytes = self.payload_json
        if spec.upcasters and self.event_version < spec.version:
            text = self._upcast(spec, model.__name__)
        try:
            return model.model_validate_json(text, extra="ignore")
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in wrong["loc"])
            raise Undecodable(f"{self} is not a {model.__name__}: {where or 'payload'}: {wrong['msg']}") from error

    def _upcast(self, spec: EventSpec, name: str) -> str | bytes:
        """The payload after the upcasters. One that is not a JSON object stays as it is: the model refuses it."""
        try:
            payload: Any = from_json(self.payload_json)
        except ValueError:
            return self.payload_json
        if not isinstance(payload, dict):
            return self.payload_json
        text: str | bytes = self.payload_json
        for start, step in spec.upcasters.items():
            if start < self.event_version:
                continue
            failed = f"{self} is not a {name}: its upcaster from version {start}, {_called(step)},"
            try:
                payload = step(payload)
            except Exception as error:
                raise Undecodable(f"{failed} raised {describe(error)}") from error
            if not isinstance(payload, dict):
                raise Undecodable(f"{failed} returned {type(payload).__name__}, not a dict")
            try:
                text = to_json(payload)
            except Exception as error:
                raise Undecodable(f"{failed} returned a value that is not JSON: {describe(error)}") from error
        return text

    def __str__(self) -> str:
        return f"{self.event_type} version {self.event_version}" + ("" if self.seq is None else f" (number {self.seq})")


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """One event of a settled batch."""

    envelope: Envelope
    attempt: int
    duration_ms: float
    context: Context | None = field(default=None, repr=False, compare=False)


def _called(step: Upcaster) -> str:
    return getattr(step, "__qualname__", type(step).__name__).rpartition("<locals>.")[2]
