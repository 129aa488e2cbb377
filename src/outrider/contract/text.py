"""Shapes in words, for messages and for the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outrider.contract.schema_shape import AnyShape, Array, Object, Ref, Rules, Scalar, Shape, Union, Values, opened

SHOWN = 12
"""Values of an enum that are shown."""

_KINDS = {"string": "text", "integer": "whole number", "boolean": "true or false"}
_FORMATS = {
    "uuid": "UUID",
    **{f"uuid{version}": f"UUID of version {version}" for version in range(1, 9)},
    "decimal": "decimal",
    "date-time": "date and time",
    "date": "date",
    "time": "time of day",
    "duration": "duration",
    "uri": "URL",
    "email": "e-mail address",
    "binary": "bytes",
}
_RULES = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "x-minimum": "not before {}",
    "x-exclusiveMinimum": "after {}",
    "x-maximum": "not after {}",
    "x-exclusiveMaximum": "before {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minProperties": "at least {}",
    "maxProperties": "at most {}",
    "pattern": "like /{}/",
    "x-max-digits": "at most {} digits",
    "x-decimal-places": "at most {} decimal places",
    "x-when": "in the {}",
    "x-unit": "in {}",
    "x-min-bytes": "at least {} bytes",
    "x-max-bytes": "at most {} bytes",
    "x-ascii": "in ASCII",
}


def words(shape: Shape, within: frozenset[str] = frozenset()) -> str:
    """`within`: the definitions that are being spelled out, since they may contain themselves."""
    name = shape.name if isinstance(shape, Ref) else None
    if name is not None:
        if name in within:
            return name
        within |= {name}
    match inside := opened(shape):
        case AnyShape():
            return _ruled("anything", inside.rules)
        case Scalar():
            return _scalar(inside)
        case Values():
            return _ruled(_values(inside), inside.rules)
        case Array():
            return _array(inside, within)
        case Object():
            return _object(inside, name, within)
        case Union():
            said = " or ".join(dict.fromkeys(words(option, within) for option in inside.options))
            return _ruled(said, inside.rules)


def _scalar(scalar: Scalar) -> str:
    form = scalar.format
    kind = _KINDS.get(scalar.kind, scalar.kind)
    if form is not None:
        kind = _FORMATS.get(form, f"{kind} ({form})") if scalar.kind == "string" else f"{kind} ({form})"
    return _ruled(kind, {key: value for key, value in scalar.rules.items() if key != "format"})


def _values(values: Values) -> str:
    shown = ", ".join(sorted(values.texts)[:SHOWN])
    if len(values.texts) > SHOWN:
        shown += f" and {len(values.texts) - SHOWN} more"
    return shown if len(values.texts) == 1 else f"one of {shown}" if values.texts else "nothing"


def _array(array: Array, within: frozenset[str]) -> str:
    rules = dict(array.rules)
    if array.prefix:
        parts = [words(each, within) for each in array.prefix]
        if rules.get("maxItems") != len(parts):
            parts.append(f"then {words(array.items, within)}")
        if rules.get("minItems") == rules.get("maxItems") == len(array.prefix):
            del rules["minItems"], rules["maxItems"]
        return _ruled(f"[{', '.join(parts)}]", rules)
    kind = "set" if rules.pop("uniqueItems", False) else "list"
    return _ruled(f"{kind} of {_held(array.items, within)}", rules)


def _object(shape: Object, name: str | None, within: frozenset[str]) -> str:
    if not shape.is_map:
        return _ruled(name or shape.name or "object", shape.rules)
    assert shape.others is not None
    held = _held(shape.others, within)
    kind = f"map of {held}" if shape.keys is None else f"map from {_held(shape.keys, within)} to {held}"
    return _ruled(kind, shape.rules)


def _held(shape: Shape, within: frozenset[str]) -> str:
    text = words(shape, within)
    return f"({text})" if " or " in text or ", " in text else text


def _ruled(kind: str, rules: Rules) -> str:
    return ", ".join([kind, *(_rule(key, value) for key, value in sorted(rules.items()))])


def _rule(keyword: str, value: Any) -> str:
    if isinstance(value, list):
        value = " or ".join(map(str, value))
    elif isinstance(value, Mapping):
        value = json.dumps(value, sort_keys=True)
    if keyword.startswith("min") and value == 1 and keyword != "minimum":
        return "not empty"
    form = _RULES.get(keyword)
    return form.format(value) if form is not None else f"{keyword.removeprefix('x-')} {value}"
