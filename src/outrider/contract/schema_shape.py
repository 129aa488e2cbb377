"""Shapes: what a JSON Schema allows, as values to compare, without its titles, descriptions, examples and defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from outrider.contract.schema import ABSENT, NAMES, SERIALIZER

Rules: TypeAlias = Mapping[str, Any]
"""The keywords that narrow a shape further: format, bounds, lengths; also those that we do not know."""

_ANNOTATIONS = {
    "$anchor", "$comment", "$defs", "$id", "$schema", "default", "deprecated", "description", "discriminator", "examples",
    "readOnly", "title", "writeOnly", "x-outrider", NAMES,
}  # fmt: skip

_KINDS = ("string", "integer", "number", "boolean", "null")


@dataclass(frozen=True, eq=False)
class AnyShape:
    rules: Rules = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scalar:
    kind: str
    """string, integer, number, boolean or null."""
    rules: Rules = field(default_factory=dict)

    @property
    def format(self) -> str | None:
        return self.rules.get("format")


@dataclass(frozen=True, eq=False)
class Values:
    """One of these, each as JSON text: so 1, 1.0, true and "1" are four values."""

    texts: tuple[str, ...]
    rules: Rules = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Array:
    prefix: tuple[Shape, ...]
    items: Shape
    """The items after the prefix."""
    rules: Rules

    @property
    def least(self) -> int:
        return int(self.rules.get("minItems", 0))

    @property
    def most(self) -> int | None:
        return self.rules.get("maxItems")


@dataclass(frozen=True, eq=False)
class Field:
    shape: Shape
    required: bool
    """Every event has it."""
    absent: bool
    """The class omits it from some events, with or without a default."""
    places: tuple[tuple[str | int, ...], ...]
    """Where a reader looks for it, first to last."""
    default: str | None
    """As JSON text."""
    description: str | None


@dataclass(frozen=True, eq=False)
class Object:
    name: str | None
    fields: Mapping[str, Field]
    others: Shape | None
    """The shape of additional fields; None = there are none."""
    keys: Shape | None
    """The shape of the names of additional fields; None = any name."""
    rules: Rules
    source: dict[str, Any]
    """Where it was read from."""

    @property
    def is_map(self) -> bool:
        return not self.fields and self.others is not None


@dataclass(frozen=True, eq=False)
class Union:
    options: tuple[Shape, ...]
    tag: str | None
    """The field that tells its options apart."""
    rules: Rules = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Ref:
    name: str
    document: Document


Shape: TypeAlias = AnyShape | Scalar | Values | Array | Object | Union | Ref
Opened: TypeAlias = AnyShape | Scalar | Values | Array | Object | Union


class Document:
    """A schema with its definitions. Each definition is read once, so even recursive shapes can be compared by identity."""

    def __init__(self, schema: Mapping[str, Any], name: str | None = None) -> None:
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._copying: set[str] = set()
        self._read = {key: self._parse(each, key) for key, each in self._definitions.items()}
        self.shape = opened(self._parse(schema, name))

    def definition(self, name: str) -> Shape:
        return self._read[name]

    def _parse(self, schema: Any, name: str | None = None) -> Shape:
        if schema is True or schema == {}:
            return AnyShape()
        if schema is False:
            return Values(())
        if not isinstance(schema, dict):
            raise ValueError(f"{schema!r:.60} is no JSON Schema")
        rules = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        if "$ref" in rules:
            return self._refer(rules.pop("$ref"), rules)
        if len(rules.get("allOf", ())) == 1:
            [only] = rules.pop("allOf")
            return self._parse({**only, **rules}, name)
        marks = {key: value for key, value in rules.items() if key == SERIALIZER}
        if "const" in rules:
            return Values((_json(rules["const"]),), marks)
        if "enum" in rules:
            return Values(tuple(dict.fromkeys(map(_json, rules["enum"]))), marks)
        for several in ("anyOf", "oneOf"):
            if several in rules:
                return self._union(rules[several], schema.get("discriminator"), marks)
        kind = rules.pop("type", "object" if "properties" in rules else None)
        if isinstance(kind, list):
            return self._union([{**rules, "type": each} for each in kind], None, marks)
        if kind == "array":
            items = self._parse(rules.pop("items", True))
            return Array(tuple(map(self._parse, rules.pop("prefixItems", ()))), items, rules)
        if kind == "object":
            return self._object(rules, name, schema)
        if kind is not None and kind not in _KINDS:
            raise ValueError(f"{kind!r:.60} is no type")
        return AnyShape(rules) if kind is None else Scalar(kind, rules)

    def _refer(self, ref: str, beside: dict[str, Any]) -> Shape:
        name = ref.removeprefix("#/$defs/")
        if name not in self._definitions:
            raise ValueError(f"it refers to {name!r}, which it does not define")
        if not beside or name in self._copying:
            return Ref(name, self)
        self._copying.add(name)
        copy = self._parse({**self._definitions[name], **beside}, name)
        self._copying.remove(name)
        return copy

    def _union(self, options: list[Any], discriminator: Any, marks: Rules) -> Shape:
        read: list[Shape] = []
        for option in map(self._parse, options):
            read += (
                option.options if isinstance(option, Union) and option.tag is None and not option.rules else (option,)
            )
        tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        return read[0] if len(read) == 1 and not marks else Union(tuple(read), tag, marks)

    def _object(self, rules: dict[str, Any], name: str | None, source: dict[str, Any]) -> Object:
        required, absent = set(rules.pop("required", ())), set(rules.pop(ABSENT, ()))
        fields = {
            key: self._field(key, each, key in required, key in absent)
            for key, each in rules.pop("properties", {}).items()
        }
        others, keys = rules.pop("additionalProperties", False), rules.pop("propertyNames", None)
        return Object(
            name,
            fields,
            None if others is False else self._parse(others),
            None if keys is None else self._parse(keys if "$ref" in keys else {"type": "string", **keys}),
            rules,
            source,
        )

    def _field(self, name: str, schema: Any, required: bool, absent: bool) -> Field:
        said = schema if isinstance(schema, dict) else {}
        places = tuple(tuple(place) for place in said.get(NAMES, [[name]]))
        default = _json(said["default"]) if "default" in said else None
        return Field(self._parse(schema), required, absent, places, default, said.get("description"))


def opened(shape: Shape) -> Opened:
    """The shape itself, behind however many references."""
    for _ in range(1000):
        if not isinstance(shape, Ref):
            return shape
        shape = shape.document.definition(shape.name)
    raise ValueError("it refers to itself and to nothing else")


def options(shape: Shape) -> Iterator[Shape]:
    """Of a union, also of those inside it; else the shape alone."""
    inside = opened(shape)
    if not isinstance(inside, Union):
        yield shape
        return
    for option in inside.options:
        yield from options(option)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
