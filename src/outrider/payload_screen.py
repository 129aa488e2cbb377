"""A quick test, compiled once per event class: can the values of this event break a rule of `payload.check`?

Most fields cannot, or show it in their JSON text (`\\u0000`, a very long integer), or make pydantic refuse to write them.
The screen does not look at those. It may ask for the full check in vain. It must never pass what the full check refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

Doubt = Callable[[Any], bool]
"""True: the value needs the full check. It may raise, which means the same."""

DEEPEST = 32
"""Levels of nested types that a screen follows; the full check allows 64 levels of values."""
_SHOWN_IN_TEXT = {"none", "bool", "int", "str", "bytes", "uuid", "time", "timedelta"}
_SIMPLE = {str, int, bool, type(None)}
_SAME_SERIALIZER_AS_INNER = {"default", "function-before", "function-after", "function-wrap"}


def screen_of(model: type[BaseModel]) -> Doubt:
    if model.model_dump_json is not BaseModel.model_dump_json:
        return _always
    return _Compiler().doubt(model.__pydantic_core_schema__, DEEPEST) or _never


class _Compiler:
    """From a core schema of pydantic to a test; None: no value of it can break a rule unseen."""

    def __init__(self) -> None:
        self._definitions: dict[str, Mapping[str, Any]] = {}
        self._known: dict[tuple[str, int], Doubt | None] = {}

    def doubt(self, schema: Mapping[str, Any], levels: int) -> Doubt | None:
        kind = schema["type"]
        if "serialization" in schema or levels == 0:
            return _always
        if kind in _SHOWN_IN_TEXT:
            return None
        if kind in _SAME_SERIALIZER_AS_INNER:
            return self.doubt(schema["schema"], levels)
        match kind:
            case "float":
                return _not_finite
            case "decimal":
                return _not_a_finite_decimal
            case "datetime":
                return _not_in_a_time_zone
            case "date":
                return _not_a_date
            case "enum":
                return None if all(type(member.value) in _SIMPLE for member in schema["members"]) else _always
            case "literal":
                return _not_simple
            case "nullable":
                return _unless_none(self.doubt(schema["schema"], levels))
            case "list" | "set" | "frozenset" if "items_schema" in schema:
                return _of_any(self.doubt(schema["items_schema"], levels - 1))
            case "tuple":
                return self._of_choices(schema["items_schema"], levels - 1)
            case "union":
                choices = [each[0] if isinstance(each, tuple) else each for each in schema["choices"]]
                return self._of_choices(choices, levels)
            case "dict" if schema.get("keys_schema", {}).get("type") == "str" and "values_schema" in schema:
                values = self.doubt(schema["values_schema"], levels - 1)
                return None if values is None else lambda value: any(map(values, value.values()))
            case "definitions":
                self._definitions |= {each["ref"]: each for each in schema["definitions"]}
                return self.doubt(schema["schema"], levels)
            case "definition-ref":
                return self._of_definition(schema["schema_ref"], levels - 1)
            case "model" if schema["schema"]["type"] == "model-fields":
                return self._of_model(schema["cls"], schema["schema"]["fields"], levels - 1)
        return _always

    def _of_definition(self, ref: str, levels: int) -> Doubt | None:
        """Types that contain themselves, or are used in many places, are compiled once per level."""
        if (ref, levels) not in self._known:
            self._known[ref, levels] = self.doubt(self._definitions[ref], levels)
        return self._known[ref, levels]

    def _of_choices(self, schemas: list[Mapping[str, Any]], levels: int) -> Doubt | None:
        return None if all(self.doubt(each, levels) is None for each in schemas) else _always

    def _of_model(self, model: type[BaseModel], fields: Mapping[str, Mapping[str, Any]], levels: int) -> Doubt:
        if any("serialization_exclude_if" in field for field in fields.values()):
            return _always
        doubts = {
            name: doubt
            for name, field in fields.items()
            if not field.get("serialization_exclude") and (doubt := self.doubt(field["schema"], levels))
        }

        def in_doubt(value: Any) -> bool:
            """A subclass has fields that pydantic does not write here, and a cached property is no field at all."""
            values = value.__dict__
            if type(value) is not model or len(values) != len(fields) or value.__pydantic_extra__:
                return True
            return bool(doubts) and any(doubt(values[name]) for name, doubt in doubts.items())

        return in_doubt


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


def _not_finite(value: float) -> bool:
    return not math.isfinite(value)


def _not_a_finite_decimal(value: Decimal) -> bool:
    return not value.is_finite()


def _not_in_a_time_zone(value: datetime) -> bool:
    offset = value.utcoffset()
    return offset is None or bool(offset.seconds % 60 or offset.microseconds)


def _not_a_date(value: date) -> bool:
    return type(value) is not date


def _not_simple(value: object) -> bool:
    """pydantic writes any value of a Literal without a warning."""
    return type(value) not in _SIMPLE


def _unless_none(doubt: Doubt | None) -> Doubt | None:
    return None if doubt is None else lambda value: value is not None and doubt(value)


def _of_any(doubt: Doubt | None) -> Doubt | None:
    return None if doubt is None else lambda value: any(map(doubt, value))
