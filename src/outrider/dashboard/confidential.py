"""Payloads of content classes above a level are shown without their values: the names of the fields stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError
from outrider.names import CONTENT_CLASSES

HIDDEN = "•••"


def check_level(level: str) -> str:
    if level not in CONTENT_CLASSES:
        raise ConfigError(f"no such content class: {level}; there are: {', '.join(CONTENT_CLASSES)}")
    return level


def shown_classes(level: str, added: Mapping[str, int]) -> tuple[str, ...]:
    """`added`: like which of the four each added class is treated."""
    places = {**added, **{name: place for place, name in enumerate(CONTENT_CLASSES)}}
    return tuple(name for name, place in places.items() if place <= CONTENT_CLASSES.index(level))


def is_hidden(content_class: str, level: str, added: Mapping[str, int]) -> bool:
    """A class that is unknown is hidden."""
    return content_class not in shown_classes(level, added)


def without_values(payload: str) -> str:
    try:
        return json.dumps(field_names(json.loads(payload)), indent=4, ensure_ascii=False)
    except (ValueError, RecursionError):
        return HIDDEN


def field_names(value: Any) -> Any:
    """The names of all fields, and of a list the first element."""
    if isinstance(value, dict):
        return {name: field_names(each) for name, each in value.items()}
    if isinstance(value, list):
        return [field_names(each) for each in value[:1]]
    return HIDDEN
