"""Decides whether one set of rules lies within another: kinds, formats, lengths, bounds. In doubt the answer is no."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from outrider.contract.schema_shape import Scalar

_ANY_TEXT = {"binary", "password", "path"}
"""Formats that pydantic reads from every text."""
_WITHIN = {
    "uuid": {f"uuid{version}" for version in range(1, 9)},
    "ipvanyaddress": {"ipv4", "ipv6"},
    "ipvanyinterface": {"ipv4interface", "ipv6interface"},
    "ipvanynetwork": {"ipv4network", "ipv6network"},
    "number": {"integer"},
    "decimal": {"integer", "number"},
}
"""The last two are keys of dicts, which are text on the wire."""
_TEMPORAL = {"date-time", "date", "time", "duration"}
_AT_LEAST = {"minLength", "minItems", "minProperties"}
_AT_MOST = {"maxLength", "maxItems", "maxProperties"}
_DIGITS = {"x-max-digits", "x-decimal-places"}
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")


def narrows(written: Scalar, read: Scalar) -> bool:
    """Whether `read` accepts every value of `written`."""
    return _kind_fits(written, read) and all(_implied(keyword, written, read) for keyword in read.rules)


def takes(read: Scalar, text: str) -> bool:
    """Whether this one value, as JSON text, is accepted."""
    value = json.loads(text)
    match value:
        case None:
            return read.kind == "null"
        case bool():
            return read.kind == "boolean" and not read.rules
        case int() | float():
            return narrows(_exactly(value), read)
        case str() if read.kind == "string":
            return _takes_text(read, value)
        case _:
            return False


def _takes_text(read: Scalar, value: str) -> bool:
    try:
        if read.format == "decimal":
            return narrows(_exactly(Decimal(value)), read)
        if read.format == "integer":
            return narrows(_exactly(int(value)), Scalar("integer", _without(read.rules, "format")))
    except (InvalidOperation, ValueError, OverflowError):
        return False
    return narrows(Scalar("string", {"minLength": len(value), "maxLength": len(value)}), read)


def _exactly(value: float | Decimal) -> Scalar:
    number = _fraction(value)
    kind = "integer" if isinstance(value, int) else "number"
    return Scalar(kind, {"minimum": number, "maximum": number, "multipleOf": number})


def _kind_fits(written: Scalar, read: Scalar) -> bool:
    if written.kind == read.kind:
        return True
    if written.kind == "integer" and read.kind == "number":
        return True
    if read.kind != "string" or written.kind not in ("integer", "number"):
        return False
    if read.format == "decimal":
        return True
    return read.format in _TEMPORAL and read.format == written.format and _same_unit(written, read)


def _same_unit(written: Scalar, read: Scalar) -> bool:
    """A number is read as seconds, unless the reader names another unit."""
    return bool(written.rules.get("x-unit", "seconds") == read.rules.get("x-unit", "seconds"))


def _implied(keyword: str, written: Scalar, read: Scalar) -> bool:
    given, wanted = written.rules, read.rules[keyword]
    if keyword == "format":
        return _format_implied(written, wanted)
    if keyword in _LOWER:
        return _above(_lower(given, written.kind), _lower({keyword: wanted}, written.kind))
    if keyword in _UPPER:
        return _above(_lower(_flipped(given), written.kind), _lower(_flipped({keyword: wanted}), written.kind))
    if keyword in _AT_LEAST:
        return bool(given.get(keyword, 0) >= wanted)
    if keyword in _DIGITS and read.rules.keys() >= _DIGITS:
        return bool(given.get(keyword) == wanted)
    if keyword in _AT_MOST | _DIGITS:
        return keyword in given and bool(given[keyword] <= wanted)
    if keyword == "multipleOf":
        return keyword in given and (_fraction(given[keyword]) / _fraction(wanted)).denominator == 1
    if keyword == "x-unit" and written.kind == "string":
        return True
    if keyword == "x-schemes":
        return keyword in given and set(given[keyword]) <= set(wanted)
    return bool(given.get(keyword) == wanted)


def _format_implied(written: Scalar, wanted: str) -> bool:
    if written.kind != "string":
        return wanted == "decimal" or written.format == wanted
    return wanted in _ANY_TEXT or written.format == wanted or written.format in _WITHIN.get(wanted, ())


def _lower(rules: Mapping[str, Any], kind: str) -> tuple[Fraction, bool] | None:
    """The lower bound, and whether it is exclusive. Bounds of whole numbers are made inclusive."""
    found = [(_fraction(rules[key]), key == "exclusiveMinimum") for key in _LOWER if key in rules]
    if not found:
        return None
    bound, excluded = max(found)
    if kind == "integer":
        return (Fraction(math.floor(bound) + 1 if excluded else math.ceil(bound)), False)
    return bound, excluded


def _above(given: tuple[Fraction, bool] | None, wanted: tuple[Fraction, bool] | None) -> bool:
    return given is not None and wanted is not None and given >= wanted


def _flipped(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Upper bounds as lower ones, of the negated numbers."""
    return {lower: -_fraction(rules[upper]) for lower, upper in zip(_LOWER, _UPPER, strict=True) if upper in rules}


def _fraction(number: float | str | Decimal | Fraction) -> Fraction:
    """The exact decimal value: 0.1 is a tenth, not the nearest float."""
    return Fraction(str(number))


def _without(rules: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {key: value for key, value in rules.items() if key != keyword}
