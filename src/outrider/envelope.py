"""`Envelope`: an event as the log holds it, with everything that travels beside the payload."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass
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
"""The most bytes that a payload may have as text, numbers in full. A constraint of the log holds the same number."""

inherited_workspace: ContextVar[str | None] = ContextVar("outrider_workspace", default=None)
"""The workspace of the event whose handler is running: what it publishes is of the same one."""
inherited_cause: ContextVar[UUID | bytes | None] = ContextVar("outrider_cause", default=None)
"""The id of the event or job whose handler is running: jobs that it enqueues say that they came of it."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One event of the log: its payload, and what travels beside it."""

    id: UUID
    event_type: str
    event_version: int
    payload_json: str
    """The payload as JSON text; `payload` decodes it, `decode` turns it into an event. Empty: it is too long to be read."""
    source: str
    target: str | None = None
    """The one context that shall see the event; None = everyone."""
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
    """The inbox that brought the event; None = born here."""
    occurred_at: datetime | None = None
    """Set by the database unless the publisher gave it."""
    seq: int | None = None
    """The number in this log; None before the event has been written."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Envelope:
        """From all its fields at once; the dict becomes its own. A frozen dataclass would assign them one by one."""
        envelope = object.__new__(cls)
        object.__setattr__(envelope, "__dict__", fields)
        return envelope

    @property
    def payload(self) -> Any:
        self.refuse_unreadable()
        return json.loads(self.payload_json)

    def refuse_unreadable(self) -> None:
        """It was stored before the log bounded what it takes (see the SQL function as_text)."""
        if not self.payload_json:
            raise Undecodable(f"{self} is too long to be read: its payload has more than {LONGEST:,} bytes as text")

    def decode(self, model: type[E]) -> E:
        """The event as `model` sees it: fields that it does not know are ignored. Undecodable if it cannot be one.

        An older version is brought up by the upcasters of `model` first; a newer one is read as it is.
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
        """The payload after the upcasters; as it is when it is no object, which the model will say."""
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
                raise Undecodable(f"{failed} returned what is not JSON: {describe(error)}") from error
        return text

    def __str__(self) -> str:
        return f"{self.event_type} version {self.event_version}" + ("" if self.seq is None else f" (number {self.seq})")


def _called(step: Upcaster) -> str:
    return getattr(step, "__qualname__", type(step).__name__).rpartition("<locals>.")[2]
