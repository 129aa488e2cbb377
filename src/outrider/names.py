"""The rules for names, keys, texts and times, and their checks. Each check returns what is wrong, or None."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches

IDENTIFIER_BYTES = 63
TYPE_BYTES = 200
KEY_BYTES = 512
WORKSPACE_BYTES = 255
CONTENT_CLASSES = ("public", "internal", "confidential", "restricted")
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC)
"""A time from EARLIEST to LATEST is a datetime in every time zone. The constraints of the tables have the same limits."""

_WORD = re.compile(r"[a-z][a-z0-9_]*\Z")
_DOTTED = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\Z")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def channel_of(generation: int, channel_class: str | None = None) -> str:
    """The channel on which events and jobs of a generation notify. In SQL: generation_channel; with a class: publish."""
    if generation == 0 and channel_class is None:
        return "outbox_default"
    return f"outbox_gen_{generation}" + (f"_{channel_class}" if channel_class is not None else "")


def unstorable(text: str) -> str | None:
    """Postgres stores neither NUL nor half of a surrogate pair in text."""
    found = _UNSTORABLE.search(text)
    if found is None:
        return None
    if found.group() == "\x00":
        return f"contains \\u0000 at position {found.start()}, which Postgres cannot store"
    return f"contains the lone surrogate \\u{ord(found.group()):04x} at position {found.start()}, which is not Unicode text"


def wrong_word(name: object) -> str | None:
    """For a schema, a context, a channel class: one lower-case word that is also a safe identifier."""
    if not isinstance(name, str):
        return _not_text(name)
    if not _WORD.match(name):
        return f"{name!r} is not a lower-case word (a letter, then letters, digits or _)"
    return _too_long(name, IDENTIFIER_BYTES)


def wrong_dotted(name: object, limit: int) -> str | None:
    """For an event type or a subscription: lower-case words joined by dots."""
    if not isinstance(name, str):
        return _not_text(name)
    if not _DOTTED.match(name):
        return f"{name!r} is not lower-case words joined by dots, like 'orders.placed'"
    return _too_long(name, limit)


def wrong_text(text: object, limit: int) -> str | None:
    """For a key or another short text from outside: anything storable, not empty, not too long."""
    if not isinstance(text, str):
        return _not_text(text)
    if text.isascii() and 0 < len(text) <= limit and "\x00" not in text:
        return None
    if text == "":
        return "is empty: leave it out instead"
    return unstorable(text) or _too_long(text, limit)


def wrong_time(at: object) -> str | None:
    """For the time of an event or a job: with a time zone, and readable by every session."""
    if not isinstance(at, datetime):
        return f"is {type(at).__name__}, not datetime"
    if at.utcoffset() is None:
        return "is a naive datetime: give it a time zone"
    return None if EARLIEST <= at <= LATEST else f"{at.isoformat()} is not in the years 1 to 9999 in every time zone"


def _not_text(value: object) -> str:
    return f"{value!r:.60} is {type(value).__name__}, not str"


def _too_long(text: str, limit: int) -> str | None:
    size = len(text.encode())
    return f"has {size} bytes, at most {limit} are allowed" if size > limit else None


def unknown_option(whose: str, given: Iterable[str], known: Iterable[str]) -> str | None:
    """Unknown options, with the known ones and the likely one."""
    unknown = sorted(set(given).difference(known))
    if not unknown:
        return None
    there = sorted(known)
    meant = list(dict.fromkeys(like for each in unknown for like in get_close_matches(each, there, 1)))
    asked = f": did you mean {' and '.join(meant)}?" if meant else ""
    return f"{whose} has no option {', '.join(unknown)}; it has {', '.join(there)}{asked}"
