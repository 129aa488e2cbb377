"""Encodes an event as JSON text that Postgres can store and every reader gets back unchanged.

What Postgres would refuse is refused here, before a statement is sent. The refusal names the field.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from outrider import names
from outrider.errors import PublishRefused
from outrider.event import Declared
from outrider.payload_screen import Doubt, screen_of

DEPTH = 64
INTEGER_BITS = 13_000
DIGITS = 1_900
DEFAULT_LIMIT = 256 * 1024
LONGEST_FLOAT = 64
"""Written in full, a float is at most this many times as long: 1e308 has 5 characters, and 309 digits in full."""

_REPLACED = "\ufffd".encode()
"""What pydantic writes for a lone surrogate in a key of a dict."""
_EXPONENT = re.compile(r"[0-9][eE]")


class Refusal(Exception):
    def __init__(self, rule: str) -> None:
        self.path: list[str] = []
        self.rule = rule


_screens: dict[type[Declared], Doubt] = {}
_PLAIN = frozenset({str, int, float, bool, type(None), UUID, datetime, Decimal})
"""Types of which pydantic decides by the type alone whether it warns."""
_silent: dict[tuple[type, ...], None] = {}
"""A class and the types of the values of its fields, all plain, of which pydantic has written an event without a warning."""
_MOST_SILENT = 10_000


def encode(event: Declared, event_type: str, limit: int = DEFAULT_LIMIT) -> str:
    text = _written(event)
    if text is None:
        text = _checked(event, event_type)
    size, more = len(text), 0
    if limit < size * LONGEST_FLOAT:
        more = in_full(text.decode())
    if size + more > limit:
        raise PublishRefused(
            event_type,
            "payload",
            f"has {size + more:,} bytes{' with its numbers in full' * (more > 0)}, the limit is {limit:,}; "
            "keep large content elsewhere and publish a reference, "
            "or raise payload_limit= (OUTRIDER_PAYLOAD_LIMIT)",
        )
    return text.decode()


def _written(event: Declared) -> bytes | None:
    """The JSON of an event, if its class and the JSON show that it breaks no rule. None if each value must be checked."""
    model = type(event)
    try:
        if (in_doubt := _screens.get(model)) is None:
            in_doubt = _screens[model] = screen_of(model)
        if in_doubt(event):
            return None
        types = (model, *map(type, event.__dict__.values()))
        if types in _silent:
            text = event.__pydantic_serializer__.to_json(event, by_alias=True)
        else:
            text = event.__pydantic_serializer__.to_json(
                event, by_alias=True, warnings="error"
            )  # takes three times as long
            if _PLAIN.issuperset(types[1:]) and len(_silent) < _MOST_SILENT:
                _silent[types] = None
    except Exception:  # the full check meets the same error and explains it
        return None
    if (b"\\" in text and b"\\u0000" in text) or (not text.isascii() and _REPLACED in text) or _has_many_digits(text):
        return None
    return text


def _checked(event: Declared, event_type: str) -> bytes:
    """The JSON of an event, after a check of each of its values."""
    try:
        check(event, DEPTH + 1)
    except Refusal as refusal:
        raise PublishRefused(event_type, _path(refusal.path), refusal.rule) from None
    try:
        text = event.model_dump_json(by_alias=True, warnings="error")
    except (PydanticSerializationError, ValueError) as error:
        raise PublishRefused(event_type, "payload", f"cannot be written as JSON: {_first_line(error)}") from error
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise PublishRefused(event_type, "payload", "contains \\u0000, which Postgres cannot store")
    return text.encode()


def _has_many_digits(text: bytes) -> bool:
    """An integer that is too long has at least 3,914 digits, so it fills one of these windows."""
    return any(text[at : at + DIGITS].isdigit() for at in range(0, len(text), DIGITS)) if len(text) > DIGITS else False


def in_full(text: str) -> int:
    """How many bytes longer this JSON is when Postgres prints it, without exponents: 1e308 has 309 digits."""
    if _EXPONENT.search(text) is None:
        return 0
    more = 0

    def measured(number: str) -> None:
        nonlocal more
        mantissa, _, exponent = number.lower().partition("e")
        if exponent:
            more += max(0, abs(int(exponent)) - len(mantissa))

    json.loads(text, parse_float=measured)
    return more


def check(value: Any, depth: int) -> None:
    """Checks the Python values, before pydantic converts them and hides the problem."""
    match value:
        case None | bool():
            pass
        case str():
            if wrong := names.unstorable(value):
                raise Refusal(wrong)
        case int():
            if value.bit_length() > INTEGER_BITS:
                raise Refusal("is an integer of more than 3,900 digits, which Python refuses to read back")
        case float():
            if not math.isfinite(value):
                raise Refusal(f"is {value}, which JSON cannot express; use null or a string")
        case Decimal():
            if not value.is_finite():
                raise Refusal(f"is Decimal('{value}'), which is not a finite number")
        case datetime():
            offset = value.utcoffset()
            if offset is None:
                raise Refusal(
                    f"is the naive datetime {value.isoformat()}: give it a time zone, e.g. datetime.now(timezone.utc)"
                )
            if offset.seconds % 60 or offset.microseconds:
                raise Refusal(f"is {value.isoformat()}: a UTC offset with seconds would be cut; convert it to UTC")
        case Enum():
            check(value.value, depth)
        case BaseModel():
            fields = type(value).model_fields
            shown = ((k, v) for k, v in value.__dict__.items() if k not in fields or not fields[k].exclude)
            _check_items(shown, depth)
            if value.__pydantic_extra__:
                _check_items(value.__pydantic_extra__.items(), depth)
        case Mapping():
            for key in value:
                try:
                    check(key, depth)
                except Refusal as refusal:
                    raise Refusal(f"has a key that {refusal.rule}") from None
            if _collide(value):
                raise Refusal("has two keys that are the same text in JSON, so one of them would be lost")
            _check_items(value.items(), depth)
        case list() | tuple() | deque():
            _check_items(enumerate(value), depth)
        case AbstractSet():
            _check_items(((repr(item), item) for item in value), depth)
        case Iterator():
            raise Refusal("is an iterator, which can be read only once: use a list")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            _check_items(((f.name, getattr(value, f.name)) for f in dataclasses.fields(value)), depth)


def _collide(mapping: Mapping[Any, Any]) -> bool:
    if all(isinstance(key, str) for key in mapping):
        return False
    try:
        text = to_json(dict.fromkeys(mapping))
    except PydanticSerializationError:
        return False
    written: list[str] = json.loads(text, object_pairs_hook=lambda pairs: [key for key, _ in pairs])
    return len(set(written)) < len(written)


def _check_items(items: Iterable[tuple[object, Any]], depth: int) -> None:
    if depth == 0:
        raise Refusal(f"is nested more than {DEPTH} levels deep")
    for name, item in items:
        try:
            check(item, depth - 1)
        except Refusal as refusal:
            refusal.path.append(f"[{name}]" if isinstance(name, int) else f".{name}")
            raise


def _path(parts: list[str]) -> str:
    text = "".join(reversed(parts)).removeprefix(".")
    return text if len(text) <= 120 else f"{text[:60]}…{text[-40:]}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 and lines[0].endswith("warnings:") else (lines or [type(error).__name__])[0]
