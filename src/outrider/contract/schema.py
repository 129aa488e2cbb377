"""The JSON Schema of an event, made so that it says what is on the wire and does not change with pydantic's version.

What pydantic leaves out but refuses when reading (bounds of decimals and times, kinds of URL, keys of dicts) is there,
in keywords that other tools ignore.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from outrider.errors import DeclarationError
from outrider.event import Event

Schema = dict[str, Any]
NAMES = "x-names"
"""In the schema of a reader: the places where a field is looked for, each a path; its own name is not repeated."""

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


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
    def decimal_schema(self, schema: Any) -> Schema:
        given = {
            **_bounds(schema),
            "multipleOf": _number(schema.get("multiple_of")),
            "x-max-digits": schema.get("max_digits"),
            "x-decimal-places": schema.get("decimal_places"),
        }
        return {"type": "string", "format": "decimal"} | _given(given)

    def date_schema(self, schema: Any) -> Schema:
        return self._temporal(super().date_schema(schema), "date", schema)

    def time_schema(self, schema: Any) -> Schema:
        return self._temporal(super().time_schema(schema), "time", schema)

    def datetime_schema(self, schema: Any) -> Schema:
        return self._temporal(super().datetime_schema(schema), "date-time", schema)

    def timedelta_schema(self, schema: Any) -> Schema:
        return self._temporal(super().timedelta_schema(schema), "duration", schema)

    def _temporal(self, made: Schema, name: str, schema: Any) -> Schema:
        bounds = {f"x-{keyword}": _text(schema.get(key)) for key, keyword in _BOUNDS.items()}
        zone = schema.get("tz_constraint")
        # A datetime without a time zone cannot be published, so it makes no difference to insist on one.
        given = {**bounds, "x-when": schema.get("now_op"), "x-zone": None if zone == "aware" else _text(zone)}
        return made | {"format": name} | _given(given)

    def str_schema(self, schema: Any) -> Schema:
        made = super().str_schema(schema)
        changed = [name for name in ("strip_whitespace", "to_lower", "to_upper") if schema.get(name)]
        if self.mode == "validation" and changed and made.keys() & {"minLength", "maxLength", "pattern"}:
            made["x-after"] = changed
        return made

    def url_schema(self, schema: Any) -> Schema:
        return _url(super().url_schema(schema), schema)

    def multi_host_url_schema(self, schema: Any) -> Schema:
        return _url(super().multi_host_url_schema(schema), schema)

    def set_schema(self, schema: Any) -> Schema:
        return self._set(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Schema:
        return self._set(super().frozenset_schema(schema))

    def _set(self, made: Schema) -> Schema:
        """A set is written without doubles; it reads them, but they do not count."""
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
        made = self._class(super().model_schema(schema))
        if self.mode == "validation":
            _say_names(made, schema)
        return made

    def dataclass_schema(self, schema: Any) -> Schema:
        return self._class(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> Schema:
        return self._class(super().typed_dict_schema(schema))

    def _class(self, made: Schema) -> Schema:
        """Events are read with extra="ignore", at every level; and a version may grow by optional fields."""
        if self.mode == "validation" or made.get("additionalProperties") is False:
            made.pop("additionalProperties", None)
        return _untitled(made)

    def field_is_required(self, field: Any, total: bool) -> bool:
        """A field with a default is always written today; an event from before it was added lacks it."""
        required = field.get("required", total) if field["type"] == "typed-dict-field" else _no_default(field)
        return required and not (self.mode == "serialization" and field.get("serialization_exclude_if") is not None)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """A default that cannot be written as JSON is left out: it is no part of the shape."""


def _say_names(made: Schema, schema: Any) -> None:
    config, inner = schema["cls"].model_config, schema["schema"]
    while inner["type"] != "model-fields":
        if "schema" not in inner:
            return
        inner = inner["schema"]
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    by_alias = config.get("validate_by_alias", True)
    for name, field in inner["fields"].items():
        alias = field.get("validation_alias")
        if alias is None:
            continue
        paths = _paths(alias) if by_alias else []
        shown = next((path[0] for path in _paths(alias) if len(path) == 1), name)
        if by_name or not by_alias:
            paths.append([name])
        if shown in made["properties"]:
            made["properties"][shown] = made["properties"][shown] | {NAMES: paths}


def _paths(alias: Any) -> list[list[str | int]]:
    """`"a"`, a path `["a", 0]` or several paths, as the core schema has them."""
    if isinstance(alias, str):
        return [[alias]]
    if all(isinstance(part, list) for part in alias):
        return [list(path) for path in alias]
    return [list(alias)]


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


def _number(value: Decimal | float | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if value == int(value) else float(value)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
