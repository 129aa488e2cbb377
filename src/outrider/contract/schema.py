"""The JSON Schema of an event as it is on the wire. It does not change with pydantic's version.

Extra keywords, which other tools ignore, hold what pydantic's own schema leaves out: bounds of decimals and times, URL
schemes, keys of dicts, units of times, encodings of bytes, the names under which a field is read, fields that may be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from outrider.errors import DeclarationError
from outrider.event import Event

SERIALIZER = "x-serializer"
"""Marks a value that a function without a return annotation writes: its shape on the wire is unknown."""

_BYTES = {"utf8": "binary", "base64": "base64url", "hex": "hex"}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
Schema = dict[str, Any]
NAMES = "x-names"
"""In the schema of a reader: the paths at which it looks for a field, unless that is only the field's name."""
ABSENT = "x-may-be-absent"
"""Beside `required`: the fields that the current class omits from some events."""


def schema_of(model: type[Event], mode: Literal["serialization", "validation"]) -> Schema:
    """As published (serialization), or as it reads (validation)."""
    try:
        return model.model_json_schema(by_alias=True, mode=mode, schema_generator=_Generator)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        reason = str(error).splitlines()[0]
        raise DeclarationError(
            f"{model.__module__}.{model.__qualname__} has no contract: {reason}. Give the field a type that JSON Schema "
            "can express, or describe it with pydantic.WithJsonSchema"
        ) from error


