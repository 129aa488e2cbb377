"""`Contract`: the JSON Schema of one version of an event, with what is declared beside the fields under `x-outrider`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from outrider import names
from outrider.contract.schema import schema_of
from outrider.contract.schema_shape import Document, Object
from outrider.event import Event, spec_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
META = "x-outrider"


@dataclass(frozen=True)
class Contract:
    """What a snapshot holds: the shape on the wire of one version of an event."""

    schema: Mapping[str, Any]

    @classmethod
    def of(cls, model: type[Event], producer: str) -> Contract:
        """Of an owned event: what it looks like when it is published by the context `producer`."""
        spec = spec_of(model)
        end = spec.deprecated_after
        meta = {
            "type": spec.type,
            "version": spec.version,
            "key": _wire_name(model, spec.key),
            "producer": producer,
            "deprecated_after": None if end is None else end.isoformat(),
        }
        return cls({"$schema": DRAFT, **schema_of(model, "serialization"), META: meta})

    @classmethod
    def read(cls, text: str) -> Contract:
        """From the text of a snapshot; ValueError says what is wrong with it."""
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise ValueError(f"it is not JSON ({error})") from None
        meta = schema.get(META) if isinstance(schema, dict) else None
        if not isinstance(meta, dict):
            raise ValueError(f"it has no {META} object, so it is no snapshot of an event")
        if names.wrong_dotted(meta.get("type"), names.TYPE_BYTES) or not _is_number(meta.get("version")):
            raise ValueError(f"its {META} names no type and version")
        contract = cls(schema)
        try:
            contract.object, contract.deprecated_after  # noqa: B018 (what cannot be read shows here)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no JSON Schema of an event: {error}") from None
        return contract

    @property
    def type(self) -> str:
        return str(self.schema[META]["type"])

    @property
    def version(self) -> int:
        return int(self.schema[META]["version"])

    @property
    def key(self) -> str | None:
        """The ordering key, by its name on the wire."""
        return _text(self.schema[META].get("key"))

    @property
    def producer(self) -> str | None:
        return _text(self.schema[META].get("producer"))

    @property
    def deprecated_after(self) -> date | None:
        end = self.schema[META].get("deprecated_after")
        return None if end is None else date.fromisoformat(end)

    @property
    def description(self) -> str | None:
        return object_schema(self.schema).get("description")

    @cached_property
    def object(self) -> Object:
        return root(self.schema)

    @property
    def text(self) -> str:
        """Stable: the same contract is the same text, however its fields are ordered."""
        return json.dumps(_ordered(self.schema), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def __str__(self) -> str:
        return f"{self.type} version {self.version}"


def reading(model: type[Event]) -> dict[str, Any]:
    """The JSON Schema of what an event class reads: every payload that fits it can be decoded."""
    return schema_of(model, "validation")


def root(schema: Mapping[str, Any]) -> Object:
    shape = Document(schema, "the event").shape
    if not isinstance(shape, Object):
        raise ValueError("an event is an object with fields")
    return shape


def object_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the event itself: a recursive one stands among the definitions."""
    ref = schema.get("$ref")
    found = schema if ref is None else schema.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
    return found if isinstance(found, dict) else {}


def _wire_name(model: type[Event], field: str | None) -> str | None:
    return None if field is None else model.model_fields[field].serialization_alias or field


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: sorted(each) if _is_required(key, each) else _ordered(each) for key, each in value.items()}
    return [_ordered(each) for each in value] if isinstance(value, list) else value


def _is_required(key: str, value: Any) -> bool:
    """A field may be called "required" too; then its value is no list of names."""
    return key == "required" and isinstance(value, list) and all(isinstance(name, str) for name in value)
