"""What pydantic's schema does not say about fields: under which names a reader looks for them, and which may be absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = dict[str, Any]
NAMES = "x-names"
"""In the schema of a reader: the paths at which it looks for a field, unless that is only the field's name."""
ABSENT = "x-may-be-absent"
"""Beside `required`: the fields that the current class omits from some events."""


def say_names(made: Schema, schema: Any, config: Mapping[str, Any]) -> None:
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    by_alias = config.get("validate_by_alias", True)
    for name, field in _fields(schema):
        alias = field.get("validation_alias")
        if alias is None:
            continue
        paths = _paths(alias) if by_alias else []
        shown = next((path[0] for path in _paths(alias) if len(path) == 1), name)
        if by_name or not by_alias:
            paths.append([name])
        if shown in made.get("properties", {}):
            made["properties"][shown] = made["properties"][shown] | {NAMES: paths}


def say_absent(made: Schema, schema: Any) -> None:
    found = {
        field.get("serialization_alias") or field.get("alias") or name
        for name, field in _fields(schema)
        if may_be_absent(field, schema.get("total", True))
    } & made.get("properties", {}).keys()
    if found:
        made[ABSENT] = sorted(found)
        made["required"] = [name for name in made.get("required", ()) if name not in found]
        if not made["required"]:
            del made["required"]


def may_be_absent(field: Any, total: bool) -> bool:
    if field["type"] == "typed-dict-field" and not field.get("required", total):
        return True
    return field.get("serialization_exclude_if") is not None or _may_be_missing(field.get("schema", {}))


def _may_be_missing(schema: Any) -> bool:
    """`MISSING` as a value: such a field is not written."""
    match schema.get("type"):
        case "missing-sentinel":
            return True
        case "default" | "nullable":
            return _may_be_missing(schema["schema"])
        case "union":
            return any(_may_be_missing(each[0] if isinstance(each, tuple) else each) for each in schema["choices"])
        case _:
            return False


def _fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Of the core schema of a model, a dataclass or a typed dict; computed ones too."""
    while schema["type"] not in ("model-fields", "dataclass-args", "typed-dict"):
        if "schema" not in schema:
            return
        schema = schema["schema"]
    if isinstance(schema["fields"], dict):
        yield from schema["fields"].items()
    else:
        yield from ((field["name"], field) for field in schema["fields"])
    yield from ((field["property_name"], field) for field in schema.get("computed_fields", ()))


def _paths(alias: Any) -> list[list[str | int]]:
    """`"a"`, a path `["a", 0]` or several paths, as the core schema has them."""
    if isinstance(alias, str):
        return [[alias]]
    if all(isinstance(part, list) for part in alias):
        return [list(path) for path in alias]
    return [list(alias)]
