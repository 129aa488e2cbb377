"""JSON with exactly the characters of JavaScript's `JSON.stringify`, for readers that compare or hash them.

Numbers are doubles, keys that are array indices come first, lone surrogates are escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from outrider.errors import Undecodable

# Numbers that every writer writes alike: at most 15 digits, nothing to round, no exponent, no zero at the end.
_NUMBER = r"(?:0|-?[1-9]\d{0,14}|-?[1-9]\d{0,5}\.\d{0,8}[1-9]|-?0\.(?!00000)\d{0,13}[1-9])(?=[\s,\]}]|\Z)"
_STRING = r'"(?!\d+"\s*:)[^"\\\ud800-\udfff]*+(?:\\[^u][^"\\\ud800-\udfff]*+)*+"'
# Token by token, in C. Searching for the special cases instead takes five times as long.
_PLAIN = re.compile(rf"(?:[{{}}\[\],:\s]*+(?:{_STRING}|true|false|null|{_NUMBER}))*+[{{}}\[\]\s]*+\Z", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_INDEX = re.compile(r"(?:0|[1-9]\d{0,9})\Z", re.ASCII)
_LAST_INDEX = 2**32 - 2


def stringify(text: str) -> str:
    """As `JSON.stringify(JSON.parse(text))`. ValueError: not JSON, or nested too deeply."""
    if _PLAIN.match(text):
        try:
            return to_json(from_json(text, allow_inf_nan=False)).decode()
        except ValueError:
            pass  # no JSON, or nested deeper than pydantic reads: `parse` decides
    return dumps(parse(text))


def parse(text: str) -> Any:
    """As `JSON.parse`: every number is a double. ValueError: not JSON, or nested too deeply."""
    try:
        return _parse(text)
    except RecursionError:
        raise Undecodable("is nested too deeply to be read") from None


def dumps(value: Any) -> str:
    """As `JSON.stringify`, for dicts, lists, texts, numbers, booleans and None."""
    try:
        return _write(value)
    except RecursionError:
        raise Undecodable("is nested too deeply to be written") from None


def number(value: float) -> str:
    """As JavaScript writes a number: with the fewest digits that tell it from its neighbours."""
    try:
        value = float(value)
    except OverflowError:
        return "null"
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_parse: Callable[[str], Any] = json.JSONDecoder(parse_int=float, parse_float=float, parse_constant=_refuse).decode


def _write(value: Any) -> str:
    if isinstance(value, str):
        return string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{string(key)}:{_write(item)}" for key, item in _in_order(value)]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_write(item) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def string(text: str) -> str:
    """A text in quotes. As in JavaScript, two adjacent halves of a surrogate pair are one character."""
    quoted = encode_basestring(text)
    if quoted.isascii() or not _SURROGATE.search(quoted):
        return quoted
    joined = quoted.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", joined)


def _in_order(members: dict[str, Any]) -> list[tuple[str, Any]]:
    """Array indices first, in ascending order; then the others in their order."""
    indices = [key for key in members if _INDEX.match(key) and int(key) <= _LAST_INDEX]
    if not indices:
        return list(members.items())
    indices.sort(key=int)
    first = set(indices)
    return [(key, members[key]) for key in indices] + [pair for pair in members.items() if pair[0] not in first]
