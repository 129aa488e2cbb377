"""Reads entries that anybody may have written: a JSON object whose members are checked one by one.

The text of the payload is kept beside its value, so that no digit of it changes.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from outrider import names
from outrider.errors import Undecodable
from outrider.payload import DEPTH, in_full

_OPENING = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_KEY = re.compile(r'(?=")')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*(?=")|(\})[ \t\n\r]*\Z)')
_CLOSING = re.compile(r"\}[ \t\n\r]*\Z")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(?:[Zz]|([+-]\d\d:[0-5]\d))\Z", re.ASCII
)
# A jsonb column returns 1e5000 as 5,001 digits, more than Python reads, and stores no longer fractions.
_MOST_DIGITS, _MOST_DECIMALS = 3_900, 4_000


def undecodable(why: str) -> Undecodable:
    return Undecodable(f"the entry is not an event: {why}")


class Members:
    """The members of one entry. Null counts as missing. `last` is the member that our own codecs write last, the payload."""

    def __init__(self, data: bytes, last: str) -> None:
        try:
            self._text = data.decode()
        except UnicodeDecodeError as error:
            raise undecodable(f"it is not UTF-8 text: {error.reason} at byte {error.start}") from None
        self._values: dict[str, Any] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        try:
            if not self._split(self._text, last):
                self._read(self._text, last)
        except RecursionError:
            raise undecodable(f"it is nested more than {DEPTH} levels deep") from None
        except Undecodable:
            raise
        except ValueError as error:
            raise undecodable(f"it is not JSON: {error}") from None

    def _split(self, text: str, last: str) -> bool:
        """The fast way, with two parses: the members before `last`, and `last`. False if the text does not split like that.

        The text `,"payload":` may also be inside another value. Then the part before it is not a whole object.
        """
        mark = f',"{last}":'
        place = text.find(mark)
        if place < 0 or text[-1] != "}":
            return False
        span = (place + len(mark), len(text) - 1)
        try:
            values = _distinct(text[:place] + "}")
            value = _decode(text[span[0] : span[1]])
        except ValueError:
            return False
        if not isinstance(values, dict) or not values or last in values:
            return False
        self._values, self._spans = values, {last: span}
        values[last] = value
        return True

    def _read(self, text: str, last: str) -> None:
        opening = _OPENING.match(text)
        if opening is None:
            _decode(text)
            raise undecodable("it is not a JSON object")
        place = opening.end()
        if _CLOSING.match(text, place):
            return
        more = _KEY.match(text, place)
        while more is not None:
            name, place = _decode_at(text, more.end())
            if name in self._values:
                raise undecodable(f"it has {name!r:.60} twice")
            colon = _COLON.match(text, place)
            if colon is None:
                break
            start = colon.end()
            self._values[name], place = _decode_at(text, start)
            if name == last:
                self._spans[name] = (start, place)
            more = _NEXT.match(text, place)
            if more is not None and more.group(1):
                return
        _decode(text)
        raise undecodable("it is not JSON")

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        return self._values.get(name)

    def text(self, name: str, limit: int) -> str | None:
        text: object = self._values.get(name)
        if text is None:
            return None
        if isinstance(text, str) and text.isascii() and 0 < len(text) <= limit and "\x00" not in text:
            return text
        if wrong := names.wrong_text(text, limit):
            raise undecodable(f"{name}: {wrong}")
        return str(text)

    def required(self, name: str, limit: int) -> str:
        text = self.text(name, limit)
        if text is None:
            raise undecodable(f"{name} is missing")
        return text

    def integer(self, name: str, least: int, greatest: int) -> int | None:
        number: object = self._values.get(name)
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool):
            raise undecodable(f"{name}: {number!r:.60} is {type(number).__name__}, not an integer")
        if not least <= number <= greatest:
            raise undecodable(f"{name}: {str(number)[:60]} is not between {least} and {greatest}")
        return number

    def content_class(self, name: str) -> str | None:
        """Of the right form. The inbox knows which ones its database allows."""
        found: object = self._values.get(name)
        if found is not None and (wrong := names.wrong_word(found)):
            raise undecodable(f"{name}: {wrong}")
        return found if isinstance(found, str) else None

    def instant(self, name: str) -> datetime | None:
        """A time in RFC 3339, converted to UTC and truncated to microseconds."""
        text = self.text(name, 100)
        if text is None:
            return None
        found = _INSTANT.match(text)
        if found is None:
            raise undecodable(f"{name}: {text!r} is not a time like 2026-01-31T12:00:00.000000Z")
        day, clock, fraction, offset = found.groups()
        try:
            at = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '').ljust(6, '0')}{offset or '+00:00'}")
            at = at.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise undecodable(f"{name}: {text!r}: {error}") from None
        if wrong := names.wrong_time(at):
            raise undecodable(f"{name}: {wrong}")
        return at

    def uuid(self, name: str) -> UUID:
        found = uuid_in(text := self.required(name, 100))
        if found is None:
            raise undecodable(f"{name}: {text!r} is not a UUID")
        return found

    def json(self, name: str) -> str | None:
        """The text of the member `last`, checked so that a jsonb column accepts it; None if it is missing."""
        if name not in self._spans:
            return None
        start, end = self._spans[name]
        text = self._text[start:end].strip()
        if "\\u" in text or text.count("[") + text.count("{") > DEPTH:
            try:
                _check(self._values[name], DEPTH + 1)
            except ValueError as error:
                raise undecodable(f"{name} {error}") from None
        return text

    def texts(self, name: str) -> dict[str, str] | None:
        """An object whose values are all texts."""
        found: object = self._values.get(name)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise undecodable(f"{name}: {found!r:.60} is {type(found).__name__}, not an object")
        for part in (part for pair in found.items() for part in pair):
            if not isinstance(part, str):
                raise undecodable(f"{name} has {part!r:.60}, which is {type(part).__name__}, not str")
            if wrong := names.unstorable(part):
                raise undecodable(f"{name} {wrong}")
        return found


def refuse_long(payload: str, limit: int) -> None:
    """Refuses a payload of more bytes, with its numbers in full."""
    size = len(payload.encode())
    more = in_full(payload) if size <= limit else 0
    if size + more > limit:
        full = " with its numbers in full" * (more > 0)
        raise Undecodable(f"the payload has {size + more:,} bytes{full}, at most {limit:,} are allowed (payload_limit)")


def uuid_in(text: object) -> UUID | None:
    """A UUID in lower case with hyphens; None for any other form."""
    return UUID(text) if isinstance(text, str) and _UUID.match(text) else None


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if wrong := names.unstorable(value):
            raise ValueError(wrong)
        return
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise ValueError(f"is nested more than {DEPTH} levels deep")
    if isinstance(value, dict):
        for key in value:
            if wrong := names.unstorable(key):
                raise ValueError(f"has a key that {wrong}")
        value = value.values()
    for item in value:
        _check(item, depth - 1)


def _fraction(text: str) -> float:
    if len(text) > 300 or "e" in text or "E" in text:
        try:
            number = Decimal(text)
        except ArithmeticError:
            raise undecodable(f"{text[:60]} is a number that Postgres cannot store") from None
        exponent = number.as_tuple().exponent
        if number.adjusted() >= _MOST_DIGITS or (isinstance(exponent, int) and -exponent > _MOST_DECIMALS):
            raise undecodable(f"{text[:60]} is a number that Postgres cannot store or Python cannot read")
    return float(text)


def _refuse(constant: str) -> NoReturn:
    raise undecodable(f"it has {constant}, which JSON cannot express")


_decoder = json.JSONDecoder(parse_float=_fraction, parse_constant=_refuse)
_decode, _decode_at = _decoder.decode, _decoder.raw_decode


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has the same name twice")
    return members


_distinct = json.JSONDecoder(parse_float=_fraction, parse_constant=_refuse, object_pairs_hook=_once).decode