class _Generator(GenerateJsonSchema):
    @property
    def mode(self) -> Literal["serialization", "validation"]:
        """The mode that was asked for: `json_schema_mode_override` does not change what is on the wire."""
        return self._mode

    def generate_inner(self, schema: Any) -> Schema:
        made = super().generate_inner(schema)
        return made | self._serializer(schema)

    def _serializer(self, schema: Any) -> Schema:
        written = schema.get("serialization", {}) if self.mode == "serialization" else {}
        if written.get("type") not in ("function-plain", "function-wrap") or "return_schema" in written:
            return {}
        ours = str(getattr(written["function"], "__module__", "")).partition(".")[0] in ("pydantic", "pydantic_core")
        return {} if ours else {SERIALIZER: "unknown"}

    def decimal_schema(self, schema: Any) -> Schema:
        given = {
            **_bounds(schema),
            "multipleOf": _number(schema.get("multiple_of")),
            "x-max-digits": schema.get("max_digits"),
            "x-decimal-places": schema.get("decimal_places"),
        }
        return {"type": "string", "format": "decimal"} | _given(given)

    def date_schema(self, schema: Any) -> Schema:
        return self._temporal("date", schema)

    def time_schema(self, schema: Any) -> Schema:
        return self._temporal("time", schema)

    def datetime_schema(self, schema: Any) -> Schema:
        return self._temporal("date-time", schema)

    def timedelta_schema(self, schema: Any) -> Schema:
        return self._temporal("duration", schema)

    def _temporal(self, name: str, schema: Any) -> Schema:
        bounds = {f"x-{keyword}": _text(schema.get(key)) for key, keyword in _BOUNDS.items()}
        zone, unit = schema.get("tz_constraint"), self._unit(name)
        # A datetime without a time zone cannot be published, so it makes no difference to insist on one.
        given = {
            **bounds,
            "x-when": schema.get("now_op"),
            "x-zone": None if zone == "aware" else _text(zone),
            "x-unit": unit,
        }
        kind = "number" if unit is not None and self.mode == "serialization" else "string"
        return {"type": kind, "format": name} | _given(given)

    def _unit(self, name: str) -> str | None:
        """The unit of a time that is written, or read, as a number."""
        unit = None
        if self.mode == "validation":
            unit = self._setting("val_temporal_unit") if name in ("date", "date-time") else None
        elif (unit := self._setting("ser_json_temporal")) is None and name == "duration":
            unit = "seconds" if self._setting("ser_json_timedelta") == "float" else None
        return None if unit in ("infer", "iso8601") else unit

    def _setting(self, name: str) -> str | None:
        """A setting of the `model_config` that applies here."""
        given: Mapping[str, Any] = self._config.config_dict
        return given.get(name)

    def bytes_schema(self, schema: Any) -> Schema:
        """Lengths count bytes, not characters of the text."""
        setting = "ser_json_bytes" if self.mode == "serialization" else "val_json_bytes"
        form = _BYTES[self._setting(setting) or "utf8"]
        lengths = {"x-min-bytes": schema.get("min_length"), "x-max-bytes": schema.get("max_length")}
        return {"type": "string", "format": form} | _given(lengths)

    def str_schema(self, schema: Any) -> Schema:
        made = super().str_schema(schema)
        changed = [name for name in ("strip_whitespace", "to_lower", "to_upper") if schema.get(name)]
        if self.mode == "validation" and changed and made.keys() & {"minLength", "maxLength", "pattern"}:
            made["x-after"] = changed
        return made | _given({"x-ascii": schema.get("ascii_only") or None})

    def url_schema(self, schema: Any) -> Schema:
        return _url(super().url_schema(schema), schema)

    def multi_host_url_schema(self, schema: Any) -> Schema:
        return _url(super().multi_host_url_schema(schema), schema)

    def set_schema(self, schema: Any) -> Schema:
        return self._set(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Schema:
        return self._set(super().frozenset_schema(schema))

    def _set(self, made: Schema) -> Schema:
        """A set is written without duplicates. It accepts them when it is read."""
        if self.mode == "validation" and made.get("minItems", 0) < 2:
            made.pop("uniqueItems", None)
        return made

    def dict_schema(self, schema: Any) -> Schema:
        keys = dict(self.generate_inner(schema["keys_schema"])) if "keys_schema" in schema else {}
        values = self.generate_inner(schema["values_schema"]) if "values_schema" in schema else {}
        made: Schema = {"type": "object", "additionalProperties": values or True}
        if keys.get("type") in ("integer", "number", "boolean"):
            keys |= {"type": "string", "format": keys["type"]}
        if keys and keys != {"type": "string"}:
            made["propertyNames"] = keys
        self.update_with_validations(made, schema, self.ValidationsMapping.object)
        return made

    def enum_schema(self, schema: Any) -> Schema:
        return _untitled(super().enum_schema(schema))

    def model_schema(self, schema: Any) -> Schema:
        return self._class(super().model_schema(schema), schema, schema["cls"].model_config)

    def dataclass_schema(self, schema: Any) -> Schema:
        return self._class(
            super().dataclass_schema(schema), schema, getattr(schema["cls"], "__pydantic_config__", None)
        )

    def typed_dict_schema(self, schema: Any) -> Schema:
        config = getattr(schema.get("cls"), "__pydantic_config__", None)
        return self._class(super().typed_dict_schema(schema), schema, config)

    def _class(self, made: Schema, schema: Any, config: Any) -> Schema:
        """Events are read with extra="ignore", at every level; and a version may grow by optional fields."""
        if self.mode == "validation":
            say_names(made, schema, self._config.config_dict if config is None else config)
        else:
            say_absent(made, schema)
        if self.mode == "validation" or made.get("additionalProperties") is False:
            made.pop("additionalProperties", None)
        return _untitled(made) | self._serializer(schema)

    def field_is_present(self, field: Any) -> bool:
        """An `InitVar` of a dataclass is read, and never written."""
        return super().field_is_present(field) and not (self.mode == "serialization" and field.get("init_only", False))

    def field_is_required(self, field: Any, total: bool) -> bool:
        """A field with a default is always written today; an event from before it was added lacks it."""
        if self.mode == "serialization" and may_be_absent(field, total):
            return False
        return bool(field.get("required", total)) if field["type"] == "typed-dict-field" else _no_default(field)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """A default that cannot be written as JSON is left out: it is no part of the shape."""


def _no_default(field: Any) -> bool:
    return bool(field["schema"]["type"] != "default")


def _untitled(made: Schema) -> Schema:
    made.pop("title", None)
    return made


def _url(made: Schema, schema: Any) -> Schema:
    schemes: Iterable[str] | None = schema.get("allowed_schemes")
    made.pop("minLength", None)  # an empty one is no URL anyway
    return made | ({} if schemes is None else {"x-schemes": sorted(schemes)})


def _bounds(schema: Any) -> Schema:
    return {keyword: _number(schema.get(key)) for key, keyword in _BOUNDS.items()}


def _given(keywords: Schema) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}


def _number(value: Decimal | float | None) -> float | int | str | None:
    """As text where a JSON number, which most tools read as a float, would be another one."""
    if value is None or value == int(value):
        return None if value is None else int(value)
    return float(value) if Decimal(str(float(value))) == Decimal(str(value)) else str(value)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        return f"{str(value.total_seconds()).removesuffix('.0')} s"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


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
